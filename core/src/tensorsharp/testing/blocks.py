"""Random tensors of any type, for types whose encoder nobody ships: blocks are drawn until their values make sense."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.state import to_bf16
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME, GGMLType
from tensorsharp.weights.quants import dequantize

Bytes = npt.NDArray[np.uint8]
POOL = 64
DRAWN = 4096
ROUNDS = 500


def random_tensor(type_name: str, shape: Sequence[int], scale: float, rng: np.random.Generator) -> Bytes:
    """Bytes [..., bytes of a row] of a tensor with row-major `shape` whose values are of size `scale`.

    F32, F16 and BF16: normal values. Other types: blocks of random bits whose root mean square is within a factor 2 of
    `scale` (64 different ones, repeated at random). ModelError for an unknown type or a row that is no whole number of
    blocks.
    """
    kind = GGML_TYPES_BY_NAME.get(type_name)
    if kind is None:
        raise ModelError(f"there is no tensor type {type_name!r}; known are {', '.join(GGML_TYPES_BY_NAME)}.")
    if shape[-1] % kind.block_size:
        raise ModelError(f"a row of {shape[-1]} values is no whole number of {type_name} blocks of {kind.block_size}.")
    if kind.block_size == 1:
        return _plain(type_name, (rng.standard_normal(shape) * scale).astype(np.float32))
    blocks = math.prod(shape) // kind.block_size
    pool = _pool(kind, scale, rng)
    chosen = pool[rng.integers(0, len(pool), blocks)]
    return chosen.reshape(*shape[:-1], -1)


def _plain(type_name: str, values: npt.NDArray[np.float32]) -> Bytes:
    if type_name == "F32":
        return values.view(np.uint8)
    if type_name == "F16":
        return values.astype(np.float16).view(np.uint8)
    if type_name == "BF16":
        return to_bf16(values).view(np.uint8)
    raise ModelError(f"random values of type {type_name} are of no use; use a float or a quantised type.")


def _pool(kind: GGMLType, scale: float, rng: np.random.Generator) -> Bytes:
    """[POOL, block_bytes]: distinct random blocks whose values are finite and of size `scale`."""
    found: list[Bytes] = []
    count = 0
    for _ in range(ROUNDS):
        raw = rng.integers(0, 256, (DRAWN, kind.block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            values = dequantize(raw.reshape(-1), kind.name, (DRAWN, kind.block_size)).astype(np.float64)
            size = np.sqrt((values**2).mean(axis=1))
        good = np.isfinite(values).all(axis=1) & (size > scale / 2) & (size < scale * 2)
        found.append(raw[good])
        count += int(good.sum())
        if count >= POOL:
            return np.concatenate(found)[:POOL]
    raise ModelError(f"no random {kind.name} blocks with values of size {scale} were found.")
