"""Calls as JSON objects between tags: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from __future__ import annotations

from typing import Any, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.reading import Source, Steps, UnreadableError
from tensorsharp.text.toolcalls import Call, Tools

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


TAGGED_JSON: Final = CallFormat((OPEN,), (OPEN, CLOSE), _read)
