"""Builds the native kernels: for wheels, for editable installs, and in place with `python hatch_build.py`.

Without a working C++ compiler the package is built without them and says so; it then runs with ggml's own operations.
TENSORSHARP_GGML_NO_NATIVE=1 leaves them out. Compilers are tried as $CXX, $CC, c++, g++, clang++.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "tensorsharp_backend_ggml"
# No contraction, no reassociation, no -march=native: every build must give the same bits.
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-fast-math", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
ISAS = {"avx512": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"], "avx2": AVX2, "portable": []}


class CannotBuildError(Exception):
    """Why there will be no library, as a sentence."""


def library_name() -> str:
    suffix = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
    return f"_kernels.{suffix}"


def compiler() -> list[str]:
    """The command of the first C++ compiler that exists."""
    named = [shlex.split(os.environ[v]) for v in ("CXX", "CC") if os.environ.get(v, "").strip()]
    for command in [*named, ["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    raise CannotBuildError("no C++ compiler was found (tried $CXX, $CC, c++, g++, clang++)")


def run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise CannotBuildError(f"{command[0]} cannot be started: {error}") from None
    if done.returncode:
        raise CannotBuildError(f"the C++ compiler failed: {shlex.join(command)}\n{done.stdout}{done.stderr}".rstrip())


def compile_library(native: Path, target: Path) -> None:
    """Compile every instruction set of this machine's architecture into one library at `target`."""
    command = compiler()
    x86 = platform.machine().lower() in ("x86_64", "amd64") and sys.maxsize > 2**32
    flags = FLAGS + ([] if sys.platform == "win32" else ["-fPIC"]) + (["-DTS_X86"] if x86 else [])
    isas = ISAS if x86 else {"portable": []}
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(f"{name}.cpp", str(Path(folder, f"{name}.o")), flags) for name in ("select", "pool")]
        for isa, extra in isas.items():
            jobs.append(("kernels.cpp", str(Path(folder, f"{isa}.o")), [*flags, *extra, f"-DTS_ISA={isa}"]))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: run([*command, *job[2], "-c", str(native / job[0]), "-o", job[1]]), jobs))
        built = Path(folder, library_name())
        libraries = [] if sys.platform == "win32" else ["-lm", "-pthread"]
        run([*command, "-shared", "-o", str(built), *(job[1] for job in jobs), *libraries])
        target.parent.mkdir(parents=True, exist_ok=True)
        # A running process may have the old file mapped, so it is replaced, not overwritten.
        staged = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.copyfile(built, staged)
        os.replace(staged, target)


def build(root: Path, target: Path) -> bool:
    """Whether the library was built. If not, an old one is removed, and one line (and the compiler's message) says why."""
    try:
        if os.environ.get("TENSORSHARP_GGML_NO_NATIVE", "") not in ("", "0"):
            raise CannotBuildError("TENSORSHARP_GGML_NO_NATIVE is set")
        compile_library(root / "native", target)
    except CannotBuildError as error:
        target.unlink(missing_ok=True)
        print(f"tensorsharp-backend-ggml is built without its native kernels: {error}", file=sys.stderr)
        return False
    return True


def wheel_platform() -> str:
    tag = sysconfig.get_platform()
    if tag.endswith("universal2"):  # the library holds one architecture, whatever the interpreter holds
        tag = tag.removesuffix("universal2") + platform.machine()
    return tag.replace("-", "_").replace(".", "_")


class NativeKernels(BuildHookInterface[Any]):
    """Puts the library beside the sources of an editable install, or into the wheel and its tag."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if version == "editable":
            build(root, root / "src" / PACKAGE / library_name())
            return
        self._folder = tempfile.TemporaryDirectory()
        target = Path(self._folder.name) / library_name()
        if build(root, target):
            build_data["force_include"][str(target)] = f"{PACKAGE}/{library_name()}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{wheel_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(not build(here, here / "src" / PACKAGE / library_name()))
