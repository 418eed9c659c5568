"""Log-probabilities: the log-softmax of a raw row, defined to the bit, mostly found without the arithmetic that defines it.

Reported is logit - best - log(1 + rest), in float64 and rounded to float32. `exp_rest` defines the rest by an exponential of our
own, which has the same bits on every machine but takes numpy forty operations. By numpy's exponential there are bounds
of it, and they nearly always lead to the same float32 numbers.
"""

from __future__ import annotations

import numpy as np

from tensorsharp.engine.exactmath import PIECE, below, exp_rest, log
from tensorsharp.engine.ranking import largest
from tensorsharp.protocols.batch import F32
from tensorsharp.types import TokenLogprob

_LOG = 2.0**-50
"""Above the relative errors of `log` and of a product."""


def log_probabilities(row: F32, best: int, token: int, top: int) -> tuple[float, tuple[TokenLogprob, ...]]:
    """log softmax of the raw row at `token` and at the `top` likeliest. row [vocab]; best: what `likeliest` finds in it."""
    leading = largest(row, top).tolist() if top else []
    heights = [float(row[i]) - float(row[best]) for i in (token, *leading)]
    least, most = (_rounded(heights, lowered) for lowered in _bounds(row, best))
    found = least if least == most else _rounded(heights, log(1.0 + exp_rest(row, best)))
    return found[0], tuple(map(TokenLogprob, leading, found[1:]))


def _rounded(heights: list[float], lowered: float) -> list[float]:
    return [float(np.float32(height - lowered)) for height in heights]


def _bounds(row: F32, best: int) -> tuple[float, float]:
    """What log(1 + rest) is not below and not above.

    Each addition that a term of the rest goes through may round by 2^-53 of it. As many again are far more than those of the
    rough sum, which is pairwise, and than a few units in the last place of both exponentials.
    """
    rest = sum(float(np.exp(block, out=block).sum()) for block in below(row, best))
    error = rest * (PIECE + len(row) // PIECE) * 2.0**-52
    return log(1.0 + (rest - error)) * (1.0 - _LOG), log(1.0 + (rest + error)) * (1.0 + _LOG)
