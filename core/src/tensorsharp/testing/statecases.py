"""Cases of the stateful operations, with shapes drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from tensorsharp.inputs import ModelBatch, Tensor
from tensorsharp.ops import Ops, Source
from tensorsharp.protocols.batch import I32
from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp.testing.opcases import flat
from tensorsharp.testing.opmodel import OpCase

ROWS = 80
"""More than any stream of a case has."""


def stateful_cases(seed: int) -> Iterator[OpCase]:
    """Every stateful operation, in every form that its contract names."""
    rng = np.random.default_rng(seed)

    def draw(*choices: int) -> int:
        return int(rng.choice(choices))

    kv_heads = draw(1, 2)
    heads, depth = kv_heads * draw(1, 3), draw(8, 16, 64)
    for window, softcap, sinks in ((None, 0.0, False), (9, 0.0, True), (40, 3.0, False), (None, 3.0, True)):
        yield _attention(heads, kv_heads, depth, window, softcap, sinks)
    yield _latent(heads, depth, depth // 2)
    yield _selected(heads, depth)
    yield _local(heads, depth)
    yield _union(heads, depth)
    for weighted, group, pinned in ((True, 1, False), (False, 4, False), (True, 4, True)):
        yield _selection(draw(1, 2, 16), draw(8, 32), draw(3, 6), weighted, group, pinned)
    yield _filtered_selection(2, 8, 6)
    for dilation, biased in ((1, True), (3, False)):
        yield _convolution(draw(8, 33), draw(2, 4), dilation, biased)
    for ratio, overlap, gated in ((4, False, True), (4, True, True), (2, True, False), (16, False, False)):
        yield _pooling(draw(4, 16), ratio, overlap, gated)
    for delta, per_channel, order in ((True, False, "tile"), (True, True, "group"), (False, False, "group")):
        yield _scan(draw(1, 2), draw(1, 3), draw(8, 16), draw(4, 8), delta, per_channel, order)


def _attention(heads: int, kv_heads: int, depth: int, window: int | None, softcap: float, sinks: bool) -> OpCase:
    q, k, v = heads * depth, kv_heads * depth, kv_heads * (depth - 4)

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key, value = ops.split(x, (q, k, v))
        ops.store("k", key)
        ops.store("v", value)
        source = Source("k", batch.visible(window), "v", kv_heads)
        sunk = ops.weight("sinks") if sinks else None
        return flat(ops, ops.attend(ops.reshape(query, (-1, heads, depth)), [source], 0.5, sinks=sunk, softcap=softcap))

    layout = {"k": Paged(k, window=window), "v": Paged(v, window=window)}
    name = f"attend-{window or 'all'}{'-softcap' if softcap else ''}{'-sinks' if sinks else ''}"
    return OpCase(name, q + k + v, heads * (depth - 4), build, {"sinks": (heads,)} if sinks else {}, layout=layout)


def _latent(heads: int, depth: int, value_depth: int) -> OpCase:
    """The value is the key row, cut."""

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key = ops.split(x, (heads * depth, depth))
        ops.store("k", key)
        source = Source("k", batch.visible(), value_dim=value_depth)
        return flat(ops, ops.attend(ops.reshape(query, (-1, heads, depth)), [source], 0.5))

    return OpCase("attend-latent", (heads + 1) * depth, heads * value_depth, build, layout={"k": Paged(depth)})


def _selected(heads: int, depth: int) -> OpCase:
    """Groups chosen by score, and the open group at the end, of one store."""

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key = ops.split(x, (heads * depth, depth))
        ops.store("k", key)
        q = ops.reshape(query, (-1, heads, depth))
        complete = batch.strided(4)
        ops.store("mean", ops.pool(key, "ring", batch.windows(4), 4, gated=False), at=batch.windows(4))
        chosen = ops.select(q, None, "mean", complete, 3)
        sources = [Source("k", complete, select=chosen, group=4), Source("k", batch.open_group(4))]
        return flat(ops, ops.attend(q, sources, 0.5))

    layout: Layout = {"k": Paged(depth), "mean": Paged(depth, stride=4), "ring": Tail(depth, 3)}
    return OpCase("attend-selected", (heads + 1) * depth, heads * depth, build, layout=layout)


def _own_row(tokens: I32, previous: I32, pos: I32) -> I32:
    """[R, 1] the batch row itself, counted over the batch; padding rows are last and change no other."""
    return np.arange(len(pos), dtype=np.int32)[:, None]


def _local(heads: int, depth: int) -> OpCase:
    """The past from the store in a window, and the row itself from the batch: one softmax over both."""

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key = ops.split(x, (heads * depth, depth))
        ops.store("k", key)
        own = Source(key, batch.local(), select=batch.host("own_row", _own_row, width=(1,)))
        sources = [Source("k", batch.visible(20)), own]
        return flat(ops, ops.attend(ops.reshape(query, (-1, heads, depth)), sources, 0.5))

    return OpCase("attend-local", (heads + 1) * depth, heads * depth, build, layout={"k": Paged(depth)})


def _union(heads: int, depth: int) -> OpCase:
    """Two ranges of one store in one softmax; the rows in both count twice."""

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key = ops.split(x, (heads * depth, depth))
        ops.store("k", key)
        sources = [Source("k", batch.visible(20)), Source("k", batch.visible(5))]
        return flat(ops, ops.attend(ops.reshape(query, (-1, heads, depth)), sources, 0.5))

    return OpCase("attend-union", (heads + 1) * depth, heads * depth, build, layout={"k": Paged(depth)})


def _chosen(ops: Ops, index: Tensor) -> Tensor:
    """Indices as rows of a table; -1 gives zeros."""
    return flat(ops, ops.take(ops.weight("place"), index))


def _selection(heads: int, depth: int, k: int, weighted: bool, group: int, pinned: bool) -> OpCase:
    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, w, key = ops.split(x, (heads * depth, heads, depth))
        ops.store("i", key)
        q = ops.reshape(query, (-1, heads, depth))
        found = ops.select(q, w if weighted else None, "i", batch.visible(), k, group=group, pin_last=pinned)
        return _chosen(ops, found)

    name = f"select-{group}{'-weights' if weighted else ''}{'-pinned' if pinned else ''}"
    width = (heads + 1) * depth + heads
    return OpCase(name, width, 2 * k, build, {"place": (ROWS, 2)}, layout={"i": Paged(depth)}, tolerance=0.0)


def _filtered_selection(heads: int, depth: int, k: int) -> OpCase:
    """A second selection among the members of the groups that the first one chose."""

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        query, key = ops.split(x, (heads * depth, depth))
        ops.store("i", key)
        q = ops.reshape(query, (-1, heads, depth))
        coarse = ops.select(q, None, "i", batch.visible(), 3, group=8, pin_last=True)
        return _chosen(ops, ops.select(q, None, "i", batch.visible(), k, within=coarse, within_group=8))

    width = (heads + 1) * depth
    return OpCase("select-within", width, 2 * k, build, {"place": (ROWS, 2)}, layout={"i": Paged(depth)}, tolerance=0.0)


def _convolution(channels: int, taps: int, dilation: int, biased: bool) -> OpCase:
    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        return ops.conv(x, "t", ops.weight("w"), ops.weight("b") if biased else None, dilation=dilation)

    weights: dict[str, tuple[int, ...]] = {"w": (channels, taps)} | ({"b": (channels,)} if biased else {})
    layout = {"t": Tail(channels, (taps - 1) * dilation)}
    return OpCase(f"conv-{dilation}{'-bias' if biased else ''}", channels, channels, build, weights, layout=layout)


def _pooling(columns: int, ratio: int, overlap: bool, gated: bool) -> OpCase:
    width, depth = columns * (2 if gated else 1), columns // (2 if overlap else 1)

    def completed(tokens: I32, previous: I32, pos: I32) -> I32:
        """Which of the batch's windows a row completes, else -1. Padding rows have position 0 and complete none."""
        ends = (pos + 1) % ratio == 0
        return np.where(ends, np.cumsum(ends) - 1, -1).astype(np.int32)

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        pooled = ops.pool(x, "t", batch.windows(ratio), ratio, overlap=overlap, gated=gated)
        return ops.take(pooled, batch.host("completed", completed))

    need = (2 * ratio if overlap else ratio) - 1
    name = f"pool-{ratio}{'-overlap' if overlap else ''}{'-gated' if gated else ''}"
    return OpCase(name, width, depth, build, layout={"t": Tail(width, need)})


