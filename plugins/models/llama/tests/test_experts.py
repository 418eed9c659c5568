"""Llama with routed experts (Mixtral) through the model kit."""

from pathlib import Path

import pytest

from tensorsharp.testing import ModelConformance
from tensorsharp.testing.tinygguf import tiny, write_tiny


class TestExperts(ModelConformance):
    plugin = "llama"

    @pytest.fixture
    def tiny_file(self, tmp_path: Path) -> Path:
        return write_tiny(tmp_path / "experts.gguf", tiny("llama", experts=5, seed=3))
