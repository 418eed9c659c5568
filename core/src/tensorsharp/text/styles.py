"""Which shapes of replies are known, by name, and which one a chat template is made for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tensorsharp.text.channels import CallFormat, Reasoning, ReplyFormat
from tensorsharp.text.formats.argument_pairs import ARGUMENT_PAIRS
from tensorsharp.text.formats.bare_json import BARE_JSON
from tensorsharp.text.formats.bracketed import BRACKETED, BRACKETED_LIST
from tensorsharp.text.formats.call_lists import CALL_LISTS
from tensorsharp.text.formats.call_literals import CALL_LITERALS
from tensorsharp.text.formats.function_xml import FUNCTION_XML
from tensorsharp.text.formats.invocations import DSML_INVOCATIONS, INVOCATIONS
from tensorsharp.text.formats.messages import CHANNELS, RECIPIENTS
from tensorsharp.text.formats.tagged_json import TAGGED_JSON

FORMATS: Final[Mapping[str, CallFormat | ReplyFormat]] = MappingProxyType(
    {
        "argument_pairs": ARGUMENT_PAIRS,
        "bare_json": BARE_JSON,
        "bracketed": BRACKETED,
        "bracketed_list": BRACKETED_LIST,
        "call_lists": CALL_LISTS,
        "call_literals": CALL_LITERALS,
        "channels": CHANNELS,
        "dsml_invocations": DSML_INVOCATIONS,
        "function_xml": FUNCTION_XML,
        "invocations": INVOCATIONS,
        "recipients": RECIPIENTS,
        "tagged_json": TAGGED_JSON,
    }
)
"""Name of a shape -> how calls stand between the rest of a reply, or how the whole reply is written."""
PLAIN: Final = "plain"

_MARKS: Final = (
    ("<|channel|>", "channels"),
    ("<atem:", "recipients"),
    ("｜DSML｜", "dsml_invocations"),
    ("<|tool_call>call:", "call_literals"),
    ("<arg_key>", "argument_pairs"),
    ("<parameter=", "function_xml"),
    ("<minimax:tool_call>", "invocations"),
    ("[ARGS]", "bracketed"),
    ("[TOOL_CALLS]", "bracketed_list"),
    ("<tool_calls>[", "call_lists"),
    ("<TOOLCALL>[", "call_lists"),
    ("<tool_call>", "tagged_json"),
    ('{"name": function name, "parameters": dictionary', "bare_json"),
)
"""(text in a template, shape that it stands for); the first one counts."""

_REASONING: Final = (
    Reasoning("<think>", "</think>", ("<answer>", "</answer>")),
    Reasoning("<think>", "</think>"),
    Reasoning("[THINK]", "[/THINK]"),
    Reasoning("<|channel>thought", "<channel|>"),
    Reasoning("<seed:think>", "</seed:think>"),
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
    Reasoning("<|begin_of_thought|>", "<|end_of_thought|>"),
)


def detect_format(template: str) -> str | None:
    """The name of the shape in which a template writes calls; None if it writes none that is known."""
    return next((name for mark, name in _MARKS if mark in template), None)


def detect_reasoning(template: str) -> Reasoning | None:
    """The texts that a template puts around reasoning; None if there are none that are known."""
    return next((found for found in _REASONING if all(mark in template for mark in found.needed)), None)


def reasons(template: str) -> bool:
    """Whether replies to a template's prompts may hold reasoning."""
    return detect_reasoning(template) is not None or isinstance(FORMATS.get(detect_format(template) or PLAIN), ReplyFormat)
