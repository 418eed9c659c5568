"""What the pages show is true: their snippets run, those of clients against a served model, and their addresses are there."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.e2e.conftest import TEMPLATE
from tests.e2e.served import PATIENCE_S, Command, serving

from tensorsharp.testing.tinygguf import tiny, write_tiny

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [*sorted((ROOT / "docs/clients").glob("*.md")), ROOT / "docs/server.md"]
LIBRARY = [
    page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))) if "ts.load(" in page.read_text(encoding="utf-8")
]
WRITTEN = "http://127.0.0.1:8080"
"""The address in the pages, which stands for wherever the server is."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|host\.docker\.internal):\d+([\w/.-]*)")
BASES = {"": "/v1/models", "/v1": "/v1/models", "/api": "/api/tags", "/": "/"}
"""Addresses that clients go on from -> one that they go to."""
READERS: dict[str, Callable[[str], Any]] = {"yaml": yaml.safe_load, "json": json.loads, "toml": tomllib.loads}
CURL = 'curl() { command curl --fail-with-body -sS --max-time 120 "$@"; }\n'


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def shown(language: str) -> list[Any]:
    """The pages with snippets in that language, as parameters."""
    return [pytest.param(page, id=page.stem) for page in PAGES if blocks(page, language)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with a model under the name that the pages give theirs; it writes nonsense, in the form that is asked for."""
    found = tmp_path_factory.mktemp("pages")
    write_tiny(found / "model.gguf", tiny("llama", tokenizer="bytes", chat_template=TEMPLATE, weight_type="Q8_0", context=2048))
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Command]:
    with serving(folder / "model.gguf") as found:
        yield found


def run(source: str, folder: Path) -> str:
    """What a Python program prints that runs in that folder, without any warning."""
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout


def check_told(source: str, printed: str) -> None:
    """Where a line says what it prints (`# True` behind it), it does."""
    assert set(re.findall(r"^\s*print\(.*\)  # (\S+)$", source, re.MULTILINE)) <= set(printed.splitlines())


@pytest.mark.parametrize("page", shown("python"))
def test_clients_run(server: Command, folder: Path, page: Path) -> None:
    """The snippets of a page go on from one another."""
    source = "\n".join(blocks(page, "python"))
    check_told(source, run(source.replace(WRITTEN, server.url), folder))


@pytest.mark.parametrize("page", LIBRARY, ids=lambda page: page.stem)
def test_programs_run(folder: Path, page: Path) -> None:
    for source in (text for text in blocks(page, "python") if "ts.load(" in text):
        check_told(source, run(source, folder))


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs bash and curl")
@pytest.mark.parametrize("page", [*shown("sh"), pytest.param(ROOT / "docs/start.md", id="start")])
def test_commands_run(server: Command, folder: Path, page: Path) -> None:
    for block in blocks(page, "sh"):
        script = CURL + "set -e\n" + block.replace(WRITTEN, server.url)
        done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False, timeout=180)
        assert done.returncode == 0, block + done.stdout + done.stderr
        assert done.stdout or "export" in block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_addresses_are_there(server: Command, page: Path) -> None:
    paths = {BASES.get(path, path) for path in ADDRESS.findall(page.read_text(encoding="utf-8"))}
    for path in paths:
        answer = httpx.post(server.url + path, json={}, timeout=PATIENCE_S)
        assert "unknown_path" not in answer.text, path


@pytest.mark.parametrize("language", READERS)
def test_configurations_can_be_read(language: str) -> None:
    found = [text for page in PAGES for text in blocks(page, language)]
    assert found
    assert all(READERS[language](text) for text in found)
    assert all(ADDRESS.search(text) for text in found)


def test_metrics_are_told(server: Command) -> None:
    told = runpy.run_path(str(ROOT / "scripts/reference.py"))["PAGES"]["reference/metrics.md"]()
    families = re.findall(
        r"^# TYPE (\w+?)(?:_total)? (\w+)$", httpx.get(server.url + "/metrics", timeout=PATIENCE_S).text, re.MULTILINE
    )
    assert len(families) > 20
    assert [name for name, kind in families if f"| `{name}` | {kind} |" not in told] == []
