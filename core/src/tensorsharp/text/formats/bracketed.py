"""Calls behind a bracketed marker: `[TOOL_CALLS]name[ARGS]{…}`, for each call again, or `[TOOL_CALLS][{"name": …}, …]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.formats.call_lists import json_list
from tensorsharp.text.formats.tagged_json import call_of
from tensorsharp.text.reading import Source, Steps
from tensorsharp.text.toolcalls import NAME_CHARACTER, Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

OPEN: Final = "[TOOL_CALLS]"
ARGUMENTS: Final = "[ARGS]"
_ID: Final = "[CALL_ID]"


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    yield from source.space()
    if (yield from source.peek()) == "[":
        values = yield from source.json()
        if not values:
            source.fail()
        return [call_of(value) for value in values]
    name = yield from source.matching(NAME_CHARACTER)
    yield from source.space()
    if (yield from source.take(_ID)):
        yield from source.matching(NAME_CHARACTER)
    yield from source.expect(ARGUMENTS)
    return [(name, (yield from source.json()))]


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    return writer.choice(tools, lambda tool: f"{writer.literal(tool.name + ARGUMENTS)} {writer.arguments(tool)}")


BRACKETED: Final = CallFormat((OPEN,), (OPEN, ARGUMENTS, _ID), _read, _write)
BRACKETED_LIST: Final = CallFormat((OPEN,), (OPEN,), _read, json_list, repeats=False)
