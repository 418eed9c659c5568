"""Conformance kits and what they are made of, for authors of plugins (extra ``testing``).

from tensorsharp.testing import ModelConformance

class TestMine(ModelConformance):
    plugin = "mine"
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorsharp.testing.backend import BackendConformance
    from tensorsharp.testing.model import ModelConformance

__all__ = ["BackendConformance", "ModelConformance"]


def __getattr__(name: str) -> Any:
    # pytest imports this package in every run, to register the markers; the kits load when they are named.
    if name == "ModelConformance":
        from tensorsharp.testing.model import ModelConformance

        return ModelConformance
    if name == "BackendConformance":
        from tensorsharp.testing.backend import BackendConformance

        return BackendConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
