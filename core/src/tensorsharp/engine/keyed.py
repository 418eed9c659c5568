"""The keyed draw: uniform and Gumbel numbers that depend on (seed, position, token id) and on nothing else.

Source: the rule of TensorFold's keyed sampler; the mixing function is the finaliser of splitmix64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorsharp.engine.exactmath import F64, log

U64 = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_SEED_STEP = 0x9E3779B97F4A7C15
_POSITION_STEP = 0xD1B54A32D192ED03
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_U_HIGHEST = 1.0 - 2.0**-53
ROUGHNESS = 2.0**-30
"""Far above what numpy's logarithm can be off (a few ulp of values up to 37)."""
HIGHEST_GUMBEL = 36.75
BLOCK = 1 << 14
"""Ids hashed at a time, so that intermediate arrays stay near the core."""
_LOW = BLOCK - 1
_EXACT_BITS = 31
_EXP_HIGHEST = 700.0


def _mix(x: int) -> int:
    x ^= x >> 30
    x = x * _MIX[0] & _MASK
    x ^= x >> 27
    x = x * _MIX[1] & _MASK
    return x ^ (x >> 31)


def _key(seed: int, position: int) -> int:
    key = _mix((seed + _SEED_STEP) & _MASK)
    return _mix(key ^ (position * _POSITION_STEP & _MASK))


def hashes(seed: int, position: int, ids: npt.NDArray[np.integer]) -> U64:
    """[N] token ids -> [N] uint64."""
    x = ids.astype(np.uint64) ^ np.uint64(_key(seed, position))
    x ^= x >> np.uint64(30)
    x *= np.uint64(_MIX[0])
    x ^= x >> np.uint64(27)
    x *= np.uint64(_MIX[1])
    return x ^ (x >> np.uint64(31))


def uniforms(seed: int, position: int, ids: npt.NDArray[np.integer]) -> F64:
    """[N] token ids -> [N] in (0, 1): (hash >> 11) 2^-53 + 2^-54, and never rounded up to 1, which would force the token."""
    u = (hashes(seed, position, ids) >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    return np.minimum(u, _U_HIGHEST)


def gumbel(u: float) -> float:
    """-log(-log u), below `HIGHEST_GUMBEL`."""
    return -log(-log(u))


def rough_gumbel(u: F64) -> F64:
    """The same by numpy's logarithm: at most `ROUGHNESS` away, but not with the same bits everywhere."""
    return -np.log(-np.log(u))


class RowHashes:
    """The leading 31 bits of the hashes of a whole row, a block at a time and without what every id has in common.

    An id below 2^30 does not reach the bits that the first shift moves down, so it meets the key once; of the id ^ key,
    the bits above those that differ within a block are one number a block, and its product is added. The last shift
    changes no leading bit and is left out.
    """

    def __init__(self, seed: int, position: int) -> None:
        key = _key(seed, position)
        key ^= key >> 30
        self._high = key & ~_LOW
        self._low = np.arange(BLOCK, dtype=np.uint64) ^ np.uint64(key & _LOW)
        self._low *= np.uint64(_MIX[0])
        self._hashes, self._shifted = np.empty_like(self._low), np.empty_like(self._low)

    def block(self, first: int, count: int) -> U64:
        """[count] for ids from `first`, a multiple of `BLOCK`, on; valid until the next call."""
        x, shifted = self._hashes[:count], self._shifted[:count]
        np.add(self._low[:count], np.uint64((self._high ^ first) * _MIX[0] & _MASK), out=x)
        np.right_shift(x, np.uint64(27), out=shifted)
        x ^= shifted
        x *= np.uint64(_MIX[1])
        return x


def least_hashes(gumbel: F64) -> U64:
    """[N] Gumbel numbers -> [N]: a hash of a `RowHashes` block that is below gives a smaller Gumbel number.

    u = exp(-exp(-gumbel)), as its distance from 1 so that it keeps its digits. The distance is raised by a millionth and two
    units of the last exact bit, far more than rounding makes up.
    """
    distance = -np.expm1(-np.exp(np.minimum(-gumbel, _EXP_HIGHEST)))
    least = np.floor((1.0 - distance * (1.0 + 2.0**-20)) * 2.0**_EXACT_BITS) - 2.0
    return np.maximum(least, 0.0).astype(np.uint64) << np.uint64(64 - _EXACT_BITS)
