"""Which files turn texts into vectors, and how their rows are pooled."""

from __future__ import annotations

from typing import Final

from tensorsharp.engine.evaluation import Pooling
from tensorsharp.errors import ModelError, UnsupportedError
from tensorsharp.protocols.file import ModelFile

CAPABILITY: Final = "embedding"
"""What a model plugin declares that publishes the rows its logits are made from."""
_NONE: Final = 0
_POOLINGS: Final[dict[int, Pooling]] = {1: "mean", 2: "first", 3: "last"}
"""Numbers of `pooling_type` as llama.cpp's files have them; 4 ranks pairs of texts, which is something else."""


def is_embedding(file: ModelFile) -> bool:
    """Whether the file says that it is made for embeddings."""
    return file.metadata.get(f"{file.architecture}.pooling_type", _NONE) in _POOLINGS


def pooling(file: ModelFile, capabilities: frozenset[str]) -> Pooling:
    """How the file's embeddings are made. UnsupportedError if it is not made for them, or its plugin cannot give them."""
    key = f"{file.architecture}.pooling_type"
    kind = file.metadata.get(key, _NONE)
    if not isinstance(kind, int):
        raise ModelError(f"{file.path}: key {key}: expected a number, found {kind!r:.100}.")
    if kind == _NONE:
        raise UnsupportedError(
            f"{file.path} is not made for embeddings: it has no {key}.", hint="Load an embedding model.", param="model"
        )
    if kind not in _POOLINGS or CAPABILITY not in capabilities:
        reason = f"pooling_type {kind}" if kind not in _POOLINGS else f"the architecture {file.architecture}"
        raise UnsupportedError(f"{file.path}: embeddings are not made with {reason}.", param="model")
    return _POOLINGS[kind]
