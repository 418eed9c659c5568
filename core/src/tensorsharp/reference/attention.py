"""Attention over blocks, row by row: one online softmax in fixed tiles and segments.

The order is part of the definition: keys are cut at absolute positions, so no chunk, batch or physical block moves a
border. Online softmax: Milakov and Gimelshein, arXiv 1805.02867.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.reference.arrays import ascending_sum, dots
from tensorsharp.reference.paging import Index, read_rows
from tensorsharp.state import HostStateStore

SEGMENT = 1024
TILE = 32


@dataclass(frozen=True, slots=True)
class HostSource:
    """`tensorsharp.ops.Source` with arrays for handles: range [R, 2], select [R, k], batch-local keys [R, Hk*D]."""

    key: str | F32
    range: I32
    value: str | F32 | None = None
    kv_heads: int = 1
    select: I32 | None = None
    group: int = 1
    value_dim: int | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """Softmax so far: maximum m [H], sum s [H] and weighted values a [H, Dv], both relative to exp(m)."""

    m: F32
    s: F32
    a: F32

    @classmethod
    def nothing(cls, heads: int, width: int) -> Partial:
        return cls(np.full(heads, -np.inf, np.float32), np.zeros(heads, np.float32), np.zeros((heads, width), np.float32))

    def tile(self, x: F32, values: F32) -> Partial:
        """Take scores [n, H] and values [n, H, Dv], ascending."""
        m = np.maximum(self.m, x.max(axis=0))
        c = np.exp(self.m - m)
        p = np.exp(x - m)
        s = ascending_sum(np.concatenate([(self.s * c)[None], p]), 0)
        a = ascending_sum(np.concatenate([(self.a * c[:, None])[None], p[:, :, None] * values]), 0)
        return Partial(m, s, a)

    def merged(self, later: Partial) -> Partial:
        m = np.maximum(self.m, later.m)
        c, d = np.exp(self.m - m), np.exp(later.m - m)
        return Partial(m, self.s * c + later.s * d, self.a * c[:, None] + later.a * d[:, None])

    def sunk(self, sinks: F32) -> Partial:
        """A score [H] without a value: it adds to the sum only."""
        m = np.maximum(self.m, sinks)
        c = np.exp(self.m - m)
        return Partial(m, self.s * c + np.exp(sinks - m), self.a * c[:, None])

    def result(self) -> F32:
        return np.divide(self.a, self.s[:, None], out=np.zeros_like(self.a), where=self.s[:, None] > 0)


def pieces(numbers: Index, size: int) -> Iterator[slice]:
    """Cut ascending row numbers at the multiples of `size`."""
    cuts = np.flatnonzero(np.diff(numbers // size)) + 1
    edges = [0, *cuts.tolist(), len(numbers)]
    for start, end in pairwise(edges):
        if start < end:
            yield slice(start, end)


class _View:
    """The rows of one source that batch rows see, decoded once for each sequence."""

    def __init__(self, source: HostSource, batch: Batch, store: HostStateStore) -> None:
        self._source, self._batch, self._store = source, batch, store
        self._decoded: dict[int, tuple[int, F32, F32]] = {}

    def rows(self, r: int) -> Index:
        """Ascending store rows (or batch rows, if the source is batch-local) that batch row r sees."""
        source = self._source
        if source.select is None:
            return np.arange(source.range[r, 0], source.range[r, 1])
        chosen = source.select[r]
        expanded: Index = (chosen[chosen >= 0, None] * source.group + np.arange(source.group)).ravel()
        return expanded

    def numbers(self, r: int, rows: Index) -> Index:
        """What segments and tiles are counted by: store rows, rows of the own sequence, or places in a selection."""
        if self._source.select is not None:
            return np.arange(len(rows))
        if isinstance(self._source.key, str):
            return rows
        return rows - int(self._batch.first_row[self._batch.seq[r]])

    def read(self, r: int, rows: Index) -> tuple[F32, F32]:
        """Keys [n, Hk, D] and values [n, Hk, Dv] of the given rows."""
        seq = int(self._batch.seq[r])
        if seq not in self._decoded:
            self._decoded[seq] = self._decode(seq)
        first, keys, values = self._decoded[seq]
        return keys[rows - first], values[rows - first]

    def _decode(self, seq: int) -> tuple[int, F32, F32]:
        """(first row, keys, values) over all rows that some batch row of the sequence sees."""
        source = self._source
        seen = [rows for r in np.flatnonzero(self._batch.seq == seq) if len(rows := self.rows(int(r)))]
        first, end = min(int(rows[0]) for rows in seen), max(int(rows[-1]) for rows in seen) + 1
        wanted = np.unique(np.concatenate(seen))
        keys = self._fetch(source.key, seq, wanted, first, end)
        values = keys[..., : source.value_dim] if source.value is None else self._fetch(source.value, seq, wanted, first, end)
        return first, keys, values

    def _fetch(self, where: str | F32, seq: int, wanted: Index, first: int, end: int) -> F32:
        rows = read_rows(self._store, self._batch, where, seq, wanted) if isinstance(where, str) else where[wanted]
        out = np.zeros((end - first, rows.shape[-1]), np.float32)
        out[wanted - first] = rows
        return out.reshape(end - first, self._source.kv_heads, -1)

    def value_width(self) -> int:
        source = self._source
        where = source.key if source.value is None else source.value
        width = (self._store.paged(where).width if isinstance(where, str) else where.shape[-1]) // source.kv_heads
        return width if source.value is not None or source.value_dim is None else source.value_dim


def _scores(q: F32, keys: F32, scale: float, softcap: float) -> F32:
    """q [H, D], keys [n, Hk, D] -> [n, H]; head h uses key head h // (H/Hk)."""
    kv_heads = keys.shape[1]
    x = np.float32(scale) * dots(keys[:, :, None, :], q.reshape(1, kv_heads, -1, q.shape[-1]))
    x = x.reshape(len(keys), -1)
    return np.float32(softcap) * np.tanh(x / np.float32(softcap)) if softcap else x


