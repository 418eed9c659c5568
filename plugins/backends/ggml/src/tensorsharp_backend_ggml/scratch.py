"""Memory that all graphs of a runner share, as only one of them runs at a time: intermediate results and last ones."""

from __future__ import annotations

from tensorsharp.errors import CapacityError
from tensorsharp.protocols.batch import F32
from tensorsharp_backend_ggml.binding import Ggml
from tensorsharp_backend_ggml.tensors import zeros


class Scratch:
    """As large as the largest graph needs.

    moves: how often the intermediate results got other memory; graphs that were placed before cannot run any more.
    """

    def __init__(self, ggml: Ggml) -> None:
        self.moves = 0
        self._ggml = ggml
        self._allocator: int | None = ggml.gallocr_new(ggml.backend_cpu_buffer_type())
        self._results: dict[str, F32] = {}

    @property
    def nbytes(self) -> int:
        """Memory for intermediate results."""
        return int(self._ggml.gallocr_get_buffer_size(self._allocator, 0))

    def place(self, graph: int) -> None:
        """Give the tensors of a graph their memory. CapacityError if there is not as much."""
        before = self.nbytes
        # asked for by itself: what places a graph takes one of as many nodes for the one before
        placed = self._ggml.gallocr_reserve(self._allocator, graph) and self._ggml.gallocr_alloc_graph(self._allocator, graph)
        self.moves += not placed or self.nbytes != before
        if not placed:
            raise CapacityError("the graph of this batch does not fit in memory.", hint="use a smaller batch of prompt tokens")

    def result(self, name: str, rows: int, width: int) -> F32:
        """[rows, width] float32 for the result `name`, which the next graph that has it writes to as well."""
        found = self._results.get(name)
        if found is None or len(found) < rows:
            # graphs that were written before keep theirs: twice as much each time keeps all of them small
            room = rows if found is None else max(rows, 2 * len(found))
            found = self._results[name] = zeros((room, width), "float32")
        return found[:rows]

    def close(self) -> None:
        """Free the intermediate results. Idempotent; nothing can be placed afterwards."""
        if self._allocator:
            self._ggml.gallocr_free(self._allocator)
            self._allocator = None
