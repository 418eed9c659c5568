"""Opens GGUF model files: memory-mapped, all shards, ready for a backend."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import TensorInfo
from tensorsharp.weights.gguf_reader import KVItem, MetadataValue, Shard, shown
from tensorsharp.weights.shards import read_all_shards

SAMPLE_BYTES = 64


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a model; for a split one `path` may be any of its files.

    Raises ModelError with one sentence that names the file and the key or tensor for everything that is wrong with it.
    """
    return GGUFFile(read_all_shards(os.fsdecode(path)))


class GGUFFile:
    """An opened model: a :class:`~tensorsharp.protocols.file.ModelFile`, and a context manager.

    The mapping lives as long as this object or any view it gave out: `close()` drops this object's own hold on it.
    """

    def __init__(self, shards: tuple[Shard, ...]) -> None:
        first = shards[0]
        self._path = first.path
        self._shards: tuple[Shard, ...] | None = shards
        self._items = first.items
        self._metadata: Mapping[str, MetadataValue] = MappingProxyType({item.key: item.value for item in first.items})
        self._tensors = MappingProxyType({info.name: info for shard in shards for info in shard.tensors})
        self._architecture = _architecture(first)

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping. Metadata stays readable; `raw` and `shard` raise from now on. Closing twice is fine."""
        self._shards = None

    @property
    def path(self) -> str:
        """The first file of the model."""
        return self._path

    @property
    def architecture(self) -> str:
        """`general.architecture`, never empty."""
        return self._architecture

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """Key -> Python scalar, `str`, read-only numpy array (views of the file) or StringArray, of the first file."""
        return self._metadata

    @property
    def kv_items(self) -> tuple[KVItem, ...]:
        """Metadata in file order with the type that the file gives each value, for listings."""
        return self._items

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Name -> tensor, in file order over all shards."""
        return self._tensors

    @property
    def shard_paths(self) -> tuple[str, ...]:
        """The files, in the order that `TensorInfo.shard` counts."""
        return tuple(shard.path for shard in self._open_shards())

    def shard(self, index: int) -> npt.NDArray[np.uint8]:
        """uint8 [bytes of the file], read-only. IndexError if the model has no such shard; ModelError once closed."""
        return self._open_shards()[index].data

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [nbytes], a read-only view of the mapping. ModelError if there is no such tensor, or once closed."""
        info = self._tensors.get(name)
        if info is None:
            raise ModelError(f"{self._path}: has no tensor {shown(name)}.")
        return self._open_shards()[info.shard].data[info.offset : info.offset + info.nbytes]

    @cached_property
    def fingerprint(self) -> str:
        """64 hex digits. BLAKE2b over, shard by shard, all bytes before the data section; and tensor by tensor its name,
        shape, type, size and first, middle and last 64 bytes. Depends on no path."""
        digest = hashlib.blake2b(digest_size=32)
        for shard in self._open_shards():
            header = shard.data[: shard.data_start]
            digest.update(len(header).to_bytes(8, "little"))
            digest.update(header.data)
            for info in shard.tensors:
                digest.update(repr((info.name, info.shape, info.type_name, info.nbytes)).encode())
                for sample in _samples(shard.data[info.offset : info.offset + info.nbytes]):
                    digest.update(sample.data)
        return digest.hexdigest()

    def _open_shards(self) -> tuple[Shard, ...]:
        if self._shards is None:
            raise ModelError(f"{self._path}: was closed; open it again to read its tensors.")
        return self._shards


def _architecture(first: Shard) -> str:
    value = first.get("general.architecture")
    if value is None:
        raise ModelError(f"{first.path}: has no 'general.architecture'; expected the name of a model family.")
    if not isinstance(value, str) or not value:
        raise ModelError(f"{first.path}: 'general.architecture' is {shown(value)}; expected the name of a model family.")
    return value


def _samples(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], ...]:
    middle = max(len(data) // 2 - SAMPLE_BYTES // 2, 0)
    return data[:SAMPLE_BYTES], data[middle : middle + SAMPLE_BYTES], data[-SAMPLE_BYTES:]
