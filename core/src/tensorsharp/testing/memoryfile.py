"""A model file that exists in memory only, for tests that choose every tensor."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.file import ModelFile, TensorInfo
from tensorsharp.testing.blocks import random_tensor
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME

ALIGNMENT = 64


class MemoryFile:
    """Implements :class:`tensorsharp.protocols.file.ModelFile`.

    tensors: name -> (type name, row-major shape, bytes). A type that no table knows gets number 9999.
    """

    def __init__(
        self,
        architecture: str,
        tensors: Mapping[str, tuple[str, tuple[int, ...], npt.NDArray[np.generic]]],
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = f"<memory:{architecture}>"
        self.architecture = architecture
        self.metadata: Mapping[str, Any] = {"general.architecture": architecture, **(metadata or {})}
        self.tensors: dict[str, TensorInfo] = {}
        end = 0
        for name, (type_name, shape, data) in tensors.items():
            kind = GGML_TYPES_BY_NAME.get(type_name)
            self.tensors[name] = TensorInfo(name, shape, 9999 if kind is None else kind.id, type_name, data.nbytes, 0, end)
            end += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        memory = np.zeros(end + ALIGNMENT, np.uint8)
        self._data = memory[-memory.ctypes.data % ALIGNMENT :][:end]
        for name, (_, _, data) in tensors.items():
            self.raw(name)[:] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    @property
    def fingerprint(self) -> str:
        return hashlib.blake2b(self._data.tobytes() + repr(self.tensors).encode(), digest_size=32).hexdigest()

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        return self._data

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        info = self.tensors[name]
        return self._data[info.offset : info.offset + info.nbytes]


def random_file(architecture: str, shapes: Mapping[str, tuple[int, ...]], *, type_name: str = "F32", seed: int = 0) -> MemoryFile:
    """Matrices and stacks of `type_name` with values of size 1/sqrt(inputs), and F32 vectors with values of size 1."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        kind = "F32" if len(shape) == 1 else type_name
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        tensors[name] = (kind, shape, random_tensor(kind, shape, scale, rng))
    return MemoryFile(architecture, tensors)


class AlteredFile:
    """Another file with some tensors removed, or under another architecture."""

    def __init__(self, file: ModelFile, *, without: frozenset[str] = frozenset(), architecture: str | None = None) -> None:
        self._file = file
        self.path = file.path
        self.architecture = architecture or file.architecture
        self.metadata = file.metadata
        self.tensors = {name: info for name, info in file.tensors.items() if name not in without}

    @property
    def fingerprint(self) -> str:
        return self._file.fingerprint

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        return self._file.shard(index)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        self.tensors[name]
        return self._file.raw(name)
