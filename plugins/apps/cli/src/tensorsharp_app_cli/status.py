"""What the program is doing, on stderr: one line that replaces itself on a terminal."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import Self

import click

_STAGES = {"open": "opening the file", "weights": "loading the weights", "tokenizer": "reading the vocabulary"}


class Status:
    """Silent unless stderr is a terminal, or asked to speak; then one line, or without a terminal a line for each stage.

    Whoever prints something else calls `clear` first; as a context manager it is cleared at the end. The texts are plain
    ASCII, so that a character is a column.
    """

    def __init__(self, *, always: bool = False) -> None:
        self._terminal = sys.stderr.isatty()
        self._shown = self._terminal or always
        self._last = ""
        self._width = 0

    @property
    def terminal(self) -> bool:
        """Whether stderr is one."""
        return self._terminal

    @property
    def shown(self) -> bool:
        return self._shown

    def loading(self, stage: str, fraction: float) -> None:
        """The progress callback of :func:`tensorsharp.loading.load`."""
        if fraction < 1:
            self.say(_STAGES.get(stage, stage))

    def say(self, text: str) -> None:
        """Replace the line."""
        if not self._shown or text == self._last:
            return
        self._last = text
        if not self._terminal:
            click.echo(f"{text} ...", err=True)
            return
        # Spaces and not an escape sequence, which not every terminal knows; a line that wraps could not be replaced.
        line = f"{text} ..."[: max(1, _columns() - 1)]
        click.echo(f"\r{line:<{self._width}}", nl=False, err=True)
        self._width = len(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    def clear(self) -> None:
        """Take the line away."""
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
        self._width = 0
        self._last = ""


def _columns() -> int:
    """Of stderr: stdout may be a pipe."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80
