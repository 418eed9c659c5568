"""How the rows of one KV block become bytes for the tiers below the device, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tensorsharp.protocols.layout import FORMAT_BYTES, Format, Layout, Paged


@dataclass(frozen=True, slots=True)
class StoreRows:
    """What one paged store has in a block: [rows, width] elements of `format`, little-endian, row after row."""

    name: str
    rows: int
    width: int
    format: Format

    @property
    def elements(self) -> int:
        return self.rows * self.width

    @property
    def nbytes(self) -> int:
        return self.elements * FORMAT_BYTES[self.format]


BlockLayout = tuple[StoreRows, ...]
"""What a block holds, store after store: the order of :meth:`tensorsharp.protocols.backend.StateStore.read`."""


def block_layout(layout: Layout, group: int | None, block_tokens: int) -> BlockLayout:
    """What a block of that block group holds."""
    return tuple(
        StoreRows(name, block_tokens // kind.stride, kind.width, kind.format)
        for name, kind in layout.items()
        if isinstance(kind, Paged) and kind.window == group
    )


class IKvBlockCodec(Protocol):
    """Encodes one full KV block. Constructed without arguments; holds no state, so any thread may use it.

    A block is encoded alone: its codes depend on nothing but its bytes. A codec that is not lossless is applied to every
    block as soon as it is full, before a row of a later block reads it; its codes are kept from then on and never made
    again from what they decode to.
    """

    @property
    def name(self) -> str:
        """The name of its plugin, part of every key: lower-case letters, digits, hyphens, dots and underscores."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether `decode` gives back the bytes that were encoded, NaN and infinity included."""
        ...

    @property
    def error_bound(self) -> float:
        """Largest error of an element, relative to the largest magnitude in its row; 0 if lossless."""
        ...

    def bits_per_element(self, layout: BlockLayout) -> float:
        """Bits that an element of such a block takes at most, averaged over the block, everything included."""
        ...

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        """The codes of a block. ValueError if `data` is not as long as `layout` says, or, unless the codec is lossless,
        holds numbers that it cannot encode."""
        ...

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        """The block that these codes stand for. ValueError for anything that `encode` did not give for this layout."""
        ...
