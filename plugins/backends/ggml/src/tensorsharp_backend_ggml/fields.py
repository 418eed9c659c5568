"""The batch at a fixed address: what kernels read of it, rewritten before every replay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorsharp.protocols.batch import I32, Batch
from tensorsharp.protocols.layout import Paged
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.native import TsBatch, TsPaged
from tensorsharp_backend_ggml.tensors import zeros

ROW_FIELDS = ("pos", "seq", "slot_out")
SEQUENCE_FIELDS = ("first_row", "start", "length", "tail_slot", "slot_in")
TYPES: Mapping[str, int] = {"f32": 0, "f16": 1, "bf16": 2}


class Fields:
    """Host copies of one signature's batch fields and block tables, and the kernels' descriptors of them."""

    def __init__(self, batch: Batch, store: HostStateStore) -> None:
        self._store = store
        self._arrays: dict[str, I32] = {
            name: zeros(getattr(batch, name).shape, np.int32) for name in ROW_FIELDS + SEQUENCE_FIELDS
        }
        self._tables: dict[int | None, I32] = {group: zeros(table.shape, np.int32) for group, table in batch.tables.items()}
        self._paged: dict[str, TsPaged] = {}
        self._counts = (batch.rows, batch.sequences, len(batch.wanted))

    def write(self, batch: Batch) -> None:
        """Take the values of a batch of the same signature."""
        for name, array in self._arrays.items():
            array[...] = getattr(batch, name)
        for group, table in self._tables.items():
            table[...] = batch.tables[group]

    def descriptor(self) -> TsBatch:
        """The kernels' view of the batch."""
        out = TsBatch()
        out.rows, out.sequences, out.wanted = self._counts
        for name, array in self._arrays.items():
            setattr(out, name, array.ctypes.data)
        return out

    def paged(self, name: str) -> TsPaged:
        """The kernels' view of a paged store and its group's block table."""
        if name not in self._paged:
            kind: Paged = self._store.paged(name)
            table = self._tables[kind.window]
            array = self._store.arrays[name]
            out = TsPaged()
            out.base = array.ctypes.data
            out.type = TYPES[kind.format]
            out.block_rows = array.shape[1]
            out.width = kind.width
            out.table_capacity = table.shape[1]
            out.table = table.ctypes.data
            self._paged[name] = out
        return self._paged[name]
