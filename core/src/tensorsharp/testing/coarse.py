"""A deliberately coarse codec, for tests of what must hold for every codec that loses something."""

from __future__ import annotations

import numpy as np

from tensorsharp.codecs.numbers import block_of, rows_of
from tensorsharp.codecs.sealed import SEAL_BYTES, bits_of, check_size, seal, unseal
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.codec import BlockLayout

LEVELS = 7
"""Steps between zero and the largest magnitude of a row, to either side."""


class CoarseCodec:
    """Each row as its largest magnitude and a byte an element; implements
    :class:`tensorsharp.protocols.codec.IKvBlockCodec`.

    What is decoded is a tenth too small, so that a block that is encoded twice, or not at all, shows.
    """

    name = "coarse"
    lossless = False
    error_bound = 0.18
    """A tenth, and half a step of a seventh."""

    def bits_per_element(self, layout: BlockLayout) -> float:
        return bits_of(SEAL_BYTES + sum(rows.rows * (4 + rows.width) for rows in layout), layout)

    def encode(self, data: bytes, layout: BlockLayout) -> bytes:
        return seal(b"".join(map(_encode, rows_of(check_size(data, layout), layout))))

    def decode(self, data: bytes, layout: BlockLayout) -> bytes:
        codes = unseal(data)
        if len(codes) != sum(rows.rows * (4 + rows.width) for rows in layout):
            raise ValueError("the codes are not of a block of this layout")
        numbers: list[F32] = []
        start = 0
        for rows in layout:
            largest = np.frombuffer(codes, "<f4", rows.rows, start)
            steps = np.frombuffer(codes, np.int8, rows.elements, start + largest.nbytes).reshape(rows.rows, rows.width)
            numbers.append((steps * (0.9 / LEVELS * largest[:, None])).astype(np.float32))
            start += largest.nbytes + steps.nbytes
        return block_of(numbers, layout)


def _encode(x: F32) -> bytes:
    if not np.isfinite(x).all():
        raise ValueError("a block holds numbers that are not finite")
    largest = np.abs(x).max(axis=1)
    scale = np.where(largest > 0, largest, np.float32(1))[:, None]
    steps = np.rint(x / scale * LEVELS).astype(np.int8)
    return b"".join((largest.astype("<f4").tobytes(), steps.tobytes()))
