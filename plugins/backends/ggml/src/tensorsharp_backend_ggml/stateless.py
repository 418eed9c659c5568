"""Operations 1 to 16 as ggml nodes. Shapes and formulas: `tensorsharp.ops`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorsharp.inputs import Request, Tensor
from tensorsharp.protocols.batch import F32, I32, Batch
from tensorsharp.reference import elementwise
from tensorsharp_backend_ggml.native import TsNorm
from tensorsharp_backend_ggml.products import Products
from tensorsharp_backend_ggml.tensors import Node, dense_strides
from tensorsharp_backend_ggml.written import node, require


@dataclass(frozen=True, slots=True)
class Clipped:
    """The request's indices with 0 in place of -1."""

    request: Request

    def compute(self, batch: Batch) -> I32:
        index = np.asarray(self.request.compute(batch), np.int32)
        return np.maximum(index, 0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Present:
    """[n, 1] float32: 1 where the request's index names a row, 0 where it is -1."""

    request: Request

    def compute(self, batch: Batch) -> F32:
        index = np.asarray(self.request.compute(batch), np.int32)
        return np.greater_equal(index.reshape(-1, 1), 0).astype(np.float32)


class Stateless(Products):
    """Selection, shape, arithmetic, reductions, norms and products."""

    # 1-4 selection and shape -----------------------------------------------------------------------------------

    def take(self, table: Tensor, index: Tensor) -> Node:
        t, i = self.b.contiguous(node(table)), node(index)
        width = math.prod(t.shape[1:])
        shape = (*i.shape, *t.shape[1:])
        if i.sparse and (t.dtype == "i32" or self.b.request_of(i) is None):
            return self.b.host("take", elementwise.take, [self.f32(t), i], shape, t.dtype)
        rows = self._rows(self.regroup(t, (t.shape[0], width)), i, math.prod(i.shape), width)
        return self.regroup(rows, shape)

    def _rows(self, table: Node, index: Node, count: int, width: int) -> Node:
        request = self.b.request_of(index) if index.sparse else None
        flat = self.regroup(index if request is None else self.b.declare(Clipped(request)), (count,))
        found = self.b.op("get_rows", table, flat, shape=(count, width), dtype=table.dtype)
        if request is None:
            return found
        return self.b.op("mul", found, self.b.declare(Present(request)), shape=(count, width))

    def pick(self, x: Tensor, index: Tensor) -> Node:
        values, i = self.b.contiguous(node(x)), self.b.contiguous(node(index))
        rows, n = values.shape
        require(len(i.shape) == 2 and i.shape[0] == rows, "pick", values.shape, i.shape)
        if i.sparse:  # ggml reads without a check
            return self.b.host("pick", elementwise.pick, [values, i], i.shape, values.dtype)
        found = self.b.op("get_rows", self.regroup(values, (rows, n, 1)), i, shape=(rows, i.shape[1], 1), dtype=values.dtype)
        return self.regroup(found, i.shape)

    def reshape(self, x: Tensor, shape: tuple[int, ...]) -> Node:
        found = node(x)
        count, rest = math.prod(found.shape), math.prod(n for n in shape if n != -1)
        full = tuple(count // rest if n == -1 else n for n in shape)
        require(math.prod(full) == count and len(full) <= 4, "reshape", found.shape, shape)
        return self.regroup(found, full)

    def split(self, x: Tensor, sizes: Sequence[int]) -> tuple[Node, ...]:
        found = node(x)
        require(sum(sizes) == found.shape[-1], "split", found.shape, tuple(sizes))
        strides = found.strides or dense_strides(found.shape)
        starts = [4 * sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(self.b.view(found, (*found.shape[:-1], n), strides, at) for n, at in zip(sizes, starts, strict=True))

    def concat(self, parts: Sequence[Tensor]) -> Node:
        first, *others = (node(p) for p in parts)
        for other in others:
            require(first.shape[:-1] == other.shape[:-1] and first.dtype == other.dtype, "concat", first.shape, other.shape)
            shape = (*first.shape[:-1], first.shape[-1] + other.shape[-1])
            first = self.b.op("concat", first, other, 0, shape=shape, dtype=first.dtype, sparse=first.sparse or other.sparse)
        return first

    def repeat(self, x: Tensor, n: int) -> Node:
        found = self.b.contiguous(node(x))
        rows, width = found.shape[0], found.shape[-1]
        require(found.shape in ((rows, width), (rows, 1, width)), "repeat", found.shape)
        return self.b.op("repeat_4d", self.regroup(found, (rows, 1, width)), width, n, rows, 1, shape=(rows, n, width))

    # 5 arithmetic ----------------------------------------------------------------------------------------------

    def _broadcast(self, name: str, a: Tensor, b: Tensor) -> Node:
        x, y = self.f32(node(a)), self.f32(node(b))
        padded = (1,) * (len(x.shape) - len(y.shape)) + y.shape
        fits = len(padded) == len(x.shape) and all(m in (1, n) for n, m in zip(x.shape, padded, strict=True))
        require(fits and x.dtype == y.dtype == "f32", name, x.shape, y.shape)
        return self.b.op(name, x, y, shape=x.shape)

    def _affine(self, x: Tensor, scale: float, bias: float) -> Node:
        found = self.b.contiguous(self.f32(node(x)))
        return self.b.op("scale_bias", found, scale, bias, shape=found.shape)

    def add(self, a: Tensor, b: Tensor | float) -> Node:
        return self._affine(a, 1.0, b) if isinstance(b, int | float) else self._broadcast("add", a, b)

    def sub(self, a: Tensor, b: Tensor | float) -> Node:
        return self._affine(a, 1.0, -b) if isinstance(b, int | float) else self._broadcast("sub", a, b)

    def mul(self, a: Tensor, b: Tensor | float) -> Node:
        return self._affine(a, b, 0.0) if isinstance(b, int | float) else self._broadcast("mul", a, b)

    def div(self, a: Tensor, b: Tensor | float) -> Node:
        return self._affine(a, 1.0 / b, 0.0) if isinstance(b, int | float) else self._broadcast("div", a, b)

    def clamp(self, x: Tensor, lo: float, hi: float) -> Node:
        found = self.f32(node(x))
        # ggml clamps in place, which must not reach the operand.
        copy = self.b.op("cont", found, shape=found.shape)
        return self.b.op("clamp", copy, lo, hi, shape=found.shape)

    # 8-11 reductions and norms ---------------------------------------------------------------------------------

    def softmax(self, x: Tensor) -> Node:
        found = self.b.contiguous(node(x))
        return self.b.op("soft_max", found, shape=found.shape)

    def total(self, x: Tensor) -> Node:
        found = self.b.contiguous(node(x))
        return self.b.op("sum_rows", found, shape=(*found.shape[:-1], 1))

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Node:
        found = node(x)
        factors = None if weight is None else node(weight)
        if self.kernels is not None and (factors is None or factors.shape == found.shape[-len(factors.shape) :]):
            period = found.shape[-1] if factors is None else math.prod(factors.shape)
            job = TsNorm(found.shape[-1], period, eps, int(factors is not None))
            return self.kernel("norm", job, [found] if factors is None else [found, self.f32(factors)], found.shape)
        out = self.b.op("rms_norm", found, eps, shape=found.shape)
        return out if weight is None else self._broadcast("mul", out, weight)

    def layer_norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Node:
        found = node(x)
        out = self.b.op("norm", found, eps, shape=found.shape)
        out = out if weight is None else self._broadcast("mul", out, weight)
        return out if bias is None else self._broadcast("add", out, bias)

    # 12-13 products --------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False) -> Node:
        rows, matrix = node(x), node(weight)
        if transposed:
            out = self.transposed(rows, matrix)
        elif len(matrix.shape) == 3:
            out = self.grouped(rows, matrix)
        else:
            out = self.product(rows, matrix)
        return out if bias is None else self._broadcast("add", out, bias)

    def expert_linear(self, x: Tensor, weight: Tensor, index: Tensor, bias: Tensor | None = None) -> Node:
        rows, chosen = self.b.contiguous(node(x)), self.b.contiguous(node(index))
        found = self.expert_product(rows, node(weight), chosen, bias)
        if bias is None or chosen.sparse:
            return found
        return self.b.op("add_id", found, self.f32(node(bias)), chosen, shape=found.shape)

    # 14-15 mixing ----------------------------------------------------------------------------------------------

    def mix(self, x: Tensor, m: Tensor) -> Node:
        values, weights = self.b.contiguous(node(x)), self.b.contiguous(node(m))
        rows, streams, width = values.shape
        targets = weights.shape[-1]
        require(weights.shape == (rows, streams, targets), "mix", values.shape, weights.shape)
        mixed = [self._collapse(values, weights, target) for target in range(targets)]
        return self.regroup(self.concat(mixed), (rows, targets, width))

    def _collapse(self, values: Node, weights: Node, target: int) -> Node:
        rows, streams, width = values.shape
        targets = weights.shape[-1]
        strides = (4 * streams * targets, 4 * targets, 4)
        column = self.b.contiguous(self.b.view(weights, (rows, streams, 1), strides, 4 * target))
        return self.b.op("dsv4_hc_pre", values, self.regroup(column, (rows, streams)), shape=(rows, width))

    def sinkhorn(self, x: Tensor, eps: float, iterations: int) -> Node:
        found = self.b.contiguous(node(x))
        rows, streams = found.shape[:2]
        require(found.shape == (rows, streams, streams), "sinkhorn", found.shape)
        if streams != 4:  # ggml's operation is made for four streams
            return self.b.host("sinkhorn", lambda a: elementwise.sinkhorn(a, eps, iterations), [found], found.shape)
        # It reads the coefficients behind 2 * 4 others of a row, scaled and shifted: 1 and 0 here.
        front = self.b.host_array(np.zeros((rows, 8), np.float32))
        mixes = self.concat([front, self.regroup(found, (rows, 16))])
        scale, base = (self.b.host_array(a) for a in (np.ones(3, np.float32), np.zeros(24, np.float32)))
        return self.b.op("dsv4_hc_comb", mixes, scale, base, eps, iterations, shape=found.shape)
