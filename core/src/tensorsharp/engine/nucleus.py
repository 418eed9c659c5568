"""Top-p over a whole row without sorting it: the likeliest tokens until their running sum reaches that part of the total.

The total is only needed to decide where a running sum crosses a line, so bounds of it will do unless a sum lies between.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorsharp.engine.exactmath import F64, exp, running_sum
from tensorsharp.engine.ranking import Ids, at_least_kth
from tensorsharp.protocols.batch import F32

_COUNTS = (256, 8192)
"""How many of the likeliest tokens are tried; each is mostly enough for rows that the one before is not enough for."""


def nucleus(row: F32, ids: Ids, values: F64, temperature: float, top_p: float) -> tuple[Ids, F64] | None:
    """The ids that are kept and their values, by value descending and id ascending; None if that takes the whole row.

    row: divided by `temperature`, and -inf for the [N] `ids`, whose `values` are divided already. top_p: below 1.
    """
    for count in _COUNTS:
        if count >= len(row):
            return None
        found, leading = _leading(row, ids, values, temperature, count)
        if leading[-1] == -np.inf:
            return None
        sums = running_sum(exp(leading - leading[0]))
        for total, error in _totals(row, values, temperature, float(leading[0])):
            line = top_p * total
            least, most = (int(np.count_nonzero(sums < line * part)) for part in (1.0 - error, 1.0 + error))
            if least == len(sums):
                break
            if least == most:
                return found[: least + 1], leading[: least + 1]
    return None


def _leading(row: F32, ids: Ids, values: F64, temperature: float, count: int) -> tuple[Ids, F64]:
    """The first of the whole order, `count` or more of the row and all that come between them."""
    found = at_least_kth(row, count)
    own = row[found] / np.float64(temperature)
    between = values >= own.min()
    found, own = np.append(found, ids[between]), np.append(own, values[between])
    order = np.lexsort((found, -own))
    return found[order], own[order]


def _totals(row: F32, values: F64, temperature: float, best: float) -> Iterator[tuple[float, float]]:
    """Sums of exp(value - best), with their largest relative distance from that which is defined, the cheaper one first.

    Single precision: of arguments down to -104, below which nothing is left, subtraction and division are off by 3 times 2^-24,
    the exponential and a pairwise sum by less; and as often as `best` is rounded. Double precision: the defined sum is
    added one after the other, so that it may itself be off by 2^-53 for each of up to 2^24 tokens.
    """
    others = float(np.exp(values - best).sum())
    with np.errstate(over="ignore"):
        single = np.exp((row - np.float32(best * temperature)) / np.float32(temperature))
    yield float(single.sum()) + others, 2.0**-14 + 2.0**-22 * abs(best)
    double = row / np.float64(temperature)
    double -= best
    yield float(np.exp(double, out=double).sum()) + others, 2.0**-28
