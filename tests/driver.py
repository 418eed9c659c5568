"""A model on a backend with nothing in between: tests choose the rows of every step and look at every logit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np

from tensorsharp.protocols.backend import Backend, BackendOptions
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.layout import Format
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.registry import Registry
from tensorsharp.testing.streams import Streams
from tensorsharp.weights.gguf import open_gguf


class Driver:
    """An opened model with `sequences` streams of up to `context` positions; use as a context manager.

    seed: order of the physical blocks, which start poisoned with NaN.
    """

    def __init__(
        self,
        path: Path,
        *,
        backend: str,
        kv_format: Format = "f16",
        threads: int | None = None,
        context: int = 544,
        sequences: int = 1,
        seed: int = 0,
    ) -> None:
        registry = Registry()
        with ExitStack() as stack:
            file = stack.enter_context(open_gguf(path))
            self.model = cast("IBatchedPagedModel", registry.load("model", file.architecture).from_file(file))
            runs_on = cast("Backend", registry.load("backend", backend)(BackendOptions(threads=threads)))
            stack.callback(runs_on.close)
            weights = runs_on.load(file, self.model.weights())
            stack.callback(weights.close)
            layout = self.model.layout(kv_format)
            self.streams = Streams(layout, runs_on.state, count=sequences, capacity=-(-context // 32), seed=seed)
            stack.callback(self.streams.store.free)
            self._runner = runs_on.compile(self.model, weights, self.streams.store)
            stack.callback(self._runner.close)
            self.types = sorted({file.tensors[name].type_name for name in self.model.weights() if name in file.tensors})
            self.bitwise = runs_on.bitwise(self.types)
            self._owned = stack.pop_all()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def step(self, rows: Sequence[tuple[int, Sequence[int]]]) -> list[F32]:
        """One batch: (stream, its next tokens) each. The logits of every row, a copy, for each stream in that order."""
        logits = self._runner.step(self.streams.batch(rows)).logits.copy()
        return np.split(logits, np.cumsum([len(tokens) for _, tokens in rows])[:-1])

    def logits(self, tokens: Sequence[int], *, chunk: int = 64, stream: int = 0) -> F32:
        """[len(tokens), vocab] of a text from its start, computed in steps of `chunk` rows."""
        self.streams.release(stream)
        return np.concatenate([self.step([(stream, tokens[at : at + chunk])])[0] for at in range(0, len(tokens), chunk)])
