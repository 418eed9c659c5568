"""What comparisons share: processes that take turns, medians, ratios, the table."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "tests" / "accuracy" / "text.txt"
LEAVE_S = 20
"""How long a side that has nothing more to do may take to end."""


@dataclass(slots=True)
class Measure:
    """One row of the table. higher: more is better. samples: side -> one value a round; "ours" is one of them."""

    name: str
    unit: str
    higher: bool
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, value: float) -> None:
        self.samples.setdefault(side, []).append(value)

    def median(self, side: str) -> float:
        return statistics.median(self.samples[side])

    def ratio(self, peer: str) -> float:
        """How many times better we are than that peer."""
        ours, theirs = self.median("ours"), self.median(peer)
        return ours / theirs if self.higher else theirs / ours

    def row(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": {side: self.median(side) for side in self.samples},
            "ratio": {side: self.ratio(side) for side in self.samples if side != "ours"},
            "samples": self.samples,
        }


def environment() -> dict[str, str]:
    """Children import this checkout's benchmarks and tests from wherever they run.

    They keep what they compile: installed packages, like the peer's, have been compiled when they were installed.
    """
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


class Worker:
    """A side that has loaded the model and waits for commands: a process that runs `benchmarks.contender.serve`."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())

    def ask(self, do: str, **arguments: Any) -> Any:
        stdin, stdout = _pipes(self._process)
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it ended; why is said below
        line = stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self._process.wait()}; its message is above.")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._process.communicate(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:  # a server that is told to end before it has served may never do so
            self._process.kill()
            self._process.communicate()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    return process.stdin, process.stdout


def cpu_model() -> str:
    """As the system names it."""
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def table(measures: list[Measure], sides: list[str]) -> str:
    """A line a measure, with the ratio to every other side; a dash where a side has no part in it. sides[0] is ours."""
    lines = [["", *sides, *(f"ratio to {side}" for side in sides[1:])]]
    for m in measures:
        values = [f"{m.median(side):.4g} {m.unit}" if side in m.samples else "-" for side in sides]
        lines.append([m.name, *values, *(f"{m.ratio(side):.2f}" if side in m.samples else "-" for side in sides[1:])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
