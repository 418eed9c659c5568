"""Requests that arrive together and begin alike compute their beginning once."""

from __future__ import annotations

import numpy as np
import pytest
from engine_bench import BLOCK, FULL, MODEL, SLIDING, VOCAB, Bench, Collector, alone, found, prompt, request, sizes
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.engine.evaluation import AllLogits
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.sequence import Sequence
from tensorsharp.engine.sharing import STEP_COST, cost
from tensorsharp.protocols.batch import Batch
from tensorsharp.testing.fakes import FakeModel
from tensorsharp.types import GenerationRequest, SamplingParams

REUSING = pytest.mark.parametrize("model", [FULL, SLIDING], ids=["full", "sliding"])
EVERY = pytest.mark.parametrize("model", [FULL, SLIDING, MODEL], ids=["full", "sliding", "recurrent"])
SAVED = 1 << 20


def fan(count: int, shared: int, own: int = 10, tokens: int = 6) -> list[GenerationRequest]:
    """Requests with `shared` tokens in common, then at least one token that differs."""
    return [
        request([*prompt(shared), i, *prompt(own - 1, i + 1)], max_tokens=tokens, temperature=1.0, seed=i, logprobs=1)
        for i in range(count)
    ]


def check(sinks: list[Collector], asked: list[GenerationRequest], model: FakeModel) -> None:
    assert [s.events for s in sinks] == [alone(one, model=model).events for one in asked]


@EVERY
@pytest.mark.parametrize("shared", [BLOCK, 100, 5 * BLOCK])
def test_eight_at_once_compute_their_prefix_once(shared: int, model: FakeModel) -> None:
    bench = Bench(sizes(sequences=8), model=model, saved=SAVED)
    asked = fan(8, shared)
    sinks = [bench.add(one) for one in asked]
    bench.drain()
    check(sinks, asked, model)
    known = found(shared, model)
    assert [s.finished.usage.cached for s in sinks] == [0] + [known] * 7  # type: ignore[union-attr]
    prompts = shared + 10 + 7 * (shared + 10 - known)
    assert bench.core.metrics.tokens_computed == prompts + 8 * 5


