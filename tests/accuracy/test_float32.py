"""Distance of our logits to a float32 forward by llama.cpp: with float32 products, and with quantised ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.driver import Driver
from tests.goldens.records import ROWS, Float32
from tests.oracle.dequantised import float32_copy
from tests.realmodels import REAL_MODELS, needs

EXACT = 1e-4
"""1 - cosine of float32 arithmetic; what is left is the order of sums, and llama.cpp's half-precision table of GELU."""
NOISE = 1.2
"""Quantised products round activations to eight bits, ours as llama.cpp's, so the median distance is the same but for
how the roundings fall."""


@pytest.mark.parametrize("key", REAL_MODELS)
def test_the_reference_is_exact(key: str) -> None:
    recorded = Float32.of(key)
    with Driver(needs(REAL_MODELS[key]), backend="reference", kv_format="f32", context=32) as driver:
        rows = driver.logits(recorded.ids[:6].tolist())
    assert recorded.distance(rows).max() < EXACT


@pytest.mark.parametrize("rows", [128, pytest.param(ROWS, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("key", REAL_MODELS)
def test_quantised_products_are_no_noisier_than_llamacpp(key: str, rows: int) -> None:
    recorded = Float32.of(key)
    with Driver(needs(REAL_MODELS[key]), backend="ggml", kv_format="f32") as driver:
        found = recorded.distance(driver.logits(recorded.ids[:rows].tolist()))
    assert np.median(found) <= NOISE * np.median(recorded.peer[:rows])


@pytest.mark.heavy
@pytest.mark.parametrize("key", REAL_MODELS)
def test_a_float32_copy_is_exact(key: str) -> None:
    recorded = Float32.of(key)
    with Driver(float32_copy(needs(REAL_MODELS[key])), backend="ggml", kv_format="f32") as driver:
        rows = driver.logits(recorded.ids.tolist())
    assert recorded.distance(rows).max() < EXACT
