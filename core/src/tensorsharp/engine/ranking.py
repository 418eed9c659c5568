"""The largest values of a row, by value descending and index ascending, without sorting the row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.exactmath import F64
from tensorsharp.protocols.batch import F32

Ids = npt.NDArray[np.int64]

_NARROWEST = 16


def descending(values: F64 | F32) -> Ids:
    """The order of `values`, largest first; equal values keep their order."""
    return np.argsort(-values, kind="stable")


def at_least_kth(row: F32, k: int) -> Ids:
    """Ascending indices that include the k largest of `row` with every tie of the k-th, and few others.

    The k-th largest of the maxima of equal pieces is a lower bound of the k-th largest value: k pieces reach it.
    """
    if k >= len(row):
        return np.arange(len(row))
    width = len(row) // (8 * k)
    if width < _NARROWEST:
        bound = np.partition(row, len(row) - k)[len(row) - k]
    else:
        pieces = len(row) // width
        maxima = row[: pieces * width].reshape(pieces, width).max(axis=1)
        bound = np.partition(maxima, pieces - k)[pieces - k]
    found: Ids = (row >= bound).nonzero()[0]
    return found


def largest(row: F32, k: int) -> Ids:
    """[k] the k largest of a row in order."""
    found = at_least_kth(row, k)
    return found[descending(row[found])][:k]
