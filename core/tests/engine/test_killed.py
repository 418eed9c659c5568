"""A process that is killed while it writes leaves whole entries only, and the next one says what is right."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from endless import SYSTEM, cache, prompt
from hybrid_rig import cold, opened, run

from tensorsharp.protocols.checkpoint import CheckpointOptions
from tensorsharp.storage.checkpoints import FileCheckpointStore
from tensorsharp.storage.entry import unpack
from tensorsharp.storage.folder import SUFFIX, TEMPORARY
from tensorsharp.testing.checkpoint import ENDLESS, SIZE, content, found, tokens

KILLS = 50


def kill(arguments: list[str], seconds: float, begun: Callable[[], bool] = lambda: True) -> None:
    """Start a process, and kill it so long after it said that it is ready, and after something has begun."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while not begun():
            assert process.poll() is None
            time.sleep(0.001)
        time.sleep(seconds)
        process.kill()


def writes(folder: Path) -> bool:
    """Whether there is a whole file, and one that is being written."""
    return {file.suffix for file in folder.iterdir()} >= {SUFFIX, TEMPORARY}


def killed_while_it_answers(folder: Path, kills: int) -> None:
    numbers = list(range(12))
    want = dict(zip(numbers, cold([prompt(n) for n in numbers], "greedy", "reference"), strict=True))
    chance = random.Random(1)
    hits = restored = 0
    for number in range(kills):
        kill([str(Path(__file__).with_name("endless.py")), str(folder), str(number * 5)], chance.uniform(0.0, 0.4))
        for file in folder.rglob(f"*{SUFFIX}"):
            unpack(file.read_bytes())
        with opened("reference", cache=cache(folder)) as engine:
            for n in chance.sample(numbers, 4):
                assert run(engine, [prompt(n)], "greedy", (SYSTEM,))[0][0] == want[n]
            stats = engine.stats()
        assert stats.checkpoints is not None
        assert stats.checkpoints.unusable == stats.tiers["ssd"].deleted == 0
        assert {file.suffix for file in folder.rglob("*.*")} <= {SUFFIX}, "leftovers are cleaned"
        hits += stats.tiers["ssd"].hits
        restored += stats.checkpoints.restored
    assert hits > 0
    assert restored > 0


def test_killed_while_it_answers(tmp_path: Path) -> None:
    killed_while_it_answers(tmp_path, 2)


@pytest.mark.heavy
def test_killed_while_it_answers_many_times(tmp_path: Path) -> None:
    killed_while_it_answers(tmp_path, KILLS)


@pytest.mark.heavy
def test_killed_while_it_writes_large_files_many_times(tmp_path: Path) -> None:
    chance = random.Random(2)
    leftovers = whole = 0
    for number in range(KILLS):
        # every second one at once: it is most likely in the middle of that file
        seconds = 0.0 if number % 2 else chance.uniform(0.0, 0.1)
        kill(["-c", ENDLESS, "file", str(tmp_path), str(number)], seconds, begun=partial(writes, tmp_path))
        store = FileCheckpointStore(CheckpointOptions(tmp_path))
        leftovers += store.folder.leftovers
        assert store.folder.deleted == 0
        assert {file.suffix for file in tmp_path.iterdir()} <= {SUFFIX}
        for count in range(5, 12):
            got = found(store, "killed", tokens(count + 1))
            assert got in (None, *((n, content(n, SIZE)) for n in range(5, count + 1)))
            whole += got is not None
    assert whole > 0
    assert leftovers > 0, "some were killed in the middle of a file"
