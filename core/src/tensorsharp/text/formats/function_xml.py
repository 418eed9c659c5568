"""Calls as tags: `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

One line break behind the opening and one before the closing tag of a parameter belong to the markup. The outer tags may be
missing, as some models leave them out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.reading import Source, Steps
from tensorsharp.text.toolcalls import NAME_CHARACTER, Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter

FUNCTION: Final = "<function="
PARAMETER: Final = "<parameter="
END_FUNCTION: Final = "</function>"
END_PARAMETER: Final = "</parameter>"
_KEY: Final = re.compile(r"[^<>\n]")


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    if opener == FUNCTION:
        return [(yield from _function(source, tools))]
    calls: list[Call] = []
    yield from source.space()
    while not calls or (yield from source.starts(FUNCTION)):
        yield from source.expect(FUNCTION)
        calls.append((yield from _function(source, tools)))
        yield from source.space()
    yield from source.close(f"</{opener[1:]}")
    return calls


def _function(source: Source, tools: Tools) -> Steps[Call]:
    name = yield from source.matching(NAME_CHARACTER)
    yield from source.expect(">")
    arguments: dict[str, Any] = {}
    yield from source.space()
    while (yield from source.take(PARAMETER)):
        key = yield from source.matching(_KEY)
        yield from source.expect(">")
        raw = yield from source.until(END_PARAMETER)
        arguments[key] = tools.value(name, key, raw.removeprefix("\n").removesuffix("\n"))
        yield from source.space()
    yield from source.close(END_FUNCTION)
    return name, arguments


def _write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
    def opening(key: str, raw: bool) -> str:
        return f"{writer.literal(PARAMETER)} {key} {writer.literal('>' + chr(10))}"

    def call(tool: Tool) -> str:
        parameters = writer.parameters(tool, opening, f"\n{END_PARAMETER}\n")
        head, end = writer.literal(f"\n{FUNCTION}{tool.name}>\n"), writer.literal(f"{END_FUNCTION}\n</tool_call>")
        return f"{head} {parameters} {end}"

    return writer.choice(tools, call)


_BLOCKS: Final = ("<tool_call>", "<seed:tool_call>")
FUNCTION_XML: Final = CallFormat(
    (*_BLOCKS, FUNCTION),
    (*_BLOCKS, *(f"</{block[1:]}" for block in _BLOCKS), FUNCTION, PARAMETER, END_PARAMETER, END_FUNCTION),
    _read,
    _write,
)
