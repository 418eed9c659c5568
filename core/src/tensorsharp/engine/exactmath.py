"""exp, log and running sums in float64 with the same bits on every machine.

numpy's own exp and log differ between instruction sets, and its sum between array lengths. Everything here is made of
additions, products, divisions, floor, comparisons and exponent bits, which IEEE 754 rounds one way only, and of
`np.add.accumulate`, whose order is its definition. Both functions stay within 1 ulp of the true value.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import factorial, frexp

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
# ln 2 in two parts: the first has 32 significant bits, so its product with an exponent is exact
_LN2_HIGH = float.fromhex("0x1.62e42feep-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
_EXP_TERMS = [1.0 / factorial(n) for n in range(13, 1, -1)]
_LOG_TERMS = [2.0 / (2 * n + 1) for n in range(11, 0, -1)]
_IN_CACHE = 16384
"""Elements worked on at a time, so that intermediate arrays stay near the core."""
PIECE = 512
"""Elements that `exp_rest` adds one after the other: about as many as there are pieces in a large vocabulary."""
EXP_LOWEST = -708.0
"""Below this `exp` gives exactly 0."""


def exp(x: F64) -> F64:
    """e to the x, elementwise; 0 below `EXP_LOWEST`. For x up to 709, without NaN.

    x = k ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series (14 terms leave 4e-18), times 2^k in the exponent bits.
    """
    if len(x) > _IN_CACHE:
        return np.concatenate([_exp(x[i : i + _IN_CACHE]) for i in range(0, len(x), _IN_CACHE)])
    return _exp(x)


def _exp(x: F64) -> F64:
    low = x < EXP_LOWEST
    x = np.where(low, 0.0, x)
    k = x * _LOG2_E
    k += 0.5
    np.floor(k, out=k)
    high = np.subtract(x, k * _LN2_HIGH, out=x)
    low_part = k * _LN2_LOW
    r = high - low_part
    high -= r
    lost = np.subtract(high, low_part, out=high)
    series = r * _EXP_TERMS[0]
    series += _EXP_TERMS[1]
    for term in _EXP_TERMS[2:]:
        series *= r
        series += term
    series *= np.multiply(r, r, out=low_part)
    series += lost
    series += r
    series += 1.0
    scale = k.astype(np.int64)
    scale += 1023
    scale <<= 52
    series *= scale.view(np.float64)
    series[low] = 0.0
    return series


def below(x: F32, best: int) -> Iterator[F64]:
    """x - x[best] of float32 values, a block of them at a time, and -inf at `best` itself: what is added is 0 there."""
    for i in range(0, len(x), _IN_CACHE):
        block = np.subtract(x[i : i + _IN_CACHE], x[best], dtype=np.float64)
        if 0 <= best - i < len(block):
            block[best - i] = -np.inf
        yield block


def exp_rest(x: F32, best: int) -> float:
    """The sum of exp(x - x[best]) of all but `best`, which is the largest of the float32 values and finite. They are added in
    their order: first within every `PIECE` of them, then the sums of the pieces, so that few roundings follow one another."""
    sums = []
    for block in below(x, best):
        terms = _exp(block)
        sums += [total(terms[j : j + PIECE]) for j in range(0, len(terms), PIECE)]
    return total(np.array(sums))


def log(x: float) -> float:
    """The natural logarithm of a normal positive number.

    x = 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2); with s = f / (2 + f), log(1 + f) = 2 atanh(s), summed as
    f - (f^2/2 - s (f^2/2 + R(s^2))) so that f itself is never rounded; 12 terms of the series leave 1e-19.
    """
    m, k = frexp(x)
    if m < _SQRT_HALF:
        m, k = m + m, k - 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    series = _LOG_TERMS[0]
    for term in _LOG_TERMS[1:]:
        series = series * z + term
    half = 0.5 * f * f
    return k * _LN2_HIGH - ((half - (s * (half + series * z) + k * _LN2_LOW)) - f)


def running_sum(x: F64) -> F64:
    """Prefix sums, added one after the other in the order given."""
    return np.add.accumulate(x)


def total(x: F64) -> float:
    """The sum, added one after the other in the order given; 0 for nothing."""
    return float(np.add.accumulate(x)[-1]) if len(x) else 0.0
