"""A model, a backend and files for tests of the library: everything opened is counted in `opened`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import BackendError
from tensorsharp.protocols.backend import BackendOptions, Bitwise, StateSizes
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout
from tensorsharp.state import HostStateStore
from tensorsharp.testing.fakes import FakeModel, FakeRunner
from tensorsharp.testing.ggufs import gguf_file
from tensorsharp.testing.tinyvocab import byte_vocabulary

VOCAB = 300
MODEL = FakeModel(VOCAB, context_length=9000)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
)
opened: list[str] = []


class Model(FakeModel):
    @classmethod
    def from_file(cls, file: ModelFile) -> FakeModel:
        return cls(VOCAB, context_length=9000)

    def weights(self) -> frozenset[str]:
        return frozenset({"w"})


class Weights:
    nbytes = 16

    def close(self) -> None:
        opened.remove("weights")


class Runner(FakeRunner):
    def close(self) -> None:
        super().close()
        opened.remove("runner")


class Store(HostStateStore):
    def free(self) -> None:
        if self.arrays:
            opened.remove("state")
        super().free()


class Backend:
    """Runs the fake model; `extra` of its options: `free` = bytes it says are available, `fail` = what to refuse."""

    name = "fake"
    device = "nowhere"
    arithmetic_id = "fake/1"

    def __init__(self, options: BackendOptions) -> None:
        self.options = options
        self.threads = options.threads or 3
        opened.append("backend")

    def _refuse(self, what: str) -> None:
        if self.options.extra.get("fail") == what:
            raise BackendError(f"no {what}")

    def memory(self) -> tuple[int, int]:
        return 1 << 40, int(self.options.extra.get("free", 1 << 40))

    def load(self, file: ModelFile, names: frozenset[str]) -> Weights:
        self._refuse("weights")
        opened.append("weights")
        return Weights()

    def state(self, layout: Layout, sizes: StateSizes) -> Store:
        self._refuse("state")
        store = Store(layout, sizes)
        opened.append("state")
        return store

    def compile(self, model: FakeModel, weights: Weights, state: HostStateStore) -> Runner:
        self._refuse("runner")
        opened.append("runner")
        return Runner(model, state)

    def bitwise(self, types: list[str]) -> Bitwise:
        return Bitwise(False, f"only a fake, of {', '.join(types)}")

    def describe(self) -> Mapping[str, str]:
        return {"made of": "hashes"}

    def close(self) -> None:
        opened.remove("backend")


def installed(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model and a backend as installed plugins; afterwards everything that was opened must be closed."""
    here = ModuleType("llm_fakes")
    here.__dict__.update(Model=Model, Backend=Backend)
    monkeypatch.setitem(sys.modules, "llm_fakes", here)
    for kind, name, target in (("model", "fakeling", "Model"), ("backend", "fake", "Backend")):
        site.plugin(kind, name, f"llm_fakes_{kind}", f"target='llm_fakes:{target}', api=(1, 0), summary='For tests.'")
    opened.clear()
    yield
    assert opened == []


def write_file(
    path: Path,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    *,
    template: str | None = TEMPLATE,
    architecture: str = "fakeling",
) -> Path:
    texts = {} if template is None else {"tokenizer.chat_template": template}
    with gguf_file(path, architecture, {**byte_vocabulary(VOCAB), **texts, **metadata}) as writer:
        writer.add_tensor("w", np.zeros(4, np.float32))
    return path