@REUSING
def test_who_waits_holds_nothing_and_begins_where_the_prompts_part(model: FakeModel) -> None:
    bench = Bench(sizes(sequences=3), step=48, chunk=48, model=model, saved=SAVED)
    asked = fan(3, 100)
    sinks = [bench.add(one) for one in asked]
    for done in (48, 96):
        bench.step()
        assert [len(bench.core.scheduler.running), len(bench.core.scheduler.waiting)] == [1, 2]
        assert bench.seats.pools[None].used == -(-done // BLOCK)
    bench.step()
    assert len(bench.core.scheduler.running) == 3
    # 96 positions are there; the 4 more that they have in common are not worth another step
    assert bench.rows == [[48], [48], [14, 14, 14]]
    bench.drain()
    check(sinks, asked, model)


def test_a_chunk_ends_where_prompts_part() -> None:
    bench = Bench(step=200, chunk=200, model=SLIDING)
    bench.add(request(prompt(180), max_tokens=4))
    bench.add(request(prompt(130) + prompt(60, 7), max_tokens=4))
    bench.drain()
    assert bench.rows[:2] == [[130], [50, 60]]


@EVERY
@pytest.mark.parametrize("how", ["cancelled", "failed", "spoiled"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_another_takes_over_where_the_owner_stopped(after: int, how: str, model: FakeModel) -> None:
    bench = Bench(step=40, chunk=40, model=model, saved=SAVED)
    asked = fan(3, 150)
    sinks = [bench.add(one) for one in asked]
    for _ in range(after):
        bench.step()
    if how == "cancelled":
        sinks[0].ending = ("cancelled", None)
    elif how == "failed":
        bench.runner.fail = after + 1
    else:
        bench.runner.poison = lambda batch, logits: logits.fill(float("nan"))
        while sinks[0].finished is None:
            bench.step()
        bench.runner.poison = lambda batch, logits: None
    bench.drain()
    assert sinks[0].finished is not None
    assert sinks[0].finished.reason == ("cancelled" if how == "cancelled" else "error")
    assert all(s.finished is not None and s.finished.reason == "length" for s in sinks[1:])
    check(sinks[1:], asked[1:], model)
    if how != "spoiled":
        known = [found(40 * after, model), found(150, model)]
        assert [s.finished.usage.cached for s in sinks[1:]] == known  # type: ignore[union-attr]


@EVERY
def test_a_preempted_owner_is_succeeded(model: FakeModel) -> None:
    bench = Bench(sizes(blocks=9, window_blocks=16, sequences=4), context=256, step=24, chunk=16, model=model, saved=SAVED)
    old = request(prompt(60, 77), max_tokens=150, temperature=1.0)
    asked = [old, *fan(3, 100, tokens=30)]
    sinks = [bench.add(one) for one in asked]
    bench.drain()
    assert bench.core.scheduler.preemptions > 0
    assert [s.events for s in sinks] == [alone(one, context=256, model=model).events for one in asked]


def test_a_stranger_passes_those_who_wait_but_leaves_them_their_place() -> None:
    bench = Bench(sizes(sequences=3), step=72, chunk=24, model=FULL)
    asked = [*fan(2, 100), request(prompt(30, 50), max_tokens=3), request(prompt(30, 51), max_tokens=3)]
    sinks = [bench.add(one) for one in asked]
    bench.step()
    running = [s.sink for s in bench.core.scheduler.running]
    assert running == [sinks[0], sinks[2]], "one seat is kept for the second"
    bench.drain()
    check(sinks, asked, FULL)


def test_a_stranger_leaves_those_who_wait_their_blocks() -> None:
    bench = Bench(sizes(blocks=6, sequences=4), context=192, step=48, chunk=24, model=FULL)
    asked = [*fan(2, 100, own=20), request(prompt(40, 50), max_tokens=3)]
    for one in asked:
        bench.add(one)
    bench.step()
    # 4 blocks for the first, 1 more for the second, 1 left: the third needs 2
    assert len(bench.core.scheduler.running) == 1
    bench.drain()


def test_a_request_does_not_wait_where_alone_it_would_be_done_first() -> None:
    bench = Bench(step=500, chunk=200, context=512, model=FULL)
    slow = bench.add(request(prompt(400), max_tokens=2))
    bench.step()
    assert bench.rows == [[200]]
    # the first 32 tokens are there; 192 more would be, two steps from now, but only one more is in this prompt
    bench.add(request([*prompt(65)[:-1], VOCAB - 1, 5], max_tokens=2))
    bench.step()
    assert bench.rows[1] == [200, 2], "it found what is there, and did not wait"
    bench.drain()
    assert slow.finished is not None


def test_an_owner_that_is_slower_is_not_waited_for() -> None:
    """An evaluation advances in small chunks; the request after it computes the same text in one step."""
    bench = Bench(step=128, chunk=128, model=FULL)
    bench.add(request(prompt(100), max_tokens=2))
    bench.core.scheduler.waiting[0].rows = 4
    bench.add(request(prompt(101), max_tokens=2))
    bench.step()
    assert bench.rows == [[4, 101]]
    bench.drain()


def test_one_block_in_common_is_worth_a_step_only_if_it_is_larger_than_a_step_costs() -> None:
    assert STEP_COST < BLOCK
    bench = Bench(step=500, chunk=500, model=FULL)
    bench.add(request(prompt(40), max_tokens=2))
    bench.add(request([*prompt(32), *prompt(8, 3)], max_tokens=2))
    bench.drain()
    assert bench.rows[:2] == [[40], [1, 8]], "nor is a step spent on 8 rows, to begin with the others before them"


@given(
    rows=st.integers(1, 300),
    other=st.integers(0, 300),
    chunks=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    budget=st.integers(1, 200),
    first=st.booleans(),
)
def test_the_cost_is_that_of_the_steps_it_takes(rows: int, other: int, chunks: tuple[int, int], budget: int, first: bool) -> None:
    steps = -(-rows // min(chunks[0], budget))
    alone = cost(rows, chunks[0], 0, 1, budget, first=first)
    assert alone == rows + steps * STEP_COST
    together = cost(rows, chunks[0], other, chunks[1], budget, first=first)
    assert together >= alone
    assert together - rows - other <= (steps + -(-other // min(chunks[1], budget))) * STEP_COST
    if first:
        assert together <= alone + min(other, steps * min(chunks[1], budget))


@EVERY
def test_turns_of_many_conversations_at_once(model: FakeModel) -> None:
    """Every conversation continues its own branch of a common beginning."""
    bench = Bench(sizes(blocks=100, window_blocks=100, sequences=4), step=64, model=model, saved=SAVED)
    lines = [prompt(70) + prompt(10, i + 1) for i in range(4)]
    for turn in range(3):
        asked = [request(line, max_tokens=20, temperature=1.0, seed=turn) for line in lines]
        sinks = [bench.add(one) for one in asked]
        bench.drain()
        check(sinks, asked, model)
        lines = [line + sink.tokens + prompt(15, turn) for line, sink in zip(lines, sinks, strict=True)]
        if turn:
            assert all(s.finished.usage.cached >= 64 for s in sinks)  # type: ignore[union-attr]


def test_an_evaluation_shares_what_it_computed_and_takes_nothing() -> None:
    bench = Bench(model=FULL)
    ids = prompt(100)
    first = bench.give(request(ids, max_tokens=2))
    out = np.empty((100, VOCAB), np.float32)
    sink = Collector()
    bench.core.add(
        Sequence(GenerationRequest(tuple(ids)), Sampler(SamplingParams(), 0), sink, limit=100, rows=64, evaluation=AllLogits(out))
    )
    bench.drain()
    assert np.array_equal(out, FULL.expected_logits(ids))
    assert sink.finished is not None
    assert (sink.finished.reason, sink.finished.usage.cached) == ("length", 0)
    assert first.finished is not None


def test_batches_hold_the_shared_blocks_in_every_table() -> None:
    bench = Bench(model=SLIDING)
    seen: list[Batch] = []
    bench.runner.before = seen.append
    for one in fan(3, 70):
        bench.add(one)
    bench.drain()
    full = seen[1].tables[None]
    assert (full[:, :2] == full[0, :2]).all()
    assert len(set(full[:, 2].tolist())) == 3
