"""Convolution, pooling and recurrences against plain loops over the whole sequence, and against themselves under other cuts."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from reference_bench import LENGTHS, cut, every_cut_gives_the_same, floats, host, ints, normal

from tensorsharp.inputs import Windows
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.layout import Layout, Slot, Tail
from tensorsharp.reference.recurrence import conv, pool, scan
from tensorsharp.state import HostStateStore
from tensorsharp.testing.streams import Streams


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
