"""Calls as replies that are nothing else: `{"name": …, "parameters": {…}}`, several with `;` between them.

An object that calls none of the request's tools is content, as an answer may be JSON too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tensorsharp.text.channels import ReplyFormat, deliver
from tensorsharp.text.deltas import Writer
from tensorsharp.text.formats.tagged_json import call_of, json_call
from tensorsharp.text.reading import Markers, Source, Steps
from tensorsharp.text.toolcalls import Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

_MARK: Final = "<|python_tag|>"


def _read(source: Source, writer: Writer, tools: Tools, thinking: bool) -> Steps[None]:
    if tools:
        yield from source.attempt(deliver(_calls(source, tools), writer))
    yield from source.text(Markers(), writer.content)


def _calls(source: Source, tools: Tools) -> Steps[list[Call]]:
    calls: list[Call] = []
    yield from source.space()
    yield from source.take(_MARK)
    yield from source.space()
    while not calls or (yield from source.take(";")):
        yield from source.space()
        if not (yield from source.starts("{")):
            source.fail()
        name, arguments = call_of((yield from source.json()))
        if name not in tools.by_name:
            source.fail()
        calls.append((name, arguments))
        yield from source.space()
    if (yield from source.peek()):
        source.fail()
    return calls


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool, free: bool) -> str:
    call = writer.choice(tools, lambda tool: json_call(writer, tool, "parameters"))
    calls = f"{call} ({writer.literal('; ')} {call})*" if several else call
    return rf"/([^\s{{](?s:.*))?/ | {calls}" if free else calls


BARE_JSON: Final = ReplyFormat((_MARK,), _read, _write)
