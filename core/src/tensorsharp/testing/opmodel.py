"""One operation dressed as a model, so that a backend is asked through its public contract and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from tensorsharp.inputs import ModelBatch, Tensor
from tensorsharp.ops import Ops
from tensorsharp.protocols.backend import Backend
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout, Paged
from tensorsharp.testing.blocks import random_tensor
from tensorsharp.testing.memoryfile import MemoryFile
from tensorsharp.testing.streams import Rows, Streams, block_size

Build = Callable[[Ops, ModelBatch, Tensor], Tensor]
"""(ops, batch, rows [R, width]) -> [R, out]."""


@dataclass(frozen=True)
class OpCase:
    """An operation with its shapes. width, out: columns of the rows that go in and come out.

    weights: name -> shape; of type F32 unless `types` says otherwise, I32 ones count up. layout: paged stores are in
    the format that a test asks for. tolerance: of the agreement with the reference, relative to the largest output.
    """

    name: str
    width: int
    out: int
    build: Build
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = field(default_factory=dict)
    tolerance: float = 2e-5

    def __str__(self) -> str:
        return self.name

    def file(self, seed: int = 0) -> MemoryFile:
        rng = np.random.default_rng((seed, len(self.name)))
        tensors = {}
        for name, shape in self.weights.items():
            kind = self.types.get(name, "F32")
            if kind == "I32":
                data = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
                tensors[name] = (kind, shape, data.view(np.uint8))
            else:
                scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
                tensors[name] = (kind, shape, random_tensor(kind, shape, scale, rng))
        return MemoryFile("op", tensors)


class OpModel:
    """Implements `IBatchedPagedModel` around one :class:`OpCase`; its logits are the operation's result."""

    architecture = "op"
    context_length = 4096
    layers = 1

    def __init__(self, case: OpCase) -> None:
        self.case = case
        self.vocab_size = case.out
        self.width = case.width

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        raise TypeError(f"an {cls.__name__} is made from an OpCase")

    def layout(self, kv_format: Format) -> Layout:
        return {
            name: replace(kind, format=kv_format) if isinstance(kind, Paged) else kind for name, kind in self.case.layout.items()
        }

    def weights(self) -> frozenset[str]:
        return frozenset(self.case.weights)

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        found = self.case.build(ops, batch, batch.rows_in)
        return ops.take(ops.reshape(found, (-1, self.case.out)), batch.wanted)


def run_case(
    case: OpCase,
    backend: Backend,
    data: Mapping[int, F32],
    schedule: list[list[tuple[int, int]]],
    *,
    kv_format: Format = "f32",
    seed: int = 0,
    pad: int = 0,
) -> dict[int, F32]:
    """Stream -> [rows, out]: its rows, cut and batched as the schedule says ((stream, rows) per batch).

    pad: padding rows and sequences of every batch.
    """
    model = OpModel(case)
    layout = model.layout(kv_format)
    capacity = -(-max(len(rows) for rows in data.values()) // block_size(layout))
    streams = Streams(layout, backend.state, count=len(data), capacity=capacity, seed=seed)
    weights = backend.load(case.file(), model.weights())
    runner = backend.compile(model, weights, streams.store)
    found: dict[int, list[F32]] = {s: [] for s in data}
    try:
        for rows in schedule:
            batch = _batch(streams, rows, data, case.width, pad)
            logits = runner.step(batch).logits
            first = 0
            for s, n in rows:
                found[s].append(logits[first : first + n].copy())
                first += n
    finally:
        runner.close()
        streams.store.free()
        weights.close()
    return {s: np.concatenate(parts) for s, parts in found.items()}


def _batch(streams: Streams, rows: Rows, data: Mapping[int, F32], width: int, pad: int) -> Batch:
    done = list(streams.done)
    batch = streams.batch(rows)
    parts = [data[s][done[s] : streams.done[s]] for s, _ in rows]
    batch = replace(batch, rows_in=np.ascontiguousarray(np.concatenate(parts)).reshape(-1, width))
    return batch.padded(batch.rows + pad, batch.sequences + pad, len(batch.wanted) + pad) if pad else batch


LENGTHS = {0: 70, 1: 41, 2: 50}
WHOLE = [[(s, n)] for s, n in LENGTHS.items()]
SCHEDULES: Mapping[str, list[list[tuple[int, int]]]] = {
    "together": [list(LENGTHS.items())],
    "one at a time": [[(s, 1) for s, n in LENGTHS.items() if i < n] for i in range(70)],
    "threes": [*[[(2, 3), (0, 3)]] * 16, [(1, 41), (0, 22), (2, 2)]],
    "around blocks": [[(0, 31), (1, 33)], [(2, 32)], [(1, 8), (0, 2), (2, 18)], [(0, 37)]],
}
"""The same three streams, cut and batched in different ways."""


def rows_for(case: OpCase, seed: int = 0) -> dict[int, F32]:
    """Normal rows for every stream of `LENGTHS`."""
    rng = np.random.default_rng((seed, case.width))
    return {s: rng.standard_normal((n, case.width)).astype(np.float32) for s, n in LENGTHS.items()}
