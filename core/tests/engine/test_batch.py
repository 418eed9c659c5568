from __future__ import annotations

from engine_bench import Bench, prompt, request, sizes

from tensorsharp.protocols.batch import Batch


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


def test_previous_tokens() -> None:
    bench = Bench(step=64, chunk=4, history=3)
    ids = prompt(6)
    sink = bench.add(request(ids, max_tokens=2, temperature=0))
    got = [b.previous.tolist() for b in batches(bench)]
    padded = [-1, -1, -1, *ids, *sink.tokens]
    want = [padded[i : i + 3] for i in range(7)]
    assert got == [want[:4], want[4:6], want[6:7]]
