"""Throw-away distributions: what an installed plugin leaves on the path, without installing one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

# what a test takes says nothing where others compute too, and what fails once has to fail again
settings.register_profile("everyday", deadline=None, derandomize=True)
settings.load_profile("everyday")


class Site:
    """A folder on the path that holds made-up distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, source: str) -> None:
        """Write a top-level module."""
        (self.folder / f"{name}.py").write_text(source, encoding="utf-8")
        importlib.invalidate_caches()

    def distribution(
        self, name: str, entries: Mapping[str, Mapping[str, str]], *, version: str = "1.0", requires: Sequence[str] = ()
    ) -> None:
        """Write the metadata of one distribution. entries: entry-point group -> name -> value."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            f"Version: {version}",
            *(f"Requires-Dist: {item}" for item in requires),
        ]
        (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = "\n".join(f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in values.items()) for group, values in entries.items())
        (info / "entry_points.txt").write_text(text + "\n", encoding="utf-8")
        importlib.invalidate_caches()

    def plugin(self, kind: str, name: str, module: str, spec: str, **options: object) -> None:
        """A distribution `tensorsharp-<kind>-<name>` with one plugin; spec: arguments of its PluginSpec."""
        from tensorsharp.plugin import GROUPS

        self.module(module, f"from tensorsharp.plugin import PluginSpec\nspec = PluginSpec({spec})\n")
        self.distribution(f"tensorsharp-{kind}-{name}", {GROUPS[kind]: {name: f"{module}:spec"}}, **options)  # type: ignore[arg-type]

    def python(self, code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run code in a fresh interpreter that sees these distributions."""
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **environment}
        return subprocess.run(
            [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, check=False, encoding="utf-8"
        )

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `tensorsharp` with arguments in a fresh interpreter."""
        return self.python("from tensorsharp.cli import main; main()", *arguments, **environment)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty :class:`Site` on the path, with no setting of the developer's in sight."""
    for variable in [name for name in os.environ if name.startswith("TENSORSHARP_")]:
        monkeypatch.delenv(variable)
    empty = tmp_path / "config"
    empty.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(empty))
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield Site(folder)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
