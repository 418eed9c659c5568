"""How a model family writes conversations, as data: what a model plugin may say beside its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """What holds where the file's own chat template says nothing.

    format: name of the shape in which replies hold tool calls (`tensorsharp.text.styles.FORMATS`), or `plain`.
    reasoning: the texts that open and close reasoning, and if there are any those around the answer behind it.
    template: Jinja; used for a file without a template whose vocabulary has each of `tokens` as one token.
    """

    format: str
    reasoning: tuple[str, str] | tuple[str, str, str, str] | None = None
    template: str | None = None
    tokens: tuple[str, ...] = ()


@runtime_checkable
class HasChatStyle(Protocol):
    """A model that says how its family writes conversations. Optional for model plugins."""

    @property
    def chat(self) -> ChatStyle: ...
