"""Tiny random checkpoints of every dense architecture, against logits that llama.cpp computed in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorsharp.testing.tinygguf import ARCHITECTURES
from tests.driver import Driver
from tests.goldens.records import TinyRun
from tests.goldens.tinies import TINIES, digest, write

ROUNDING = 5e-6
"""Of the largest logit: float32 sums taken in another order; two correct implementations are 1e-7 to 2e-6 apart."""
TABLE = 1e-3
"""llama.cpp looks GELU up in a table of half precision, which moves these logits by about 1e-4. What the table hides is
checked by the checkpoint with steep gates, to which the strict bound applies."""
BOUNDS = {"tiny-gemma3": TABLE}


def test_every_architecture_is_recorded() -> None:
    assert {t.architecture for t in TINIES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("chunk", [7, 96])
@pytest.mark.parametrize("backend", ["reference", "ggml"])
@pytest.mark.parametrize("name", TINIES)
def test_logits(tmp_path: Path, name: str, backend: str, chunk: int) -> None:
    recorded = TinyRun.of(name)
    path = write(name, tmp_path)
    assert digest(path) == recorded.digest, f"the checkpoint has changed; run: python -m tests.goldens.make {name}"
    with Driver(path, backend=backend, kv_format="f32", context=128) as driver:
        ours = driver.logits(recorded.ids.tolist(), chunk=chunk)
    assert np.abs(ours - recorded.logits).max() <= BOUNDS.get(name, ROUNDING) * np.abs(recorded.logits).max()
