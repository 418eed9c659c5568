"""Replies of a small engine whose blocks are taken again and again, for tests of what lies below them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from tensorsharp.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.layout import block_groups
from tensorsharp.testing.minimodel import MiniModel
from tensorsharp.testing.running import open_backend
from tensorsharp.testing.streams import block_size
from tensorsharp.types import GenerationRequest, SamplingParams, TokenEvent

GREEDY = SamplingParams(max_tokens=4, temperature=0.0, logprobs=1, seed=3)
PROMPTS = tuple(tuple((7 * i * i + 13 * i + salt * (29 + i)) % MiniModel.vocab_size for i in range(70)) for salt in range(3))


def replies(
    cache: CacheConfig, prompts: Sequence[tuple[int, ...]], *, blocks: int, chunk: int
) -> list[tuple[list[TokenEvent], int]]:
    """What the reply to each prompt says, one after the other, and how many tokens of the prompt were found.

    blocks: of each group; a prompt of `PROMPTS` takes three. chunk: most tokens that are computed in a step.
    """
    model = MiniModel()
    layout = model.layout("f16")
    sizes = StateSizes(block_size(layout), dict.fromkeys(block_groups(layout), blocks), 1, 1)
    config = EngineConfig(32 * blocks, SchedulerConfig(1, step_tokens=chunk, chunk_tokens=chunk), cache=cache)
    with closing(open_backend("reference")) as backend, closing(backend.load(MiniModel.file(), model.weights())) as weights:
        store = backend.state(layout, sizes)
        with Engine(model, backend.compile(model, weights, store), store, config) as engine:
            handles = ((engine.submit(GenerationRequest(ids, GREEDY))) for ids in prompts)
            return [(list(handle), handle.result().usage.cached) for handle in handles]
