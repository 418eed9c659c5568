"""Stateful operations against plain loops over the whole sequence, and against themselves under other cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import pytest

from tensorsharp.errors import BackendError
from tensorsharp.inputs import Local, Strided, Visible, Windows
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.protocols.layout import Format, Layout, Paged, Slot, Tail
from tensorsharp.reference.attention import HostSource, attend
from tensorsharp.reference.paging import read_rows, write_rows
from tensorsharp.reference.recurrence import conv, pool, scan
from tensorsharp.reference.select import select
from tensorsharp.state import HostStateStore, decode_rows, encode_rows
from tensorsharp.testing.streams import Streams

SCHEDULES: Mapping[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "whole": (((0, 50),), ((1, 41),), ((2, 64),)),
    "together": (((0, 50), (1, 41), (2, 64)),),
    "ones": (*[((0, 1), (1, 1), (2, 1))] * 41, ((0, 9), (2, 23))),
    "threes": (*[((2, 3), (0, 3))] * 16, ((1, 41), (0, 2), (2, 16))),
    "block edges": (((0, 31), (1, 33)), ((2, 32),), ((1, 8), (0, 19), (2, 32))),
}
"""The same three streams, cut and batched in different ways: (stream, rows) per batch."""

LENGTHS = {0: 50, 1: 41, 2: 64}
Step = Callable[[Batch, HostStateStore, list[slice]], F32]


def ints(*values: int) -> I32:
    return np.array(values, np.int32)


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def host(state: Streams) -> HostStateStore:
    assert isinstance(state.store, HostStateStore)
    return state.store


def floats(store: HostStateStore, name: str) -> F32:
    """A ring, or recurrent states."""
    return store.arrays[name].view(np.float32)


def play(layout: Layout, name: str, step: Step, *, seed: int = 0) -> dict[int, F32]:
    """Run a schedule; `step` gets each batch and, per batch sequence, which of its rows these are."""
    state = Streams(layout, seed=seed, slack=2)
    store = host(state)
    outputs = []
    for rows in SCHEDULES[name]:
        before = list(state.done)
        batch = state.batch(rows)
        outputs.append((batch, step(batch, store, [slice(before[s], before[s] + n) for s, n in rows])))
    assert state.done == list(LENGTHS.values())
    rows_of: dict[int, list[F32]] = {s: [] for s in LENGTHS}
    for (batch, out), step_rows in zip(outputs, SCHEDULES[name], strict=True):
        for index, (s, _) in enumerate(step_rows):
            rows_of[s].append(out[batch.seq == index])
    return {s: np.concatenate(parts) for s, parts in rows_of.items()}


def cut(data: dict[int, F32], batch: Batch, rows: list[slice]) -> F32:
    """The batch's rows of per-sequence data; the sequence is named by its ring slot."""
    return np.concatenate([data[int(s)][part] for s, part in zip(batch.tail_slot, rows, strict=True)])


def every_cut_gives_the_same(layout: Layout, step: Step) -> dict[int, F32]:
    expected = play(layout, "whole", step)
    for name in SCHEDULES:
        for seed in (0, 1):
            found = play(layout, name, step, seed=seed)
            for s in LENGTHS:
                assert np.array_equal(found[s], expected[s]), (name, s)
    return expected


# paged rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f16", "bf16", "f32"])
def test_rows_are_converted_once_and_found_again(fmt: Format) -> None:
    state = Streams({"k": Paged(6, fmt)})
    x = normal(70, 6)
    batch = state.batch([(1, 64), (0, 6)])
    write_rows(host(state), batch, "k", x)
    assert np.array_equal(read_rows(host(state), batch, "k", 0, np.arange(64)), decode_rows(encode_rows(x[:64], fmt), fmt))
    assert np.array_equal(
        read_rows(host(state), batch, "k", 1, np.array([5, 2])), decode_rows(encode_rows(x[[69, 66]], fmt), fmt)
    )


def test_padding_rows_write_nothing() -> None:
    state = Streams({"k": Paged(6, "f32")})
    batch = state.batch([(1, 4)]).padded(8, 3, 6)
    before = host(state).arrays["k"].copy()
    write_rows(host(state), batch, "k", normal(8, 6))
    changed = np.any(before.view(np.uint32) != host(state).arrays["k"].view(np.uint32), axis=2)
    assert np.argwhere(changed).tolist() == [[state.tables[None][1, 0], i] for i in range(4)]


