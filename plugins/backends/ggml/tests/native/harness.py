"""Calls native kernels on numpy arrays, as ggml would: a node with sources, one call for every worker."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.batch import F32, I32
from tensorsharp_backend_ggml import native

Array = npt.NDArray[Any]
KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
TYPES = {"f32": 0, "f16": 1, "bf16": 2}


def tensor(array: Array) -> native.TsTensor:
    """A ggml tensor over an array: dimensions reversed, strides kept."""
    out = native.TsTensor()
    out.data = array.ctypes.data
    ne = [*reversed(array.shape), 1, 1, 1, 1][:4]
    out.ne[:] = ne
    strides = list(reversed(array.strides)) or [array.itemsize]
    while len(strides) < 4:
        strides.append(strides[-1] * ne[len(strides) - 1])
    out.nb[:] = strides
    return out


def call(
    kernels: native.Kernels,
    name: native.Name | int,
    dst: Array,
    sources: Sequence[Array | native.TsTensor],
    job: ctypes.Structure,
    *,
    workers: int = 1,
    threads: bool = False,
) -> None:
    """Run a kernel, given by name or address, for all its workers: last to first in this thread, or all at once."""
    nodes = [s if isinstance(s, native.TsTensor) else tensor(s) for s in sources]
    node = tensor(dst)
    for i, source in enumerate(nodes):
        node.src[i] = ctypes.addressof(source)
    function = KERNEL(name if isinstance(name, int) else kernels.pointer(name))

    def work(worker: int) -> None:
        function(ctypes.addressof(node), worker, workers, ctypes.addressof(job))

    if not threads:
        for worker in reversed(range(workers)):
            work(worker)
        return
    running = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even, of finite numbers."""
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def stored(x: F32, kind: str) -> Array:
    """Rows as a store of that format holds them."""
    if kind == "bf16":
        return to_bf16(x)
    return x.astype(np.float16 if kind == "f16" else np.float32)


def widened(x: Array, kind: str) -> F32:
    if kind == "bf16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float32)


@dataclass
class Rows:
    """A ragged batch: (start, length) of each sequence, in batch order, `padding` rows at the end."""

    spans: Sequence[tuple[int, int]]
    padding: int = 0
    slot_in: Sequence[int] | None = None
    tail_slot: Sequence[int] | None = None
    pos: I32 = field(init=False)
    seq: I32 = field(init=False)
    slot_out: I32 = field(init=False)
    struct: native.TsBatch = field(init=False)

    def __post_init__(self) -> None:
        pos = [np.arange(a, a + n) for a, n in self.spans]
        seq = [np.full(n, s) for s, (_, n) in enumerate(self.spans)]
        self.pos = np.concatenate([*pos, np.zeros(self.padding)]).astype(np.int32)
        self.seq = np.concatenate([*seq, np.full(self.padding, -1)]).astype(np.int32)
        self.slot_out = np.full(len(self.seq), -1, np.int32)
        lengths = np.array([n for _, n in self.spans], np.int32)
        count = len(self.spans)
        self._sequences: dict[str, I32] = {
            "first_row": np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32),
            "start": np.array([a for a, _ in self.spans], np.int32),
            "length": lengths,
            "tail_slot": np.arange(count, dtype=np.int32) if self.tail_slot is None else np.array(self.tail_slot, np.int32),
            "slot_in": np.full(count, -1, np.int32) if self.slot_in is None else np.array(self.slot_in, np.int32),
        }
        self.struct = native.TsBatch(rows=len(self.seq), sequences=count)
        for name in ("pos", "seq", "slot_out"):
            setattr(self.struct, name, getattr(self, name).ctypes.data)
        for name, array in self._sequences.items():
            setattr(self.struct, name, array.ctypes.data)

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def first(self, sequence: int) -> int:
        return int(self._sequences["first_row"][sequence])

    def visible(self, window: int | None = None) -> I32:
        """[rows, 2]: a causal range, empty for padding."""
        hi = np.where(self.seq >= 0, self.pos + 1, 0)
        lo = np.zeros_like(hi) if window is None else np.where(self.seq >= 0, np.maximum(0, hi - window), 0)
        return np.ascontiguousarray(np.stack([lo, hi], 1), np.int32)


class Paged:
    """A paged store whose blocks lie in a random order; everything that was never written is NaN."""

    def __init__(self, sequences: int, rows: int, width: int, kind: str, *, block_rows: int = 32, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        per = -(-rows // block_rows)
        self.table = rng.permutation(sequences * per + 3)[: sequences * per].reshape(sequences, per).astype(np.int32)
        blank = np.full((sequences * per + 3, block_rows, width), np.nan, np.float32)
        self.kind, self.block_rows = kind, block_rows
        self.data = np.full(blank.shape, 0x7FC0, np.uint16) if kind == "bf16" else stored(blank, kind)
        self.struct = native.TsPaged(type=TYPES[kind], block_rows=block_rows, width=width, table_capacity=per)
        self.struct.base, self.struct.table = self.data.ctypes.data, self.table.ctypes.data

    @property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def fill(self, sequence: int, x: F32) -> None:
        """Write rows 0 .. len(x)-1 of a sequence."""
        at = np.arange(len(x))
        self.data[self.table[sequence, at // self.block_rows], at % self.block_rows] = stored(x, self.kind)

    def read(self, sequence: int, rows: Array) -> F32:
        return widened(self.data[self.table[sequence, rows // self.block_rows], rows % self.block_rows], self.kind)
