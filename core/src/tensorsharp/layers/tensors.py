"""Which tensors a model reads, with the shapes they must have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import ModelFile


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor of the file, row-major shape. Optional ones may be absent, never wrong."""

    name: str
    shape: tuple[int, ...]
    optional: bool = False


def check_tensors(file: ModelFile, expected: Iterable[Expected]) -> frozenset[str]:
    """Names of the expected tensors that are present. ModelError names the first that is missing or has another shape."""
    found = set()
    for want in expected:
        info = file.tensors.get(want.name)
        if info is None:
            if want.optional:
                continue
            raise ModelError(f"{file.path}: tensor {want.name} is missing; expected shape {list(want.shape)}.")
        if tuple(info.shape) != want.shape:
            raise ModelError(f"{file.path}: tensor {want.name} has shape {list(info.shape)}; expected {list(want.shape)}.")
        found.add(want.name)
    return frozenset(found)


def vocabulary_size(file: ModelFile) -> int:
    """Rows of the embedding, which every text model has."""
    info = file.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2:
        raise ModelError(f"{file.path}: tensor token_embd.weight is missing or not a matrix; expected [vocabulary, width].")
    return info.shape[0]
