"""The build hook: with a compiler, without one, and with one that fails, there is always a package."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

PACKAGE = Path(__file__).resolve().parents[2]
VERSION = PACKAGE.parents[2] / "VERSION"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", PACKAGE / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package's folder as it lies in a checkout, with a library left over from an earlier build."""
    target = tmp_path / "plugins" / "backends" / "ggml"
    shutil.copytree(PACKAGE, target, ignore=shutil.ignore_patterns("_kernels.*", "__pycache__", "tests"))
    shutil.copy(VERSION, tmp_path / "VERSION")
    for name in ("_kernels.so", "_kernels.dylib", "_kernels.dll"):
        (target / "src" / "tensorsharp_backend_ggml" / name).write_bytes(b"old")
    return target


def wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """(the wheel built from a folder, what the build said)."""
    out = folder / "dist"
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    (found,) = out.glob("*.whl")
    return found, done.stderr


def libraries(path: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(path).namelist() if Path(name).name.startswith("_kernels.")]


def test_no_compiler_still_gives_a_wheel(hook: ModuleType, copy: Path, tmp_path: Path) -> None:
    found, said = wheel(copy, PATH=str(tmp_path), CXX="", CC="")
    assert found.name.endswith("-py3-none-any.whl")
    assert libraries(found) == []
    line = "tensorsharp-backend-ggml is built without its native kernels: no C++ compiler was found"
    assert line in said


def test_a_compiler_that_fails_still_gives_a_wheel_and_its_message_is_shown(hook: ModuleType, copy: Path, tmp_path: Path) -> None:
    script = tmp_path / "broken-compiler"
    script.write_text("#!/bin/sh\necho 'fatal: out of registers' >&2\nexit 1\n")
    script.chmod(0o755)
    found, said = wheel(copy, CXX=str(script))
    assert found.name.endswith("-py3-none-any.whl")
    assert libraries(found) == []
    assert "fatal: out of registers" in said


def test_native_kernels_can_be_left_out(hook: ModuleType, copy: Path) -> None:
    found, said = wheel(copy, TENSORSHARP_GGML_NO_NATIVE="1")
    assert libraries(found) == []
    assert "TENSORSHARP_GGML_NO_NATIVE is set" in said


def test_a_build_without_kernels_leaves_no_old_ones(hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORSHARP_GGML_NO_NATIVE", "1")
    target = tmp_path / hook.library_name()
    target.write_bytes(b"old")
    assert not hook.build(PACKAGE, target)
    assert not target.exists()


@pytest.mark.heavy
def test_a_compiler_gives_a_wheel_for_this_platform(hook: ModuleType, copy: Path, tmp_path: Path) -> None:
    try:
        hook.compiler()
    except hook.CannotBuildError as error:
        pytest.skip(str(error))
    found, _ = wheel(copy)
    assert found.name.endswith(f"-py3-none-{hook.wheel_platform()}.whl")
    (name,) = libraries(found)
    path = zipfile.ZipFile(found).extract(name, tmp_path)
    assert ctypes.CDLL(path).ts_abi_version() == 1
