"""A model file as backends and models see it: metadata and raw tensors, nothing about text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file. `shape` is row-major ([out, in]; GGUF lists it reversed).

    type_id, type_name: the ggml type number and its name, for example 3 and "Q4_1". nbytes: size of the data.
    shard: index of the file that holds it. offset: absolute byte offset in that file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    nbytes: int
    shard: int
    offset: int


class ModelFile(Protocol):
    """An opened model file (all its shards). Metadata values are Python scalars, strings, or lazy sequences."""

    @property
    def path(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of header, metadata and a fixed sample of every tensor of every shard."""
        ...

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        """The whole mapped bytes of one shard, read-only."""
        ...

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """[nbytes] the tensor's data as it lies in the file, a view of the mapping."""
        ...
