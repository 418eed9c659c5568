"""Operations 12 and 13: products with weights, by our kernels where they are there, else by ggml's.

Our kernels take the block formats most files use; for any other type they call ggml's own product of one weight row
and one activation row. Either way a row's result never depends on how many rows there are.
"""

from __future__ import annotations

import math

import numpy as np

from tensorsharp.inputs import Tensor
from tensorsharp.protocols.batch import F32
from tensorsharp.reference import linear
from tensorsharp_backend_ggml.binding import F32 as TYPE_F32
from tensorsharp_backend_ggml.binding import I8, TypeTraits
from tensorsharp_backend_ggml.native import TsConvert, TsDots, TsLinear, TsQuantise
from tensorsharp_backend_ggml.tensors import Node, Shape
from tensorsharp_backend_ggml.written import Written, node, require

SIMPLE = {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
"""ggml types with one scale for 32 values; activations are quantised likewise."""
SUPER = {12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}
"""ggml types with super-blocks of 256 values; activations have one scale for 256 values."""


def activation_bytes(inner: int, wide: bool) -> int:
    """Bytes of an activation row of `inner` features for our kernels: scales, sums of values, values."""
    return inner // 256 * 308 if wide else inner // 32 * 38


class Products(Written):
    """`linear` and `expert_linear`, without their biases."""

    def product(self, x: Node, weight: Node) -> Node:
        """[.., I] by [O, I] -> [.., O]."""
        fits = len(weight.shape) == 2 and x.shape[-1] == weight.shape[1] and weight.dtype == "f32"
        require(fits, "linear", x.shape, weight.shape)
        rows, (out, inner) = math.prod(x.shape[:-1]), weight.shape
        flat = self.regroup(x, (rows, inner)) if len(x.shape) != 2 else x
        if self.kernels is None:
            found = self.b.op("mul_mat", weight, flat, shape=(rows, out))
        else:
            found = self._own("linear", flat, weight, [], (rows, out))
        return self.regroup(found, (*x.shape[:-1], out))

    def grouped(self, x: Node, weight: Node) -> Node:
        """[R, G, I] by [G, O, I] -> [R, G, O]."""
        rows, (groups, out, width) = x.shape[0], weight.shape
        require(x.shape == (rows, groups, width), "linear", x.shape, weight.shape)
        if self.kernels is not None:  # every row chooses all groups, in order
            order = self.b.host_array(np.tile(np.arange(groups, dtype=np.int32), (rows, 1)))
            flat = self.regroup(self.b.contiguous(x), (rows * groups, width))
            return self._own("experts", flat, weight, [order], (rows, groups, out))
        by_group = self.b.op("permute", self.b.contiguous(x), 0, 2, 1, 3, shape=(groups, rows, width))
        product = self.b.op("mul_mat", weight, by_group, shape=(groups, rows, out))
        by_row = self.b.op("permute", product, 0, 2, 1, 3, shape=(rows, groups, out))
        return self.b.op("cont", by_row, shape=(rows, groups, out))

    def transposed(self, x: Node, weight: Node) -> Node:
        """[.., O] by [O, I] -> [.., I], on the host."""
        require(len(weight.shape) == 2 and x.shape[-1] == weight.shape[0], "linear (transposed)", x.shape, weight.shape)

        def product(a: F32, w: F32) -> F32:
            return linear.linear(a, w, transposed=True)

        return self.b.host("linear", product, [x, self.f32(weight)], (*x.shape[:-1], weight.shape[1]))

    def expert_product(self, x: Node, experts: Node, chosen: Node, bias: Tensor | None) -> Node:
        """[R, I] or [R, K, I] by [E, O, I], int [R, K] -> [R, K, O]."""
        (r, k), (_, out, width) = chosen.shape, experts.shape
        each = x if len(x.shape) == 3 else self.regroup(x, (r, 1, x.shape[-1]))
        fits = each.shape[0] == r and each.shape[1] in (1, k) and each.shape[2] == width
        require(fits, "expert_linear", x.shape, experts.shape, chosen.shape)
        if chosen.sparse:
            args = [x, self.f32(experts), chosen] if bias is None else [x, self.f32(experts), chosen, node(bias)]
            return self.b.host("expert_linear", linear.expert_linear, args, (r, k, out))
        if self.kernels is None:
            return self.b.op("mul_mat_id", experts, each, chosen, shape=(r, k, out))
        flat = self.regroup(each, (r * each.shape[1], width))
        return self._own("experts", flat, experts, [chosen], (r, k, out))

    def _own(self, name: str, x: Node, weight: Node, chosen: list[Node], shape: Shape) -> Node:
        """A product by our kernels; the activations' form is made once for all weights that read them."""
        inner = x.shape[1]
        if weight.type in SIMPLE or weight.type in SUPER:
            wide = weight.type in SUPER
            args = [self._quantised(x, wide), weight, *chosen]
            return self.kernel("linear" if name == "linear" else "experts", TsLinear(inner), args, shape)
        traits = self.b.ggml.traits(weight.type)
        return self.kernel("dots", TsDots(inner, traits.vec_dot), [self._converted(x, traits), weight, *chosen], shape)

    def _quantised(self, x: Node, wide: bool) -> Node:
        key = (x.ptr, "wide" if wide else "plain")
        if key not in self._forms:
            shape = (x.shape[0], activation_bytes(x.shape[1], wide))
            self._forms[key] = self.kernel("quantise", TsQuantise(x.shape[1], int(wide)), [x], shape, "i32", I8)
        return self._forms[key]

    def _converted(self, x: Node, traits: TypeTraits) -> Node:
        """The activations as ggml's product for a weight type wants them."""
        if traits.vec_dot_type == TYPE_F32:
            return self.b.contiguous(x)
        ggml, inner, key = self.b.ggml, x.shape[1], (x.ptr, traits.vec_dot_type)
        if key not in self._forms:
            size = inner // ggml.blck_size(traits.vec_dot_type) * ggml.type_size(traits.vec_dot_type)
            form = TsConvert(inner, ggml.traits(traits.vec_dot_type).from_float)
            self._forms[key] = self.kernel("convert", form, [x], (x.shape[0], size), "i32", I8)
        return self._forms[key]
