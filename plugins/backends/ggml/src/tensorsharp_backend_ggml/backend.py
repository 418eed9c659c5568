"""The ggml backend: its CPU device, which runs on every machine that ggml runs on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tensorsharp.errors import ConfigError, PluginError
from tensorsharp.protocols.backend import BackendOptions, Bitwise, Runner, StateSizes, StateStore, Weights
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.reference.memory import host_memory
from tensorsharp.state import HostStateStore
from tensorsharp_backend_ggml import identity, native
from tensorsharp_backend_ggml.binding import MAX_THREADS
from tensorsharp_backend_ggml.heap import trim
from tensorsharp_backend_ggml.library import load
from tensorsharp_backend_ggml.native import Kernels
from tensorsharp_backend_ggml.runner import GgmlRunner
from tensorsharp_backend_ggml.threads import usable_cores
from tensorsharp_backend_ggml.weights import GgmlWeights

OPTIONS = ("lib", "kernels")


class GgmlBackend:
    """Implements :class:`tensorsharp.protocols.backend.Backend` on the device ``cpu``.

    Options: ``lib``, a folder with another ggml; ``kernels``, the instruction set of our kernels, or "off".
    PluginError if ggml or the device cannot be used as asked, ConfigError for a number of threads that cannot be.
    """

    name = "ggml"
    device = "cpu"

    def __init__(self, options: BackendOptions | None = None) -> None:
        chosen = options or BackendOptions()
        if chosen.device not in (None, self.device):
            raise PluginError(f"backend 'ggml' has no device {chosen.device!r}; it has 'cpu'.")
        unknown = [key for key in chosen.extra if key not in OPTIONS]
        if unknown:
            raise PluginError(f"backend 'ggml' has no option {unknown[0]!r}; it has {' and '.join(OPTIONS)}.")
        if chosen.threads is not None and not 1 <= chosen.threads <= MAX_THREADS:
            raise ConfigError(f"threads is {chosen.threads}; the backend ggml takes 1 to {MAX_THREADS}.")
        self.threads = chosen.threads or usable_cores()
        self._library = load(chosen.extra.get("lib"))
        self._kernels, self._absent = _kernels(chosen.extra.get("kernels"))

    @property
    def arithmetic_id(self) -> str:
        return identity.arithmetic_id(self._library, self._kernels)

    def bitwise(self, types: Iterable[str]) -> Bitwise:
        return identity.bitwise(self._library, self._kernels, types)

    def describe(self) -> Mapping[str, str]:
        return identity.describe(self._library, self._kernels, self._absent)

    def memory(self) -> tuple[int, int]:
        return host_memory()

    def load(self, file: ModelFile, names: Iterable[str]) -> Weights:
        return GgmlWeights(self._library, file, names)

    def state(self, layout: Layout, sizes: StateSizes) -> StateStore:
        return HostStateStore(layout, sizes, limit=self.memory()[1])

    def compile(self, model: IBatchedPagedModel, weights: Weights, state: StateStore) -> Runner:
        if not isinstance(weights, GgmlWeights) or not isinstance(state, HostStateStore):
            raise TypeError("weights and state must come from this backend")
        return GgmlRunner(self._library, self._kernels, model, weights, state, self.threads)

    def close(self) -> None:
        """Nothing is held: runners and weights are closed by who made them, and what they held is given back."""
        trim()


def _kernels(choice: str | None) -> tuple[Kernels | None, str | None]:
    """Our kernels for the instruction set `choice` (None: the best), or why they are absent. PluginError if it was named."""
    if choice == "off":
        return None, "they are switched off"
    absent = None if choice or os.environ.get(native.ISA_VARIABLE) else native.why_not()
    return (native.load(choice), None) if absent is None else (None, absent)
