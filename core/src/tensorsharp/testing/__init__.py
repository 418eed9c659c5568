"""Conformance kits and what they are made of, for authors of plugins (extra ``testing``).

from tensorsharp.testing import ModelConformance

class TestMine(ModelConformance):
    plugin = "mine"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorsharp.testing.backend import BackendConformance
    from tensorsharp.testing.checkpoint import CheckpointStoreConformance
    from tensorsharp.testing.codec import CodecConformance
    from tensorsharp.testing.model import ModelConformance

__all__ = ["BackendConformance", "CheckpointStoreConformance", "CodecConformance", "ModelConformance"]

_MODULES = {
    "BackendConformance": "backend",
    "CheckpointStoreConformance": "checkpoint",
    "CodecConformance": "codec",
    "ModelConformance": "model",
}


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, to register the markers; the kits load when they are named.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
