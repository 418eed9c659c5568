"""Calls as JSON objects between tags: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

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
    value = yield from source.json()
    calls = [call_of(item) for item in value] if isinstance(value, list) and value else [call_of(value)]
    yield from source.close(CLOSE)
    return calls


def json_call(writer: GrammarWriter, tool: Tool, arguments: str = "arguments") -> str:
    """The grammar of the JSON object that describes a call. arguments: the name under which they stand."""
    head = f'{{"name": {json.dumps(tool.name)}, "{arguments}": '
    return f"{writer.literal(head)} {writer.arguments(tool)} {writer.literal('}')}"


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    call = writer.choice(tools, lambda tool: json_call(writer, tool))
    return f"{writer.literal(chr(10))} {call} {writer.literal(chr(10) + CLOSE)}"


TAGGED_JSON: Final = CallFormat((OPEN,), (OPEN, CLOSE), _read, _write)
