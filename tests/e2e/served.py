"""The command `tensorsharp serve` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

READY = "Serving "
PATIENCE_S = 60.0
"""For a machine that has much else to do; only what never comes takes so long."""


def until(check: Callable[[], bool]) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return False


class Command:
    """A running server. url: where it answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        line = process.stdout.readline() if process.stdout else ""
        if not line.startswith(READY):
            process.kill()
            raise AssertionError(line + (process.communicate()[1] or ""))
        self.url = line.split(" at ")[1].strip()

    def end(self, number: int = signal.SIGTERM, *, within: float = PATIENCE_S) -> int:
        """Ask it to end; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(within)


@contextmanager
def serving(
    *arguments: str | Path,
    environment: Sequence[tuple[str, str]] = (),
    within: float = 900,
    log: IO[str] | int = subprocess.PIPE,
) -> Iterator[Command]:
    """`tensorsharp serve` with these arguments on a free port, once it is ready; killed at the end, or after `within` seconds.

    log: takes what it says on stderr.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorsharp", "serve", *map(str, arguments), "--port", "0"],
        env={**os.environ, **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    killing = threading.Timer(within, process.kill)
    killing.start()
    try:
        yield Command(process)
    finally:
        killing.cancel()
        process.kill()
        process.communicate()
