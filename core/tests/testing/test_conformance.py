"""The reference backend under the kit that every backend is held to."""

from __future__ import annotations

from tensorsharp.testing import BackendConformance


class TestReference(BackendConformance):
    plugin = "reference"
