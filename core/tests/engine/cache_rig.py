"""Requests and what is said to them, for tests of what lies below the pools."""

from __future__ import annotations

import numpy as np
import pytest
from engine_bench import FULL, MODEL, SLIDING, Bench, Collector, prompt, request, sizes

from tensorsharp.engine.config import CacheConfig
from tensorsharp.protocols.batch import I32
from tensorsharp.testing.coarse import CoarseCodec
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest

EVERY = pytest.mark.parametrize("model", [FULL, SLIDING, MODEL], ids=["full", "sliding", "recurrent"])
PLENTY = 1 << 20


def asked(length: int = 100, salt: int = 0, tokens: int = 4, **more: object) -> GenerationRequest:
    return request(prompt(length, salt), max_tokens=tokens, temperature=1.0, logprobs=0, **more)  # type: ignore[arg-type]


def said(sink: Collector) -> list[tuple[int, float | None]]:
    return [(e.token, e.logprob) for e in sink.events]


def cached(sink: Collector) -> int:
    assert sink.finished is not None
    assert sink.finished.reason == "length", sink.finished.error
    return sink.finished.usage.cached


def ids_of(one: GenerationRequest) -> I32:
    return np.array(one.prompt_ids, np.int32)


def lossy(model: FakeModel, one: GenerationRequest) -> list[tuple[int, float | None]]:
    """What a request says with the coarse codec, alone, never spilled, computed row by row."""
    bench = Bench(sizes(sequences=1), model=model, cache=CacheConfig(CoarseCodec()), step=1, chunk=1)
    return said(bench.give(one))
