"""State in host memory: the numpy arrays behind every declared store, and the formats their rows are kept in.

Used by every backend whose kernels run on the host. Memory is asked for as zeroed pages, which the operating system
hands out on first touch: a pool that is never used costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import CapacityError, ConfigError
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.layout import Format, Layout, Paged, Slot, Tail, block_groups

__all__ = ["HostStateStore", "decode_rows", "encode_rows", "from_bf16", "state_bytes", "to_bf16"]

Array = npt.NDArray[np.generic]
TILE = 32
"""Attention visits keys in tiles of this many absolute rows, so a block is a multiple of it."""
ALIGNMENT = 64

STORED: dict[Format, type[np.generic]] = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32}
"""numpy type of a stored row; numpy has no bfloat16, so its bits are kept."""


def to_bf16(x: F32) -> npt.NDArray[np.uint16]:
    """float32 -> bits of bfloat16, rounded to nearest, ties to even; NaN stays NaN (quiet), infinities stay."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    # Adding 0x7FFF plus the lowest kept bit carries into the kept half exactly when the value must round up.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, quiet, rounded).astype(np.uint16)


def from_bf16(bits: npt.NDArray[np.uint16]) -> F32:
    """Bits of bfloat16 -> float32, exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_rows(x: F32, fmt: Format) -> Array:
    """float32 rows as a store of this format keeps them. Too large for f16 becomes infinity."""
    if fmt == "bf16":
        return to_bf16(x)
    if fmt == "f32":
        return x.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def decode_rows(stored: Array, fmt: Format) -> F32:
    """The inverse of :func:`encode_rows`, exact."""
    if fmt == "bf16":
        return from_bf16(stored.astype(np.uint16, copy=False))
    return stored.astype(np.float32, copy=False)


def _shapes(layout: Layout, sizes: StateSizes) -> Iterator[tuple[str, tuple[int, ...], type[np.generic]]]:
    """(name, shape, numpy type) of the array behind every store."""
    for name, kind in layout.items():
        if isinstance(kind, Paged):
            yield name, (sizes.blocks[kind.window], sizes.block_tokens // kind.stride, kind.width), STORED[kind.format]
        elif isinstance(kind, Tail):
            yield name, (sizes.sequences, kind.need + sizes.slack, kind.width), np.float32
        else:
            yield name, (sizes.slots, *kind.shape), np.float32


def _check(layout: Layout, sizes: StateSizes) -> None:
    if sizes.block_tokens < TILE or sizes.block_tokens % TILE:
        raise ConfigError(f"block size {sizes.block_tokens} is not a multiple of {TILE} positions.")
    for name, kind in layout.items():
        if isinstance(kind, Paged) and sizes.block_tokens % kind.stride:
            raise ConfigError(f"block size {sizes.block_tokens} is not a multiple of the stride {kind.stride} of store {name!r}.")
    missing = [g for g in block_groups(layout) if g not in sizes.blocks]
    if missing:
        raise ConfigError(f"no number of blocks is given for block group {missing[0]!r} of the layout.")


def state_bytes(layout: Layout, sizes: StateSizes) -> int:
    """Bytes that a :class:`HostStateStore` of this layout and these sizes addresses."""
    _check(layout, sizes)
    return sum(math.prod(shape) * np.dtype(dtype).itemsize for _, shape, dtype in _shapes(layout, sizes))


def _zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """Zeroed memory that starts on a cache line, untouched until it is used."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + size].view(dtype).reshape(shape)


class HostStateStore:
    """All state of all sequences as numpy arrays; implements :class:`tensorsharp.protocols.backend.StateStore`.

    arrays: name -> Paged [blocks, block_tokens/stride, width] (float16, bfloat16 bits as uint16, or float32),
    Tail [sequences, need+slack, width] float32, Slot [slots, *shape] float32; contiguous, aligned to 64 bytes.
    limit: bytes that may be used. CapacityError if the state needs more, or the system refuses; ConfigError if sizes
    and layout contradict each other.
    """

    def __init__(self, layout: Layout, sizes: StateSizes, *, limit: int | None = None) -> None:
        needed = state_bytes(layout, sizes)
        refusal = f"the state needs {needed:,} bytes"
        hint = "use a smaller context, fewer parallel sequences or a narrower KV type"
        if limit is not None and needed > limit:
            raise CapacityError(f"{refusal}; {limit:,} bytes are available.", hint=hint)
        try:
            arrays = {name: _zeros(shape, dtype) for name, shape, dtype in _shapes(layout, sizes)}
        except MemoryError:
            raise CapacityError(f"{refusal}; the system refused that much.", hint=hint) from None
        self._layout = layout
        self._sizes = sizes
        self.arrays: dict[str, Array] = arrays

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def sizes(self) -> StateSizes:
        return self._sizes

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.arrays.values())

    def paged(self, name: str) -> Paged:
        """The declaration of a paged store. KeyError if `name` is none."""
        kind = self._layout[name]
        if not isinstance(kind, Paged):
            raise KeyError(f"{name!r} is not a paged store")
        return kind

    def _group(self, group: int | None) -> list[Array]:
        return [self.arrays[n] for n, kind in self._layout.items() if isinstance(kind, Paged) and kind.window == group]

    def _sequence(self, tail: int, slot: int) -> list[Array]:
        """The writable views that a snapshot of ring `tail` and slot `slot` consists of."""
        at = {Tail: tail, Slot: slot}
        chosen = ((self.arrays[n], at[type(kind)]) for n, kind in self._layout.items() if type(kind) in at)
        return [array[i] for array, i in chosen if i >= 0]

    def block_bytes(self, group: int | None) -> int:
        kinds = (k for k in self._layout.values() if isinstance(k, Paged) and k.window == group)
        return sum(self._sizes.block_tokens // k.stride * k.row_bytes for k in kinds)

    def slot_bytes(self) -> int:
        total = 0
        for kind in self._layout.values():
            if isinstance(kind, Tail):
                total += (kind.need + self._sizes.slack) * kind.width * 4
            elif isinstance(kind, Slot):
                total += math.prod(kind.shape) * 4
        return total

    def copy(self, group: int | None, source: int, target: int) -> None:
        for array in self._group(group):
            array[target] = array[source]

    def read(self, group: int | None, block: int) -> bytes:
        return b"".join(array[block].tobytes() for array in self._group(group))

    def write(self, group: int | None, block: int, data: bytes) -> None:
        _scatter([array[block] for array in self._group(group)], data, "block")

    def snapshot(self, tail: int, slot: int) -> bytes:
        return b"".join(view.tobytes() for view in self._sequence(tail, slot))

    def restore(self, tail: int, slot: int, data: bytes) -> None:
        _scatter(self._sequence(tail, slot), data, "snapshot")

    def free(self) -> None:
        self.arrays.clear()


def _scatter(views: list[Array], data: bytes, what: str) -> None:
    """Fill `views` one after the other from `data`; checked before the first byte is written."""
    expected = sum(view.nbytes for view in views)
    if len(data) != expected:
        raise ValueError(f"a {what} of this state has {expected} bytes, not {len(data)}")
    start = 0
    for view in views:
        view[...] = np.frombuffer(data, view.dtype, view.size, start).reshape(view.shape)
        start += view.nbytes
