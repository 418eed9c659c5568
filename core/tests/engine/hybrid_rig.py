"""An engine over a small model with every kind of state, and what it says to prompts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tensorsharp.engine.config import CacheConfig, EngineConfig, SchedulerConfig
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
NO_CACHE = CacheConfig()
Said = list[TokenEvent]
BACKENDS = pytest.mark.parametrize("backend", available_backends())


@contextmanager
def opened(
    backend_name: str,
    blocks: int = 24,
    saved_bytes: int = 1 << 20,
    cache: CacheConfig = NO_CACHE,
    chunk: int = 48,
    context: int = 128,
) -> Iterator[Engine]:
    model = MiniModel()
    layout = model.layout("f16")
    sizes = StateSizes(BLOCK, dict.fromkeys(block_groups(layout), blocks), TOGETHER, TOGETHER)
    scheduler = SchedulerConfig(TOGETHER, step_tokens=64, chunk_tokens=chunk, saved_bytes=saved_bytes)
    config = EngineConfig(context, scheduler, cache=cache)
    backend = open_backend(backend_name)
    with closing(backend), closing(backend.load(MiniModel.file(), model.weights())) as weights:
        store = backend.state(layout, sizes)
        with Engine(model, backend.compile(model, weights, store), store, config) as engine:
            yield engine


def text(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((7 * i * i + 13 * i + 29 * salt + i * salt) % MiniModel.vocab_size for i in range(length))


def run(engine: Engine, prompts: list[tuple[int, ...]], way: str, boundaries: tuple[int, ...] = ()) -> list[tuple[Said, int]]:
    handles = [engine.submit(GenerationRequest(ids, WAYS[way], boundaries=boundaries)) for ids in prompts]
    return [(list(h), h.result(60).usage.cached) for h in handles]


def cold(prompts: list[tuple[int, ...]], way: str, backend: str, context: int = 128) -> list[Said]:
    """One after the other, in an engine that keeps no recurrent state and so finds nothing."""
    with opened(backend, saved_bytes=0, context=context) as engine:
        got = [run(engine, [ids], way)[0] for ids in prompts]
    assert all(cached == 0 for _, cached in got)
    return [said for said, _ in got]
