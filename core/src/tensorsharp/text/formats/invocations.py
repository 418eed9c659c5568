"""Calls as invocations: a block of `<invoke name="f"><parameter name="a">value</parameter></invoke>`.

Families put a prefix before each tag's name, with or without a space behind it, and name the block differently. A parameter's
attribute `string` says whether its value is text (`true`) or JSON; without it the tool's schema decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tensorsharp.text.channels import CallFormat, ReadCalls
from tensorsharp.text.reading import Source, Steps, UnreadableError, parse_json
from tensorsharp.text.toolcalls import Call, Tool, Tools

if TYPE_CHECKING:
    from tensorsharp.text.callgrammar import GrammarWriter, WriteCall

_NAME: Final = re.compile(r'\sname="([^"]+)"')
_STRING: Final = re.compile(r'\sstring="(true|false)"')


def invocations(prefix: str, *blocks: str) -> CallFormat:
    """The format whose tags begin with `prefix`, in a block of one of these names, which have the prefix too."""
    openers = [f"<{prefix}{space}{block}>" for block in blocks for space in (("", " ") if prefix else ("",))]
    tags = [f"<{slash}{prefix}" for slash in ("", "/")]
    write = write_invocations(prefix, f"</{prefix}{blocks[0]}>", strings=prefix != "")
    return CallFormat(tuple(openers), (*openers, *tags), read_invocations(prefix), write, repeats=False)


def read_invocations(prefix: str) -> ReadCalls:
    """A reader of what follows the block's opening tag, up to its end."""

    def read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
        calls: list[Call] = []
        yield from source.space()
        while not calls or (yield from source.starts(f"<{prefix}invoke", f"<{prefix} invoke")):
            calls.append((yield from _invoke(source, tools)))
            yield from source.space()
        yield from source.close(f"</{opener[1:]}")
        return calls

    def _invoke(source: Source, tools: Tools) -> Steps[Call]:
        name = _attribute(_NAME, (yield from _open(source, "invoke")))
        arguments: dict[str, Any] = {}
        yield from source.space()
        while (yield from source.starts(f"<{prefix}parameter", f"<{prefix} parameter")):
            attributes = yield from _open(source, "parameter")
            raw = yield from source.until(f"</{prefix}parameter>", f"</{prefix} parameter>")
            key = _attribute(_NAME, attributes)
            arguments[key] = _value(attributes, raw) if _STRING.search(attributes) else tools.value(name, key, raw)
            yield from source.space()
        yield from source.until(f"</{prefix}invoke>", f"</{prefix} invoke>")
        return name, arguments

    def _open(source: Source, tag: str) -> Steps[str]:
        """Consume an opening tag; its attributes."""
        yield from source.expect(f"<{prefix}")
        yield from source.take(" ")
        yield from source.expect(tag)
        return (yield from source.until(">"))

    return read


def write_invocations(prefix: str, end: str, *, strings: bool) -> WriteCall:
    """The grammar of invocations up to the block's end. strings: whether parameters say if their values are text."""

    def write(writer: GrammarWriter, tools: Sequence[Tool], several: bool) -> str:
        def head(key: str, raw: bool) -> str:
            attribute = f' string="{str(raw).lower()}"' if strings else ""
            return f"{writer.literal(f'<{prefix}parameter name=' + chr(34))} {key} {writer.literal(f'{chr(34)}{attribute}>')}"

        def call(tool: Tool) -> str:
            parameters = writer.parameters(tool, head, f"</{prefix}parameter>\n")
            begin, close = f'<{prefix}invoke name="{tool.name}">\n', f"</{prefix}invoke>\n"
            return f"{writer.literal(begin)} {parameters} {writer.literal(close)}"

        return f"{writer.literal(chr(10))} {writer.choice(tools, call)}{'+' if several else ''} {writer.literal(end)}"

    return write


def _attribute(pattern: re.Pattern[str], attributes: str) -> str:
    found = pattern.search(attributes)
    if found is None:
        raise UnreadableError
    return found[1]


def _value(attributes: str, raw: str) -> Any:
    return raw if _attribute(_STRING, attributes) == "true" else parse_json(raw)


DSML_INVOCATIONS: Final = invocations("｜DSML｜", "tool_calls", "function_calls", "calls")
INVOCATIONS: Final = invocations("", "minimax:tool_call", "function_calls")
