"""A model on a backend, run step by step over chosen streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import cast

import numpy as np

from tensorsharp.protocols.backend import Backend, BackendOptions, Runner, StepResult, Weights
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.testing.streams import Rows, Streams, Wanted, block_size


@cache
def available_backends() -> tuple[str, ...]:
    """Names of the backends that can run here; the reference is always among them and first."""
    from tensorsharp.registry import Registry

    ready = [row.name for row in Registry().rows("backend") if row.state == "ready"]
    return ("reference", *(name for name in ready if name != "reference"))


def open_backend(name: str) -> Backend:
    """The backend of that name with its defaults. PluginError if it cannot run."""
    if name == "reference":
        from tensorsharp.reference.backend import ReferenceBackend

        return ReferenceBackend()
    from tensorsharp.registry import Registry

    make = cast("Callable[[BackendOptions], Backend]", Registry().load("backend", name))
    return make(BackendOptions())


@dataclass
class Running:
    """Streams and the runner that computes them."""

    streams: Streams
    runner: Runner

    def step(self, rows: Rows, *, wanted: Wanted = "all", keep: bool = True) -> F32:
        """One batch. A copy of its logits, [wanted, vocab]."""
        return self.result(rows, wanted=wanted, keep=keep).logits.copy()

    def result(self, rows: Rows, *, wanted: Wanted = "all", keep: bool = True, taps: Sequence[str] = ()) -> StepResult:
        return self.runner.step(self.streams.batch(rows, wanted=wanted, keep=keep), taps)

    def feed(self, stream: int, tokens: Sequence[int], chunk: int | None = None) -> F32:
        """All tokens of one stream, `chunk` at a time (None: at once); blocks behind a window are given up on the way."""
        size = chunk or len(tokens)
        found = []
        for start in range(0, len(tokens), size):
            found.append(self.step([(stream, tokens[start : start + size])]))
            self.streams.evict()
        return np.concatenate(found)


@dataclass
class Subject:
    """What a kit examines: a model, its file, and a backend.

    length: tokens that cross two block borders and end inside a block. The last ones differ between `tokens(0)`, (1)…
    """

    file: ModelFile
    model: IBatchedPagedModel
    backend: Backend
    kv_format: Format = "f16"
    _weights: Weights | None = field(default=None, repr=False)

    @property
    def block(self) -> int:
        return block_size(self.model.layout(self.kv_format))

    @property
    def length(self) -> int:
        return 2 * self.block + 11

    def tokens(self, salt: int = 0, length: int | None = None) -> list[int]:
        """A prompt of `length` tokens, drawn from `salt`."""
        rng = np.random.default_rng((17, salt))
        return [int(t) for t in rng.integers(0, self.model.vocab_size, length or self.length)]

    @property
    def weights(self) -> Weights:
        if self._weights is None:
            self._weights = self.backend.load(self.file, self.model.weights())
        return self._weights

    @contextmanager
    def running(self, *, count: int = 3, seed: int = 0, slack: int = 0, kv_format: Format | None = None) -> Iterator[Running]:
        """Fresh state and a fresh runner; capacity for `length` tokens and a block more in every stream."""
        layout = self.model.layout(kv_format or self.kv_format)
        streams = Streams(layout, self.backend.state, count=count, capacity=4, seed=seed, slack=slack)
        runner = self.backend.compile(self.model, self.weights, streams.store)
        try:
            yield Running(streams, runner)
        finally:
            runner.close()
            streams.store.free()

    def expected(self, tokens: Sequence[int]) -> F32:
        """[n, vocab] logits of a prompt in one step, alone on a fresh state."""
        with self.running(count=1) as alone:
            return alone.feed(0, tokens)

    def close(self) -> None:
        if self._weights is not None:
            self._weights.close()
        self.backend.close()
