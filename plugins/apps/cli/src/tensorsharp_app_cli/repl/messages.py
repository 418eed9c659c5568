"""Messages of several lines, begun and ended with three quotation marks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

FENCE = '"""'


def is_open(text: str) -> bool:
    """Whether a message was begun with the marks and not ended with them."""
    begun = text.strip()
    return begun.startswith(FENCE) and (len(begun) < 2 * len(FENCE) or not begun.endswith(FENCE))


def unfenced(text: str) -> str:
    """The message without the marks, and without the line ends next to them."""
    return text.strip().removeprefix(FENCE).removesuffix(FENCE).strip("\r\n")


def read_lines(source: TextIO) -> Callable[[], str | None]:
    """A function that gives the next message of an input that is no terminal, or None at its end."""

    def read() -> str | None:
        text = source.readline()
        while is_open(text) and (line := source.readline()):
            text += line
        return text or None

    return read
