"""One side of a comparison, in a process of its own: commands come as JSON lines, answers go back as JSON lines.

    python -m benchmarks.contender ours|llamacpp MODEL [--library DIR] [--threads N] [--context N]
    python -m benchmarks.contender llamacpp MODEL … --reply N    one whole reply to the prompt on stdin, then the end

llama.cpp is driven through its C API as its own llama-bench drives it (decode calls with given tokens, logits of the
last row), without a copy of the logits and without sampling; ours is timed through the engine that `tensorsharp run`
uses, sampling included.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.oracle.llamacpp import Context, LlamaCpp, Model, Settings

REST_S = 0.05
"""Pause before the clock starts, in which the threads of the other side's last call go to sleep."""
LAST = (-1,)


class Contender(Protocol):
    def facts(self) -> dict[str, Any]: ...

    def prefill(self, tokens: int, seed: int) -> float:
        """Seconds to compute a new prompt of so many tokens, up to its first token."""
        ...

    def decode(self, at: int, tokens: int, seed: int) -> float:
        """Seconds for so many tokens, one after the other, after a prompt of `at` tokens."""
        ...


def some_ids(vocab_size: int, count: int, seed: int) -> list[int]:
    """A prompt that no earlier round had, so that nothing of it is cached."""
    draw = random.Random(seed)
    return [draw.randrange(10, vocab_size - 10) for _ in range(count)]


class Ours:
    def __init__(self, options: argparse.Namespace) -> None:
        import tensorsharp as ts

        self._version = ts.__version__
        self._llm = ts.load(options.model, threads=options.threads, ctx_size=options.context)

    def facts(self) -> dict[str, Any]:
        report = self._llm.report()
        return {"version": self._version, **{k: report[k] for k in ("threads", "arithmetic_id", "bitwise", "fallbacks")}}

    def _times(self, prompt: int, reply: int, seed: int) -> tuple[float, float]:
        """Seconds to the first token, and from the first to the last."""
        from tensorsharp.types import GenerationRequest, SamplingParams

        ids = some_ids(self._llm.model.vocab_size, prompt, seed)
        params = SamplingParams(max_tokens=reply, temperature=0, seed=0, ignore_eos=True)
        begin = time.perf_counter()
        handle = self._llm.engine.submit(GenerationRequest(tuple(ids), params))
        seen = [time.perf_counter() for _ in handle]
        finished = handle.result()
        if len(seen) != reply:
            raise RuntimeError(f"{len(seen)} tokens instead of {reply}: {finished.error or finished.reason}")
        return seen[0] - begin, seen[-1] - seen[0]

    def prefill(self, tokens: int, seed: int) -> float:
        return self._times(tokens, 1, seed)[0]

    def decode(self, at: int, tokens: int, seed: int) -> float:
        return self._times(at, tokens + 1, seed)[1]


class Peer:
    """llama.cpp at its best: flash attention, half-precision cache, repacked weights, one sequence."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._api, self._model, self._settings = open_peer(options)
        self._context: Context = self._model.context(self._settings)

    def facts(self) -> dict[str, Any]:
        return {"version": self._api.describe(), "threads": self._settings.threads}

    def _prompt(self, tokens: int, seed: int) -> None:
        self._context.truncate(0)
        feed(self._context, some_ids(self._model.vocab_size, tokens, seed))
        self._context.synchronize()

    def prefill(self, tokens: int, seed: int) -> float:
        begin = time.perf_counter()
        self._prompt(tokens, seed)
        return time.perf_counter() - begin

    def decode(self, at: int, tokens: int, seed: int) -> float:
        self._prompt(at, seed)
        ids = some_ids(self._model.vocab_size, tokens, seed + 1)
        begin = time.perf_counter()
        for token in ids:
            self._context.advance([token], LAST)
            self._context.synchronize()
        return time.perf_counter() - begin


def open_peer(options: argparse.Namespace) -> tuple[LlamaCpp, Model, Settings]:
    from tests.oracle.llamacpp import Settings, library_in, load

    api = load(None if options.library is None else library_in(options.library))
    settings = Settings(
        context=options.context,
        chunk=512,
        threads=options.threads,
        kv="f16",
        flash_attention=True,
        outputs=1,
        swa_full=False,
    )
    return api, api.open(options.model, repack=True), settings


def feed(context: Context, ids: list[int]) -> None:
    """A prompt in passes of the context's size; logits are wanted of its last token only."""
    for at in range(0, len(ids), context.chunk):
        last = at + context.chunk >= len(ids)
        context.advance(ids[at : at + context.chunk], LAST if last else ())


def reply(options: argparse.Namespace) -> None:
    """What `tensorsharp run --raw --temp 0` does, with llama.cpp: the answer to stdout, token by token."""
    _, model, settings = open_peer(options)
    context = model.context(settings)
    feed(context, model.tokenize(sys.stdin.read()))
    for i in range(options.reply):
        token = context.likeliest()
        sys.stdout.buffer.write(model.piece(token))
        sys.stdout.buffer.flush()
        if i + 1 < options.reply:
            context.advance([token], LAST)


def serve(side: object) -> None:
    """Call the methods of a side: answer {"do": name, ...arguments} until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        action = getattr(side, asked.pop("do"))
        time.sleep(REST_S)
        print(json.dumps(action(**asked)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["ours", "llamacpp"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--library", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--reply", type=int)
    options = parser.parse_args()
    if options.reply is not None:
        reply(options)
    else:
        contender: Contender = Ours(options) if options.side == "ours" else Peer(options)
        serve(contender)


if __name__ == "__main__":
    main()
