"""Which shapes of replies are known, by name, and which one a chat template is made for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tensorsharp.text.channels import CallFormat, Reasoning, ReplyFormat
from tensorsharp.text.formats.tagged_json import TAGGED_JSON

FORMATS: Final[Mapping[str, CallFormat | ReplyFormat]] = MappingProxyType({"tagged_json": TAGGED_JSON})
"""Name of a shape -> how calls stand between the rest of a reply, or how the whole reply is written."""
PLAIN: Final = "plain"

_MARKS: Final = (("<tool_call>", "tagged_json"),)
"""(text in a template, shape that it stands for); the first one counts."""

_REASONING: Final = (Reasoning("<think>", "</think>"),)


def detect_format(template: str) -> str | None:
    """The name of the shape in which a template writes calls; None if it writes none that is known."""
    return next((name for mark, name in _MARKS if mark in template), None)


def detect_reasoning(template: str) -> Reasoning | None:
    """The texts that a template puts around reasoning; None if there are none that are known."""
    return next((found for found in _REASONING if found.close in template), None)
