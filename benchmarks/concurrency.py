"""Many streams at once, this engine against llama.cpp's server: the same file, threads and slots, turn by turn, medians.

    python benchmarks/concurrency.py MODEL [--streams N] [--threads N] [--rounds N] [--json]

The server is that of the `xllamacpp` wheel. "alone" is our engine with room for one stream, as `tensorsharp run` has it,
for what room for many costs a single one. A ratio above 1 says that we are better. Run it on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.arguments import read_arguments
from benchmarks.compare import TEXT, Measure, Worker, cpu_model, table

PEER, ALONE = "llama.cpp", "alone"
ONE_REPEATS = 5
"""Waves of one stream in a round, every other one in the opposite order: half a second each, they scatter by a tenth."""


class Prompts:
    """Texts of words that nobody had before: equal seeds give equal ones, and each is new to every cache."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._words = sorted(set(re.findall("[A-Za-z]+", TEXT.read_text("utf-8"))))

    def text(self, words: int) -> str:
        return " ".join(self._draw.choices(self._words, k=words))

    def apart(self, count: int, words: int) -> list[str]:
        return [self.text(words) for _ in range(count)]

    def after(self, prefix: str, count: int, words: int) -> list[str]:
        """The prefix, and after it words of their own."""
        return [f"{prefix} {own}" for own in self.apart(count, words)]


@dataclass(slots=True)
class Comparison:
    """The workers take turns, wave by wave. waves: every one that was counted, as the side told it."""

    options: argparse.Namespace
    workers: dict[str, Worker]
    measures: dict[str, Measure] = field(default_factory=dict)
    waves: list[dict[str, Any]] = field(default_factory=list)

    def round(self, turn: int) -> None:
        """All scenarios once, each with prompts of this round; what turn -1 measures is not counted."""
        o = self.options
        prompts = Prompts(turn + 1)
        both = ["ours", PEER]
        apart = prompts.apart(o.streams, o.words)
        prefix = prompts.text(o.prefix_words)
        together, second = (prompts.after(prefix, o.streams, o.own_words) for _ in range(2))
        for side, wave in self._turns(turn, both, "apart", apart, o.tokens):
            self._add(f"{o.streams} streams: total", "tok/s", True, side, wave["tokens"] / wave["wall_s"])
        for name, texts in (("shared prefix", together), ("same prefix again", second)):
            for side, wave in self._turns(turn, both, name, texts, o.prefix_tokens):
                self._add(f"{name}: first token", "s", False, side, wave["first_s"])
                self._add(f"{name}: all done", "s", False, side, wave["wall_s"])
        for again in range(ONE_REPEATS):
            sides = [*both, ALONE][:: -1 if again % 2 else 1]
            for side, wave in self._turns(turn, sides, "one", prompts.apart(1, o.words), o.tokens):
                self._add("one stream", "tok/s", True, side, wave["rate"])

    def _turns(self, turn: int, sides: list[str], name: str, prompts: list[str], tokens: int) -> list[tuple[str, dict[str, Any]]]:
        """The same wave for each side, one after the other; those to be counted."""
        waves = [(side, self.workers[side].ask("wave", prompts=prompts, tokens=tokens)) for side in sides]
        if len({wave["prompt"] for _, wave in waves}) > 1:
            raise SystemExit(f"{name}: the sides cut the same texts into different tokens; the comparison would mean nothing.")
        if turn < 0:
            return []
        self.waves += [{"round": turn, "scenario": name, "side": side, **wave} for side, wave in waves]
        return waves

    def _add(self, row: str, unit: str, higher: bool, side: str, value: float) -> None:
        self.measures.setdefault(row, Measure(row, unit, higher)).add(side, value)


def command(options: argparse.Namespace, side: str, slots: int) -> list[str]:
    room = ["--slots", str(slots), "--threads", str(options.threads), "--context", str(options.context)]
    return [sys.executable, "-m", "benchmarks.streams", side, str(options.model), *room]


def compare(options: argparse.Namespace) -> tuple[Comparison, dict[str, Any]]:
    """Every round, from when all sides are ready, and the facts of the sides as they were at the end."""
    sides = {"ours": ("ours", options.streams), PEER: ("llamacpp", options.streams), ALONE: ("ours", 1)}
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, command(options, *side))) for name, side in sides.items()}
        for worker in workers.values():
            worker.ask("facts")
        comparison = Comparison(options, workers)
        for turn in range(-1, options.rounds):
            comparison.round(turn)
        facts = {name: worker.ask("facts") for name, worker in workers.items()}
        return comparison, facts


def arguments() -> argparse.Namespace:
    counts = {
        "threads": (os.cpu_count() or 1, 1, "for every side (default: all cores)"),
        "streams": (8, 2, "at the same time, and slots (default: 8)"),
        "rounds": (3, 1, "counted rounds (default: 3)"),
        "context": (2048, 2, "tokens of one stream, prompt and reply (default: 2048)"),
        "words": (100, 1, "of prompts that share nothing (default: 100)"),
        "tokens": (64, 2, "of the replies to them (default: 64)"),
        "prefix-words": (700, 1, "of the shared prefix (default: 700)"),
        "own-words": (20, 1, "after it, of each stream (default: 20)"),
        "prefix-tokens": (32, 2, "of the replies to those (default: 32)"),
    }
    return read_arguments(
        "Compare many streams at once with llama.cpp's server, as ratios.",
        counts,
        json="print one object with every sample and every wave",
    )


def main() -> None:
    options = arguments()
    comparison, facts = compare(options)
    measures = list(comparison.measures.values())
    setup = {"model": options.model.name, "threads": options.threads, "cpu": cpu_model(), "rounds": options.rounds}
    if options.json:
        rows = [m.row() for m in measures]
        print(json.dumps({**setup, "sides": facts, "measures": rows, "waves": comparison.waves}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in setup.items()))
    for name, fact in facts.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in fact.items()))
    print(table(measures, ["ours", PEER, ALONE]))


if __name__ == "__main__":
    main()
