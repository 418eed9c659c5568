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


def _mix(x: int) -> int:
    x ^= x >> 30
    x = x * _MIX[0] & _MASK
    x ^= x >> 27
    x = x * _MIX[1] & _MASK
    return x ^ (x >> 31)


def hashes(seed: int, position: int, ids: npt.NDArray[np.integer]) -> U64:
    """[N] token ids -> [N] uint64."""
    key = _mix((seed + _SEED_STEP) & _MASK)
    key = _mix(key ^ (position * _POSITION_STEP & _MASK))
    x = ids.astype(np.uint64) ^ np.uint64(key)
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
    """-log(-log u), at most 36.74."""
    return -log(-log(u))


def rough_gumbel(u: F64) -> F64:
    """The same by numpy's logarithm: at most `ROUGHNESS` away, but not with the same bits everywhere."""
    return -np.log(-np.log(u))
