"""How far downloads are, on stderr: a bar for each file on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

from tensorsharp_app_cli.tables import printable, size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PAUSE_S = 5.0
"""Between two lines about one file, where there is no terminal."""


class Downloads:
    """Nothing is shown, and nothing imported for it, until the first file is told of."""

    def __init__(self) -> None:
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._told: dict[str, float] = {}

    def tell(self, file: str, done: int, total: int) -> None:
        """The progress callback of downloads. A file that was there already is not worth a line."""
        if done == total and file not in self._tasks and file not in self._told:
            return
        if sys.stderr.isatty():
            self._bar(file, done, total)
        else:
            self._line(file, done, total)

    def _bar(self, file: str, done: int, total: int) -> None:
        if self._bars is None:
            self._bars = _bars()
            self._bars.start()
        if file not in self._tasks:
            self._tasks[file] = self._bars.add_task(printable(file), total=total, completed=done)
        self._bars.update(self._tasks[file], completed=done)

    def _line(self, file: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done < total and now - self._told.get(file, -PAUSE_S) < PAUSE_S:
            return
        self._told[file] = now
        click.echo(f"{printable(file)}: {size(done)} of {size(total)} ({100 * done // max(total, 1)} %)", err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    name = TextColumn("{task.description}", markup=False)
    return Progress(name, BarColumn(), *columns, console=Console(stderr=True))