def test_windows_write_their_index() -> None:
    state = Streams({"entry": Paged(3, "f32", stride=4)})
    batch = state.batch([(0, 10), (2, 4)])
    at = Windows(4).compute(batch)
    write_rows(host(state), batch, "entry", normal(len(at), 3), at)
    assert np.array_equal(read_rows(host(state), batch, "entry", 0, np.arange(2)), normal(len(at), 3)[:2])
    assert np.array_equal(read_rows(host(state), batch, "entry", 1, np.arange(1)), normal(len(at), 3)[2:3])
    assert np.isnan(host(state).arrays["entry"]).sum() == host(state).arrays["entry"].size - 9


@pytest.mark.parametrize(("table", "sentence"), [([[-1, 0]], "row 3 has no block"), ([[0]], "row 32 lies beyond")])
def test_a_row_without_a_block_is_an_error(table: list[list[int]], sentence: str) -> None:
    state = Streams({"k": Paged(6, "f32")})
    state.done[0] = 3
    batch = state.batch([(0, 30)])
    wrong = Batch(**{f: getattr(batch, f) for f in Batch.__slots__} | {"tables": {None: np.array(table, np.int32)}})
    with pytest.raises(BackendError, match=sentence):
        write_rows(host(state), wrong, "k", normal(30, 6))


# attention -------------------------------------------------------------------------------------------------------


def plain_attention(q: F32, k: F32, v: F32, seen: list[int], scale: float, softcap: float, sinks: F32 | None) -> F32:
    """One row, float64: q [H, D], k [n, Hk, D], v [n, Hk, Dv]."""
    out = np.zeros((len(q), v.shape[-1]))
    for h in range(len(q)):
        kv = h // (len(q) // k.shape[1])
        x = [scale * float(q[h].astype(np.float64) @ k[i, kv]) for i in seen]
        x = [softcap * math.tanh(value / softcap) for value in x] if softcap else x
        top = max([*x, float(sinks[h])] if sinks is not None else x, default=0.0)
        p = [math.exp(value - top) for value in x]
        total = sum(p) + (math.exp(float(sinks[h]) - top) if sinks is not None else 0.0)
        for weight, i in zip(p, seen, strict=True):
            out[h] += weight / total * v[i, kv]
    return out.astype(np.float32)


@pytest.mark.parametrize("window", [None, 8, 40])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
@pytest.mark.parametrize("sunk", [False, True])
def test_attention_over_stores(window: int | None, softcap: float, sunk: bool) -> None:
    heads, kv_heads, d, dv = 6, 2, 8, 5
    q = {s: normal(n, heads, d, seed=1) for s, n in LENGTHS.items()}
    k = {s: normal(n, kv_heads * d, seed=2 + s) for s, n in LENGTHS.items()}
    v = {s: normal(n, kv_heads * dv, seed=3 + s) for s, n in LENGTHS.items()}
    sinks = normal(heads, seed=9) if sunk else None
    layout: Layout = {"k": Paged(kv_heads * d, "f32", window=window), "v": Paged(kv_heads * dv, "f32", window=window)}

    def step(batch: Batch, store: HostStateStore, rows: list[slice]) -> F32:
        write_rows(store, batch, "k", cut(k, batch, rows))
        write_rows(store, batch, "v", cut(v, batch, rows))
        source = HostSource("k", Visible(window).compute(batch), "v", kv_heads)
        return attend(cut(q, batch, rows), [source], batch, store, 0.4, sinks=sinks, softcap=softcap)

    found = every_cut_gives_the_same(layout, step)
    for s, n in LENGTHS.items():
        keys, values = k[s].reshape(n, kv_heads, d), v[s].reshape(n, kv_heads, dv)
        for r in range(n):
            seen = list(range(0 if window is None else max(0, r + 1 - window), r + 1))
            expected = plain_attention(q[s][r], keys, values, seen, 0.4, softcap, sinks)
            assert np.allclose(found[s][r], expected, atol=2e-6)  # float32 against float64, values of size 1


