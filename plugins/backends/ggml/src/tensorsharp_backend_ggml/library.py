"""Finds and loads ggml.

The library is the one in the `libggml-python` wheel. Another one is used only when it is named: never because it
happens to be installed, since every library is a backend build of its own with its own bits.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tensorsharp.errors import PluginError
from tensorsharp_backend_ggml.binding import FEATURES, Ggml

OLDEST, NEWEST = (0, 20, 2), (0, 25, 3)
"""Versions this backend was tested with; structs and meanings may differ outside."""
VARIABLE = "TENSORSHARP_GGML_LIB"
WHEEL = "libggml-python"
HINT = f"install {WHEEL}, or name a folder that holds ggml's libraries with --ggml-lib or {VARIABLE}"


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded ggml. folder: where its files lie. named: the user chose it; else it is the wheel's."""

    ggml: Ggml
    folder: Path
    version: str
    commit: str
    named: bool

    @property
    def files(self) -> tuple[Path, Path]:
        """The files of libggml-base and libggml-cpu."""
        return self.folder / file_name("ggml-base"), self.folder / file_name("ggml-cpu")

    @property
    def features(self) -> tuple[str, ...]:
        """Instruction sets and extras the library was built with, by ggml's names."""
        return tuple(name for name in FEATURES if getattr(self.ggml, f"cpu_has_{name}")())


def file_name(stem: str) -> str:
    """How this system names a shared library."""
    if sys.platform == "win32":
        return f"{stem}.dll"
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def load(named: str | None) -> Library:
    """Load ggml from the folder `named`, else from TENSORSHARP_GGML_LIB, else from the wheel.

    PluginError if there is none, if it is of an untested version, or if another ggml is already in this process.
    """
    named = named or os.environ.get(VARIABLE) or None
    folder = _named_folder(Path(named)) if named else _wheel_folder()
    try:
        # The CPU part names its base by file name only; loading the base first makes that name resolve everywhere. Their
        # symbols stay out of the global scope, where they would stand in for those of another engine in this process.
        base = ctypes.CDLL(str(folder / file_name("ggml-base")))
        cpu = ctypes.CDLL(str(folder / file_name("ggml-cpu")))
        ggml = Ggml(base, cpu)
    except (OSError, AttributeError) as error:
        raise PluginError(f"ggml in {folder} could not be loaded: {error}.", hint=HINT) from None
    _check_alone(base, cpu, folder)
    version = ggml.version().decode()
    _check_version(version, folder)
    return Library(ggml, folder, version, ggml.commit().decode(), bool(named))


def _holds_ggml(folder: Path) -> bool:
    return all((folder / file_name(stem)).is_file() for stem in ("ggml-base", "ggml-cpu"))


def _named_folder(path: Path) -> Path:
    folder = path.parent if path.is_file() else path
    if not _holds_ggml(folder):
        expected = f"{file_name('ggml-base')} and {file_name('ggml-cpu')}"
        raise PluginError(f"{path} is no folder with {expected}, named by --ggml-lib or {VARIABLE}.", hint=HINT)
    return folder.absolute()


def _wheel_folder() -> Path:
    spec = importlib.util.find_spec("libggml")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for folder in (Path(root) / sub for root in roots for sub in ("lib64", "lib", "bin")):
        if _holds_ggml(folder):
            return folder
    raise PluginError(f"the ggml library is missing: {WHEEL} is not installed.", hint=HINT)


def _check_alone(base: ctypes.CDLL, cpu: ctypes.CDLL, folder: Path) -> None:
    """Refuse a CPU part that the loader bound to another library's base, which this process loaded before."""
    try:
        bound = cpu.ggml_version
    except AttributeError:  # Windows looks a name up in one file only
        return
    ours, theirs = (ctypes.cast(f, ctypes.c_void_p).value for f in (base.ggml_version, bound))
    if ours != theirs:
        raise PluginError(
            f"ggml in {folder} cannot be used: this process already loaded another ggml.",
            hint="use one ggml library in a process",
        )


def _check_version(version: str, folder: Path) -> None:
    numbers = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if not OLDEST <= numbers <= NEWEST:
        tested = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
        raise PluginError(f"ggml in {folder} is version {version}; versions {tested} are tested.", hint=HINT)
