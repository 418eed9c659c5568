"""A model with a convolution, a recurrence, full, windowed and compressed attention, on every backend that is installed:
replies after a prefix that was found, shared or preempted are those of a cold engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tensorsharp.engine.config import EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.layout import block_groups
from tensorsharp.testing.minimodel import MiniModel
from tensorsharp.testing.running import available_backends, open_backend
from tensorsharp.types import GenerationRequest, SamplingParams, TokenEvent

BLOCK = 32
TOGETHER = 4
TOKENS = 5
WAYS = {"greedy": SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=1, seed=3)}
WAYS["seeded"] = SamplingParams(max_tokens=TOKENS, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, logprobs=1, seed=3)
Said = list[TokenEvent]
BACKENDS = pytest.mark.parametrize("backend", available_backends())


@contextmanager
def opened(backend_name: str, blocks: int = 24, saved_bytes: int = 1 << 20) -> Iterator[Engine]:
    model = MiniModel()
    layout = model.layout("f16")
    sizes = StateSizes(BLOCK, dict.fromkeys(block_groups(layout), blocks), TOGETHER, TOGETHER)
    config = EngineConfig(128, SchedulerConfig(TOGETHER, step_tokens=64, chunk_tokens=48, saved_bytes=saved_bytes))
    backend = open_backend(backend_name)
    with closing(backend), closing(backend.load(MiniModel.file(), model.weights())) as weights:
        store = backend.state(layout, sizes)
        with Engine(model, backend.compile(model, weights, store), store, config) as engine:
            yield engine


def text(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i * i + 13 * i + 29 * salt + i * salt) % MiniModel.vocab_size for i in range(length))


def run(engine: Engine, prompts: list[tuple[int, ...]], way: str) -> list[tuple[Said, int]]:
    handles = [engine.submit(GenerationRequest(ids, WAYS[way])) for ids in prompts]
    return [(list(h), h.result(60).usage.cached) for h in handles]


def cold(prompts: list[tuple[int, ...]], way: str, backend: str) -> list[Said]:
    """One after the other, in an engine that keeps no recurrent state and so finds nothing."""
    with opened(backend, saved_bytes=0) as engine:
        got = [run(engine, [ids], way)[0] for ids in prompts]
    assert all(cached == 0 for _, cached in got)
    return [said for said, _ in got]


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_found_alone_and_among_others(way: str, backend: str) -> None:
    prompts = [text(n, n) for n in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)]
    want = cold(prompts, way, backend)
    whole = [(len(ids) - 1) // BLOCK * BLOCK for ids in prompts]
    with opened(backend) as engine:
        assert [run(engine, [ids], way)[0] for ids in prompts] == [(said, 0) for said in want]
        assert [run(engine, [ids], way)[0] for ids in prompts] == list(zip(want, whole, strict=True))
        assert run(engine, prompts, way) == list(zip(want, whole, strict=True))


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_computed_once_for_all_who_arrive_together(way: str, backend: str) -> None:
    prompts = [text(70) + text(9, i + 1) for i in range(TOGETHER)]
    with opened(backend) as engine:
        got = run(engine, prompts, way)
    assert [said for said, _ in got] == cold(prompts, way, backend)
    assert [cached for _, cached in got] == [0] + [64] * (TOGETHER - 1)


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_the_next_turn(way: str, backend: str) -> None:
    ids, known = text(50), 0
    with opened(backend) as engine:
        for turn in range(3):
            [(said, cached)] = run(engine, [ids], way)
            assert [said] == cold([ids], way, backend)
            # found are the full blocks of the last turn, whose newest token was not computed
            assert cached == known // BLOCK * BLOCK
            known = len(ids) + TOKENS - 1
            ids += tuple(e.token for e in said) + text(12, turn)


@BACKENDS
@pytest.mark.parametrize("way", WAYS)
def test_preempted_and_resumed(way: str, backend: str) -> None:
    prompts = [text(62, i) for i in range(TOGETHER)]
    with opened(backend, blocks=6) as engine:
        got = run(engine, prompts, way)
        assert engine.stats().preemptions > 0
    assert [said for said, _ in got] == cold(prompts, way, backend)
