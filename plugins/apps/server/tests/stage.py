"""A model that needs no plugin, for a server in this process: it recites a text, or goes on at random, at the pace it is told.

Its vocabulary is one of bytes (tensorsharp.testing.tinyvocab).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from tensorsharp.errors import BackendError, TensorSharpError
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.plugin import PluginSpec
from tensorsharp.protocols.backend import BackendOptions, Bitwise, StateSizes, StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.registry import PluginRow, Registry
from tensorsharp.state import HostStateStore
from tensorsharp.testing.fakes import FakeModel, FakeRunner
from tensorsharp.testing.ggufs import gguf_file
from tensorsharp.testing.tinyvocab import byte_symbols, byte_vocabulary

VOCAB, CONTEXT, END = 300, 512, 274
PATIENCE_S = 120.0
"""For a machine that has much else to do; only what never comes takes so long."""
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"

THINKING = (
    "{# <think></think> #}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if enable_thinking is false %}<think></think>{% endif %}"
)
"""A template with tools and with reasoning that can be switched off."""


def write_model(path: Path, *, template: str | None = TEMPLATE, **keys: Any) -> Path:
    """A GGUF file with a vocabulary of bytes and one tensor."""
    texts = {} if template is None else {"tokenizer.chat_template": template}
    with gguf_file(path, "staged", byte_vocabulary(VOCAB) | keys | texts) as writer:
        writer.add_tensor("w", np.zeros(4, np.float32))
    return path


class Director:
    """What the model does. script: the text that every reply is, then it ends; None: tokens at random, without an end.

    pace: steps wait until it is set. steps: how many were begun. breaks: the step, counted from now, that fails.
    holds: the step, counted from now, that clears `pace`, so that it waits.
    load_gate, loads, fail_load: the same for loading a file.
    """

    def __init__(self) -> None:
        self.pace = threading.Event()
        self.load_gate = threading.Event()
        self.stepped = threading.Condition()
        self.steps = 0
        self.loads = 0
        self.reset()

    def reset(self) -> None:
        self.script: str | None = None
        self.breaks: int | None = None
        self.holds: int | None = None
        self.fail_load: TensorSharpError | None = None
        self.pace.set()
        self.load_gate.set()

    def wait_steps(self, count: int, timeout: float = PATIENCE_S) -> bool:
        """Until `count` steps have begun."""
        with self.stepped:
            return self.stepped.wait_for(lambda: self.steps >= count, timeout)

    # what load() asks of a registry
    def load(self, kind: str, name: str) -> Any:
        return Model if kind == "model" else self.backend

    def names(self, kind: str) -> list[str]:
        return []

    def spec(self, kind: str, name: str) -> PluginSpec:
        return PluginSpec(target="stage:Model", api=(1, 0), summary="For tests.")

    def row(self, kind: str, name: str, *, probe: bool = True) -> PluginRow:
        return PluginRow(kind, name, "ready", "stage", "1.0", "stage:Model", spec=self.spec(kind, name))

    def backend(self, options: BackendOptions) -> Backend:
        return Backend(self)

    def open(self, path: Path, **how: Any) -> LLM:
        """A loader for a ModelHost."""
        self.loads += 1
        self.load_gate.wait(PATIENCE_S)
        if self.fail_load is not None:
            raise self.fail_load
        return load(path, registry=cast("Registry", self), **how)


class Model(FakeModel):
    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        return cls(VOCAB, context_length=CONTEXT)

    def weights(self) -> frozenset[str]:
        return frozenset({"w"})


class Weights:
    nbytes = 16

    def close(self) -> None: ...


class Runner(FakeRunner):
    def __init__(self, model: FakeModel, store: HostStateStore, director: Director) -> None:
        super().__init__(model, store)
        self.director = director

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        director = self.director
        with director.stepped:
            director.steps += 1
            director.stepped.notify_all()
        if director.holds is not None:
            director.holds -= 1
            if director.holds < 0:
                director.holds = None
                director.pace.clear()
        director.pace.wait(PATIENCE_S)
        if director.breaks is not None:
            director.breaks -= 1
            if director.breaks < 0:
                director.breaks = None
                raise BackendError("the lamp went out")
        found = super().step(batch, taps)
        if director.script is None:
            logits = found.logits.copy()
            logits[:, END] = -50
            logits[:, 272:] = -50
            return StepResult(logits)
        return StepResult(np.stack([self._recited(batch, int(r)) for r in batch.wanted]) if len(batch.wanted) else found.logits)

    def _recited(self, batch: Batch, row: int) -> Any:
        """The next token of the script, by how much of it the sequence ends with."""
        assert self.director.script is not None
        symbols = {symbol: token for token, symbol in enumerate(byte_symbols())}
        script = [*(symbols[byte_symbols()[b]] for b in self.director.script.encode()), END]
        line = self._read(batch, "all", int(batch.seq[row]), range(int(batch.pos[row]) + 1))
        prompt = len(line) - next(n for n in range(min(len(script), len(line)), -1, -1) if line[len(line) - n :] == script[:n])
        logits = np.zeros(VOCAB, np.float32)
        logits[script[len(line) - prompt]] = 50
        return logits


class Backend:
    name, device, arithmetic_id, threads = "staged", "stage", "staged/1", 1

    def __init__(self, director: Director) -> None:
        self._director = director

    def memory(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def load(self, file: ModelFile, names: frozenset[str]) -> Weights:
        return Weights()

    def state(self, layout: Any, sizes: StateSizes) -> HostStateStore:
        return HostStateStore(layout, sizes)

    def compile(self, model: Model, weights: Weights, state: HostStateStore) -> Runner:
        return Runner(model, state, self._director)

    def bitwise(self, types: list[str]) -> Bitwise:
        return Bitwise(True)

    def describe(self) -> Mapping[str, str]:
        return {}

    def close(self) -> None: ...
