"""Replies that are messages of their own: a header, `<|message|>`, a body, and an end. Headers say what a body is.

channels (Harmony): `<|channel|>analysis<|message|>…<|end|>`; `to=functions.f` in a header makes its body a call's JSON.
recipients (ATEM): ` to=self<|message|>…<|eom|>`; a body for a tool is a block of invocations.
The prompt ends with the beginning of the first header (`<|start|>assistant`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from tensorsharp.text.channels import Reasoning, ReplyFormat, deliver
from tensorsharp.text.deltas import Writer
from tensorsharp.text.formats.invocations import read_invocations, write_invocations
from tensorsharp.text.reading import Markers, Source, Steps
from tensorsharp.text.toolcalls import Call, Tool, Tools
from tensorsharp.types import Constraint

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

Kind = Literal["reasoning", "content", "call"]

START: Final = "<|start|>"
MESSAGE: Final = "<|message|>"
CHANNEL: Final = "<|channel|>"
_CONSTRAIN: Final = "<|constrain|>"
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_ATEM_BLOCK: Final = "<atem:function_calls>"


@dataclass(frozen=True, slots=True)
class _Shape:
    """ends: what closes a body. begins: what a header may begin with; a reply that begins otherwise is content.

    kind: what a header announces. calls: reads a body that is a call's: (source, header, tools). write: the grammar of a message
    that calls one of the tools. aside: the header of content that may stand before a call. reasoning, answer: see ReplyFormat.
    """

    ends: tuple[str, ...]
    begins: tuple[str, ...]
    kind: Callable[[str], Kind]
    calls: Callable[[Source, str, Tools], Steps[list[Call]]]
    write: Callable[[GrammarWriter, Sequence[Tool]], str]
    aside: str
    reasoning: Reasoning
    answer: str


def messages(shape: _Shape, *markers: str) -> ReplyFormat:
    """The format of replies in a shape. markers: further texts that may be control tokens."""

    def read(source: Source, writer: Writer, tools: Tools, thinking: bool, formed: bool) -> Steps[None]:
        while (yield from source.peek()):
            yield from source.take(START)
            kind = yield from source.attempt(_message(source, writer, tools))
            if kind is not None:
                writer.boundary()
            if formed and kind not in ("call", "reasoning"):
                yield from source.text(Markers(), writer.content)
            elif kind == "call" or (yield from _body(source, writer.reasoning if kind == "reasoning" else writer.content)):
                writer.boundary()

    def _message(source: Source, writer: Writer, tools: Tools) -> Steps[Kind]:
        """A header, and its body if that is a call. UnreadableError if there is no header, or the call cannot be read."""
        yield from source.take("assistant")
        if not (yield from source.starts(*shape.begins)):
            source.fail()
        header: list[str] = []
        found = yield from source.text(Markers(MESSAGE, START, *shape.ends), header.append)
        if found is not None and found != MESSAGE:
            source.fail()
        kind = shape.kind("".join(header))
        if kind == "call" and found is not None:
            if not tools:
                source.fail()
            yield from deliver(_call(source, "".join(header), tools), writer)
        return kind

    def _call(source: Source, header: str, tools: Tools) -> Steps[list[Call]]:
        calls = yield from shape.calls(source, header, tools)
        yield from source.space()
        if (yield from source.peek()) and not (yield from source.starts(START)):
            for end in shape.ends:
                if (yield from source.take(end)):
                    return calls
            source.fail()
        return calls

    def _body(source: Source, write: Callable[[str], None]) -> Steps[bool]:
        """Hand over a body; whether its end stands there."""
        found = yield from source.text(Markers(START, *shape.ends), write)
        if found == START:
            source.place -= len(START)
        return found is not None

    def write(writer: GrammarWriter, tools: Sequence[Tool], several: bool, free: bool, form: Constraint | None = None) -> str:
        call = shape.write(writer, tools)
        if form is not None:
            return f"{writer.literal(shape.answer)} {writer.form(form)} | {call}"
        if not free:
            return call
        spoken = f"{writer.literal(shape.aside)} {writer.until(shape.reasoning.close)}"
        return f"({spoken})* ({writer.literal(shape.answer)} {writer.without(START)} | {call})"

    return ReplyFormat((START, MESSAGE, *shape.ends, *markers), read, write, shape.reasoning, shape.answer)


def _channel_kind(header: str) -> Kind:
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    if recipient is not None and recipient[1] not in ("assistant", "user"):
        return "call"
    return "reasoning" if channel is not None and channel[1] == "analysis" else "content"


def _channel_calls(source: Source, header: str, tools: Tools) -> Steps[list[Call]]:
    found = _RECIPIENT.search(header)
    name = found[1] if found else ""
    if not name.startswith("functions.") and name not in tools.by_name:
        source.fail()
    return [(name.removeprefix("functions."), (yield from source.json()))]


def _write_channel_call(writer: GrammarWriter, tools: Sequence[Tool]) -> str:
    def call(tool: Tool) -> str:
        head = f" to=functions.{tool.name}{CHANNEL}commentary json{MESSAGE}"
        return f"{writer.literal(head)} {writer.arguments(tool)}"

    return writer.choice(tools, call)


def _recipient_kind(header: str) -> Kind:
    found = _RECIPIENT.search(header)
    if found is None or found[1] == "user":
        return "content"
    return "reasoning" if found[1] == "self" else "call"


def _recipient_calls(source: Source, header: str, tools: Tools) -> Steps[list[Call]]:
    yield from source.space()
    yield from source.expect(_ATEM_BLOCK)
    return (yield from read_invocations("atem:")(source, _ATEM_BLOCK, tools))


def _write_recipient_call(writer: GrammarWriter, tools: Sequence[Tool]) -> str:
    write = write_invocations("atem:", f"</{_ATEM_BLOCK[1:]}", strings=False)

    def call(tool: Tool) -> str:
        return f"{writer.literal(f' to={tool.name}{MESSAGE}{_ATEM_BLOCK}')} {write(writer, [tool], False)}"

    return writer.choice(tools, call)


CHANNELS: Final = messages(
    _Shape(
        ends=("<|end|>", "<|call|>", "<|return|>"),
        begins=(CHANNEL, MESSAGE, " to=", "to="),
        kind=_channel_kind,
        calls=_channel_calls,
        write=_write_channel_call,
        aside=f"{CHANNEL}commentary{MESSAGE}",
        reasoning=Reasoning(f"{CHANNEL}analysis{MESSAGE}", f"<|end|>{START}assistant"),
        answer=f"{CHANNEL}final{MESSAGE}",
    ),
    CHANNEL,
    _CONSTRAIN,
)
RECIPIENTS: Final = messages(
    _Shape(
        ends=("<|eom|>", "<|eot|>"),
        begins=(MESSAGE, " to=", "to="),
        kind=_recipient_kind,
        calls=_recipient_calls,
        write=_write_recipient_call,
        aside=f" to=user{MESSAGE}",
        reasoning=Reasoning(f" to=self{MESSAGE}", f"<|eom|>{START}assistant"),
        answer=f" to=user{MESSAGE}",
    )
)
