"""Bytes with a checksum in front, so that damage is noticed before anything is made of them."""

from __future__ import annotations

import zlib

from tensorsharp.protocols.codec import BlockLayout

SEAL_BYTES = 4


def seal(data: bytes) -> bytes:
    """CRC-32 of the data, little-endian, and the data."""
    return zlib.crc32(data).to_bytes(SEAL_BYTES, "little") + data


def unseal(sealed: bytes) -> bytes:
    """The inverse of `seal`. ValueError if anything changed."""
    data = sealed[SEAL_BYTES:]
    if len(sealed) < SEAL_BYTES or zlib.crc32(data) != int.from_bytes(sealed[:SEAL_BYTES], "little"):
        raise ValueError(f"{len(sealed)} bytes of codes do not match their checksum")
    return data


def check_size(data: bytes, layout: BlockLayout) -> bytes:
    """The data. ValueError unless it is as long as a block of this layout."""
    expected = sum(rows.nbytes for rows in layout)
    if len(data) != expected:
        raise ValueError(f"a block of this layout has {expected} bytes, not {len(data)}")
    return data


def bits_of(nbytes: int, layout: BlockLayout) -> float:
    """Bits an element, if a block of this layout takes that many bytes."""
    return 8 * nbytes / sum(rows.elements for rows in layout)
