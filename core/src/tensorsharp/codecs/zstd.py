"""Blocks compressed by Zstandard (RFC 8878)."""

from __future__ import annotations

import zstandard

from tensorsharp.codecs.sealed import SEAL_BYTES, bits_of, check_size, seal, unseal
from tensorsharp.protocols.codec import BlockLayout, StoreRows
from tensorsharp.protocols.layout import FORMAT_BYTES

LEVEL = 1
"""The fastest: rows of numbers gain next to nothing from higher ones."""


class ZstdCodec:
    """The bytes of a block, all first bytes of the elements of a store, then all second ones, as the high bytes of numbers
    resemble each other; compressed, with a checksum. Implements :class:`tensorsharp.protocols.codec.IKvBlockCodec`."""

    name = "zstd"
    lossless = True
    error_bound = 0.0

    def bits_per_element(self, layout: BlockLayout) -> float:
        size = sum(rows.nbytes for rows in layout)
        # ZSTD_COMPRESSBOUND: what a frame of data that cannot be compressed takes at most
        bound = size + (size >> 8) + max(0, (1 << 17) - size >> 11)
        return bits_of(bound + SEAL_BYTES, layout)

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        planes = _by_plane(check_size(data, layout), layout)
        return seal(zstandard.ZstdCompressor(LEVEL).compress(planes))

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        size = sum(rows.nbytes for rows in layout)
        frame = unseal(data)
        try:
            if zstandard.frame_content_size(frame) != size:
                raise ValueError(f"the codes are not of a block of {size} bytes")
            planes = zstandard.ZstdDecompressor().decompress(frame)
        except zstandard.ZstdError as error:
            raise ValueError(f"the codes are no Zstandard frame: {error}") from None
        return _by_element(check_size(planes, layout), layout)


def _by_plane(data: bytes, layout: BlockLayout) -> bytes:
    """Byte i of every element of a store before byte i+1 of any."""
    pieces = ((piece, FORMAT_BYTES[rows.format]) for piece, rows in _pieces(data, layout))
    return b"".join(piece[i::width] for piece, width in pieces for i in range(width))


def _by_element(data: bytes, layout: BlockLayout) -> bytes:
    """The inverse of `_by_plane`."""
    out = []
    for piece, rows in _pieces(data, layout):
        width = FORMAT_BYTES[rows.format]
        elements = bytearray(len(piece))
        for i in range(width):
            elements[i::width] = piece[i * rows.elements : (i + 1) * rows.elements]
        out.append(elements)
    return b"".join(out)


def _pieces(data: bytes, layout: BlockLayout) -> list[tuple[bytes, StoreRows]]:
    """The bytes of each store of a block."""
    out, start = [], 0
    for rows in layout:
        out.append((data[start : start + rows.nbytes], rows))
        start += rows.nbytes
    return out