def online(x: F32, v: F32, numbers: list[int]) -> F32:
    """The definition, one key after the other: x [n], v [n, Dv], ascending row numbers."""
    f = np.float32
    m_all, l_all, a_all = f(-np.inf), f(0), np.zeros(v.shape[1], np.float32)
    for segment in sorted({i // 1024 for i in numbers}):
        m, total, a = f(-np.inf), f(0), np.zeros(v.shape[1], np.float32)
        in_segment = [j for j, i in enumerate(numbers) if i // 1024 == segment]
        for tile in sorted({numbers[j] // 32 for j in in_segment}):
            members = [j for j in in_segment if numbers[j] // 32 == tile]
            top = max(m, x[members].max())
            c = np.exp(m - top)
            m, total, a = top, total * c, a * c
            for j in members:
                p = np.exp(x[j] - m)
                total, a = total + p, a + p * v[j]
        top = max(m_all, m)
        c, d = np.exp(m_all - top), np.exp(m - top)
        m_all, l_all, a_all = top, l_all * c + total * d, a_all * c + a * d
    return np.asarray(a_all / l_all, np.float32)


@pytest.mark.parametrize(("lo", "hi"), [(0, 1), (0, 33), (5, 64), (31, 97), (1000, 1030), (700, 2100)])
def test_the_order_of_additions_is_the_definition(lo: int, hi: int) -> None:
    state = Streams({"k": Paged(8, "f32"), "v": Paged(4, "f32")}, count=1, capacity=70)
    k, v, q = normal(2200, 8, seed=1), normal(2200, 4, seed=2), normal(1, 1, 8, seed=3) * 3
    filled = state.batch([(0, 2200)])
    write_rows(host(state), filled, "k", k)
    write_rows(host(state), filled, "v", v)
    batch = state.batch([(0, 1)], keep=False)
    found = attend(q, [HostSource("k", ints(lo, hi)[None], "v")], batch, host(state), 0.7)
    x = np.float32(0.7) * np.vecdot(k[lo:hi], q[0, 0])
    assert np.array_equal(found[0, 0], online(x, v[lo:hi], list(range(lo, hi))))


def test_selected_groups_and_a_local_source_share_one_softmax() -> None:
    heads, d = 3, 8
    state = Streams({"c": Paged(d, "f32")}, count=2)
    c, local, q = normal(2, 60, d, seed=1), normal(9, d, seed=2), normal(9, heads, d, seed=3)
    filled = state.batch([(0, 60), (1, 60)])
    write_rows(host(state), filled, "c", c.reshape(120, d))
    batch = state.batch([(1, 4), (0, 5)], keep=False)
    chosen = np.array([[0, 3, -1]] * 4 + [[1, -1, -1]] * 5, np.int32)
    stored = HostSource("c", Visible().compute(batch), kv_heads=1, select=chosen, group=10, value_dim=6)
    beside = HostSource(local, Local().compute(batch), local[:, :6], kv_heads=1)
    found = attend(q, [stored, beside], batch, host(state), 0.3)
    for r in range(9):
        s, own = (1, local[:4]) if r < 4 else (0, local[4:])
        picked = c[s][[*range(10), *range(30, 40)]] if r < 4 else c[s][10:20]
        keys = np.concatenate([picked, own])
        expected = plain_attention(q[r], keys[:, None], keys[:, None, :6], list(range(len(keys))), 0.3, 0.0, None)
        assert np.allclose(found[r], expected, atol=2e-6)
    alone = attend(
        q[4:],
        [HostSource(local[4:], ints(0, 5)[None].repeat(5, 0), local[4:, :6])],
        state.batch([(0, 5)], keep=False),
        host(state),
        0.3,
    )
    together = attend(q, [beside], batch, host(state), 0.3)
    assert np.array_equal(alone, together[4:])


def test_nothing_visible_gives_zeros() -> None:
    state = Streams({"k": Paged(8, "f32")})
    batch = state.batch([(0, 2)], wanted="none").padded(4, 1, 0)
    source = HostSource("k", np.zeros((4, 2), np.int32))
    assert not attend(normal(4, 2, 8), [source], batch, host(state), 1.0, sinks=normal(2)).any()


# selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("pin_last", [False, True])
def test_selection(weighted: bool, group: int, pin_last: bool) -> None:
    heads, d, k = 2, 8, 5
    q = {s: normal(n, heads, d, seed=1) for s, n in LENGTHS.items()}
    w = {s: normal(n, heads, seed=4) for s, n in LENGTHS.items()}
    keys = {s: normal(n, d, seed=2 + s) for s, n in LENGTHS.items()}

    def step(batch: Batch, store: HostStateStore, rows: list[slice]) -> F32:
        write_rows(store, batch, "i", cut(keys, batch, rows))
        gate = cut(w, batch, rows) if weighted else None
        seen = Visible().compute(batch)
        found = select(cut(q, batch, rows), gate, "i", seen, k, batch, store, group=group, pin_last=pin_last)
        return found.astype(np.float32)

    found = every_cut_gives_the_same({"i": Paged(d, "f32")}, step)
    for s, n in LENGTHS.items():
        for r in range(n):
            scores: dict[int, float] = {}
            for i in range(r + 1):
                dots = np.maximum(np.vecdot(q[s][r], keys[s][i]), np.float32(0))
                score = np.float32(0)
                for h in range(heads):
                    score = score + (w[s][r, h] * dots[h] if weighted else dots[h])
                scores[i // group] = max(scores.get(i // group, -math.inf), float(score))
            if pin_last:
                scores[r // group] = math.inf
            best = sorted(sorted(scores, key=lambda unit: (-scores[unit], unit))[:k])
            assert found[s][r].tolist() == best + [-1] * (k - len(best))


def test_selection_within_candidates() -> None:
    state = Streams({"i": Paged(8, "f32")})
    keys, q = normal(40, 8, seed=1), normal(1, 2, 8, seed=2)
    write_rows(host(state), state.batch([(0, 40)]), "i", keys)
    batch = state.batch([(0, 1)], keep=False)
    found = select(q, None, "i", ints(0, 40)[None], 3, batch, host(state), within=ints(4, 1, -1)[None], within_group=8)
    scores = np.maximum(keys @ q[0].T, 0).sum(1)
    allowed = [*range(8, 16), *range(32, 40)]
    assert found[0].tolist() == sorted(sorted(allowed, key=lambda i: (-scores[i], i))[:3])


# recurrences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("biased", [False, True])
def test_convolution(dilation: int, biased: bool) -> None:
    channels, taps = 5, 4
    x = {s: normal(n, channels, seed=s) for s, n in LENGTHS.items()}
    w, b = normal(channels, taps, seed=8), normal(channels, seed=9) if biased else None
    layout: Layout = {"t": Tail(channels, (taps - 1) * dilation)}

    def step(batch: Batch, store: HostStateStore, rows: list[slice]) -> F32:
        return conv(cut(x, batch, rows), floats(store, "t"), w, b, dilation, batch)

    found = every_cut_gives_the_same(layout, step)
    for s, n in LENGTHS.items():
        for p in range(n):
            y = np.zeros(channels, np.float32) if b is None else b
            for t in range(taps):
                at = p - (taps - 1 - t) * dilation
                y = y + w[:, t] * (x[s][at] if at >= 0 else np.float32(0))
            assert np.array_equal(found[s][p], y)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("ratio", "overlap"), [(1, False), (4, False), (4, True), (16, True)])
def test_pooling(ratio: int, overlap: bool, gated: bool) -> None:
    columns = 6
    depth = columns // 2 if overlap else columns
    width = 2 * columns if gated else columns
    x = {s: normal(n, width, seed=s) for s, n in LENGTHS.items()}
    layout: Layout = {"t": Tail(width, (2 * ratio if overlap else ratio) - 1)}

    def step(batch: Batch, store: HostStateStore, rows: list[slice]) -> F32:
        windows = Windows(ratio).compute(batch)
        pooled = pool(cut(x, batch, rows), floats(store, "t"), windows, ratio, batch, overlap=overlap, gated=gated)
        out = np.zeros((batch.rows, depth), np.float32)
        live = windows[:, 0] >= 0
        assert not pooled[~live].any()
        out[windows[live, 0]] = pooled[live]
        return out

    found = every_cut_gives_the_same(layout, step)
    for s, n in LENGTHS.items():
        for p in range(n):
            if (p + 1) % ratio:
                continue
            newer = list(range(p - ratio + 1, p + 1))
            older = [i for i in range(p - 2 * ratio + 1, p - ratio + 1) if i >= 0] if overlap else []
            value = [x[s][i, :depth] for i in older] + [x[s][i, columns - depth : columns] for i in newer]
            if gated:
                gates = [x[s][i, columns : columns + depth] for i in older] + [x[s][i, width - depth :] for i in newer]
                weights = np.exp(np.array(gates, np.float64))
                expected = (weights / weights.sum(0) * np.array(value)).sum(0)
            else:
                expected = np.mean(np.array(value, np.float64), 0)
            assert np.allclose(found[s][p], expected, atol=2e-6)


@pytest.mark.parametrize("heads", ["tile", "group"])
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
def test_scan(heads: Literal["tile", "group"], delta: bool, per_channel: bool) -> None:
    hk, h, dk, dv = 2, 4, 5, 3
    data = {
        s: (
            normal(n, hk, dk, seed=s),
            normal(n, hk, dk, seed=10 + s) * np.float32(0.4),
            normal(n, h, dv, seed=20 + s),
            -np.abs(normal(*((n, h, dk) if per_channel else (n, h)), seed=30 + s)),
            np.abs(normal(n, h, seed=40 + s)),
        )
        for s, n in LENGTHS.items()
    }

    def step(batch: Batch, store: HostStateStore, rows: list[slice]) -> F32:
        q, k, v, g, beta = (cut({s: data[s][i] for s in data}, batch, rows) for i in range(5))
        return scan(q, k, v, g, beta, floats(store, "s"), batch, delta=delta, heads=heads)

    found = every_cut_gives_the_same({"s": Slot((h, dk, dv))}, step)
    for s, n in LENGTHS.items():
        q, k, v, g, beta = (part.astype(np.float64) for part in data[s])
        state = np.zeros((h, dk, dv))
        for r in range(n):
            for i in range(h):
                j = i % hk if heads == "tile" else i // (h // hk)
                state[i] *= np.exp(g[r, i])[..., None]
                u = v[r, i] - (state[i].T @ k[r, j] if delta else 0)
                state[i] += np.outer(k[r, j], beta[r, i] * u)
                assert np.allclose(found[s][r, i], state[i].T @ q[r, j], atol=2e-5)  # states of size 10, 64 steps


def test_scan_writes_the_state_of_every_row_that_names_a_slot() -> None:
    state = Streams({"s": Slot((1, 2, 2))})
    batch = state.batch([(0, 3)])
    every = Batch(**{f: getattr(batch, f) for f in Batch.__slots__} | {"slot_out": ints(4, -1, 5)})
    x = (
        normal(3, 1, 2),
        normal(3, 1, 2, seed=1),
        normal(3, 1, 2, seed=2),
        -np.ones((3, 1), np.float32),
        np.ones((3, 1), np.float32),
    )
    slots = floats(host(state), "s")
    whole = scan(*x, slots, every, delta=True, heads="tile")
    for upto, slot in ((1, 4), (3, 5)):
        fresh = Streams({"s": Slot((1, 2, 2))})
        again = fresh.batch([(0, upto)])
        q, k, v, g, beta = (value[:upto] for value in x)
        part = scan(q, k, v, g, beta, floats(host(fresh), "s"), again, delta=True, heads="tile")
        assert np.array_equal(part, whole[:upto])
        assert np.array_equal(floats(host(fresh), "s")[0], slots[slot])
    assert np.isnan(slots[[0, 1, 2, 3]]).all()


def test_a_ring_with_slack_takes_rejected_rows_back() -> None:
    x, w = normal(20, 4), normal(4, 4, seed=1)
    wrong = normal(2, 4, seed=2)
    plain = Streams({"t": Tail(4, 3)}, slack=2)
    ring = floats(host(plain), "t")
    expected = conv(x, ring, w, None, 1, plain.batch([(0, 20)]))
    drafted = Streams({"t": Tail(4, 3)}, slack=2)
    ring = floats(host(drafted), "t")
    found = []
    for p in range(20):
        batch = drafted.batch([(0, 3)])
        found.append(conv(np.concatenate([x[p : p + 1], wrong]), ring, w, None, 1, batch)[0])
        drafted.done[0] = p + 1
    assert np.array_equal(np.array(found), expected)


def test_strided_ranges_see_complete_groups_only() -> None:
    state = Streams({"e": Paged(8, "f32", stride=4)})
    batch = state.batch([(0, 10)])
    at = Windows(4).compute(batch)
    x = normal(len(at), 8)
    write_rows(host(state), batch, "e", x, at)
    found = attend(normal(10, 1, 8, seed=4), [HostSource("e", Strided(4).compute(batch))], batch, host(state), 1.0)
    assert not found[:3].any()
    assert np.allclose(found[3:7], x[0], atol=1e-6)
