"""Replies for tests of parsers: what they are read as, however they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorsharp.text.channels import ReplyFormat, ReplyParser
from tensorsharp.text.deltas import ContentDelta, Delta, ReasoningDelta
from tensorsharp.text.toolcalls import Tools, read_tools

TOOLS = read_tools(
    [
        {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "exact": {"type": "boolean"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                },
                "required": ["city"],
            },
        },
        {"name": "now"},
    ]
)


@dataclass(frozen=True)
class Read:
    """A reply as it was read. calls: (name, arguments) each."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


def read(format: ReplyFormat, pieces: Iterable[str], *, tools: Tools = TOOLS, opened: bool = False, formed: bool = False) -> Read:
    """Feed pieces, check that the deltas fit together, and join them."""
    parser = ReplyParser(format, tools, opened=opened, formed=formed)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece)
    return joined([*deltas, *parser.finish()])


def joined(deltas: Sequence[Delta]) -> Read:
    content, reasoning = "", ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            assert delta.text
            content += delta.text
        elif isinstance(delta, ReasoningDelta):
            assert delta.text
            reasoning += delta.text
        elif delta.id is not None:
            assert delta.name
            assert delta.index == len(calls)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return Read(content, reasoning, tuple((name, json.loads(arguments)) for name, arguments in calls))


def read_every_way(format: ReplyFormat, text: str, *, tools: Tools = TOOLS, opened: bool = False) -> Read:
    """Read a reply whole, character by character, and cut in two at every place: it has to be the same."""
    whole = read(format, [text], tools=tools, opened=opened)
    assert read(format, text, tools=tools, opened=opened) == whole
    for at in range(1, len(text)):
        assert read(format, [text[:at], text[at:]], tools=tools, opened=opened) == whole, (text[:at], text[at:])
    return whole
