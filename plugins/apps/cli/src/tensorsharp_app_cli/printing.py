"""A reply on stdout as it comes: the answer plain, reasoning dimmed and on a terminal alone.

Text is printed as it is, without laying out Markdown: what is on the screen then never changes, can be copied as it was
written, and goes through a pipe the same.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tensorsharp_app_cli.output import emit

if TYPE_CHECKING:
    from tensorsharp.text.deltas import Delta
    from tensorsharp_app_cli.status import Status


def print_pieces(pieces: Iterable[str | Delta], status: Status) -> None:
    """Print a reply, and a line end. What was printed stays, however the reply ends."""
    terminal = sys.stdout.isatty()
    thinking = False
    try:
        for piece in pieces:
            text, reasoning = _read(piece)
            if reasoning and not terminal:
                status.say("thinking")
                continue
            status.clear()
            if thinking and not reasoning:
                emit("\n\n")
            thinking = reasoning
            shown = visible(text) if terminal else text
            emit(click.style(shown, dim=True) if reasoning else shown)
    except Exception:
        if terminal:
            emit("\n")  # so that the error begins a line
        raise
    status.clear()
    emit("\n")


def _read(piece: str | Delta) -> tuple[str, bool]:
    """(text, whether it is reasoning)."""
    if isinstance(piece, str):
        return piece, False
    from tensorsharp.text.deltas import ReasoningDelta, ToolCallDelta

    return "" if isinstance(piece, ToolCallDelta) else piece.text, isinstance(piece, ReasoningDelta)


def visible(text: str) -> str:
    """A text with nothing in it that a terminal would obey, other than line ends and tabs."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)
