"""One whole-model graph for one batch signature: written once, placed in shared memory, then replayed with other inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tensorsharp.errors import BackendError, UnsupportedError
from tensorsharp.inputs import ModelBatch
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.binding import STATUS_SUCCESS, Ggml, InitParams
from tensorsharp_backend_ggml.builder import Builder
from tensorsharp_backend_ggml.native import Kernels
from tensorsharp_backend_ggml.ops import GgmlOps
from tensorsharp_backend_ggml.scratch import Scratch
from tensorsharp_backend_ggml.tensors import Node
from tensorsharp_backend_ggml.threads import Pool

LOGITS = "logits"


class Graph:
    """A model written for the shapes of `batch`.

    wanted: whether logits are computed at all; without, the graph ends at the last store. UnsupportedError for a tap
    that the model does not publish; CapacityError if its memory does not fit. logits, taps: until another graph is replayed.
    """

    def __init__(
        self,
        ggml: Ggml,
        model: IBatchedPagedModel,
        weights: Mapping[str, Node],
        store: HostStateStore,
        kernels: Kernels | None,
        pool: Pool | None,
        scratch: Scratch,
        batch: Batch,
        taps: Collection[str],
        *,
        wanted: bool,
    ) -> None:
        self._ggml = ggml
        self._builder = Builder(ggml, batch, pool, scratch)
        self._context: int | None = None
        try:
            self._ops = GgmlOps(self._builder, weights, kernels, store, taps)
            logits = self._write(model, taps)
            kept = self._builder.output(LOGITS, logits) if wanted else None
            self._graph = self._assemble(len(weights))
            scratch.place(self._graph)
            self._builder.bind()
        except BaseException:
            self.close()
            raise
        self.logits: F32 = np.zeros((0, logits.shape[1]), np.float32) if kept is None else _result(kept)
        self.taps = {name: _result(node) for name, node in self._ops.found.items()}
        self.fallbacks = dict(self._builder.fallbacks)

    @property
    def nodes(self) -> int:
        """Operations that one replay runs."""
        return int(self._ggml.graph_n_nodes(self._graph))

    def replay(self, backend: int, batch: Batch) -> None:
        """Write every input from a batch of the same signature and compute. BackendError if that fails."""
        self._ops.current.batch = batch
        self._ops.fields.write(batch)
        for entry in self._builder.inputs.values():
            entry.array[...] = entry.request.compute(batch)
        status = self._ggml.backend_graph_compute(backend, self._graph)
        self._builder.raise_failure()
        if status != STATUS_SUCCESS:
            raise BackendError(f"ggml ended a step with status {status}.")

    def close(self) -> None:
        """Free everything; results are gone. Idempotent."""
        if self._context:
            self._ggml.free(self._context)
            self._context = None
        self._builder.close()

    def _write(self, model: IBatchedPagedModel, taps: Collection[str]) -> Node:
        logits = model.forward(self._ops, ModelBatch(self._builder.declare))
        missing = [name for name in taps if name not in self._ops.found]
        if missing:
            raise UnsupportedError(f"the {model.architecture} model publishes no tap {missing[0]!r}.", param="taps")
        if not isinstance(logits, Node):
            raise TypeError("the model's logits are not a tensor of the ggml backend")
        return logits

    def _assemble(self, weights: int) -> int:
        """Collect the roots, in program order, in a graph just large enough for what was written."""
        ggml, size = self._ggml, self._builder.nodes + weights
        room = ggml.graph_overhead_custom(size, False) + ggml.tensor_overhead()
        self._context = ggml.init(InitParams(room, None, True))
        graph = ggml.new_graph_custom(self._context, size, False)
        for root in self._builder.roots:
            ggml.build_forward_expand(graph, root)
        return int(graph)


def _result(node: Node) -> F32:
    assert node.array is not None
    return node.array
