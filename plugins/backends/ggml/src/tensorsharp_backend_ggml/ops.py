"""The operation vocabulary over ggml: what `forward` is called with while a graph is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Tensor
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.builder import Builder
from tensorsharp_backend_ggml.native import Kernels
from tensorsharp_backend_ggml.stateful import Stateful
from tensorsharp_backend_ggml.tensors import Node
from tensorsharp_backend_ggml.written import node


class GgmlOps(Stateful):
    """Implements :class:`tensorsharp.ops.Ops`. taps: which published tensors are wanted; found: those that were."""

    def __init__(
        self,
        builder: Builder,
        weights: Mapping[str, Node],
        kernels: Kernels | None,
        store: HostStateStore,
        taps: Collection[str],
    ) -> None:
        super().__init__(builder, weights, kernels, store)
        self._wanted = frozenset(taps)
        self.found: dict[str, Node] = {}

    def weight(self, name: str) -> Node:
        try:
            return self.weights[name]
        except KeyError:
            raise ModelError(f"tensor {name} is not among those that the model asked to load.") from None

    def has(self, name: str) -> bool:
        return name in self.weights

    def tap(self, name: str, x: Tensor) -> None:
        if name in self._wanted:
            rows = node(x)
            self.found[name] = self.b.output(f"tap {name}", self.regroup(rows, (rows.shape[0], math.prod(rows.shape[1:]))))
