"""pytest plugin of the kits: the marker `capability(name)`. Imported in every pytest run, so it imports nothing else."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "capability(name): skipped where the plugin under test does not declare it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the plugin's own spec does not declare; nothing else can switch a test of a kit off."""
    for mark in item.iter_markers("capability"):
        spec = getattr(getattr(item, "cls", None), "spec", None)
        if spec is None:
            raise pytest.UsageError(f"{item.nodeid}: the marker 'capability' belongs on a test of a conformance kit")
        name = mark.args[0]
        if name not in spec().capabilities:
            pytest.skip(f"the spec does not declare {name!r}")
