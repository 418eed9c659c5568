"""Reference dequantisation: what the bytes of a tensor mean, as float32, for every GGUF type.

The block formulas come from the `gguf` package where it has them and from :mod:`quants_extra` where it has not. For each
type that ggml itself can decode the result is the same to the bit as its portable `to_float`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME, GGMLType
from tensorsharp.weights.quants_extra import EXTRA_DECODERS

Decoder = Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]
"""uint8 [blocks, block_bytes], C-contiguous -> float32 [blocks, block_size]."""

CHUNK_VALUES = 1 << 18


def dequantize(
    raw: npt.NDArray[np.uint8], type_name: str, shape: Sequence[int], *, tensor: str = "a tensor"
) -> npt.NDArray[np.float32]:
    """Decode a tensor's data.

    raw: uint8 [nbytes], as :meth:`ModelFile.raw` gives it. type_name: for example "Q4_1". shape: row-major, its last
    dimension a multiple of the type's block. tensor: the name that a refusal mentions. Returns a new float32 array of
    `shape`; F64 and wide integers are rounded to nearest. Raises ModelError for a type that is not known and for a size
    that does not fit the shape.
    """
    kind = GGML_TYPES_BY_NAME.get(type_name)
    if kind is None:
        raise ModelError(
            f"{tensor} has the type {type_name!r}, which cannot be decoded; known are {', '.join(GGML_TYPES_BY_NAME)}."
        )
    blocks = _blocks(raw, kind, shape, tensor)
    decode = EXTRA_DECODERS.get(type_name) or _package_decoder(kind, tensor)
    values = np.empty((len(blocks), kind.block_size), dtype=np.float32)
    # In pieces, because the formulas hold several temporaries the size of their result.
    step = CHUNK_VALUES // kind.block_size
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = decode(blocks[start : start + step])
    return values.reshape(tuple(shape))


def _blocks(raw: npt.NDArray[np.uint8], kind: GGMLType, shape: Sequence[int], tensor: str) -> npt.NDArray[np.uint8]:
    row = shape[-1] if len(shape) else 1
    if row % kind.block_size:
        raise ModelError(f"{tensor} has rows of {row} values; {kind.name} needs a multiple of {kind.block_size}.")
    expected = prod(shape) // kind.block_size * kind.block_bytes
    if raw.dtype != np.uint8 or raw.size != expected:
        raise ModelError(
            f"{tensor} of type {kind.name} and shape {list(shape)} needs {expected} bytes; got {raw.size} values of {raw.dtype}."
        )
    return np.ascontiguousarray(raw).reshape(-1, kind.block_bytes)


def _package_decoder(kind: GGMLType, tensor: str) -> Decoder:
    from gguf import GGMLQuantizationType, quants

    if kind.name not in GGMLQuantizationType.__members__:
        raise ModelError(
            f"{tensor} has the type {kind.name}, which the installed 'gguf' package cannot decode.",
            hint="pip install --upgrade gguf",
        )
    qtype = GGMLQuantizationType(kind.id)

    def decode(blocks: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        # One long row: the package works through short ones sixteen at a time.
        values: npt.NDArray[np.float32] = quants.dequantize(blocks.reshape(1, -1), qtype)
        return values.reshape(len(blocks), kind.block_size)

    return decode
