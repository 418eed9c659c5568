"""Paged rows, attention and selection against plain loops over the whole sequence, and against themselves under other cuts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from reference_bench import LENGTHS, cut, every_cut_gives_the_same, host, ints, normal

from tensorsharp.errors import BackendError
from tensorsharp.inputs import Local, Strided, Visible, Windows
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.layout import Format, Layout, Paged
from tensorsharp.reference.attention import HostSource, attend
from tensorsharp.reference.paging import read_rows, write_rows
from tensorsharp.reference.select import select
from tensorsharp.state import HostStateStore, decode_rows, encode_rows
from tensorsharp.testing.streams import Streams


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


def test_strided_ranges_see_complete_groups_only() -> None:
    state = Streams({"e": Paged(8, "f32", stride=4)})
    batch = state.batch([(0, 10)])
    at = Windows(4).compute(batch)
    x = normal(len(at), 8)
    write_rows(host(state), batch, "e", x, at)
    found = attend(normal(10, 1, 8, seed=4), [HostSource("e", Strided(4).compute(batch))], batch, host(state), 1.0)
    assert not found[:3].any()
    assert np.allclose(found[3:7], x[0], atol=1e-6)
