"""One attention problem on random data, computed by a kernel in whatever pieces a test wants, or by definition."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.batch import F32, I32
from tensorsharp_backend_ggml import native

from .harness import Array, Paged, Rows, call, stored, widened

Index = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """kind: a store's format, or "local" for batch tensors. cut: the value is the key row. group: of selections."""

    kind: str = "f16"
    kv_heads: int = 1
    window: int | None = None
    cut: bool = False
    select: int | None = None
    group: int = 1


@dataclass
class Problem:
    """Sequences of `lengths` rows; rows of a piece see what is causal, or what their selections name."""

    lengths: Sequence[int]
    heads: int
    dim: int
    value_dim: int
    sources: Sequence[Source]
    softcap: float = 0.0
    sinks: bool = False
    seed: int = 0
    q: list[F32] = field(init=False)
    keys: list[list[F32]] = field(init=False)
    values: list[list[F32]] = field(init=False)
    lists: list[list[I32]] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)

        def draw(n: int, width: int) -> F32:
            return rng.standard_normal((n, width)).astype(np.float32)

        self.q = [draw(n, self.heads * self.dim) * np.float32(2) for n in self.lengths]
        self.keys = [[draw(n, s.kv_heads * self.dim) for n in self.lengths] for s in self.sources]
        self.values = [[draw(n, s.kv_heads * self.value_dim) for n in self.lengths] for s in self.sources]
        self.lists = [[self._lists(rng, s, n) for n in self.lengths] for s in self.sources]
        self.sink = draw(1, self.heads)[0]

    def _lists(self, rng: np.random.Generator, source: Source, n: int) -> I32:
        """[n, k]: for every row an ascending selection of complete groups at or before it, -1 padded."""
        out = np.full((n, source.select or 0), -1, np.int32)
        for p in range(n if source.select else 0):
            units = (p + 1) // source.group
            chosen = np.sort(rng.permutation(units)[: source.select])
            out[p, : len(chosen)] = chosen
        return out

    @property
    def scale(self) -> np.float32:
        return np.float32(self.dim**-0.5)

    def run(
        self,
        kernels: native.Kernels,
        spans: Sequence[tuple[int, int, int]],
        *,
        workers: int = 1,
        threads: bool = False,
        block_rows: int = 32,
        seed: int = 0,
        padding: int = 0,
    ) -> list[F32]:
        """[n, heads, value_dim] for each span (sequence, first row, rows). The store holds nothing after a span's end."""
        rows = Rows([(a, n) for _, a, n in spans], padding)
        alive: list[Array] = []
        job = native.TsAttend(batch=rows.address, heads=self.heads, head_dim=self.dim, value_dim=self.value_dim)
        job.sources, job.scale, job.softcap, job.sinks_src = len(self.sources), self.scale, self.softcap, -1

        def place(x: Array) -> int:
            fetched.append(np.ascontiguousarray(x))
            return len(fetched) - 1

        def batch_rows(parts: list[F32]) -> F32:
            found = [parts[s][a : a + n] for s, a, n in spans]
            return np.concatenate([*found, np.full((padding, parts[0].shape[1]), np.nan, np.float32)])

        stores: list[Paged] = []
        fetched: list[Array] = [batch_rows(self.q)]
        for i, (source, slot) in enumerate(zip(self.sources, job.source, strict=False)):
            slot.key_src = slot.value_src = slot.range_src = slot.select_src = -1
            slot.kv_heads, slot.value_dim, slot.group = source.kv_heads, self.value_dim, source.group
            ranges = rows.visible(source.window)
            if source.kind == "local":
                slot.key_src = place(batch_rows(self.keys[i]))
                slot.value_src = -1 if source.cut else place(batch_rows(self.values[i]))
                live = rows.seq >= 0
                first = np.array([rows.first(s) for s in rows.seq[live]], np.int32)
                ranges[live] = np.stack([first, first + np.array([spans[s][2] for s in rows.seq[live]])], 1)
            else:
                sides = [(self.keys[i], "key")] + ([] if source.cut else [(self.values[i], "value")])
                for parts, name in sides:
                    longest = max(a + n for _, a, n in spans)
                    store = Paged(len(spans), longest, parts[0].shape[1], source.kind, block_rows=block_rows, seed=seed)
                    for j, (s, a, n) in enumerate(spans):
                        store.fill(j, parts[s][: a + n])
                    stores.append(store)
                    setattr(slot, name, store.address)
            if source.select:
                lists = [self.lists[i][s][a : a + n] for s, a, n in spans]
                slot.select_src = place(np.concatenate([*lists, np.full((padding, source.select), -1, np.int32)]))
                slot.select_k = source.select
            alive.append(ranges)
            slot.range = ranges.ctypes.data
        if self.sinks:
            job.sinks_src = place(self.sink)
        out = np.full((len(rows.seq), self.heads, self.value_dim), np.nan, np.float32)
        call(kernels, "attend", out, fetched, job, workers=workers, threads=threads)
        assert not out[len(out) - padding :].any()
        return np.split(out[: len(out) - padding], np.cumsum([n for _, _, n in spans])[:-1])

    # definition ------------------------------------------------------------------------------------------------

    def seen(self, i: int, sequence: int, row: int, span: tuple[int, int]) -> tuple[Index, Index]:
        """(store rows, numbers that segments and tiles are counted by) that a row sees of source i, ascending."""
        source = self.sources[i]
        if source.select:
            chosen = self.lists[i][sequence][row]
            found = (chosen[chosen >= 0, None] * source.group + np.arange(source.group)).ravel().astype(np.int64)
            return found, np.arange(len(found))
        if source.kind == "local":
            return np.arange(*span), np.arange(span[1] - span[0])
        found = np.arange(0 if source.window is None else max(0, row + 1 - source.window), row + 1)
        return found, found

    def side(self, i: int, sequence: int, value: bool) -> F32:
        """[n, kv_heads, width] as the store gives them back."""
        source = self.sources[i]
        x = (self.values if value and not source.cut else self.keys)[i][sequence]
        if source.kind != "local":
            x = widened(stored(x, source.kind), source.kind)
        x = x.reshape(len(x), source.kv_heads, -1)
        return x[..., : self.value_dim] if value else x

    def exact(self, sequence: int, row: int, span: tuple[int, int]) -> tuple[npt.NDArray[np.float64], float]:
        """([heads, value_dim] in float64, bound of a float32 kernel's error).

        A score of D products in eight running sums is off by at most (D/8 + 4) units of 2^-24 of the sum of the
        products' magnitudes, which moves a weighted mean of values by twice that; sums over a tile and its rescaling
        add 40 units a tile at most, in numerator and denominator.
        """
        out = np.zeros((self.heads, self.value_dim))
        worst = 0.0
        for h in range(self.heads):
            q = self.q[sequence][row].reshape(self.heads, self.dim)[h].astype(np.float64)
            x, v, slack, tiles = [np.zeros(0)], [np.zeros((0, self.value_dim))], 0.0, 0
            for i, source in enumerate(self.sources):
                at, _ = self.seen(i, sequence, row, span)
                head = h // (self.heads // source.kv_heads)
                k = self.side(i, sequence, value=False)[at, head].astype(np.float64)
                x.append(k @ q * float(self.scale))
                v.append(self.side(i, sequence, value=True)[at, head].astype(np.float64))
                slack = max(slack, (np.abs(k) @ np.abs(q) * float(self.scale)).max(initial=0.0))
                tiles += len(at) // 32 + 2
            scores, values = np.concatenate(x), np.concatenate(v)
            if len(scores) == 0:
                continue
            scores = self.softcap * np.tanh(scores / self.softcap) if self.softcap else scores
            top = max(scores.max(), self.sink[h] if self.sinks else -np.inf)
            p = np.exp(scores - top)
            out[h] = p @ values / (p.sum() + (np.exp(self.sink[h] - top) if self.sinks else 0.0))
            units = 2 * (self.dim / 8 + 8) * (slack + 1) + 2 * 40 * tiles
            worst = max(worst, units * 2.0**-24 * np.abs(values).max())
        return out, worst

    def defined(self, sequence: int, row: int, span: tuple[int, int], exp: Callable[[F32], F32]) -> F32:
        """[heads, value_dim] by the definition, operation by operation, with the kernels' own exp."""
        out = np.zeros((self.heads, self.value_dim), np.float32)
        nothing = np.zeros(self.value_dim, np.float32)
        for h in range(self.heads):
            q = self.q[sequence][row].reshape(self.heads, self.dim)[h]
            total = (np.float32(-np.inf), np.float32(0), nothing)
            for i, source in enumerate(self.sources):
                at, numbers = self.seen(i, sequence, row, span)
                head = h // (self.heads // source.kv_heads)
                k, v = (self.side(i, sequence, value=side)[:, head] for side in (False, True))
                for segment in np.unique(numbers // 1024):
                    part = (np.float32(-np.inf), np.float32(0), nothing)
                    for tile in np.unique(numbers[numbers // 1024 == segment] // 32):
                        members = at[numbers // 32 == tile]
                        part = _tile(part, dots(q, k[members]) * self.scale, v[members], exp)
                    total = _merge(total, part, exp)
            if self.sinks:
                total = _merge(total, (self.sink[h], np.float32(1), nothing), exp)
            out[h] = total[2] / total[1] if total[1] else nothing
        return out


Partial = tuple[np.float32, np.float32, F32]


def fma(a: Array | np.float32, b: Array | np.float32, c: Array | np.float32) -> Array:
    """a*b + c rounded once: the product is exact in extended precision, whose own rounding is 2^-40 as rare to matter."""
    wide = np.asarray(a, np.float32).astype(np.longdouble) * np.asarray(b, np.float32).astype(np.longdouble)
    return (wide + np.asarray(c, np.float32).astype(np.longdouble)).astype(np.float32)


def dots(q: F32, k: F32) -> F32:
    """<q, k[i]>: lane j sums elements j, j+8, ..; lanes j and j+4, then j and j+2, then j and j+1 are added."""
    width = -(-len(q) // 8) * 8
    a, b = np.zeros(width, np.float32), np.zeros((len(k), width), np.float32)
    a[: len(q)], b[:, : len(q)] = q, k
    sums = np.zeros((len(k), 8), np.float32)
    for d in range(0, width, 8):
        sums = fma(a[d : d + 8], b[:, d : d + 8], sums)
    for half in (4, 2, 1):
        sums = sums[:, :half] + sums[:, half : 2 * half]
    return sums[:, 0]


def _tile(part: Partial, x: F32, v: F32, exp: Callable[[F32], F32]) -> Partial:
    m, total, a = part
    top = max(m, x.max())
    c, p = exp(np.array([m - top], np.float32))[0], exp(x - top)
    total, a = total * c, a * c
    for weight, value in zip(p, v, strict=True):
        total, a = total + weight, fma(weight, value, a)
    return top, total, a


def _merge(old: Partial, new: Partial, exp: Callable[[F32], F32]) -> Partial:
    top = max(old[0], new[0])
    c, d = (exp(np.array([m - top], np.float32))[0] for m in (old[0], new[0]))
    return top, old[1] * c + new[1] * d, old[2] * c + new[2] * d


def exp_of(kernels: native.Kernels) -> Callable[[F32], F32]:
    """The kernels' exp, seen through `scan`: a state of ones, scaled by the gates of one row."""

    def exp(x: F32) -> F32:
        n = len(x)
        rows = Rows([(0, 1)], slot_in=[0])
        rows.slot_out[0] = 0
        state, zero = np.ones((1, n, 1, 1), np.float32), np.zeros((1, n), np.float32)
        job = native.TsScan(batch=rows.address, state=state.ctypes.data, heads=n, key_heads=n, key_dim=1, value_dim=1)
        call(kernels, "scan", np.zeros((1, n, 1), np.float32), [zero, zero, zero, np.ascontiguousarray(x)[None], zero], job)
        return state.reshape(-1)

    assert ctypes.sizeof(native.TsScan) == 48
    return exp
