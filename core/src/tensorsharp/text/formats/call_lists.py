"""Calls as one JSON list between tags: `<tool_calls>[{"name": …, "arguments": {…}}]</tool_calls>`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.formats.tagged_json import call_of, json_call
from tensorsharp.text.reading import Source, Steps
from tensorsharp.text.toolcalls import Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

_CLOSES: Final = {"<tool_calls>": "</tool_calls>", "<TOOLCALL>": "</TOOLCALL>"}


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    values = yield from source.json()
    if not isinstance(values, list) or not values:
        source.fail()
    yield from source.close(_CLOSES[opener])
    return [call_of(value) for value in values]


def json_list(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    """The grammar of a JSON list of calls."""
    call = writer.choice(tools, lambda tool: json_call(writer, tool))
    more = f" ({writer.literal(', ')} {call})*" if several else ""
    return f"{writer.literal('[')} {call}{more} {writer.literal(']')}"


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    return f"{json_list(writer, tools, several)} {writer.literal(next(iter(_CLOSES.values())))}"


CALL_LISTS: Final = CallFormat(tuple(_CLOSES), (*_CLOSES, *_CLOSES.values()), _read, _write, repeats=False)
