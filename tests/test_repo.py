"""The rules of this repository: what a plugin's folder holds, how things are called, how long a file is."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
VERSION = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
FOLDERS = sorted(path.parent for path in ROOT.glob("plugins/*/*/pyproject.toml"))
KINDS = {"backends": "backend", "models": "model", "drafters": "drafter", "codecs": "codec", "apps": "app"}
GROUPS = {kinds: f"tensorsharp.{'commands' if kinds == 'apps' else kinds}" for kinds in KINDS}
LONGEST = 400
FOREIGN = [r"/wo" + "rk/", r"/op" + "t/", r"\.\./sha" + "red", "TO" + "DO", "FIX" + "ME"]
"""Paths of one machine, and promises to do something later; split so that this file does not match itself."""


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, by git's own list."""
    done = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def metadata(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


plugin = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")


def test_there_are_plugins() -> None:
    assert {"ggml", "llama", "gemma", "cli"} <= {folder.name for folder in FOLDERS}
    assert {folder.parent.name for folder in FOLDERS} <= KINDS.keys()


@plugin
def test_names_follow_the_folder(folder: Path) -> None:
    kind, name = KINDS[folder.parent.name], folder.name
    module = f"tensorsharp_{kind}_{name}"
    project = metadata(folder)["project"]
    assert project["name"] == f"tensorsharp-{kind}-{name}"
    groups = project["entry-points"]
    assert GROUPS[folder.parent.name] in groups
    assert set(groups) <= {GROUPS[folder.parent.name], "tensorsharp.hooks"}
    assert all(value.partition(":")[0] == module for group in groups.values() for value in group.values())
    assert [path.name for path in (folder / "src").iterdir() if path.suffix != ".egg-info"] == [module]


@plugin
def test_what_a_folder_holds(folder: Path) -> None:
    (module,) = (path for path in (folder / "src").iterdir() if path.suffix != ".egg-info")
    assert (module / "py.typed").is_file()
    assert len((folder / "README.md").read_text(encoding="utf-8")) > 100
    assert list((folder / "tests").rglob("test_*.py"))


@plugin
def test_version_and_pin(folder: Path) -> None:
    data = metadata(folder)
    assert f"tensorsharp-core~={VERSION}" in data["project"]["dependencies"]
    assert not [item for item in data["project"]["dependencies"] if re.match(r"tensorsharp-(?!core~)", item)]


@pytest.mark.parametrize("folder", [ROOT / "core", *FOLDERS], ids=lambda folder: folder.name)
def test_metadata_that_every_distribution_shares(folder: Path) -> None:
    data = metadata(folder)
    assert data["project"]["dynamic"] == ["version"]
    assert (folder / data["tool"]["hatch"]["version"]["path"]).resolve() == ROOT / "VERSION"
    assert re.fullmatch(data["tool"]["hatch"]["version"]["pattern"], VERSION)
    assert data["project"]["requires-python"] == ">=3.11"
    assert data["project"]["license"] == "Apache-2.0"


@plugin
def test_the_package_holds_the_specification_and_nothing_else(folder: Path) -> None:
    (module,) = (path for path in (folder / "src").iterdir() if path.suffix != ".egg-info")
    imported = set()
    for node in ast.walk(ast.parse((module / "__init__.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("." * node.level + (node.module or ""))
    assert imported - {"__future__"} == {"tensorsharp.plugin"}


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in tracked("*.py")}
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_the_repository_speaks_of_itself_alone() -> None:
    found = []
    for path in tracked("*.py", "*.md", "*.toml", "*.h", "*.c", "*.cpp", ".ci/*", "*.txt", "*.json"):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for word in FOREIGN for match in re.finditer(word, text)]
    assert found == []


def test_no_module_is_called_utils() -> None:
    assert [path for path in tracked("*.py") if path.stem in ("util", "utils", "helpers", "misc", "common")] == []


def test_the_table_of_known_plugins_is_current() -> None:
    render = runpy.run_path(str(ROOT / "scripts/known.py"))["render"]
    table = (ROOT / "core/src/tensorsharp/known.toml").read_text(encoding="utf-8")
    assert table == render(), "run: python scripts/known.py"


def test_every_test_function_is_in_a_file_that_pytest_collects() -> None:
    stray = []
    for path in tracked("*/tests/*.py", "tests/*.py"):
        names = [node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
        if not path.name.startswith("test_") and any(name.startswith("test_") for name in names):
            stray.append(str(path.relative_to(ROOT)))
    assert stray == []


def test_the_test_command_of_the_readme_is_the_one_that_ci_runs() -> None:
    command = ".venv/bin/nox -s tests"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert command in (ROOT / ".ci/run").read_text(encoding="utf-8")
