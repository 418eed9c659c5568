"""The command in this process and in others, with plugins that recite and a model file for them."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tensorsharp.testing.ggufs import gguf_file
from tensorsharp.testing.tinyvocab import byte_vocabulary

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.llm import LLM
    from tensorsharp_app_cli.repl.session import Session

HERE = Path(__file__).parent
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
ENTRIES = "[tensorsharp.models]\nscripted = scripted:model_spec\n\n[tensorsharp.backends]\nscripted = scripted:backend_spec\n"


def write_model(path: Path, *, architecture: str = "scripted", template: str | None = TEMPLATE, **keys: Any) -> Path:
    """A GGUF file with a vocabulary of bytes and one tensor [3, 2]."""
    texts = {} if template is None else {"tokenizer.chat_template": template}
    with gguf_file(path, architecture, byte_vocabulary(300) | keys | texts) as writer:
        writer.add_tensor("w", np.zeros((3, 2), np.float32))
    return path


class World:
    """What a person has: a model file, the plugins, an environment.

    asked: the file that collects the prompts, as token ids.
    """

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.model = str(model)
        self.asked = folder / "asked.jsonl"

    def write_model(self, name: str, **how: Any) -> Path:
        """Another model file; see the function of that name."""
        return write_model(self.folder / name, **how)

    def _start(self, arguments: Sequence[str], environment: Mapping[str, str], *, pipe: bool = False) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(self.folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdin=subprocess.PIPE if pipe else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """The command in a process of its own."""
        return self._start(["-m", "tensorsharp", *arguments], environment)

    def start_python(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Code in a process of its own."""
        return self._start(["-c", code, *arguments], {})

    def python(self, code: str, *arguments: str) -> str:
        """Run code in a process of its own, which must end well: its stdout."""
        with self.start_python(code, *arguments) as process:
            out, err = process.communicate(timeout=120)
        assert (process.returncode, err.decode()) == (0, "")
        return out.decode()

    def command(self, *arguments: str, pipe: bytes | None = None, **environment: str) -> tuple[int, str, str]:
        """Run the command in a process of its own: exit code, stdout, stderr."""
        with self._start(["-m", "tensorsharp", *arguments], environment, pipe=pipe is not None) as process:
            out, err = process.communicate(pipe, timeout=120)
        return process.returncode, out.decode(), err.decode()

    def prompts(self) -> list[str]:
        """What the model was asked, as text."""
        from tensorsharp.text.tokenizer import load_tokenizer
        from tensorsharp.weights.gguf import open_gguf

        with open_gguf(self.model) as file:
            tokenizer = load_tokenizer(file)
        return [tokenizer.decode(json.loads(line), special=True) for line in self.asked.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> Iterator[None]:
    """Shells let what runs in the background ignore Ctrl-C; the commands started here would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_file: Path) -> Iterator[World]:
    for variable in [name for name in os.environ if name.startswith("TENSORSHARP_")]:
        monkeypatch.delenv(variable)
    found = World(tmp_path, model_file)
    for name, value in {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "TENSORSHARP_BACKEND": "scripted",
        "SCRIPT": "Grüße!\nZwei.",
        "ASKED": str(found.asked),
        "PYTHONIOENCODING": "utf-8",
    }.items():
        monkeypatch.setenv(name, value)
    site = tmp_path / "site"
    info = site / "scripted-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(HERE / "scripted.py", site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRIES, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    yield found
    sys.modules.pop("scripted", None)


Make = Callable[..., "Session"]
"""Makes a session; keyword arguments are settings."""


@pytest.fixture
def make(world: World) -> Iterator[Make]:
    """Makes sessions with the scripted model; keyword arguments are settings."""
    from tensorsharp.config import resolve
    from tensorsharp.loading import load
    from tensorsharp_app_cli.modelpath import model_path
    from tensorsharp_app_cli.repl.session import Session
    from tensorsharp_app_cli.status import Status

    with ExitStack() as stack:

        def opened(model: str, settings: Settings) -> LLM:
            return load(model_path(model, settings), backend=settings.backend or "scripted", device=settings.device)

        def made(**settings: Any) -> Session:
            found = Session(opened, world.model, replace(resolve(environ={}).settings, **settings), Status())
            stack.callback(lambda: found.close())
            return found

        yield made
