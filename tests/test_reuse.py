"""The bitwise contract on prefixes: a reply whose prompt was found in the cache, alone or among others, is the one of a
cold engine, on a real model and on one with sliding windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.engine.sizing import plan_state
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.types import GenerationRequest, SamplingParams, TokenEvent
from tests.goldens.records import Float32
from tests.realmodels import SMOLLM2, needs

BLOCK = 32
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 1)
TOKENS = 6
TOGETHER = 8
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
}
Ids = tuple[int, ...]
Said = list[TokenEvent]


class Case:
    """A model, one engine for everything, and the replies of an engine that runs one request at a time and reuses nothing."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = model
        self._path = needs(SMOLLM2) if model == "smollm2" else write_tiny(folder / "tiny.gguf", tiny("gemma3", **SLIDING))
        self._cold: dict[tuple[Ids, str], Said] = {}
        self._scopes = 0
        self.alone = self.open(parallel=1)
        self.llm = self.open(parallel=TOGETHER)

    def open(self, *, parallel: int) -> LLM:
        return load(self._path, backend="ggml", ctx_size=256, parallel=parallel)

    def close(self) -> None:
        self.alone.close()
        self.llm.close()

    def text(self, length: int, begin: int = 0) -> Ids:
        ids = Float32.of("smollm2").ids[begin : begin + length].tolist()
        return tuple(ids if self._model == "smollm2" else [i % SLIDING["vocab_size"] for i in ids])

    def scope(self) -> str:
        """One that nobody used: nothing can be found in it."""
        self._scopes += 1
        return str(self._scopes)

    def cold(self, ids: Ids, way: str) -> Said:
        if (ids, way) not in self._cold:
            [(said, cached)] = self.run([ids], way, self.scope(), llm=self.alone)
            assert cached == 0
            self._cold[ids, way] = said
        return self._cold[ids, way]

    def run(self, prompts: list[Ids], way: str, scope: str, llm: LLM | None = None) -> list[tuple[Said, int]]:
        """What the reply to each says, and how many tokens of the prompt were found. All are submitted at once."""
        params = SamplingParams(max_tokens=TOKENS, seed=5, logprobs=2, ignore_eos=True, **WAYS[way])
        engine = (llm or self.llm).engine
        handles = [engine.submit(GenerationRequest(ids, params, cache_scope=scope)) for ids in prompts]
        return [(list(h), h.result().usage.cached) for h in handles]


SLIDING: dict[str, Any] = {"window": 40, "vocab_size": 320, "tokenizer": "bytes"}
"""A window that ends in the second block before a position."""


@pytest.fixture(scope="module", params=["smollm2", "sliding"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = Case(request.param, tmp_path_factory.mktemp("models"))
    yield made
    made.close()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", LENGTHS)
def test_found_alone(case: Case, length: int, way: str) -> None:
    ids, scope = case.text(length), case.scope()
    first, second = (case.run([ids], way, scope) for _ in range(2))
    assert first == [(case.cold(ids, way), 0)]
    assert second == [(case.cold(ids, way), length - 1)]


@pytest.mark.parametrize("way", WAYS)
def test_cold_and_found_among_others(case: Case, way: str) -> None:
    prompts = [case.text(length, begin) for begin, length in enumerate(LENGTHS * 2)]
    cold = [case.cold(ids, way) for ids in prompts]
    scope = case.scope()
    steps = case.llm.stats().steps
    assert case.run(prompts, way, scope) == [(said, 0) for said in cold]
    assert case.llm.stats().steps - steps < len(prompts) * TOKENS, "some of them ran in the same steps"
    assert case.run(prompts, way, scope) == [(said, len(ids) - 1) for ids, said in zip(prompts, cold, strict=True)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shared", [BLOCK, BLOCK + 1, 2 * BLOCK - 1, 3 * BLOCK])
def test_computed_once_for_all_who_arrive_together(case: Case, shared: int, way: str) -> None:
    prompts = [case.text(shared) + case.text(5 + i, 100 * (i + 1)) for i in range(4)]
    computed = case.llm.stats().tokens_computed
    got = case.run(prompts, way, case.scope())
    computed = case.llm.stats().tokens_computed - computed
    assert [said for said, _ in got] == [case.cold(ids, way) for ids in prompts]
    reused = sum(cached for _, cached in got)
    assert reused >= 3 * shared
    assert computed == sum(map(len, prompts)) - reused + len(prompts) * (TOKENS - 1)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [BLOCK + 1, 2 * BLOCK - 3])
def test_choices_of_one_prompt(case: Case, length: int, way: str) -> None:
    ids = case.text(length)
    computed = case.llm.stats().tokens_computed
    got = case.run([ids] * TOGETHER, way, case.scope())
    computed = case.llm.stats().tokens_computed - computed
    assert got == [(case.cold(ids, way), 0)] + [(case.cold(ids, way), length - 1)] * (TOGETHER - 1)
    assert computed == length + TOGETHER - 1 + TOGETHER * (TOKENS - 1)


@pytest.mark.parametrize("way", WAYS)
def test_the_next_turn(case: Case, way: str) -> None:
    ids, scope = case.text(40), case.scope()
    for turn in range(4):
        [(said, cached)] = case.run([ids], way, scope)
        assert said == case.cold(ids, way)
        assert cached == (0 if turn == 0 else len(ids) - 13)
        ids = (*ids, *(e.token for e in said), *case.text(12, 50 * turn))


@pytest.mark.parametrize("way", WAYS)
def test_preempted_and_resumed(case: Case, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks more than one sequence needs, for eight of them."""

    def tight(*args: Any, **options: Any) -> StateSizes:
        sizes = plan_state(*args, **options)
        return replace(sizes, blocks={g: 256 // BLOCK + 2 if g is None else n for g, n in sizes.blocks.items()})

    monkeypatch.setattr("tensorsharp.starting.plan_state", tight)
    prompts = [case.text(60, 20 * i) for i in range(TOGETHER)]
    with case.open(parallel=TOGETHER) as llm:
        assert case.run(prompts, way, "", llm=llm) == [(case.cold(ids, way), 0) for ids in prompts]
        assert llm.stats().preemptions > 0
        assert llm.stats().blocks[None] == (0, 256 // BLOCK + 2)