def attend(
    q: F32,
    sources: Sequence[HostSource],
    batch: Batch,
    store: HostStateStore,
    scale: float,
    *,
    sinks: F32 | None = None,
    softcap: float = 0.0,
) -> F32:
    """q [R, H, D] -> [R, H, Dv]: one softmax over the union of all sources' visible rows, zeros where nothing is visible.

    A source is cut into segments of 1,024 store rows and these into tiles of 32; with `select`, of as many places in
    the expanded ascending selection; a batch-local source, of as many rows counted from the first of the row's own
    sequence. Every segment starts empty and takes its tiles ascending; segments are merged ascending, sources in the
    order given, the sink last. BackendError if a visible row has no block.
    """
    rows, heads, _ = q.shape
    views = [_View(source, batch, store) for source in sources]
    width = views[0].value_width()
    out = np.zeros((rows, heads, width), np.float32)
    for r in np.flatnonzero(batch.seq >= 0).tolist():
        total = Partial.nothing(heads, width)
        for view in views:
            total = _take_source(total, q[r], view, r, scale, softcap)
        out[r] = (total if sinks is None else total.sunk(sinks)).result()
    return out


def _take_source(total: Partial, q: F32, view: _View, r: int, scale: float, softcap: float) -> Partial:
    rows = view.rows(r)
    if len(rows) == 0:
        return total
    keys, values = view.read(r, rows)
    x = _scores(q, keys, scale, softcap)
    values = np.repeat(values, len(q) // keys.shape[1], axis=1)
    numbers = view.numbers(r, rows)
    for segment in pieces(numbers, SEGMENT):
        part = Partial.nothing(len(q), values.shape[-1])
        for tile in pieces(numbers[segment], TILE):
            part = part.tile(x[segment][tile], values[segment][tile])
        total = total.merged(part)
    return total
