"""Calls as one JSON list between tags: `<tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>`."""

from __future__ import annotations

from typing import Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.formats.tagged_json import call_of
from tensorsharp.text.reading import Source, Steps
from tensorsharp.text.toolcalls import Call, Tools

_CLOSES: Final = {"<tool_calls>": "</tool_calls>", "<TOOLCALL>": "</TOOLCALL>"}


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    values = yield from source.json()
    if not isinstance(values, list) or not values:
        source.fail()
    yield from source.close(_CLOSES[opener])
    return [call_of(value) for value in values]


CALL_LISTS: Final = CallFormat(tuple(_CLOSES), (*_CLOSES, *_CLOSES.values()), _read)
