"""Who runs when: running sequences first, prompts in chunks, admission only of what fits, preemption of the youngest."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
from engine_bench import WINDOW, Bench, alone, prompt, request, sizes

from tensorsharp.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from tensorsharp.engine.sizing import left_for_state, plan_state
from tensorsharp.errors import CapacityError
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp.state import state_bytes
from tensorsharp.testing.fakes import FakeClock
from tensorsharp.types import GenerationRequest

CONTEXT = 128


@lru_cache(None)
def reply(length: int, salt: int, tokens: int) -> tuple[int, ...]:
    return tuple(alone(asked(length, salt, tokens), CONTEXT).tokens)


def asked(length: int, salt: int, tokens: int, priority: int = 0) -> GenerationRequest:
    return request(prompt(length, salt), max_tokens=tokens, temperature=1.0, seed=salt, priority=priority)


@pytest.mark.parametrize("at", range(0, 24, 3))
def test_cancelling_after_any_step_leaves_the_others_alone(at: int) -> None:
    bench = Bench(sizes(blocks=5, window_blocks=8, sequences=3), context=CONTEXT, step=12)
    keys = [(30, 0, 10), (45, 1, 10), (32, 2, 10)]
    sinks = [bench.add(asked(*key)) for key in keys]
    for _ in range(at):
        bench.step()
    sinks[1].ending = ("cancelled", None)
    before = len(sinks[1].events)
    bench.drain()
    assert [tuple(s.tokens) for s in (sinks[0], sinks[2])] == [reply(*keys[0]), reply(*keys[2])]
    assert len(sinks[1].events) == before
    assert sinks[1].finished is not None


def test_running_sequences_decode_while_a_prompt_is_computed_in_chunks() -> None:
    bench = Bench(sizes(sequences=2), step=10, chunk=8)
    first = bench.add(asked(5, 0, 40))
    bench.step()
    bench.add(asked(45, 1, 5))
    for n in range(5):
        assert len(first.events) == n + 1
        bench.step()
    assert [b.length.tolist() for b in bench.runner.batches] == [[5], [1, 8], [1, 8], [1, 8], [1, 8], [1, 8]]


def test_a_prompt_waits_until_all_of_it_fits() -> None:
    bench = Bench(sizes(blocks=4, sequences=3), context=CONTEXT, step=64)
    bench.add(asked(70, 0, 20))
    bench.step()
    bench.add(asked(45, 1, 5))
    bench.add(asked(1, 2, 5))
    bench.step()
    # one block is free: the second prompt needs two, and the third, which would fit, may not pass it
    assert [b.sequences for b in bench.runner.batches] == [1, 1]
    bench.drain()
    assert bench.core.scheduler.preemptions == 0


def test_blocks_that_a_running_prompt_still_needs_are_not_given_away() -> None:
    bench = Bench(sizes(blocks=4, sequences=3), context=CONTEXT, step=16, chunk=8)
    bench.add(asked(100, 0, 10))
    bench.step()
    assert bench.seats.pools[None].free == 3
    late = bench.add(asked(30, 1, 10))
    bench.drain()
    assert bench.core.scheduler.preemptions == 0
    assert tuple(late.tokens) == reply(30, 1, 10)


def test_a_token_that_was_under_way_when_the_end_was_asked_is_not_given() -> None:
    bench = Bench(context=CONTEXT)
    sink = bench.add(asked(30, 0, 10))
    for _ in range(3):
        bench.step()

    def end(batch: Batch) -> None:
        sink.ending = ("cancelled", None)

    bench.runner.before = end
    bench.step()
    assert len(sink.events) == 3
    assert sink.finished is not None
    assert sink.finished.usage.completion == 3


def test_the_oldest_is_never_preempted() -> None:
    bench = Bench(sizes(blocks=3, sequences=2), context=CONTEXT, step=96)
    sinks = [bench.add(asked(30, i, 40)) for i in range(3)]
    oldest = 0
    while sinks[0].finished is None:
        bench.step()
        oldest += 1
        assert not sinks[2].events, "the second was preempted, and comes before the third"
    assert bench.core.scheduler.preemptions > 0
    assert oldest == 40, "one step for the prompt and its first token, then a token a step"
    bench.drain()
    assert [tuple(s.tokens) for s in sinks] == [reply(30, i, 40) for i in range(3)]


LAYOUT: Layout = {
    "k": Paged(64, "f16"),
    "c": Paged(16, "f16", stride=4),
    "w": Paged(64, "f16", window=WINDOW),
    "t": Tail(8, 3),
    "s": Slot((4, 4)),
}


def test_the_plan_takes_the_worst_case_where_it_fits() -> None:
    plan = plan_state(LAYOUT, context=1000, sequences=3, rows=512, available=1 << 40)
    # 552 rows from anywhere touch at most 19 blocks of 32
    assert plan.blocks == {None: 3 * 32, WINDOW: 3 * 19}
    assert (plan.block_tokens, plan.sequences, plan.slots) == (32, 3, 3)


def test_the_plan_shrinks_to_what_fits_but_not_below_one_context() -> None:
    whole = state_bytes(LAYOUT, plan_state(LAYOUT, context=1000, sequences=3, rows=512, available=1 << 40))
    for available in (whole - 1, whole - 200_000):
        plan = plan_state(LAYOUT, context=1000, sequences=3, rows=512, available=available)
        assert 32 <= plan.blocks[None] < 96
        assert state_bytes(LAYOUT, plan) <= available
        block = 32 * 128 + 8 * 32
        assert state_bytes(LAYOUT, plan) > available - block
    with pytest.raises(CapacityError, match=r"context of 1,000 tokens needs [\d,]+ bytes; 200,000 are available"):
        plan_state(LAYOUT, context=1000, sequences=3, rows=512, available=200_000)


def test_what_is_kept_in_memory_besides_is_not_planned_with() -> None:
    def left(layout: Layout, ram: int, saved: int, available: int) -> int:
        config = EngineConfig(100, SchedulerConfig(saved_bytes=saved), cache=CacheConfig(ram=ram))
        return left_for_state(layout, config, available)

    paged: Layout = {"k": Paged(8)}
    assert left(paged, 300, 50, 1000) == 700, "a model with all its state in blocks saves nothing besides"
    assert left({**paged, "hash": Slot((4,))}, 300, 50, 1000) == 650
    assert left({**paged, "ring": Tail(4, 2)}, 0, 1000, 1000) == 0
    with pytest.raises(CapacityError, match=r"may take 2,000 bytes of memory \(kv_ram\).* 0 \(saved_bytes\); 1,999 are"):
        left(paged, 2000, 50, 1999)


def test_blocks_are_multiples_of_every_stride() -> None:
    layout: Layout = {"k": Paged(8), "c": Paged(8, stride=128)}
    assert plan_state(layout, context=1000, sequences=1, rows=64, available=1 << 30).block_tokens == 128


def test_replies_go_on_beside_a_long_prompt_that_is_older() -> None:
    bench = Bench(sizes(sequences=2), context=512, step=64, chunk=64, busy=16)
    bench.add(asked(20, 1, 40))
    bench.step()
    second = bench.add(request(prompt(200), max_tokens=3))
    bench.add(asked(1, 2, 1))
    bench.drain()
    # alone a prompt takes the whole step; beside a reply 16 rows a step
    assert bench.rows[:3] == [[20], [1, 16], [1, 16]]
    assert second.finished is not None


def test_a_reply_gets_its_row_even_if_an_older_prompt_could_take_the_step() -> None:
    bench = Bench(sizes(sequences=2), context=512, step=20, chunk=16, busy=19)
    bench.add(request(prompt(300), max_tokens=1))
    young = bench.add(asked(4, 1, 10))
    for _ in range(5):
        bench.step()
    assert bench.rows[:3] == [[16, 4], [16, 1], [16, 1]]
    assert len(young.events) == 5


def test_higher_priority_is_served_first_and_equal_ones_in_order_of_arrival() -> None:
    bench = Bench(sizes(sequences=1), context=CONTEXT)
    sinks = [bench.add(asked(10, i, 5, priority)) for i, priority in enumerate((0, 0, 2, -1, 2))]
    order: list[int] = []
    while bench.step():
        order += [i for i, sink in enumerate(sinks) if sink.finished is not None and i not in order]
    assert order == [2, 4, 0, 1, 3]


def test_the_lowest_priority_is_preempted() -> None:
    bench = Bench(sizes(blocks=4, sequences=2), context=CONTEXT, step=96)
    low = bench.add(asked(30, 0, 60, -1))
    high = bench.add(asked(30, 1, 60))
    while high.finished is None:
        bench.step()
    assert bench.core.scheduler.preemptions > 0
    assert low.finished is None
    assert tuple(high.tokens) == reply(30, 1, 60)
    bench.drain()
    assert tuple(low.tokens) == reply(30, 0, 60)


def test_a_request_ends_when_its_time_is_over_running_or_waiting() -> None:
    clock = FakeClock()
    bench = Bench(sizes(sequences=1), context=CONTEXT, now=clock)
    runs, waits, patient = [bench.add(replace(asked(10, i, 20), timeout_s=s)) for i, s in enumerate((5.0, 3.0, None))]
    for sequence in bench.core.scheduler.waiting:
        sequence.clock.submitted = clock()
    bench.step()
    clock.advance(3.0)
    bench.step()
    assert waits.finished is not None
    assert (waits.finished.reason, waits.events, runs.finished) == ("timeout", [], None)
    clock.advance(2.0)
    bench.drain()
    assert runs.finished is not None
    assert (runs.finished.reason, tuple(runs.tokens)) == ("timeout", reply(10, 0, 20)[:2])
    assert tuple(patient.tokens) == reply(10, 2, 20)


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_a_deadline_ends_a_prompt_between_two_of_its_chunks_and_harms_no_other(chunks: int) -> None:
    clock = FakeClock()
    bench = Bench(sizes(sequences=2), context=CONTEXT, chunk=8, now=clock)
    late, other = bench.add(replace(asked(60, 1, 5), timeout_s=1.0)), bench.add(asked(60, 2, 5))
    for sequence in bench.core.scheduler.waiting:
        sequence.clock.submitted = clock()
    for _ in range(chunks):
        bench.step()
    clock.advance(1.0)
    bench.drain()
    assert late.finished is not None
    assert (late.finished.reason, late.events) == ("timeout", [])
    assert sum(8 in rows for rows in bench.rows[:chunks]) == chunks
    assert [rows for rows in bench.rows[chunks:] if len(rows) > 1] == [], "no chunk of it was computed any more"
    assert tuple(other.tokens) == reply(60, 2, 5)
