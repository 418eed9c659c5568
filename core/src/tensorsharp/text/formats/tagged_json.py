"""Calls as JSON objects between tags: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Small models leave the tags out at times, or write a block of code instead. What is nothing but a call of a tool that the request
has is one there, too, unless the tool is strict: without tags no grammar has held its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.reading import Source, Steps, UnreadableError
from tensorsharp.text.toolcalls import Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_FENCE: Final = "```"
_BLOCK: Final = f"{_FENCE}json"
_KEYS: Final = ({"name", "arguments"}, {"name", "parameters"})


def call_of(value: Any) -> Call:
    """The call that a JSON object describes. UnreadableError if it is none."""
    function = value.get("function", value) if isinstance(value, dict) else None
    if isinstance(function, str):
        function = {**value, "name": function}
    if not isinstance(function, dict):
        raise UnreadableError
    name, arguments = function.get("name"), function.get("arguments", function.get("parameters", {}))
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise UnreadableError
    return name, arguments


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    if opener != OPEN:
        return (yield from _careless(source, opener, tools))
    value = yield from source.json()
    calls = [call_of(item) for item in value] if isinstance(value, list) and value else [call_of(value)]
    yield from source.close(CLOSE)
    return calls


def _careless(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    calls: list[Call] = []
    yield from source.space()
    while not calls or (yield from source.starts("{")):
        calls.append((yield from _known_call(source, tools)))
        yield from source.space()
    if opener == _BLOCK:
        yield from source.close(_FENCE)
    elif (yield from source.peek()):
        source.fail()
    return calls


def _known_call(source: Source, tools: Tools) -> Steps[Call]:
    """UnreadableError as early as it can be told, because text waits for it."""
    begin = source.place
    for text in ("{", '"name"', ":"):
        yield from source.expect(text)
        yield from source.space()
    names = [json.dumps(tool.name) for tool in tools if not tool.strict]
    if not names or not (yield from source.starts(*names)):
        source.fail()
    source.place = begin
    value = yield from source.json()
    if value.keys() not in _KEYS:
        source.fail()
    return call_of(value)


def json_call(writer: GrammarWriter, tool: Tool, arguments: str = "arguments") -> str:
    """The grammar of the JSON object that describes a call. arguments: the name under which they stand."""
    head = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
    return f"{writer.literal(head)} {writer.arguments(tool)} {writer.literal('}')}"


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    call = writer.choice(tools, lambda tool: json_call(writer, tool))
    return f"{writer.literal(chr(10))} {call} {writer.literal(chr(10) + CLOSE)}"


TAGGED_JSON: Final = CallFormat((OPEN,), (OPEN, CLOSE), _read, _write, careless=(_BLOCK,), bare="{")
