"""The reference backend: host memory, numpy, one row at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tensorsharp.errors import PluginError
from tensorsharp.protocols.backend import BackendOptions, Bitwise, Runner, StateSizes, StateStore, Weights
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.memory import host_memory
from tensorsharp.reference.runner import ReferenceRunner
from tensorsharp.reference.weights import ReferenceWeights
from tensorsharp.state import HostStateStore


class ReferenceBackend:
    """Implements :class:`tensorsharp.protocols.backend.Backend` on the device ``cpu``.

    PluginError if another device or an option is asked for: there is one device, and nothing to set.
    """

    name = "reference"
    device = "cpu"
    threads = 1

    def __init__(self, options: BackendOptions | None = None) -> None:
        chosen = options or BackendOptions()
        if chosen.device not in (None, self.device):
            raise PluginError(f"backend 'reference' has no device {chosen.device!r}; it has 'cpu'.")
        if chosen.extra:
            raise PluginError(f"backend 'reference' has no option {next(iter(chosen.extra))!r}; it has none.")

    @property
    def arithmetic_id(self) -> str:
        """numpy, its BLAS and the instruction sets in use: numpy's exp and the BLAS's dot product differ between them."""
        facts = self.describe()
        return "reference-1/" + "/".join(f"{key}={facts[key]}" for key in ("numpy", "blas", "simd"))

    def bitwise(self, types: Iterable[str]) -> Bitwise:
        """Holds for every type: all weights are float32 before they are used, and each output is a dot product of its own."""
        return Bitwise(holds=True)

    def describe(self) -> Mapping[str, str]:
        config: Mapping[str, Any] = np.show_config(mode="dicts")
        blas = config.get("Build Dependencies", {}).get("blas", {})
        simd = config.get("SIMD Extensions", {})
        sets = [*simd.get("baseline", ()), *simd.get("found", ())]
        return {
            "numpy": np.__version__,
            "blas": f"{blas.get('name', 'unknown')}-{blas.get('version', 'unknown')}",
            "simd": "+".join(sets) or "unknown",
        }

    def memory(self) -> tuple[int, int]:
        return host_memory()

    def load(self, file: ModelFile, names: Iterable[str]) -> Weights:
        return ReferenceWeights(file, names)

    def state(self, layout: Layout, sizes: StateSizes) -> StateStore:
        return HostStateStore(layout, sizes, limit=self.memory()[1])

    def compile(self, model: IBatchedPagedModel, weights: Weights, state: StateStore) -> Runner:
        if not isinstance(weights, ReferenceWeights) or not isinstance(state, HostStateStore):
            raise TypeError("weights and state must come from this backend")
        return ReferenceRunner(model, weights, state)

    def close(self) -> None:
        """Nothing is held."""
