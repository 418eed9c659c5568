"""What choosing the next tokens costs, as a part of the decode step that computed their logits.

    python benchmarks/sampling.py MODEL [--streams N] [--threads N] [--steps N] [--rounds N] [--prompt N] [--json]

Tokens are chosen on one thread: its processor time for all rows of a step, over the wall time of that step, which has all
threads. Both are medians. Others on the machine make a step longer but hardly the processor time of one thread, and so
flatter the ratios: run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.arguments import read_arguments
from benchmarks.compare import cpu_model
from benchmarks.contender import some_ids
from tensorsharp.engine.config import EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.sizing import plan_state
from tensorsharp.protocols.backend import Backend, BackendOptions, Runner, StepResult
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.registry import Registry
from tensorsharp.types import GenerationRequest, SamplingParams
from tensorsharp.weights.gguf import open_gguf

WAYS: dict[str, tuple[dict[str, Any], float | None]] = {
    "greedy": ({"temperature": 0.0}, 0.1),
    "temperature 0.8, top-k 40, top-p 0.95": ({"temperature": 0.8, "top_k": 40, "top_p": 0.95}, 0.1),
    "temperature 1": ({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, 0.5),
    "temperature 1, top-p 0.95": ({"temperature": 1.0, "top_k": 0, "top_p": 0.95, "min_p": 0.0}, None),
    "temperature 1, min-p 0.05": ({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.05}, None),
}
"""How tokens are chosen, and the part of a step that it may take."""
LOGPROBS = {"": None, ", with log-probabilities of 5": 5}


class Timed:
    """A runner that keeps the seconds and the last logits of its full decode steps."""

    def __init__(self, runner: Runner, streams: int) -> None:
        self.seconds: list[float] = []
        self.rows: F32 = np.zeros((0, 0), np.float32)
        self._runner = runner
        self._streams = streams

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        begin = time.perf_counter()
        result = self._runner.step(batch, taps)
        took = time.perf_counter() - begin
        if batch.rows == len(result.logits) == self._streams:
            self.seconds.append(took)
            self.rows = result.logits.copy()
        return result

    def close(self) -> None:
        self._runner.close()


def decode(options: argparse.Namespace) -> Timed:
    """Let all streams reply at the same time."""
    streams, context = options.streams, options.prompt + options.steps + options.streams
    with ExitStack() as stack:
        file = stack.enter_context(open_gguf(options.model))
        plugins = Registry()
        model = cast("IBatchedPagedModel", plugins.load("model", file.architecture).from_file(file))
        backend = cast("Backend", plugins.load("backend", "ggml")(BackendOptions(threads=options.threads)))
        stack.callback(backend.close)
        weights = backend.load(file, model.weights())
        stack.callback(weights.close)
        config = EngineConfig(context, SchedulerConfig(parallel=streams))
        layout = model.layout("f16")
        sizes = plan_state(layout, context=context, sequences=streams, rows=config.scheduler.rows, available=backend.memory()[1])
        store = backend.state(layout, sizes)
        timed = Timed(backend.compile(model, weights, store), streams)
        engine = stack.enter_context(Engine(model, timed, store, config))
        params = SamplingParams(max_tokens=options.steps + streams, temperature=0.0, ignore_eos=True)
        prompts = [some_ids(model.vocab_size, options.prompt, seed) for seed in range(streams)]
        for handle in [engine.submit(GenerationRequest(tuple(ids), params)) for ids in prompts]:
            handle.result()
        return timed


def seconds_of(rows: F32, given: dict[str, Any], position: int, rounds: int) -> float:
    """Median processor time in which this thread chooses a token of every row."""
    samplers = [Sampler(SamplingParams(**given), seed) for seed in range(len(rows))]
    history = np.arange(position, dtype=np.int32)
    took = []
    for turn in range(rounds):
        begin = time.thread_time()
        for sampler, row in zip(samplers, rows, strict=True):
            sampler.choose(row, history, position + turn)
        took.append(time.thread_time() - begin)
    return statistics.median(took)


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain data. part: of a step; most: what it may be, or null."""
    timed = decode(options)
    step = statistics.median(timed.seconds)
    ways = []
    for way, (given, most) in WAYS.items():
        for name, logprobs in LOGPROBS.items():
            took = seconds_of(timed.rows, {**given, "logprobs": logprobs}, options.prompt, options.rounds)
            aim = most if logprobs is None else None
            ways.append({"name": way + name, "ms": 1000 * took, "part": took / step, "most": aim})
    streams, vocab = timed.rows.shape
    return {
        "model": options.model.name,
        "threads": options.threads,
        "cpu": cpu_model(),
        "streams": streams,
        "vocabulary": vocab,
        "step_ms": 1000 * step,
        "ways": ways,
    }


def arguments() -> argparse.Namespace:
    counts = {
        "threads": (os.cpu_count() or 1, 1, "for the step (default: all cores)"),
        "streams": (16, 1, "at the same time (default: 16)"),
        "steps": (32, 1, "decode steps that are timed, at least (default: 32)"),
        "rounds": (9, 1, "times that the rows' tokens are chosen (default: 9)"),
        "prompt": (100, 1, "tokens before the reply (default: 100)"),
    }
    return read_arguments("Time choosing tokens as a part of the step that computes their logits.", counts)


def main() -> None:
    options = arguments()
    found = compare(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    ways = found.pop("ways")
    print(", ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in found.items()))
    for way in ways:
        aim = "" if way["most"] is None else f"  (aim: below {way['most']})"
        print(f"{way['name']:66} {way['ms']:8.2f} ms  {way['part']:6.3f} of a step{aim}")


if __name__ == "__main__":
    main()
