"""Which tensors a model reads, seen while it runs on the reference backend."""

from __future__ import annotations

from tensorsharp.inputs import ModelBatch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.operations import ReferenceOps, Weight
from tensorsharp.reference.weights import ReferenceWeights
from tensorsharp.state import HostStateStore
from tensorsharp.testing.streams import Streams


class _RecordingOps(ReferenceOps):
    """Knows every tensor of the file, and keeps the names of those asked for."""

    names: set[str]

    def weight(self, name: str) -> Weight:
        self.names.add(name)
        return super().weight(name)


def tensors_read(model: IBatchedPagedModel, file: ModelFile) -> set[str]:
    """Names of the tensors that `forward` asks for, declared or not. ModelError for one that the file does not hold."""
    streams = Streams(model.layout("f32"), count=1)
    assert isinstance(streams.store, HostStateStore)
    ops = _RecordingOps(ReferenceWeights(file, file.tensors), streams.store, streams.batch([(0, [0, 1])]), ())
    ops.names = set()
    model.forward(ops, ModelBatch(ops.declare))
    return ops.names
