"""Stateless operations against float64 formulas, and the independence of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.inputs import Rope
from tensorsharp.ops import Activation, GatedKind
from tensorsharp.protocols.batch import F32
from tensorsharp.reference import elementwise as e
from tensorsharp.reference.arrays import ascending_sum, dots, last_sum
from tensorsharp.reference.linear import expert_linear, linear
from tensorsharp.reference.rotary import rope

FORMULAS: dict[Activation, Callable[[float], float]] = {
    "silu": lambda x: x / (1 + math.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "softplus": lambda x: x if x > 20 else math.log1p(math.exp(x)),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "tanh": math.tanh,
    "exp": math.exp,
    "sqrt": lambda x: math.sqrt(abs(x)),
    "ssqrt": lambda x: math.copysign(math.sqrt(max(abs(x), 1e-6)), x),
}


def rows(*shape: int) -> F32:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("kind", FORMULAS)
def test_activations_follow_their_formula(kind: Activation) -> None:
    x = np.linspace(-30, 30, 4001, dtype=np.float32)
    x = np.abs(x) if kind == "sqrt" else x
    expected = np.array([FORMULAS[kind](float(v)) for v in x])
    if kind == "ssqrt":
        expected[x == 0] = 0
    # A handful of float32 operations on values up to |x|: 1 + tanh cancels, so the bound is relative to x as well.
    assert np.allclose(e.act(x, kind), expected, rtol=2e-6, atol=4e-7 * 30)
    assert e.act(x, kind).dtype == np.float32


def test_activations_stay_finite_far_out() -> None:
    x = np.array([-1e4, -200, 200, 1e4], np.float32)
    assert e.act(x, "silu").tolist() == [0, 0, 200, 1e4]
    assert e.act(x, "sigmoid").tolist() == [0, 0, 1, 1]
    assert e.act(x, "softplus").tolist() == [0, 0, 200, 1e4]
    assert e.act(x, "gelu_tanh").tolist() == [0, 0, 200, 1e4]


@pytest.mark.parametrize("kind", ["silu", "sigmoid", "gelu_tanh", "gelu_erf", "relu", "relu2"])
@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_glu_clamps_gate_above_and_up_on_both_sides(kind: Activation, limit: float) -> None:
    gate, up = rows(7, 33), rows(7, 33) * 2
    g, u = (np.minimum(gate, limit), np.clip(up, -limit, limit)) if limit else (gate, up)
    expected = np.vectorize(FORMULAS[kind])(g.astype(np.float64)) * u
    assert np.allclose(e.glu(gate, up, cast("GatedKind", kind), limit), expected, rtol=4e-6, atol=1e-6)


def test_glu_oai() -> None:
    gate, up = rows(5, 16) * 4, rows(5, 16)[::-1] * 4
    g, u = np.minimum(gate, 7).astype(np.float64), np.clip(up, -7, 7).astype(np.float64)
    assert np.allclose(e.glu(gate, up, "oai", 7.0), g / (1 + np.exp(-1.702 * g)) * (u + 1), rtol=4e-6, atol=1e-6)


def test_norms_and_softmax() -> None:
    x, w, b = rows(6, 5, 40), rows(40), rows(5, 40)
    d = x.astype(np.float64)

    # Sums of 40 float32 terms: a few units of 2^-24 relative.
    def close(found: F32, wanted: npt.NDArray[np.float64]) -> bool:
        return np.allclose(found, wanted, rtol=1e-5, atol=2e-6)

    assert close(e.rms_norm(x, w, 1e-5), d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5) * w)
    assert close(e.rms_norm(x, b, 1e-5), d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5) * b)
    centred = d - d.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    assert close(e.layer_norm(x, w, b, 1e-5), expected * w + b)
    assert close(e.layer_norm(x, None, None, 1e-5), expected)
    p = np.exp(d * 50 - (d * 50).max(-1, keepdims=True))
    assert np.allclose(e.softmax(x * 50), p / p.sum(-1, keepdims=True), rtol=1e-4, atol=1e-6)


def test_take_pick_and_top_k() -> None:
    table = rows(5, 3)
    index = np.array([[4, -1], [0, 4]], np.int32)
    found = e.take(table, index)
    assert np.array_equal(found[0, 0], table[4])
    assert not found[0, 1].any()
    assert np.array_equal(e.take(np.arange(5, dtype=np.int32), index), [[4, 0], [0, 4]])
    x = np.array([[1, 3, 3, -1, 3], [0, 0, 0, 0, 0]], np.float32)
    assert e.top_k(x, 4).tolist() == [[1, 2, 4, 0], [0, 1, 2, 3]]
    assert e.pick(x, e.top_k(x, 4)).tolist() == [[3, 3, 3, 1], [0, 0, 0, 0]]


def test_sums_run_in_the_order_that_is_stated() -> None:
    x = rows(9, 4) * 10.0 ** np.arange(9)[:, None].astype(np.float32)
    expected = np.zeros(4, np.float32)
    for term in x:
        expected = expected + term
    assert np.array_equal(ascending_sum(x, 0), expected)
    m, s = rows(2, 9, 3), rows(2, 9, 5)
    for r, t in np.ndindex(2, 3):
        mixed = np.zeros(5, np.float32)
        for j in range(9):
            mixed = mixed + m[r, j, t] * s[r, j]
        assert np.array_equal(e.mix(s, m)[r, t], mixed)


def test_sinkhorn_normalises_columns_last() -> None:
    x = rows(3, 4, 4)
    y = np.exp(x.astype(np.float64))
    y = y / y.sum(2, keepdims=True) + 1e-6
    y /= y.sum(1, keepdims=True) + 1e-6
    for _ in range(3):
        y /= y.sum(2, keepdims=True) + 1e-6
        y /= y.sum(1, keepdims=True) + 1e-6
    assert np.allclose(e.sinkhorn(x, 1e-6, 4), y, rtol=1e-5)


def test_products() -> None:
    x, w, b = rows(6, 40), rows(9, 40), rows(9)
    assert np.allclose(linear(x, w, b), x.astype(np.float64) @ w.T + b, rtol=1e-5, atol=1e-5)
    assert np.allclose(linear(rows(6, 9), w, transposed=True), rows(6, 9).astype(np.float64) @ w, rtol=1e-5, atol=1e-5)
    grouped, weights = rows(6, 3, 40), rows(3, 9, 40)
    assert np.allclose(linear(grouped, weights), np.einsum("rgi,goi->rgo", grouped, weights, dtype=np.float64), atol=1e-5)
    bias, index = rows(3, 9), np.array([[2, 0], [1, -1]], np.int32)
    expected = np.einsum("ri,rkoi->rko", x[:2], weights[index], dtype=np.float64) + bias[index]
    expected[1, 1] = 0
    assert np.allclose(expert_linear(x[:2], weights, index, bias), expected, atol=1e-5)
    per_choice = rows(2, 2, 40)
    expected = np.einsum("rki,rkoi->rko", per_choice, weights[index], dtype=np.float64)
    expected[1, 1] = 0
    assert np.allclose(expert_linear(per_choice, weights, index), expected, atol=1e-5)


@pytest.mark.parametrize("inputs", [1, 7, 40, 576, 8191, 8192, 8193, 20000])
def test_a_product_of_a_row_does_not_depend_on_the_rows_beside_it(inputs: int) -> None:
    x, w = rows(17, inputs), rows(5, inputs)
    whole = linear(x, w)
    shifted = np.zeros(17 * inputs + 3, np.float32)[3:].reshape(17, inputs)
    shifted[...] = x
    for r in range(17):
        assert np.array_equal(linear(x[r : r + 1], w)[0], whole[r])
        assert np.array_equal(linear(shifted[r:], w)[0], whole[r])
    assert np.array_equal(dots(x[0], w[2]), whole[0, 2])


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 33, 129, 576, 1000])
def test_rows_are_independent(width: int) -> None:
    x = rows(17, width)
    kinds: list[Callable[[F32], F32]] = [
        *(lambda v, kind=kind: e.act(np.abs(v) if kind == "sqrt" else v, kind) for kind in FORMULAS),
        e.softmax,
        last_sum,
        lambda v: e.rms_norm(v, None, 1e-5),
        lambda v: e.layer_norm(v, None, None, 1e-5),
        lambda v: e.top_k(v, 1).astype(np.float32),
    ]
    strided = np.zeros((17, 2 * width), np.float32)[:, width:]
    strided[...] = x
    for fn in kinds:
        whole = fn(x)
        assert np.array_equal(fn(strided), whole)
        for r in range(17):
            assert np.array_equal(fn(x[r : r + 1])[0], whole[r])


@pytest.mark.parametrize("style", ["norm", "neox"])
@pytest.mark.parametrize(("offset", "dims"), [(0, 16), (0, 8), (4, 8), (10, 6)])
def test_rope_rotates_pairs(style: str, offset: int, dims: int) -> None:
    table = Rope(10.0 ** -np.arange(dims // 2), style=style, offset=offset)  # type: ignore[arg-type]
    x = rows(5, 3, 16)
    angles = table.table(np.arange(5)[:, None] * 7)
    y = rope(x, angles, table)
    for r in range(5):
        expected = x[r].astype(np.float64)
        for i in range(dims // 2):
            first, second = (2 * i, 2 * i + 1) if style == "norm" else (i, i + dims // 2)
            turn = np.exp(1j * 7 * r * table.frequencies[i])
            z = (x[r, :, offset + first] + 1j * x[r, :, offset + second]) * turn
            expected[:, offset + first], expected[:, offset + second] = z.real, z.imag
        assert np.allclose(y[r], expected, atol=1e-6)
    assert np.allclose(rope(y, angles, table, inverse=True), x, atol=1e-6)
