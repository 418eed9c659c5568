"""Every plugin of this repository, installed in one environment."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tensorsharp.plugin import GROUPS
from tensorsharp.registry import Registry

ROOT = Path(__file__).resolve().parent.parent
KIND = {group: kind for kind, group in GROUPS.items()}


def declared() -> list[tuple[str, str, str]]:
    """(kind, name, distribution) of every entry point in this repository's metadata."""
    found = []
    for path in [ROOT / "core/pyproject.toml", *sorted(ROOT.glob("plugins/*/*/pyproject.toml"))]:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        groups = project.get("entry-points", {})
        found += [(KIND[group], name, project["name"]) for group, names in groups.items() if group in KIND for name in names]
    return found


@pytest.mark.parametrize(("kind", "name", "distribution"), declared())
def test_every_plugin_can_be_used(kind: str, name: str, distribution: str) -> None:
    row = Registry().row(kind, name)
    assert (row.state, row.why, row.distribution) == ("ready", "", distribution)
    assert Registry().load(kind, name) is not None


def test_all_distributions_carry_the_version_of_the_repository() -> None:
    version = (ROOT / "VERSION").read_text(encoding="utf-8").strip()
    names = {"tensorsharp-core", *(distribution for _, _, distribution in declared())}
    assert {name: metadata.version(name) for name in names} == dict.fromkeys(names, version)


@pytest.mark.parametrize("arguments", [["plugins", "--broken"], ["doctor"], ["run", "--help"]])
def test_the_command_is_well(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "tensorsharp", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
