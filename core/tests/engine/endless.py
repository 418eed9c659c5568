"""Answers prompts until it is killed, keeping blocks and checkpoints in the folder that it is told. Run by test_killed.py."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hybrid_rig import opened, run, text

from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.storage.checkpoints import FileCheckpointStore

PLENTY = 1 << 24
SYSTEM = 40


def cache(folder: Path) -> CacheConfig:
    """Files for both, written as often as can be: no memory in between."""
    store = FileCheckpointStore(CheckpointOptions(folder / "checkpoints"))
    return CacheConfig(ssd=folder / "ssd", ssd_bytes=PLENTY, checkpoints=store)


def prompt(number: int) -> tuple[int, ...]:
    """One of twelve."""
    return text(SYSTEM, number % 12) + text(40, 50 + number % 3)


if __name__ == "__main__":
    with opened("reference", blocks=6, cache=cache(Path(sys.argv[1]))) as engine:
        for number in itertools.count(int(sys.argv[2])):
            run(engine, [prompt(number)], "greedy", (SYSTEM,))
            if number == int(sys.argv[2]):
                print("ready", flush=True)
