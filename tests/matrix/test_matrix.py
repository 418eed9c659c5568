"""The bitwise contract, every way that a request can be served against every other: token ids and log-probabilities are `==`.

{alone, 16 together} x {cold, found, from memory, from files, after a checkpoint in a new process, preempted} x {greedy,
seeded} x prompts around the edges of blocks and chunks, on real models, sliding windows and recurrent state.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.engine.config import CacheConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.types import GenerationRequest, TokenEvent, TokenLogprob
from tests.matrix.cells import CELLS, EDGES, NEIGHBOURS
from tests.matrix.child import checkpoints
from tests.matrix.subjects import BLOCK, CONTEXT, SUBJECTS, TOGETHER, TOKENS, WAYS, Ids, Said, Subject, engine, run, text

pytestmark = pytest.mark.matrix
ROOT = Path(__file__).parents[2]
MOST = 1 << 30


class Case:
    """One subject, and what an engine says that runs one request at a time, in other chunks, and finds nothing."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.subject: Subject = SUBJECTS[name]
        self.file = self.subject.file(folder)
        self.prompts: list[Ids] = [text(self.subject, length) for length, _ in CELLS]
        self.neighbours: list[Ids] = [text(self.subject, 40, salt) for salt in NEIGHBOURS]
        self.ways = [way for _, way in CELLS]
        with engine(self.subject, self.file, parallel=1, chunk=17) as one:
            asked = zip(self.prompts, self.ways, strict=True)
            self.expected: list[Said] = [run(one, [ids], [way], [f"cold-{i}"])[0][0] for i, (ids, way) in enumerate(asked)]

    def alone(self, on: Engine, scope: str) -> list[tuple[Said, int]]:
        """Every cell by itself, each in a scope of its own."""
        asked = zip(self.prompts, self.ways, strict=True)
        return [run(on, [ids], [way], [f"{scope}-{i}"], boundaries=EDGES)[0] for i, (ids, way) in enumerate(asked)]

    def together(self, on: Engine, scope: str) -> list[tuple[Said, int]]:
        """All cells at once with neighbours, each in a scope of its own."""
        prompts, ways = self.prompts + self.neighbours, self.ways + ["seeded"] * len(self.neighbours)
        scopes: list[str | None] = [f"{scope}-{i}" for i in range(len(prompts))]
        return run(on, prompts, ways, scopes, boundaries=EDGES)[: len(CELLS)]

    def open(self, **how: Any) -> Any:
        return engine(self.subject, self.file, **how)

    def holds(self, got: list[tuple[Said, int]]) -> list[int]:
        """Assert that every reply is the expected one; how many tokens each found."""
        for (said, _), expected, cell in zip(got, self.expected, CELLS, strict=True):
            assert said == expected, cell
        return [found for _, found in got]

    def whole_blocks(self) -> list[int]:
        """The tokens of the blocks before the last token of each prompt."""
        return [(length - 1) // BLOCK * BLOCK for length, _ in CELLS]


@pytest.fixture(scope="module", params=SUBJECTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(params=["alone", "together"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(case: Case, how: str, on: Engine, scope: str) -> list[tuple[Said, int]]:
    return case.alone(on, scope) if how == "alone" else case.together(on, scope)


def test_the_batch_is_full(case: Case) -> None:
    assert len(case.prompts) + len(case.neighbours) == TOGETHER


def test_cold(case: Case, how: str) -> None:
    with case.open() as on:
        assert case.holds(ask(case, how, on, "a")) == [0] * len(CELLS)


def test_found(case: Case, how: str) -> None:
    with case.open(blocks=3 * TOGETHER * CONTEXT // BLOCK) as on:
        ask(case, how, on, "a")
        found = case.holds(ask(case, how, on, "a"))
        assert all(n >= whole for n, whole in zip(found, case.whole_blocks(), strict=True))


@pytest.mark.parametrize("tier", ["ram", "ssd"])
def test_from_a_lower_tier(case: Case, how: str, tier: str, tmp_path: Path) -> None:
    cache = CacheConfig(ram=MOST) if tier == "ram" else CacheConfig(ssd=tmp_path, ssd_bytes=MOST)
    with case.open(cache=cache) as on:
        ask(case, how, on, "a")
        for salt in range(3):  # fills the pools with what nobody asks for again
            others = [text(case.subject, 3 * BLOCK + 1, 50 + TOGETHER * salt + i) for i in range(TOGETHER)]
            run(on, others, ["greedy"] * TOGETHER, [f"other-{salt}-{i}" for i in range(TOGETHER)])
        before = on.stats().tiers[tier].hits
        found = case.holds(ask(case, how, on, "a"))
        assert found == case.whole_blocks()
        assert on.stats().tiers[tier].hits - before >= sum(found) // BLOCK


def test_after_a_checkpoint_in_a_new_process(case: Case, tmp_path: Path) -> None:
    for edge in EDGES:  # one run for each, as a prompt saves where its shared beginning ends
        with case.open(cache=checkpoints(tmp_path)) as on:
            run(on, [text(case.subject, edge + 1)], ["greedy"], [None], boundaries=(edge,))
    command = [sys.executable, "-m", "tests.matrix.child", case.name, str(case.file or ""), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers["restored"] > 0
    for together in ("alone", "together"):
        found = case.holds([(_events(said), cached) for said, cached in answers[together]])
        if together == "alone":
            assert found == case.whole_blocks()
        else:
            assert all(n >= whole for n, whole in zip(found, case.whole_blocks(), strict=True))


def test_preempted_and_resumed(case: Case, how: str) -> None:
    if how == "alone":
        case.holds([_interrupted(case, number) for number in range(len(CELLS))])
        return
    with case.open(blocks=CONTEXT // BLOCK + 2) as on:  # two more than one sequence needs
        case.holds(case.together(on, "a"))
        assert on.stats().preemptions > 0


def _interrupted(case: Case, number: int) -> tuple[Said, int]:
    """The reply of a cell beside a request that comes first and needs, when it grows, a block that the cell's has."""
    ids, way = case.prompts[number], case.ways[number]
    blocks = -(-(len(ids) + TOKENS - 1) // BLOCK)
    with case.open(parallel=2, blocks=blocks + 1) as on:
        other = on.submit(GenerationRequest(text(case.subject, BLOCK - 8, 99), WAYS["greedy"], priority=1))
        handle = on.submit(GenerationRequest(ids, WAYS[way]))
        said = list(handle)
        assert len(list(other)) == TOKENS
        assert on.stats().preemptions > 0
        return said, handle.result(600).usage.cached


def _events(data: list[dict[str, Any]]) -> list[TokenEvent]:
    return [TokenEvent(d["token"], d["index"], d["logprob"], tuple(TokenLogprob(**t) for t in d["top"])) for d in data]
