"""A process of its own that begins after checkpoints which another one left: python -m tests.matrix.child SUBJECT FILE FOLDER."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.registry import Registry
from tests.matrix.cells import CELLS, NEIGHBOURS
from tests.matrix.subjects import SUBJECTS, Subject, engine, run, text


def checkpoints(folder: Path) -> CacheConfig:
    """Only checkpoints, in that folder."""
    return CacheConfig(checkpoints=Registry().load("checkpoint_store", "file")(CheckpointOptions(folder)))


def replies(subject: Subject, file: Path | None, folder: Path) -> dict[str, Any]:
    """Every cell, each alone in an engine that was just started, and all of them together in one."""
    alone = []
    for length, way in CELLS:
        with engine(subject, file, cache=checkpoints(folder)) as one:
            alone += run(one, [text(subject, length)], [way], [None])
    with engine(subject, file, cache=checkpoints(folder)) as one:
        prompts = [text(subject, length) for length, _ in CELLS] + [text(subject, 40, salt) for salt in NEIGHBOURS]
        together = run(one, prompts, [way for _, way in CELLS] + ["seeded"] * len(NEIGHBOURS), [None] * len(prompts))
        counted = one.stats().checkpoints
    assert counted is not None
    return {
        "alone": [([asdict(e) for e in said], cached) for said, cached in alone],
        "together": [([asdict(e) for e in said], cached) for said, cached in together[: len(CELLS)]],
        "restored": counted.restored,
    }


if __name__ == "__main__":
    name, file, folder = sys.argv[1:]
    json.dump(replies(SUBJECTS[name], Path(file) if file else None, Path(folder)), sys.stdout)
