"""Finds where the strings of a GGUF array begin, many at a time.

A string is an 8-byte little-endian length and its bytes. Where every length is below 256, lengths are the bytes that
seven zeros follow, which numpy finds all at once; that each string ends where the next one begins is then checked. Any
other array is left to the loop that reads one string after the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WORTH = 1024
"""Strings below which the loop is as fast."""
_STEP = 1 << 16
"""Bytes looked at together."""


def string_starts(data: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int64] | None:
    """uint8 bytes that begin with the first length -> int64 [count + 1]: where each string's length begins, then where
    the last string ends. None if the array is not of the kind that can be read at once, or not whole."""
    if count < WORTH:
        return None
    pieces: list[npt.NDArray[np.int64]] = []
    missing = count
    for begin in range(0, len(data), _STEP):
        found = _lengths(data[begin : begin + _STEP + 7])[:missing] + begin
        if len(found) < min(missing, 1):
            return None  # a long stretch without a length: these are other strings than those meant here
        pieces.append(found)
        missing -= len(found)
        if not missing:
            return _checked(np.concatenate(pieces), data)
    return None


def _lengths(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Where a byte has seven zeros behind it."""
    zero = data[1:] == 0
    two = zero[:-1] & zero[1:]
    four = two[:-2] & two[2:]
    return np.flatnonzero(four[:-3] & four[3:])


def _checked(starts: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64] | None:
    ends = starts + 8 + data[starts]
    if starts[0] != 0 or not np.array_equal(starts[1:], ends[:-1]) or ends[-1] > len(data):
        return None
    return np.append(starts, ends[-1])
