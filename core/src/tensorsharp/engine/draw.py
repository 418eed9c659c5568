"""The keyed draw: of all candidates the one with the largest value + gumbel(u(seed, position, id)).

That is Gumbel-max, an exact sample of the softmax. Equal scores: the larger value, then the lower id. Rough scores leave
out what cannot win and exact ones decide, so no shortcut changes a token.
"""

from __future__ import annotations

import numpy as np

from tensorsharp.engine.exactmath import F64
from tensorsharp.engine.keyed import (
    BLOCK,
    HIGHEST_GUMBEL,
    ROUGHNESS,
    RowHashes,
    gumbel,
    least_hashes,
    rough_gumbel,
    uniforms,
)
from tensorsharp.engine.ranking import Ids
from tensorsharp.protocols.batch import F32

_ROUNDING = 2.0**-48
"""Far above the relative rounding of one sum."""
_PIECE = 1024
"""Ids whose likeliest one is tried first."""
_PIECES = BLOCK // _PIECE


def draw(ids: Ids, values: F64, seed: int, position: int) -> int:
    """The token drawn from candidates in any order. ids, values [N]; -inf is never drawn if another value is there."""
    u = uniforms(seed, position, ids)
    rough = values + rough_gumbel(u)
    near = (rough >= _bar(rough)).nonzero()[0]
    exact = [(-(float(values[i]) + gumbel(float(u[i]))), -float(values[i]), int(ids[i])) for i in near.tolist()]
    return min(exact)[2]


def draw_row(row: F32, temperature: float, ids: Ids, values: F64, seed: int, position: int) -> int:
    """The token drawn from a whole row, divided by `temperature`, and [N] further candidates, perhaps none.

    The likeliest tokens set a bar. In a piece of the row, whatever lies under its peak passes the bar only if its hash is
    above a threshold, and few are: the rest need no logarithm.
    """
    temperature = np.float64(temperature)
    if len(row) <= _PIECE:
        return draw(np.append(ids, np.arange(len(row))), np.append(values, row / temperature), seed, position)
    peaks = _peaks(row)
    heights = row[peaks] / temperature
    ids, values = np.append(ids, peaks), np.append(values, heights)
    bar = _bar(values + rough_gumbel(uniforms(seed, position, ids)))
    others = _above(bar - heights, RowHashes(seed, position))
    others = others[others < len(row)]
    return draw(np.append(ids, others), np.append(values, row[others] / temperature), seed, position)


def _above(gaps: F64, hashes: RowHashes) -> Ids:
    """The ids, ascending, that may have a Gumbel number of at least the gap of their piece. gaps [pieces]."""
    least = least_hashes(gaps)[:, None]
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(gaps), _PIECES):
        if gaps[first : first + _PIECES].min() <= HIGHEST_GUMBEL:
            bars = least[first : first + _PIECES]
            high = hashes.block(first * _PIECE, len(bars) * _PIECE).reshape(-1, _PIECE) >= bars
            found.append(high.ravel().nonzero()[0] + first * _PIECE)
    return np.concatenate(found)


def _bar(rough: F64) -> float:
    """A rough score below this belongs to an exact one below that of the best."""
    best = float(rough.max())
    return best - 4 * (ROUGHNESS + _ROUNDING * abs(best))


def _peaks(row: F32) -> Ids:
    """Where each piece of a row has its largest value."""
    pieces = len(row) // _PIECE
    whole = pieces * _PIECE
    peaks = row[:whole].reshape(pieces, _PIECE).argmax(axis=1) + np.arange(0, whole, _PIECE)
    return peaks if whole == len(row) else np.append(peaks, whole + row[whole:].argmax())
