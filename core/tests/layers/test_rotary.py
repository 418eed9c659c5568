"""Rotary tables from metadata, against the formulas written out for single frequencies."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.layers.rotary import base_frequencies, frequency_factors, rope_from_metadata
from tensorsharp.protocols.file import TensorInfo


def file(factors: Any = None, type_name: str = "F32", **metadata: Any) -> Any:
    keys = {f"toy.rope.{k.replace('__', '.')}": v for k, v in metadata.items()}
    tensors, raw = {}, None
    if factors is not None:
        raw = np.asarray(factors, np.float32).view(np.uint8)
        tensors["rope_freqs.weight"] = TensorInfo("rope_freqs.weight", (len(factors),), 0, type_name, raw.nbytes, 0, 0)
    return SimpleNamespace(path="toy.gguf", architecture="toy", metadata=keys, tensors=tensors, raw=lambda name: raw)


def rope(dims: int = 8, context: int = 4096, factors: Any = None, **metadata: Any) -> Any:
    found = file(factors, **metadata)
    return rope_from_metadata(Hyperparameters(found), dims, "norm", context, factors=frequency_factors(found, dims))


def test_base_frequencies() -> None:
    assert base_frequencies(8, 10000.0).tolist() == [10000.0 ** (-i / 4) for i in range(4)]
    assert rope(freq_base=500000.0) == rope(freq_base=500000.0, scaling__type="none", scaling__factor=4.0)


def test_linear_scaling_divides_every_frequency() -> None:
    plain = rope().frequencies
    assert rope(scaling__type="linear", scaling__factor=8.0).frequencies.tolist() == (plain / 8).tolist()
    assert rope(scale_linear=8.0).frequencies.tolist() == (plain / 8).tolist()


def test_factors_divide_their_frequencies() -> None:
    factors = [1.0, 1.0, 4.0, 1e30]
    expected = rope().frequencies / np.asarray(np.float32(factors), np.float64)
    assert rope(factors=factors).frequencies.tolist() == expected.tolist()


def test_yarn_keeps_fast_frequencies_and_interpolates_slow_ones() -> None:
    """Frequencies that turn more than 32 times in the original context stay, those below one turn are divided by the
    factor; with context 64 and 64 dimensions the ramp has both ends and a middle."""
    dims, factor, original = 64, 4.0, 512
    found = rope(dims, scaling__type="yarn", scaling__factor=factor, scaling__original_context_length=original)
    plain = base_frequencies(dims, 10000.0)

    def dimension(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(10000.0))

    low, high = math.floor(dimension(32.0)), math.ceil(dimension(1.0))
    for i, f in enumerate(found.frequencies):
        share = min(1.0, max(0.0, (i - low) / (high - low)))
        assert f == pytest.approx(plain[i] * (1 - share) + plain[i] / factor * share, rel=1e-14)
    assert found.frequencies[0] == plain[0]
    assert found.frequencies[-1] == plain[-1] / factor
    assert found.magnitude == pytest.approx(1 + 0.1 * math.log(factor), rel=1e-15)


def test_yarn_magnitude_with_a_log_multiplier() -> None:
    keys = {"scaling__type": "yarn", "scaling__factor": 16.0, "scaling__yarn_log_multiplier": 1.0}
    assert rope(**keys).magnitude == 1.0
    assert rope(**keys, scaling__attn_factor=0.5).magnitude == 0.5
    half = rope(**{**keys, "scaling__yarn_log_multiplier": 0.5})
    assert half.magnitude == pytest.approx((1 + 0.1 * math.log(16)) / (1 + 0.05 * math.log(16)))


def test_what_cannot_be_used_is_named() -> None:
    with pytest.raises(ModelError, match=r"toy\.rope\.scaling\.type: expected none, linear or yarn, found 'longrope'"):
        rope(scaling__type="longrope")
    with pytest.raises(ModelError, match=r"toy\.rope\.freq_base: expected a number above 1"):
        rope(freq_base=1.0)
    with pytest.raises(ModelError, match=r"rope_freqs\.weight is F16 \[4\]; expected F32 \[4\]"):
        frequency_factors(file([1, 1, 1, 1], "F16"), 8)
    with pytest.raises(ModelError, match=r"expected F32 \[4\]"):
        frequency_factors(file([1, 1]), 8)
