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
from tensorsharp.reference.paging import read_rows, write_rows
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
    """Keeps what it reads in its state; a reply goes on where the token comes that was said last. PAUSE: seconds a step takes;
    SLOW: a file while which exists it takes 0.2 s; BREAK: the number of written tokens after which a step fails."""

    def __init__(self, store: HostStateStore) -> None:
        script = os.environ["SCRIPT"].encode()
        symbols = {symbol: token for token, symbol in enumerate(byte_symbols())}
        bytes_to_token = {b: symbols[byte_symbols()[b]] for b in range(256)}
        self.script = [*(bytes_to_token[b] for b in script), END]
        self.store = store
        self.said: dict[int, tuple[int, int, int]] = {}
        """Of each seat: the position and the token that come next, and how many it has said."""

    def step(self, batch: Batch, taps: tuple[str, ...] = ()) -> StepResult:
        time.sleep(0.2 if Path(os.environ.get("SLOW", "")).is_file() else float(os.environ.get("PAUSE", "0")))
        write_rows(self.store, batch, "k", np.stack([batch.tokens, batch.tokens], axis=1).astype(np.float32))
        said = [self._say(batch, sequence) for sequence in range(batch.sequences)]
        logits = np.zeros((len(batch.wanted), VOCAB), np.float32)
        for number, row in enumerate(batch.wanted.tolist()):
            logits[number, said[batch.seq[row]]] = 50
        return StepResult(logits, fallbacks={"conv": 1})

    def _say(self, batch: Batch, sequence: int) -> int:
        """What comes after the rows of one sequence."""
        last = int(batch.first_row[sequence] + batch.length[sequence]) - 1
        position, token, seat = int(batch.pos[last]), int(batch.tokens[last]), int(batch.tail_slot[sequence])
        expected, said, count = self.said.get(seat, (-1, -1, 0))
        if (position, token, int(batch.length[sequence])) != (expected, said, 1):
            count = 0
            self._record(batch, sequence, position)
        if count == int(os.environ.get("BREAK", "-1")):
            raise BackendError("the lamp went out")
        word = self.script[min(count, len(self.script) - 1)]
        self.said[seat] = (position + 1, word, count + 1)
        return word

    def _record(self, batch: Batch, sequence: int, position: int) -> None:
        if "ASKED" in os.environ:
            line = read_rows(self.store, batch, "k", sequence, np.arange(position + 1))[:, 0].astype(int).tolist()
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
        return Runner(state)

    def bitwise(self, types: list[str]) -> Bitwise:
        return Bitwise(False, "it recites")

    def describe(self) -> Mapping[str, str]:
        return {"voice": "clear"}

    def close(self) -> None: ...
