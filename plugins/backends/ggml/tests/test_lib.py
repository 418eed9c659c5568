"""Finding and loading ggml: the wheel unless another library is named, tested versions only, one ggml in a process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorsharp.errors import ConfigError, PluginError
from tensorsharp.protocols.backend import BackendOptions
from tensorsharp_backend_ggml import library, probe, threads
from tensorsharp_backend_ggml.backend import GgmlBackend
from tensorsharp_backend_ggml.binding import Ggml


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.VARIABLE, raising=False)


def test_the_wheel_is_the_default() -> None:
    found = library.load(None)
    assert not found.named
    assert "libggml" in found.folder.parts
    assert all(path.is_file() for path in found.files)
    assert library.OLDEST <= tuple(map(int, found.version.split("."))) <= library.NEWEST
    assert probe.why_not() is None


@pytest.mark.parametrize("by", ["option", "environment"])
def test_another_folder_is_used_when_named(by: str, tmp_path: Path) -> None:
    """In a process of its own: a second ggml beside the first is refused."""
    for name in os.listdir(library.load(None).folder):
        source = library.load(None).folder / name
        if source.is_file():
            shutil.copy(source, tmp_path / name)
    code = (
        "import sys; from tensorsharp_backend_ggml.library import load; l = load(sys.argv[1] or None); print(l.folder, l.named)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if by == "environment":
        environment[library.VARIABLE] = str(tmp_path)
    argument = str(tmp_path) if by == "option" else ""
    out = subprocess.run([sys.executable, "-c", code, argument], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [str(tmp_path), "True"]


def test_a_second_ggml_in_a_process_is_refused(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("Windows does not tell which file a function was bound to")
    first = library.load(None)
    for path in first.folder.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    with pytest.raises(PluginError, match="already loaded another ggml"):
        library.load(str(tmp_path))


def test_a_folder_without_ggml_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError, match=r"is no folder with .*ggml-base.* and .*ggml-cpu"):
        library.load(str(tmp_path))
    monkeypatch.setenv(library.VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(PluginError, match=r"missing is no folder"):
        library.load(None)
    assert "is no folder with" in (probe.why_not() or "")


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    for stem in ("ggml-base", "ggml-cpu"):
        (tmp_path / library.file_name(stem)).write_bytes(b"not a library")
    with pytest.raises(PluginError, match="could not be loaded"):
        library.load(str(tmp_path))


def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="libggml-python is not installed") as caught:
        library.load(None)
    assert "--ggml-lib" in (caught.value.hint or "")
    assert "libggml-python is not installed" in (probe.why_not() or "")


@pytest.mark.parametrize("version", ["0.20.1", "0.25.4", "1.0.0", "0.9.11"])
def test_an_untested_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Any = Ggml.__init__

    def other(self: Any, base: Any, cpu: Any) -> None:
        made(self, base, cpu)
        self.version = lambda: version.encode()

    monkeypatch.setattr(Ggml, "__init__", other)
    with pytest.raises(PluginError, match=rf"version {version}; versions 0\.20\.2 to 0\.25\.3 are tested"):
        library.load(None)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (BackendOptions(device="gpu"), PluginError, "has no device 'gpu'; it has 'cpu'"),
        (BackendOptions(extra={"speed": "high"}), PluginError, "has no option 'speed'"),
        (BackendOptions(threads=0), ConfigError, "threads is 0; the backend ggml takes 1 to 512"),
        (BackendOptions(threads=513), ConfigError, "threads is 513"),
        (BackendOptions(extra={"kernels": "sse9"}), PluginError, "sse9|native kernels are missing"),
    ],
)
def test_what_cannot_be_is_refused(options: BackendOptions, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        GgmlBackend(options)


def test_threads_default_to_the_cores_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu, core in enumerate((0, 0, 1, 1)):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{core}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    assert threads.usable_cores(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 2}, raising=False)
    assert threads.usable_cores(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3}, raising=False)
    assert threads.usable_cores(tmp_path) == 1
    assert threads.usable_cores(tmp_path / "nothing") == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert threads.usable_cores(tmp_path) == 7
    assert GgmlBackend().threads >= 1
