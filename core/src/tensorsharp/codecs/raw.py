"""Blocks as they are."""

from __future__ import annotations

from tensorsharp.codecs.sealed import SEAL_BYTES, bits_of, check_size, seal, unseal
from tensorsharp.protocols.codec import BlockLayout


class RawCodec:
    """A block and its checksum; implements :class:`tensorsharp.protocols.codec.IKvBlockCodec`."""

    name = "raw"
    lossless = True
    error_bound = 0.0

    def bits_per_element(self, layout: BlockLayout) -> float:
        return bits_of(sum(rows.nbytes for rows in layout) + SEAL_BYTES, layout)

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        return seal(check_size(data, layout))

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        return check_size(unseal(data), layout)
