"""One model family: configuration from metadata, declared state, and one forward over a ragged batch."""

from __future__ import annotations

from typing import Protocol, Self

from tensorsharp.inputs import ModelBatch, Tensor
from tensorsharp.ops import Ops
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout


class IBatchedPagedModel(Protocol):
    """A model family's contract. Instances are immutable and hold no tensors; two may exist side by side.

    No Python branch in `forward` may depend on a tensor's value, on the number of rows or on positions: the method is
    called once per batch signature, and what it wrote is replayed. It may depend on configuration, layer number, the
    presence of a weight, and `batch.mode`.
    """

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        """Read and check the configuration. ModelError names the file and the key or tensor that is wrong or missing."""
        ...

    @property
    def architecture(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int:
        """The longest context the file says the model was made for."""
        ...

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int:
        """Elements of a hidden row."""
        ...

    def layout(self, kv_format: Format) -> Layout:
        """The declared state, paged rows in `kv_format`. Depends on the configuration only."""
        ...

    def weights(self) -> frozenset[str]:
        """Names of the file's tensors that `forward` reads; what a backend has to load."""
        ...

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        """Write the model for one batch signature. Returns logits [W, vocab], after scale and softcap."""
        ...
