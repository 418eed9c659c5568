"""Paged state without our kernels: ggml's own row copies and its flash attention over gathered keys.

ggml's flash attention changes its arithmetic with the number of rows and keys unless it is told to run plainly, row by
row over the visible keys ascending (`Threads`); so it gives the same bits in any batch, but slowly, and not the bits of
our kernels. Its key axis is a length: the number of gathered rows is part of a graph's signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import BackendError
from tensorsharp.inputs import Request
from tensorsharp.ops import Source
from tensorsharp.protocols.batch import I32, Batch
from tensorsharp.protocols.layout import Paged
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.binding import F16, F32
from tensorsharp_backend_ggml.builder import Builder
from tensorsharp_backend_ggml.tensors import Node
from tensorsharp_backend_ggml.written import node

BUCKET = 256
"""Gathered rows are padded to a multiple of this many."""
GGML_FORMATS = {"f16": F16, "f32": F32}


def gathered_rows(batch: Batch) -> int:
    """Key rows to make room for: every stored row of every sequence of the batch, padded."""
    total = int((batch.start + batch.length).sum())
    return max(BUCKET, -(-total // BUCKET) * BUCKET)


def _flat(batch: Batch, group: int | None, seq: npt.NDArray[np.integer], rows: npt.NDArray[np.integer], per_block: int) -> I32:
    """Rows of sequences as row numbers of the whole pool."""
    block = batch.tables[group][seq, rows // per_block]
    if np.any(block < 0):
        raise BackendError(f"row {int(rows[block < 0][0])} of a sequence has no block.")
    flat: I32 = (block.astype(np.int64) * per_block + rows % per_block).astype(np.int32)
    return flat


@dataclass(frozen=True, slots=True)
class StoredAt:
    """[R] the pool row that each batch row is stored at."""

    group: int | None
    stride: int
    per_block: int

    def compute(self, batch: Batch) -> I32:
        return _flat(batch, self.group, batch.seq, batch.pos // self.stride, self.per_block)


@dataclass(frozen=True, slots=True)
class Gathered:
    """[N] pool rows of every sequence's visible span, one after the other, padded with 0."""

    seen: Request
    group: int | None
    per_block: int

    def compute(self, batch: Batch) -> I32:
        spans = _spans(batch, np.asarray(self.seen.compute(batch)))
        out = np.zeros(gathered_rows(batch), np.int32)
        start = 0
        for seq, (low, high) in enumerate(spans):
            rows = np.arange(low, high)
            out[start : start + len(rows)] = _flat(batch, self.group, np.full(len(rows), seq), rows, self.per_block)
            start += len(rows)
        return out


@dataclass(frozen=True, slots=True)
class Mask:
    """[R, N] float16: 0 where a batch row sees a gathered row, else -inf."""

    seen: Request

    def compute(self, batch: Batch) -> npt.NDArray[np.float16]:
        seen = np.asarray(self.seen.compute(batch))
        spans = _spans(batch, seen)
        out = np.full((batch.rows, gathered_rows(batch)), -np.inf, np.float16)
        start = 0
        for seq, (low, high) in enumerate(spans):
            number = np.arange(low, high)
            for r in np.flatnonzero(batch.seq == seq):
                out[r, start : start + len(number)][(number >= seen[r, 0]) & (number < seen[r, 1])] = 0
            start += len(number)
        return out


def _spans(batch: Batch, seen: npt.NDArray[np.integer]) -> list[tuple[int, int]]:
    """(lowest, end) of what the rows of each sequence see."""
    out = []
    for seq in range(batch.sequences):
        mine = seen[batch.seq == seq]
        mine = mine[mine[:, 0] < mine[:, 1]]
        out.append((int(mine[:, 0].min()), int(mine[:, 1].max())) if len(mine) else (0, 0))
    return out


class Composed:
    """`store` and `attend` in ggml's own operations, for batches without padding."""

    def __init__(self, builder: Builder, store: HostStateStore) -> None:
        self._b, self._store = builder, store
        self._pools: dict[str, Node] = {}

    def can_store(self, kind: Paged) -> bool:
        return kind.format in GGML_FORMATS

    def store(self, name: str, x: Node) -> Node:
        kind = self._store.paged(name)
        at = self._b.declare(StoredAt(kind.window, kind.stride, self._per_block(name)))
        return self._b.op("set_rows", self._pool(name), x, at, shape=(1,))

    def can_attend(self, sources: Sequence[Source]) -> bool:
        (first, *others) = sources
        paged = isinstance(first.key, str) and isinstance(first.value, str | None) and first.select is None
        known = self._b.request_of(node(first.range)) is not None
        return paged and known and not others and all(self.can_store(self._store.paged(n)) for n in self._names(first))

    def attend(self, q: Node, source: Source, width: int, scale: float, sinks: Node | None, softcap: float) -> Node:
        rows, heads, depth = q.shape
        seen = self._b.request_of(node(source.range))
        assert seen is not None
        assert isinstance(source.key, str)
        mask = self._b.declare(Mask(seen))
        keys = self._gather(source.key, seen)
        values = self._gather(source.value, seen) if isinstance(source.value, str) else keys
        k, v = self._heads(keys, source.kv_heads, depth), self._heads(values, source.kv_heads, width)
        query = self._b.op("permute", q, 0, 2, 1, 3, shape=(heads, rows, depth))
        out = self._b.op("flash_attn_ext", query, k, v, mask, scale, 0.0, softcap, shape=(rows, heads, width))
        if sinks is not None:
            self._b.ggml.flash_attn_ext_add_sinks(out.ptr, sinks.ptr)
        return out

    def _names(self, source: Source) -> list[str]:
        return [name for name in (source.key, source.value) if isinstance(name, str)]

    def _per_block(self, name: str) -> int:
        return int(self._store.arrays[name].shape[1])

    def _pool(self, name: str) -> Node:
        """The whole store as a matrix [rows, width] over the state's own memory."""
        if name not in self._pools:
            kind, array = self._store.paged(name), self._store.arrays[name]
            self._pools[name] = self._b.borrowed(array.reshape(-1, kind.width), GGML_FORMATS[kind.format])
        return self._pools[name]

    def _gather(self, name: str, seen: Request) -> Node:
        kind = self._store.paged(name)
        index = self._b.declare(Gathered(seen, kind.window, self._per_block(name)))
        return self._b.op("get_rows", self._pool(name), index, shape=(index.shape[0], kind.width))

    def _heads(self, x: Node, heads: int, width: int) -> Node:
        """[N, heads * D] as [heads, N, width], the first `width` elements of each head, without a copy."""
        rows, depth = x.shape[0], x.shape[1] // heads
        return self._b.view(x, (heads, rows, width), (4 * depth, 4 * x.shape[1], 4))
