"""Where the rows of a sequence lie in a paged store, and how they get in and out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.state import HostStateStore, decode_rows, encode_rows

Index = npt.NDArray[np.integer]


def _locate(store: HostStateStore, batch: Batch, name: str, seq: Index, rows: Index) -> tuple[Index, Index]:
    """(block, row in the block) of the given rows of the given batch sequences; BackendError where none is mapped."""
    kind = store.paged(name)
    per_block = store.sizes.block_tokens // kind.stride
    table = batch.tables[kind.window]
    logical = rows // per_block
    if logical.size and (int(logical.max()) >= table.shape[1] or int(logical.min()) < 0):
        raise BackendError(f"store {name!r}: row {int(rows.max())} lies beyond the block table of {table.shape[1]} blocks")
    block = table[seq, logical]
    if np.any(block < 0):
        raise BackendError(f"store {name!r}: row {int(np.asarray(rows)[block < 0][0])} has no block")
    return block, rows % per_block


def write_rows(store: HostStateStore, batch: Batch, name: str, x: F32, at: I32 | None = None) -> None:
    """x [R, w] at row `pos` of each row's sequence, or x [C, w] at row `index` of windows `at` [C, 2]. -1 is skipped."""
    kind = store.paged(name)
    if at is None:
        live = np.flatnonzero(batch.seq >= 0)
        seq, rows = batch.seq[live], batch.pos[live] // kind.stride
    else:
        live = np.flatnonzero(at[:, 0] >= 0)
        seq, rows = batch.seq[at[live, 0]], at[live, 1]
    block, inside = _locate(store, batch, name, seq, rows)
    store.arrays[name][block, inside] = encode_rows(x[live], kind.format)


def read_rows(store: HostStateStore, batch: Batch, name: str, seq: int, rows: Index) -> F32:
    """[n, width] float32: the given rows of batch sequence `seq`."""
    block, inside = _locate(store, batch, name, np.full(len(rows), seq), rows)
    return decode_rows(store.arrays[name][block, inside], store.paged(name).format)
