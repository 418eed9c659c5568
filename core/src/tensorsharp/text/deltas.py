"""What a reply is made of, as it comes: content, reasoning and tool calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, TypeAlias

from tensorsharp.text.reading import UnreadableError
from tensorsharp.text.toolcalls import Call


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model says to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of a call: the first one of an index has `id` and `name`, the following ones have more of `arguments`.

    arguments: text that joins to a JSON object.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


Delta: TypeAlias = ContentDelta | ReasoningDelta | ToolCallDelta


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. arguments: a JSON object as text. `id` depends on prompt, index, name and arguments alone."""

    id: str
    name: str
    arguments: str


class Writer:
    """Collects the deltas of one reply.

    White space between a text and markup belongs to the markup: it is held back and left out. Two blocks of content, or of
    reasoning, with something else between them are set apart by an empty line.
    salt: what identifiers depend on beside the call itself. formed: content has a form; before it are line breaks alone.
    """

    def __init__(self, salt: bytes, *, formed: bool = False) -> None:
        self.calls = 0
        self._salt = salt
        self._formed = formed
        self._deltas: list[Delta] = []
        self._kind: Literal["content", "reasoning"] = "content"
        self._given = {"content": False, "reasoning": False}
        self._opens = False
        self._space = ""
        self._silent = True

    @property
    def silent(self) -> bool:
        """Whether nothing but white space was said since the beginning or the last markup."""
        return self._silent

    def content(self, text: str) -> None:
        self._text("content", text)

    def reasoning(self, text: str) -> None:
        self._text("reasoning", text)

    def boundary(self) -> None:
        """Markup stands here."""
        self._space = ""
        self._opens = self._silent = True

    def call_all(self, calls: Sequence[Call]) -> None:
        """Whole calls, all or none: UnreadableError if one has no name, arguments that are no object, or no Unicode text."""
        found = [self._call(self.calls + i, name, arguments) for i, (name, arguments) in enumerate(calls)]
        self.boundary()
        for i, call in enumerate(found, self.calls):
            self._deltas += [ToolCallDelta(i, call.id, call.name), ToolCallDelta(i, arguments=call.arguments)]
        self.calls += len(found)

    def _call(self, index: int, name: Any, arguments: Any) -> ToolCall:
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise UnreadableError
        text = _dump(arguments)
        try:
            data = "\0".join((str(index), name, text)).encode()
        except UnicodeEncodeError as error:
            raise UnreadableError from error
        return ToolCall(f"call_{blake2b(data, key=self._salt, digest_size=12).hexdigest()}", name, text)

    def finish(self) -> None:
        """The reply ends: white space at its end is text."""
        if self._space:
            self._append(self._space)
            self._space = ""

    def drain(self) -> list[Delta]:
        """The deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def _text(self, kind: Literal["content", "reasoning"], text: str) -> None:
        if kind != self._kind:
            self.boundary()
            self._kind = kind
        if self._opens:
            text = text.lstrip("\n" if self._formed and kind == "content" else None)
        if not text:
            return
        if self._opens and self._given[kind]:
            text = f"\n\n{text}"
        self._opens = False
        shown = (self._space + text).rstrip()
        self._space = (self._space + text)[len(shown) :]
        if shown:
            self._given[kind] = True
            self._silent = False
            self._append(shown)

    def _append(self, text: str) -> None:
        self._deltas.append(ContentDelta(text) if self._kind == "content" else ReasoningDelta(text))


def _dump(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can carry
        return json.dumps(value)
    return text
