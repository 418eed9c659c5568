"""Activations, gates, softmax, norms, selection: operations that look at one row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tensorsharp.ops import Activation, GatedKind
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.reference.arrays import Array, ascending_sum, last_sum

_erf = np.frompyfunc(math.erf, 1, 1)
ONE = np.float32(1.0)
HALF = np.float32(0.5)


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)); an overflow of exp is the correct 0."""
    with np.errstate(over="ignore"):
        y: F32 = np.divide(ONE, ONE + np.exp(-x))
    return y


def silu(x: F32) -> F32:
    """x / (1 + exp(-x))."""
    with np.errstate(over="ignore"):
        y: F32 = np.divide(x, ONE + np.exp(-x))
    return y


def gelu_tanh(x: F32) -> F32:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (Hendrycks and Gimpel, arXiv 1606.08415)."""
    inner: F32 = np.multiply(np.float32(math.sqrt(2.0 / math.pi)), x + np.float32(0.044715) * x * x * x)
    y: F32 = np.multiply(HALF * x, np.tanh(inner) + ONE)
    return y


def gelu_erf(x: F32) -> F32:
    """x/2 * (1 + erf(x / sqrt 2)), the error function in float64."""
    erf = np.asarray(_erf(x.astype(np.float64) / math.sqrt(2.0)), np.float64)
    return (0.5 * x.astype(np.float64) * (1.0 + erf)).astype(np.float32)


def softplus(x: F32) -> F32:
    """log(1 + exp(x)), x itself above 20."""
    return np.where(x > 20.0, x, np.log1p(np.exp(np.minimum(x, np.float32(20.0)))))


def relu(x: F32) -> F32:
    return np.maximum(x, np.float32(0.0))


def relu2(x: F32) -> F32:
    return np.square(relu(x))


def ssqrt(x: F32) -> F32:
    """sign(x) * sqrt(max(|x|, 1e-6)), 0 at 0."""
    return np.sign(x) * np.sqrt(np.maximum(np.abs(x), np.float32(1e-6)))


ACTIVATIONS: dict[Activation, Callable[[F32], F32]] = {
    "silu": silu,
    "sigmoid": sigmoid,
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
    "softplus": softplus,
    "relu": relu,
    "relu2": relu2,
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "ssqrt": ssqrt,
}


def act(x: F32, kind: Activation) -> F32:
    """The activation of every element."""
    return ACTIVATIONS[kind](x)


def glu(gate: F32, up: F32, kind: GatedKind, limit: float = 0.0) -> F32:
    """kind(min(gate, L)) * clamp(up, -L, L), without clamps for L = 0.

    `oai`: g * sigmoid(1.702 g) * (u + 1) with both clamped.
    """
    if limit:
        bound = np.float32(limit)
        gate, up = np.minimum(gate, bound), np.clip(up, -bound, bound)
    if kind == "oai":
        return gate * sigmoid(np.float32(1.702) * gate) * (up + ONE)
    return ACTIVATIONS[kind](gate) * up


def softmax(x: F32) -> F32:
    """exp(x - max) / sum over the last axis."""
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    y: F32 = np.divide(e, last_sum(e))
    return y


def rms_norm(x: F32, weight: F32 | None, eps: float) -> F32:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis; weight [D], [H, D] or None."""
    mean = last_sum(np.square(x)) / np.float32(x.shape[-1])
    y: F32 = x * np.divide(ONE, np.sqrt(mean + np.float32(eps)))
    return y if weight is None else y * weight


def layer_norm(x: F32, weight: F32 | None, bias: F32 | None, eps: float) -> F32:
    """(x - mean) / sqrt(var + eps) * weight + bias over the last axis."""
    n = np.float32(x.shape[-1])
    centred = x - last_sum(x) / n
    y: F32 = centred * np.divide(ONE, np.sqrt(last_sum(np.square(centred)) / n + np.float32(eps)))
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias


def take(table: Array, index: I32) -> Array:
    """[N, ...], int [...] -> [..., ...]: the rows named, zeros for -1."""
    rows = table[np.maximum(index, 0)]
    rows[index < 0] = 0
    return rows


def pick(x: Array, index: I32) -> Array:
    """[R, N], int [R, K] -> [R, K]: x[r, index[r, k]]."""
    return np.take_along_axis(x, index, axis=-1)


def top_k(x: F32, k: int) -> I32:
    """[R, N] -> int [R, k]: the largest, descending; equal values by ascending index."""
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def mix(x: F32, m: F32) -> F32:
    """[R, S, n], [R, S, T] -> [R, T, n]: sum over s, ascending, of m[s, t] * x[s]."""
    return ascending_sum(m[..., None] * x[:, :, None, :], axis=1)


def sinkhorn(x: F32, eps: float, iterations: int) -> F32:
    """[R, S, S] (source, destination): rows and columns are normalised in turn (Sinkhorn and Knopp, 1967).

    softmax over destination, + eps; / (column sum + eps); then iterations-1 times / (row sum + eps), / (column sum +
    eps). A column sum runs over sources, ascending.
    """
    e = np.float32(eps)
    y = softmax(x) + e
    y = y / (ascending_sum(y, 1)[:, None, :] + e)
    for _ in range(iterations - 1):
        y = y / (ascending_sum(y, 2)[:, :, None] + e)
        y = y / (ascending_sum(y, 1)[:, None, :] + e)
    return y
