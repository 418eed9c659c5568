"""Activations, gates, rotation and top-k: ggml's operations where they are exact, our kernels where ggml's are not.

ggml's CPU `gelu` is a float16 table, its sort is unstable and its rope iterates the angle in float32. Without our
kernels, gelu and rope are composed of exact elementwise operations, and top-k runs on the host.
"""

from __future__ import annotations

import math
from typing import Literal

from tensorsharp.inputs import Rope, Tensor
from tensorsharp.ops import Activation, GatedKind
from tensorsharp.reference import elementwise
from tensorsharp_backend_ggml.native import TsGelu, TsRope, TsTopK
from tensorsharp_backend_ggml.stateless import Stateless
from tensorsharp_backend_ggml.tensors import Node
from tensorsharp_backend_ggml.written import node, require

KINDS = {"gelu_tanh": 0, "gelu_erf": 1, "silu": 2}
"""Activations that our kernel computes."""


class Activations(Stateless):
    """`act`, `glu`, `rope` and `top_k`."""

    def act(self, x: Tensor, kind: Activation) -> Node:
        found = self.b.contiguous(node(x))
        if kind == "gelu_tanh" or kind == "gelu_erf":
            return self._gelu(found, kind)
        if kind == "relu2":
            return self._map("sqr", self._map("relu", found))
        if kind == "ssqrt":
            size = self.b.op("clamp", self._map("abs", found), 1e-6, math.inf, shape=found.shape)
            return self.b.op("mul", self._map("sqrt", size), self._map("sgn", found), shape=found.shape)
        return self._map(kind, found)

    def glu(self, gate: Tensor, up: Tensor, kind: GatedKind, limit: float = 0.0) -> Node:
        g, u = self.b.contiguous(node(gate)), self.b.contiguous(node(up))
        require(g.shape == u.shape, "glu", g.shape, u.shape)
        if kind == "oai":
            return self.b.op("swiglu_oai", g, u, 1.702, limit or math.inf, shape=g.shape)
        if kind in KINDS and self.kernels is not None:
            return self.kernel("gelu", TsGelu(kind=KINDS[kind], gated=1, limit=limit), [g, u], g.shape)
        if limit:
            g, u = self.clamp(g, -math.inf, limit), self.clamp(u, -limit, limit)
        if kind in ("silu", "relu"):
            return self.b.op("swiglu_split" if kind == "silu" else "reglu_split", g, u, shape=g.shape)
        return self.b.op("mul", self.act(g, kind), u, shape=g.shape)

    def top_k(self, x: Tensor, k: int) -> Node:
        found = node(x)
        rows, n = found.shape
        require(1 <= k <= n, "top_k", found.shape, (k,))
        if self.kernels is None:
            return self.b.host("top_k", lambda a: elementwise.top_k(a, k), [found], (rows, k), "i32")
        return self.kernel("top_k", TsTopK(k=k), [found], (rows, k), "i32")

    def rope(self, x: Tensor, angles: Tensor, rope: Rope, *, inverse: bool = False) -> Node:
        found, table = node(x), node(angles)
        fits = len(found.shape) == 3 and table.shape == (found.shape[0], rope.dims // 2, 2)
        require(fits and rope.offset + rope.dims <= found.shape[-1], "rope", found.shape, table.shape)
        if self.kernels is None:
            return self._rotate(found, table, rope, inverse)
        pairs = TsRope(dims=rope.dims, offset=rope.offset, neox=int(rope.style == "neox"), inverse=int(inverse))
        return self.kernel("rope", pairs, [found, table], found.shape)

    # forms -----------------------------------------------------------------------------------------------------

    def _map(self, name: str, x: Node) -> Node:
        return self.b.op(name, x, shape=x.shape)

    def _gelu(self, x: Node, kind: Literal["gelu_tanh", "gelu_erf"]) -> Node:
        """x/2 * (1 + tanh(x * (c + 0.044715 c x^2))), c = sqrt(2/pi), or ggml's own with the error function."""
        if self.kernels is not None:
            return self.kernel("gelu", TsGelu(kind=KINDS[kind]), [x], x.shape)
        if kind == "gelu_erf":
            return self._map("gelu_erf", x)
        c = math.sqrt(2.0 / math.pi)
        inner = self.b.op("mul", self._affine(self._map("sqr", x), 0.044715 * c, c), x, shape=x.shape)
        return self.b.op("mul", self._affine(self._map("tanh", inner), 0.5, 0.5), x, shape=x.shape)

    def _rotate(self, x: Node, angles: Node, rope: Rope, inverse: bool) -> Node:
        rows, heads, depth = x.shape
        half = rope.dims // 2
        before, turned, after = self._pieces(x, [rope.offset, rope.dims, depth - rope.offset - rope.dims])
        assert turned is not None
        cos, sin = (self._every_second(angles, i, (rows, 1, half)) for i in (0, 1))
        if rope.style == "norm":
            a, b = (self._every_second(self.b.contiguous(turned), i, (rows, heads, half)) for i in (0, 1))
        else:
            a, b = self.split(turned, [half, half])
        first, second = (self.sub, self.add) if not inverse else (self.add, self.sub)
        low, high = first(self.mul(a, cos), self.mul(b, sin)), second(self.mul(b, cos), self.mul(a, sin))
        if rope.style == "norm":
            pairs = self.concat([self.regroup(p, (rows, heads * half, 1)) for p in (low, high)])
            joined = self.regroup(pairs, (rows, heads, rope.dims))
        else:
            joined = self.concat([low, high])
        return self.concat([part for part in (before, joined, after) if part is not None])

    def _pieces(self, x: Node, sizes: list[int]) -> list[Node | None]:
        """`split` that allows empty pieces, given as None."""
        found = iter(self.split(x, [n for n in sizes if n]))
        return [next(found) if n else None for n in sizes]

    def _every_second(self, x: Node, start: int, shape: tuple[int, int, int]) -> Node:
        """Elements start, start+2, .. of a contiguous tensor [rows, .., 2n], as [rows, h, n], copied together."""
        rows, heads, n = shape
        view = self.b.view(x, (rows, heads, n, 1), (8 * heads * n, 8 * n, 8, 4), 4 * start)
        return self.regroup(self.b.op("cont", view, shape=view.shape), shape)
