"""Weights as float32: each tensor is dequantised when it is first used, and kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import ModelFile, TensorInfo
from tensorsharp.reference.arrays import Array
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME
from tensorsharp.weights.quants import dequantize


class ReferenceWeights:
    """A model's tensors, bound to the file's mapping. ModelError names a tensor that is missing or of an unknown type."""

    def __init__(self, file: ModelFile, names: Iterable[str]) -> None:
        self.file = file
        self.names = frozenset(names)
        for name in sorted(self.names):
            if self.info(name).type_name not in GGML_TYPES_BY_NAME:
                raise ModelError(f"{file.path}: tensor {name} has a type that is not known: {self.info(name).type_name}.")
        self._cache: dict[str, Array] = {}

    def info(self, name: str) -> TensorInfo:
        found = self.file.tensors.get(name)
        if found is None:
            raise ModelError(f"{self.file.path}: tensor {name} is missing.")
        return found

    def array(self, name: str) -> Array:
        """The tensor in its row-major shape: int32 for I32, else float32."""
        if name not in self._cache:
            info = self.info(name)
            raw = self.file.raw(name)
            if info.type_name == "I32":
                self._cache[name] = raw.view(np.int32).reshape(info.shape)
            else:
                self._cache[name] = dequantize(raw, info.type_name, info.shape, tensor=name)
        return self._cache[name]

    @property
    def nbytes(self) -> int:
        return sum(self.info(name).nbytes for name in self.names)

    def close(self) -> None:
        """Drop what was dequantised."""
        self._cache.clear()
