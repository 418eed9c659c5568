"""The largest values of a row, by value descending and index ascending, without sorting the row."""

from __future__ import annotations

from math import isfinite

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.exactmath import F64
from tensorsharp.errors import BackendError
from tensorsharp.protocols.batch import F32

Ids = npt.NDArray[np.int64]

_NARROWEST = 16
_LOWEST = float(np.finfo(np.float32).min)


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
        return _not_below(row, np.partition(row, len(row) - k)[len(row) - k])
    whole = len(row) // width * width
    pieces = row[:whole].reshape(-1, width)
    maxima = pieces.max(axis=1)
    bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
    high = _not_below(maxima, bound)
    piece, place = np.divmod(_not_below(pieces[high].ravel(), bound), width)
    return np.concatenate([high[piece] * width + place, whole + _not_below(row[whole:], bound)])


def _not_below(row: F32, bound: np.float32) -> Ids:
    found: Ids = (row >= bound).nonzero()[0]
    return found


def at_least(row: F32, best: float, below: float) -> Ids:
    """Ascending indices that include every finite value of at least `best` + `below`, and few others.

    A 2^-20 of both lies above what rounding this bound, and the caller's values, can make up.
    """
    bound = best + below - 2.0**-20 * (abs(best) + abs(below))
    return _not_below(row, np.float32(max(bound, _LOWEST)))


def largest(row: F32, k: int) -> Ids:
    """[k] the k largest of a row in order."""
    found = at_least_kth(row, k)
    return found[descending(row[found])][:k]


def likeliest(row: F32, position: int) -> int:
    """The first of the largest values. BackendError if that is no number: row [vocab] is for the token at `position`."""
    best = int(row.argmax())
    if not isfinite(row[best]):  # a NaN counts as the largest
        raise BackendError(f"The model gave no usable logits for position {position}: that of token {best} is {row[best]}.")
    return best
