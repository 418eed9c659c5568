"""Calls as pairs: `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>`.

White space may stand between tags. Strings are written as they are, other values as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.formats.tagged_json import CLOSE, OPEN
from tensorsharp.text.reading import Source, Steps
from tensorsharp.text.toolcalls import NAME_CHARACTER, Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

_KEY, _END_KEY = "<arg_key>", "</arg_key>"
_GAP: Final = r'"\n"?'
"""In grammars; families differ in whether tags stand on lines of their own."""
_VALUE, _END_VALUE = "<arg_value>", "</arg_value>"


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    yield from source.space()
    name = yield from source.matching(NAME_CHARACTER)
    arguments: dict[str, Any] = {}
    yield from source.space()
    while (yield from source.take(_KEY)):
        key = (yield from source.until(_END_KEY)).strip()
        yield from source.space()
        yield from source.expect(_VALUE)
        arguments[key] = tools.value(name, key, (yield from source.until(_END_VALUE)))
        yield from source.space()
    # A name alone is a call only with its end: it may be any word.
    if arguments:
        yield from source.close(CLOSE)
    else:
        yield from source.expect(CLOSE)
    return [(name, arguments)]


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    def call(tool: Tool) -> str:
        def head(key: str, raw: bool) -> str:
            return f"{writer.literal(_KEY)} {key} {writer.literal(_END_KEY)} {_GAP} {writer.literal(_VALUE)}"

        pairs = writer.parameters(tool, head, _END_VALUE, _GAP)
        return f"{writer.literal(tool.name)} {_GAP} {pairs} {writer.literal(CLOSE)}"

    return writer.choice(tools, call)


ARGUMENT_PAIRS: Final = CallFormat((OPEN,), (OPEN, CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE), _read, _write)
