from __future__ import annotations

import pytest
from engine_bench import FULL, MODEL, Bench, prompt, request, sizes

from tensorsharp.engine.batch import Work, build_batch
from tensorsharp.protocols.batch import Batch
from tensorsharp.testing.fakes import FakeModel


def batches(bench: Bench) -> list[Batch]:
    bench.drain()
    return bench.runner.batches


def test_rows_of_a_mixed_step() -> None:
    bench = Bench(sizes(sequences=3), step=40, chunk=16)
    bench.add(request(prompt(20, 1), max_tokens=3, temperature=0))
    bench.step()
    bench.add(request(prompt(9, 2), max_tokens=2, temperature=0))
    bench.step()
    first, second = bench.runner.batches
    assert (first.rows, first.sequences, first.wanted.tolist()) == (16, 1, [])
    assert second.pos.tolist() == [16, 17, 18, 19, *range(9)]
    assert second.seq.tolist() == [0] * 4 + [1] * 9
    assert (second.first_row.tolist(), second.start.tolist(), second.length.tolist()) == ([0, 4], [16, 0], [4, 9])
    assert second.wanted.tolist() == [3, 12]
    assert second.tokens.tolist() == [*prompt(20, 1)[16:], *prompt(9, 2)]
    slot_one, slot_two = second.tail_slot.tolist()
    assert second.slot_in.tolist() == [slot_one, -1]
    assert second.slot_out.tolist() == [-1] * 3 + [slot_one] + [-1] * 8 + [slot_two]
    assert all(
        a.dtype == "int32" for a in (second.tokens, second.pos, second.seq, second.slot_in, second.slot_out, second.wanted)
    )


def test_a_decode_step_has_one_row_a_sequence() -> None:
    bench = Bench(sizes(sequences=2), step=64)
    sinks = [bench.add(request(prompt(4, i), max_tokens=4, temperature=0)) for i in range(2)]
    last = batches(bench)[-1]
    assert last.tokens.tolist() == [s.tokens[-2] for s in sinks]
    assert last.pos.tolist() == [6, 6]
    assert last.wanted.tolist() == [0, 1]
    assert {g: t.shape for g, t in last.tables.items()} == {None: (2, 16), 40: (2, 16)}


@pytest.mark.parametrize("history", [0, 2])
@pytest.mark.parametrize("model", [MODEL, FULL], ids=["recurrent", "full"])
def test_replies_have_the_same_rows_beside_a_prompt(history: int, model: FakeModel) -> None:
    bench = Bench(sizes(sequences=4), step=64, history=history, model=model, saved=1 << 20)
    for i in range(4):
        bench.add(request(prompt(1 + 7 * i, i), max_tokens=4, temperature=0))
    bench.step()
    work = [Work(s, s.seat, 1) for s in bench.core.scheduler.running if s.seat is not None]
    last = work[-1].sequence
    last.computed = 3  # as if it had read so far
    beside = build_batch([*work[:-1], Work(last, work[-1].seat, 2)], bench.seats.tables, history)
    alone = build_batch(work[:-1], bench.seats.tables, history)
    for name in ("tokens", "pos", "seq", "first_row", "start", "length", "tail_slot", "slot_in", "slot_out", "previous"):
        got, want = getattr(alone, name), getattr(beside, name)[:3]
        assert (got.dtype, got.tolist()) == (want.dtype, want.tolist()), name
    assert alone.wanted.tolist() == beside.wanted.tolist() == [0, 1, 2]
    assert {g: t.tolist() for g, t in alone.tables.items()} == {g: t[:3].tolist() for g, t in beside.tables.items()}


def test_a_prompt_of_one_token_starts_without_state() -> None:
    bench = Bench(step=64)
    bench.add(request([5], max_tokens=2, temperature=0))
    first, second = batches(bench)
    assert (first.slot_in.tolist(), second.slot_in.tolist() == first.slot_out.tolist()) == ([-1], True)


def test_previous_tokens() -> None:
    bench = Bench(step=64, chunk=4, history=3)
    ids = prompt(6)
    sink = bench.add(request(ids, max_tokens=2, temperature=0))
    got = [b.previous.tolist() for b in batches(bench)]
    padded = [-1, -1, -1, *ids, *sink.tokens]
    want = [padded[i : i + 3] for i in range(7)]
    assert got == [want[:4], want[4:6], want[6:7]]
