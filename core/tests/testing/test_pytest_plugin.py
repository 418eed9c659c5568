"""What a run of pytest sees of the kits, in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KIT = """
import pytest
from tensorsharp.plugin import PluginSpec

class TestOne:
    @classmethod
    def spec(cls):
        return PluginSpec("a:b", (1, 0), "x", frozenset({"walks"}))

    @pytest.mark.capability("walks")
    def test_walks(self): pass

    @pytest.mark.capability("flies")
    def test_flies(self): raise AssertionError
"""


def run(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_it.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "tensorsharp.testing._pytest", *options, "test_it.py"]
    # The entry point of an installed core would register the plugin a second time.
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    more = ["-p", "no:cacheprovider", "--strict-markers"]
    return subprocess.run([*command, *more], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)


def test_only_what_is_not_declared_is_skipped(tmp_path: Path) -> None:
    done = run(tmp_path, KIT)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 1 skipped" in done.stdout
    assert "the spec does not declare 'flies'" in done.stdout


def test_the_marker_needs_a_kit(tmp_path: Path) -> None:
    done = run(tmp_path, "import pytest\n@pytest.mark.capability('x')\ndef test_free(): pass\n")
    assert done.returncode != 0
    assert "belongs on a test of a conformance kit" in done.stdout


def test_the_plugin_is_light() -> None:
    code = "import sys, tensorsharp.testing._pytest; print([m for m in ('numpy', 'hypothesis', 'gguf') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
