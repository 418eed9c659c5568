"""Three streams cut and batched in different ways, for tests of stateful operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.protocols.layout import Layout
from tensorsharp.state import HostStateStore
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
