"""Calls as literals: `<|tool_call>call:name{key:<|"|>text<|"|>,number:1,list:[…],object:{…}}<tool_call|>`."""

from __future__ import annotations

import re
from typing import Any, Final

from tensorsharp.text.channels import CallFormat
from tensorsharp.text.reading import Source, Steps, UnreadableError, parse_json
from tensorsharp.text.toolcalls import NAME_CHARACTER, Call, Tools

_OPEN: Final = "<|tool_call>"
_CLOSE: Final = "<tool_call|>"
_QUOTE: Final = '<|"|>'
_KEY: Final = re.compile(r"[^:{}\[\],<>\s]")
_SCALAR: Final = re.compile(r"[^,{}\[\]<>]")
_MAX_DEPTH: Final = 64


def _read(source: Source, opener: str, tools: Tools) -> Steps[list[Call]]:
    yield from source.expect("call:")
    name = yield from source.matching(NAME_CHARACTER)
    arguments = yield from _object(source, 0)
    yield from source.close(_CLOSE)
    return [(name, arguments)]


def _value(source: Source, depth: int) -> Steps[Any]:
    if depth > _MAX_DEPTH:
        source.fail()
    yield from source.space()
    if (yield from source.take(_QUOTE)):
        return (yield from source.until(_QUOTE))
    first = yield from source.peek()
    if first == "{":
        return (yield from _object(source, depth))
    if first == "[":
        return (yield from _list(source, depth))
    raw = (yield from source.matching(_SCALAR)).strip()
    if raw == "None":  # templates that print Python's value have taught this to models
        return None
    try:
        return parse_json(raw)
    except UnreadableError:
        return raw


def _object(source: Source, depth: int) -> Steps[dict[str, Any]]:
    made: dict[str, Any] = {}
    yield from source.expect("{")
    while not (yield from _ends(source, "}", bool(made))):
        key = yield from (source.until(_QUOTE) if (yield from source.take(_QUOTE)) else source.matching(_KEY))
        yield from source.space()
        yield from source.expect(":")
        made[key] = yield from _value(source, depth + 1)
    return made


def _list(source: Source, depth: int) -> Steps[list[Any]]:
    made: list[Any] = []
    yield from source.expect("[")
    while not (yield from _ends(source, "]", bool(made))):
        made.append((yield from _value(source, depth + 1)))
    return made


def _ends(source: Source, bracket: str, follows: bool) -> Steps[bool]:
    """Consume the closing bracket, or the comma before the next item."""
    yield from source.space()
    if (yield from source.take(bracket)):
        return True
    if follows:
        yield from source.expect(",")
        yield from source.space()
    return False


CALL_LITERALS: Final = CallFormat((_OPEN,), (_OPEN, _CLOSE, _QUOTE), _read)
