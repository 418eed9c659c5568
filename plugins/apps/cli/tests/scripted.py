"""A model that recites: plugins for tests, found by entry point in this process and in others.

After any prompt the reply is the text of the environment variable SCRIPT, byte by byte, then the end. It records what it
was asked in the file that ASKED names, one JSON array of token ids a request.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from tensorsharp.errors import BackendError
from tensorsharp.plugin import PluginSpec
from tensorsharp.protocols.backend import BackendOptions, Bitwise, StateSizes, StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout, Paged
from tensorsharp.state import HostStateStore
from tensorsharp.testing.tinyvocab import byte_symbols

VOCAB, CONTEXT = 300, 500
END = 274
"""The id of <|im_end|> in the vocabulary of tests."""

model_spec = PluginSpec(target="scripted:Model", api=(1, 0), summary="Recites a text")
backend_spec = PluginSpec(target="scripted:Backend", api=(1, 0), summary="Runs what recites")


class Model:
    architecture, vocab_size, context_length, layers, width = "scripted", VOCAB, CONTEXT, 1, 2

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        return cls()

    def layout(self, kv_format: Any) -> Layout:
        return {"k": Paged(2, kv_format), "near": Paged(2, kv_format, window=40)}

    def weights(self) -> frozenset[str]:
        return frozenset({"w"})


class Weights:
    nbytes = 16

    def close(self) -> None: ...


class Runner:
    """Knows where each reply began by its sequence's last step of more than one row. PAUSE: seconds a step takes; BREAK: the
    number of written tokens after which a step fails."""

    def __init__(self) -> None:
        script = os.environ["SCRIPT"].encode()
        symbols = {symbol: token for token, symbol in enumerate(byte_symbols())}
        bytes_to_token = {b: symbols[byte_symbols()[b]] for b in range(256)}
        self.script = [*(bytes_to_token[b] for b in script), END]
        self.begin: dict[int, int] = {}
        self.line: dict[int, list[int]] = {}

    def step(self, batch: Batch, taps: tuple[str, ...] = ()) -> StepResult:
        time.sleep(float(os.environ.get("PAUSE", "0")))
        logits = np.zeros((len(batch.wanted), VOCAB), np.float32)
        said = [self._say(batch, sequence) for sequence in range(batch.sequences)]
        for number, row in enumerate(batch.wanted.tolist()):
            logits[number, said[batch.seq[row]]] = 50
        return StepResult(logits, fallbacks={"conv": 1})

    def _say(self, batch: Batch, sequence: int) -> int:
        """What comes after the rows of one sequence."""
        slot, start, rows = (int(a[sequence]) for a in (batch.tail_slot, batch.start, batch.length))
        first = int(batch.first_row[sequence])
        # what a prompt begins with may be known from the last one in this seat
        line = self.line[slot] = self.line.get(slot, [])[:start] + batch.tokens[first : first + rows].tolist()
        if rows > 1:
            self.begin[slot] = start + rows - 1
            self._record(line)
        done = start + rows - 1 - self.begin[slot]
        if done == int(os.environ.get("BREAK", "-1")):
            raise BackendError("the lamp went out")
        return self.script[min(done, len(self.script) - 1)]

    def _record(self, line: list[int]) -> None:
        if "ASKED" in os.environ:
            with Path(os.environ["ASKED"]).open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

    def close(self) -> None: ...


class Backend:
    name, device, arithmetic_id = "scripted", "stage", "scripted/1"

    def __init__(self, options: BackendOptions) -> None:
        self.threads = options.threads or 3

    def memory(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def load(self, file: ModelFile, names: frozenset[str]) -> Weights:
        return Weights()

    def state(self, layout: Layout, sizes: StateSizes) -> HostStateStore:
        return HostStateStore(layout, sizes)

    def compile(self, model: Model, weights: Weights, state: HostStateStore) -> Runner:
        return Runner()

    def bitwise(self, types: list[str]) -> Bitwise:
        return Bitwise(False, "it recites")

    def describe(self) -> Mapping[str, str]:
        return {"voice": "clear"}

    def close(self) -> None: ...
