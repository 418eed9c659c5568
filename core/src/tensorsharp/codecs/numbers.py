"""The numbers of a block, for codecs that look at more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.codec import BlockLayout
from tensorsharp.state import STORED, decode_rows, encode_rows


def rows_of(data: bytes, layout: BlockLayout) -> list[F32]:
    """The numbers of a block, store after store, [rows, width] float32."""
    out, start = [], 0
    for rows in layout:
        stored = np.frombuffer(data, STORED[rows.format], rows.elements, start)
        out.append(decode_rows(stored.reshape(rows.rows, rows.width), rows.format))
        start += rows.nbytes
    return out


def block_of(numbers: Sequence[F32], layout: BlockLayout) -> bytes:
    """The inverse of `rows_of`; what a format cannot hold is rounded."""
    return b"".join(encode_rows(x, rows.format).tobytes() for x, rows in zip(numbers, layout, strict=True))
