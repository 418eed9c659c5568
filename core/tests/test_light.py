"""What must stay cheap imports nothing heavy, whatever is installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import tensorsharp

if TYPE_CHECKING:
    from conftest import Site

HEAVY = {
    "numpy",
    "jinja2",
    "tokenizers",
    "torch",
    "mlx",
    "gguf",
    "rich",
    "prompt_toolkit",
    "structlog",
    "huggingface_hub",
    "llguidance",
}
COMMAND = (
    "import atexit, sys; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))\n"
    "from tensorsharp.cli import main; main()"
)


def test_import_tensorsharp(site: Site) -> None:
    done = site.python("import sys; before = set(sys.modules); import tensorsharp; print(*sorted(set(sys.modules) - before))")
    assert not (HEAVY | {"pydantic", "click", "pluggy", "asyncio", "importlib.metadata"}) & set(done.stdout.split())
    assert "tensorsharp" in done.stdout.split()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["config", "show"]])
def test_commands(site: Site, arguments: list[str]) -> None:
    site.module("weighty", "import numpy, jinja2, tokenizers\nclass Thing: ...\n")
    for kind in ("model", "backend", "command"):
        site.plugin(kind, "weight", f"weight_{kind}", "target='weighty:Thing', api=(1, 0), summary='', requires=('numpy',)")
    done = site.python(COMMAND, *arguments)
    loaded = set(done.stderr.split())
    assert done.returncode == 0
    assert "tensorsharp.cli" in loaded
    assert not (HEAVY | {"weighty"}) & loaded


def test_public_names_are_there_when_asked_for() -> None:
    for name in tensorsharp.__all__:
        assert getattr(tensorsharp, name) is not None
    assert dir(tensorsharp) == sorted(tensorsharp.__all__)
    assert tensorsharp.SamplingParams is sys.modules["tensorsharp.types"].SamplingParams
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        tensorsharp.nothing
