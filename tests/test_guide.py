"""The plugins that the guide shows are written, found and put under the kits as it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

GUIDE = (Path(__file__).resolve().parent.parent / "docs/plugins.md").read_text(encoding="utf-8")
FILE = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)
ENTRY = re.compile(r'```toml\n\[project\.entry-points\."([\w.]+)"\]\n(.*?)```', re.DOTALL)
STEP = """
import logging
from tensorsharp.engine.observer import StepEvent
from tensorsharp.hooks import Hooks
from tensorsharp.registry import Registry

logging.basicConfig(format="%(message)s")
hooks = Hooks(Registry())
assert hooks.active == ["slow"], hooks.failed
for seconds in (0.9, 2.5):
    hooks.on_step(StepEvent(7, 12, 10, 3, 2, seconds, seconds, 3, 0, 0))
"""


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip would leave it, with every plugin of the page, and its tests beside it."""
    folder = tmp_path_factory.mktemp("guide")
    for name, source in FILE.findall(GUIDE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    for package in (folder / "src").iterdir():
        (package / "py.typed").touch()
    info = folder / "src" / "guide-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guide\nVersion: 1.0\n", encoding="utf-8")
    groups = [(group, tomllib.loads(entries)) for group, entries in ENTRY.findall(GUIDE)]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder


def run(plugins: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(plugins / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", ["deflate", "packed"])
def test_the_plugins_shown_pass_their_kits(plugins: Path, name: str) -> None:
    done = run(plugins, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugins / f"tests/test_{name}.py"))
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed in", done.stdout), done.stdout


def test_the_hook_shown_tells_of_slow_steps(plugins: Path) -> None:
    done = run(plugins, "-c", STEP)
    assert done.stderr == "step 7 took 2.5 s: 12 rows of 3 requests\n"