def _scan(key_heads: int, ratio: int, dk: int, dv: int, delta: bool, per_channel: bool, order: str) -> OpCase:
    heads = key_heads * ratio
    decays = heads * dk if per_channel else heads
    kind: Literal["tile", "group"] = "tile" if order == "tile" else "group"

    def build(ops: Ops, batch: ModelBatch, x: Tensor) -> Tensor:
        q, k, v, g, beta = ops.split(x, (key_heads * dk, key_heads * dk, heads * dv, decays, heads))
        decay = ops.mul(ops.act(g, "softplus"), -1.0)
        y = ops.scan(
            ops.reshape(q, (-1, key_heads, dk)),
            ops.mul(ops.rms_norm(ops.reshape(k, (-1, key_heads, dk)), None, 1e-6), dk**-0.5),
            ops.reshape(v, (-1, heads, dv)),
            ops.reshape(decay, (-1, heads, dk)) if per_channel else decay,
            ops.act(beta, "sigmoid"),
            "s",
            delta=delta,
            heads=kind,
        )
        return flat(ops, y)

    width = 2 * key_heads * dk + heads * dv + decays + heads
    name = f"scan-{order}{'-delta' if delta else ''}{'-channels' if per_channel else ''}"
    return OpCase(name, width, heads * dv, build, layout={"s": Slot((heads, dk, dv))})
