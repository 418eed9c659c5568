from __future__ import annotations

import numpy as np
import pytest
from engine_bench import FULL, MODEL, SLIDING, Bench, alone, expected_logits, prompt, request, sizes

from tensorsharp.engine.sampler import Sampler
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest


def by_hand(asked: GenerationRequest) -> list[int]:
    """The reply from the model's definition, without engine, state or batch."""
    ids = list(asked.prompt_ids)
    sampler = Sampler(asked.params, asked.params.seed or 0)
    for _ in range(asked.params.max_tokens or 0):
        ids.append(sampler.choose(expected_logits(ids)[-1], np.array(ids, np.int32), len(ids)).token)
    return ids[len(asked.prompt_ids) :]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("length", [1, 31, 32, 33, 100])
def test_a_reply_is_what_the_model_defines(length: int, temperature: float) -> None:
    asked = request(prompt(length), max_tokens=12, temperature=temperature)
    assert alone(asked).tokens == by_hand(asked)


@pytest.mark.parametrize("chunk", [1, 3, 7, 32, 64])
def test_chunk_sizes_change_nothing(chunk: int) -> None:
    asked = request(prompt(150), max_tokens=40, temperature=0.7)
    bench = Bench(chunk=chunk)
    sink = bench.add(asked)
    bench.drain()
    assert sink.tokens == alone(asked).tokens


def test_a_batch_changes_nothing() -> None:
    asked = [request(prompt(5 + 17 * i, i), max_tokens=10 + i, seed=i, temperature=1.0) for i in range(12)]
    bench = Bench(sizes(sequences=5), step=48)
    sinks = [bench.add(r) for r in asked]
    bench.drain()
    assert max(b.sequences for b in bench.runner.batches) == 5
    assert [s.tokens for s in sinks] == [alone(r).tokens for r in asked]


def test_each_row_is_sampled_by_its_own_rules_and_a_bad_one_ends_alone() -> None:
    rules: list[dict[str, object]] = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 0.8, "top_k": 5, "logprobs": 0, "repeat_penalty": 1.3},
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logprobs": 2, "logit_bias": {3: 5.0, 7: -9.0}},
        {"temperature": 1.5, "top_k": 0, "top_p": 0.9, "frequency_penalty": 0.7, "presence_penalty": 0.2},
        {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.1, "repeat_last_n": -1, "repeat_penalty": 1.1},
    ]
    asked = [request(prompt(20, i), max_tokens=12, seed=i, **given) for i, given in enumerate(rules)]
    bench = Bench(sizes(sequences=8), step=256)
    sinks = [bench.add(r) for r in asked]
    bad = bench.add(request(prompt(20, 9), max_tokens=12, temperature=1.0))

    def poison(batch: Batch, logits: F32) -> None:
        logits[batch.seq[batch.wanted] == len(asked)] = np.nan

    bench.step()
    bench.runner.poison = poison
    bench.step()
    bench.runner.poison = lambda batch, logits: None
    bench.drain()
    assert bad.finished is not None
    assert bad.finished.reason == "error"
    assert [s.events for s in sinks] == [alone(r).events for r in asked]


def test_tiny_pools_preempt_and_drain() -> None:
    asked = [request(prompt(30, i), max_tokens=100, seed=i, temperature=1.0) for i in range(6)]
    bench = Bench(sizes(blocks=7, window_blocks=9, sequences=6), step=16)
    sinks = [bench.add(r) for r in asked]
    bench.drain()
    assert bench.core.scheduler.preemptions > 0
    assert [s.tokens for s in sinks] == [alone(r).tokens for r in asked]


@pytest.mark.parametrize("model", [MODEL, FULL, SLIDING], ids=["recurrent", "full", "sliding"])
def test_two_blocks_more_than_one_sequence_needs_serve_eight_in_order(model: FakeModel) -> None:
    context = 128
    bench = Bench(sizes(blocks=6, window_blocks=6, sequences=8), context=context, step=32, chunk=32, model=model, saved=1 << 20)
    asked = [request(prompt(30 + i, i % 3), max_tokens=90, seed=i, temperature=1.0) for i in range(8)]
    sinks = [bench.add(r) for r in asked]
    ended: list[int] = []
    while bench.step():
        ended += [i for i, sink in enumerate(sinks) if sink.finished is not None and i not in ended]
    assert ended == list(range(8))
    assert bench.core.scheduler.preemptions > 0
    assert [s.events for s in sinks] == [alone(r, context, model).events for r in asked]


def test_what_is_still_held_when_nothing_runs_is_noticed() -> None:
    bench = Bench()
    sink = bench.add(request(prompt(10), max_tokens=1))
    bench.seats.pools[None].take(1)
    with pytest.raises(RuntimeError, match=r"0 seats and \{None: 1, 40: 0\} blocks are held"):
        bench.core.step()
    assert sink.finished is not None
