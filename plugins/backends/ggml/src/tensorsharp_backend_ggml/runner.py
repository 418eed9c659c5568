"""Runs a model: one graph per batch signature, kept in a bounded LRU and replayed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from tensorsharp.errors import BackendError
from tensorsharp.ops import OUTPUT
from tensorsharp.protocols.backend import StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml.composed import gathered_rows
from tensorsharp_backend_ggml.graph import Graph
from tensorsharp_backend_ggml.heap import trim
from tensorsharp_backend_ggml.library import Library
from tensorsharp_backend_ggml.native import Kernels
from tensorsharp_backend_ggml.scratch import Scratch
from tensorsharp_backend_ggml.threads import Pool, Threads
from tensorsharp_backend_ggml.weights import GgmlWeights

MAX_GRAPHS = 48
"""Graphs kept at most."""


def bucket(rows: int) -> int:
    """Rows that a graph for `rows` rows has: padding costs compute, another graph only milliseconds once."""
    for limit, step in ((8, 1), (32, 4), (128, 16)):
        if rows <= limit:
            return -(-rows // step) * step
    return -(-rows // 32) * 32


class GgmlRunner:
    """Implements :class:`tensorsharp.protocols.backend.Runner`. Not for two threads at a time; two runners may coexist."""

    def __init__(
        self,
        library: Library,
        kernels: Kernels | None,
        model: IBatchedPagedModel,
        weights: GgmlWeights,
        state: HostStateStore,
        threads: int,
    ) -> None:
        self._library, self._kernels = library, kernels
        self._model, self._weights, self._state = model, weights, state
        self._pool = None if kernels is None else Pool(kernels, threads)
        self._threads = Threads(library.ggml, threads if kernels is None else 1, plain=kernels is None)
        self._graphs: OrderedDict[Hashable, Graph] = OrderedDict()
        self._scratch = Scratch(library.ggml)
        self._closed = False

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        """See :class:`Runner`. BackendError for token ids outside the vocabulary, or when a kernel fails."""
        if self._closed or self._threads.backend is None:
            raise BackendError("the runner is closed.")
        self._check(batch)
        wanted, rows = len(batch.wanted), batch.rows
        padded = self._padded(batch)
        graph = self._graph(padded, tuple(taps), wanted > 0)
        graph.replay(self._threads.backend, padded)
        published = {name: value[: wanted if name == OUTPUT else rows] for name, value in graph.taps.items()}
        return StepResult(graph.logits[:wanted], published, graph.fallbacks)

    def close(self) -> None:
        """Free graphs and threads. Idempotent."""
        self._closed = True
        self._forget(0)
        self._scratch.close()
        self._threads.close()
        if self._pool is not None:
            self._pool.close()

    def _check(self, batch: Batch) -> None:
        ids = batch.tokens.tolist()
        if not ids or max(ids) >= self._model.vocab_size or min(ids) < -1:
            largest = self._model.vocab_size - 1
            raise BackendError(f"a batch needs rows, and token ids from 0 to {largest} (or -1 for an embedding).")

    def _padded(self, batch: Batch) -> Batch:
        wanted = max(1, len(batch.wanted))
        if self._kernels is None:  # padding needs kernels that skip it
            return batch.padded(batch.rows, batch.sequences, wanted)
        return batch.padded(bucket(batch.rows), bucket(batch.sequences), bucket(wanted))

    def _graph(self, batch: Batch, taps: tuple[str, ...], wanted: bool) -> Graph:
        key = self._signature(batch, taps, wanted)
        found = self._graphs.get(key)
        if found is not None:
            self._graphs.move_to_end(key)
            return found
        moves = self._scratch.moves
        try:
            found = self._written(batch, taps, wanted=wanted)
        finally:
            if self._scratch.moves != moves:
                self._forget(0)
        self._forget(MAX_GRAPHS - 1)
        self._graphs[key] = found
        return found

    def _written(self, batch: Batch, taps: tuple[str, ...], *, wanted: bool) -> Graph:
        ggml, nodes = self._library.ggml, self._weights.nodes
        machine = self._kernels, self._pool, self._scratch
        return Graph(ggml, self._model, nodes, self._state, *machine, batch, taps, wanted=wanted)

    def _signature(self, batch: Batch, taps: tuple[str, ...], wanted: bool) -> Hashable:
        return (
            batch.rows,
            batch.sequences,
            len(batch.wanted) if wanted else 0,
            taps,
            min(batch.tokens.tolist()) < 0,
            None if batch.rows_in is None else batch.rows_in.shape[1],
            None if batch.rope_pos is None else batch.rope_pos.shape[1],
            tuple((group, table.shape[1]) for group, table in batch.tables.items()),
            gathered_rows(batch) if self._kernels is None else 0,
        )

    def _forget(self, kept: int) -> None:
        """Close the graphs used longest ago, until so many are left."""
        if len(self._graphs) <= kept:
            return
        while len(self._graphs) > kept:
            self._graphs.popitem(last=False)[1].close()
        trim()
