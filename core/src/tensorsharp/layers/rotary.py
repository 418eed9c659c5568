"""Rotary tables from metadata: base, linear scaling, YaRN, and per-frequency factors.

YaRN: Peng et al., arXiv 2309.00071, with the correction dimensions floored and ceiled and the magnitude folded into
cos and sin, as files made for llama.cpp expect. Factors (`rope_freqs.weight`) divide the frequencies (Llama 3).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Rope
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.protocols.file import ModelFile

F64 = npt.NDArray[np.float64]


def base_frequencies(dims: int, base: float) -> F64:
    """[dims/2] base^(-2i/dims)."""
    exponents: F64 = np.arange(0, dims, 2, dtype=np.float64) / dims
    return np.asarray(base**-exponents, np.float64)


def frequency_factors(file: ModelFile, dims: int) -> F64 | None:
    """[dims/2] from `rope_freqs.weight`, or None."""
    info = file.tensors.get("rope_freqs.weight")
    if info is None:
        return None
    if info.type_name != "F32" or info.shape != (dims // 2,):
        raise ModelError(
            f"{file.path}: tensor rope_freqs.weight is {info.type_name} {list(info.shape)}; expected F32 [{dims // 2}]."
        )
    return np.asarray(file.raw("rope_freqs.weight").view(np.float32), np.float64)


def _correction(dims: int, original: int, turns: float, base: float) -> float:
    return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))


def _yarn(h: Hyperparameters, frequencies: F64, dims: int, base: float, factor: float, original: int) -> tuple[F64, float]:
    """Frequencies and magnitude of YaRN: low frequencies interpolated, high ones kept, a ramp between."""
    low = max(0.0, math.floor(_correction(dims, original, h.number("rope.scaling.yarn_beta_fast", 32.0), base)))
    high = min(dims - 1.0, math.ceil(_correction(dims, original, h.number("rope.scaling.yarn_beta_slow", 1.0), base)))
    ramp = 1.0 - np.clip((np.arange(dims // 2) - low) / max(0.001, high - low), 0.0, 1.0)
    mixed = frequencies / factor * (1.0 - ramp) + frequencies * ramp

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0

    log_multiplier = h.number("rope.scaling.yarn_log_multiplier", 0.0)
    return mixed, magnitude(1.0) / (magnitude(log_multiplier) if log_multiplier else 1.0)


def rope_from_metadata(
    h: Hyperparameters,
    dims: int,
    style: Literal["norm", "neox"],
    context: int,
    *,
    factors: F64 | None = None,
) -> Rope:
    """The rotary table of the file's full-attention layers.

    dims: rotated elements of a head. context: the trained context, YaRN's original length where none is given.
    """
    base = h.number("rope.freq_base", 10000.0)
    if base <= 1.0:
        raise ModelError(f"{h.file.path}: key {h.prefix}.rope.freq_base: expected a number above 1, found {base}.")
    kind = h.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{h.file.path}: key {h.prefix}.rope.scaling.type: expected none, linear or yarn, found {kind!r}.")
    factor = h.number("rope.scaling.factor", 0.0) or h.number("rope.scale_linear", 0.0) or 1.0
    frequencies = base_frequencies(dims, base)
    if factors is not None:
        frequencies = frequencies / factors
    magnitude = h.number("rope.scaling.attn_factor", 1.0)
    if kind == "yarn":
        original = h.integer("rope.scaling.original_context_length", context)
        frequencies, yarn_magnitude = _yarn(h, frequencies, dims, base, factor, original)
        magnitude *= yarn_magnitude
    elif kind == "linear":
        frequencies = frequencies / factor
    return Rope(frequencies, style=style, magnitude=magnitude)
