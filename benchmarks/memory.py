"""How much memory a process holds, as time goes on."""

from __future__ import annotations

import statistics
import threading
import time
from types import TracebackType
from typing import Any, Self

import psutil

MIB = 1 << 20
FLAT_MIB_MIN = 1.0
"""The slope, MiB a minute, up to which memory counts as flat."""
SETTLED = 0.2
"""The part of the time that is left out of the slope: pools, arenas and caches fill first."""
LEAST_S = 60.0
"""A slope over less than this says nothing: single samples scatter by megabytes."""


class Memory:
    """Samples the resident memory of a process once a second while it is entered. pid: None for this process.

    samples: (seconds since it was entered, bytes).
    """

    def __init__(self, pid: int | None = None, every_s: float = 1.0) -> None:
        self.samples: list[tuple[float, int]] = []
        self._process = psutil.Process(pid)
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while True:
            try:
                self.samples.append((time.monotonic() - self._began, self._process.memory_info().rss))
            except psutil.NoSuchProcess:
                return
            if self._stop.wait(self._every_s):
                return

    @property
    def slope(self) -> float | None:
        """MiB a minute, by least squares over the last 80 %. None for less than a minute."""
        last = self.samples[-1][0]
        late = [(at, rss) for at, rss in self.samples if at >= SETTLED * last]
        if last - late[0][0] < LEAST_S:
            return None
        return statistics.linear_regression(*zip(*late, strict=True)).slope * 60 / MIB

    def report(self) -> dict[str, Any]:
        """The slope, and what was held in twenty moments from the start to the end, MiB."""
        last = len(self.samples) - 1
        moments = sorted({round(last * part / 19) for part in range(20)})
        return {"slope_mib_min": self.slope, "mib": [round(self.samples[at][1] / MIB) for at in moments]}
