"""This engine against llama.cpp: the same file, the same threads, turn by turn, medians, ratios.

    python benchmarks/vs_llama_cpp.py MODEL [--threads N] [--rounds N] [--native DIR] [--json]

llama.cpp is the library of the `xllamacpp` wheel and, with --native, the one in DIR as well (for example the lib folder
of a compiled llama-cpp-python). A ratio above 1 says that we are better. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.compare import TEXT, Measure, Worker, cpu_model, environment, table

SHORT_PROMPT = "Why is the sky blue?"
TEXT_LETTERS = 2000
CONTEXT = 2304
"""Room for the longest decode measurement, for both sides."""


@dataclass(frozen=True, slots=True)
class Side:
    """name: heading of its column. side: what benchmarks.contender calls it. library: folder of another llama.cpp."""

    name: str
    side: str
    library: Path | None = None

    def command(self, options: argparse.Namespace) -> list[str]:
        own = [] if self.library is None else ["--library", str(self.library)]
        shared = ["--threads", str(options.threads), "--context", str(CONTEXT)]
        return [sys.executable, "-m", "benchmarks.contender", self.side, str(options.model), *shared, *own]

    def reply_command(self, options: argparse.Namespace, tokens: int) -> list[str]:
        """A whole process that answers the prompt on stdin."""
        if self.side != "ours":
            return [*self.command(options), "--reply", str(tokens)]
        flags = ["--raw", "--temp", "0", "--threads", str(options.threads), "--ctx-size", str(CONTEXT), "-n", str(tokens)]
        return [sys.executable, "-m", "tensorsharp", "run", str(options.model), *flags]


def throughput(options: argparse.Namespace, sides: list[Side]) -> tuple[list[Measure], dict[str, Any]]:
    """Prefill and decode, in processes that stay loaded; one uncounted round first."""
    decodes = {at: Measure(f"decode at {at:,}", "tok/s", higher=True) for at in options.decode_at}
    prefill = Measure(f"prefill of {options.prefill}", "tok/s", higher=True)
    with ExitStack() as stack:
        workers = [stack.enter_context(Worker(side.name, side.command(options))) for side in sides]
        facts = {w.name: w.ask("facts") for w in workers}
        for turn in range(-1, options.rounds):
            for worker in workers:
                seconds = worker.ask("prefill", tokens=options.prefill, seed=10 * turn + 20)
                if turn >= 0:
                    prefill.add(worker.name, options.prefill / seconds)
            for nth, (at, measure) in enumerate(decodes.items(), start=1):
                for worker in workers:
                    seconds = worker.ask("decode", at=at, tokens=options.decode_tokens, seed=10 * turn + 20 + nth)
                    if turn >= 0:
                        measure.add(worker.name, options.decode_tokens / seconds)
        facts |= {w.name: w.ask("facts") for w in workers}
    return [*decodes.values(), prefill], facts


def whole_process(command: list[str], prompt: str) -> tuple[float, float | None]:
    """Run to the end: seconds from the start to the first byte of the answer, and peak memory in MiB where known."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), bufsize=0)
    if process.stdin is None or process.stdout is None:
        raise RuntimeError("the process was started without pipes")
    process.stdin.write(prompt.encode())
    process.stdin.close()
    first = process.stdout.read(1)
    seconds = time.perf_counter() - begin
    process.stdout.read()
    process.stdout.close()
    code, peak = _ended(process)
    if code or not first:
        raise SystemExit(f"{' '.join(command)} ended with exit code {code} and {'an' if first else 'no'} answer.")
    return seconds, peak


def _ended(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    """Exit code and peak memory in MiB; None where the system has no wait4."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes on macOS, KiB elsewhere
    return process.returncode, usage.ru_maxrss * unit / 2**20


def processes(options: argparse.Namespace, sides: list[Side]) -> list[Measure]:
    """First token and peak memory, over whole processes; one uncounted round fills caches."""
    start = Measure("start to first token", "s", higher=False)
    peak = Measure(f"peak memory, {options.decode_tokens} tokens after a text", "MiB", higher=False)
    text = TEXT.read_text("utf-8")[:TEXT_LETTERS]
    for turn in range(-1, options.rounds):
        for side in sides:
            seconds, _ = whole_process(side.reply_command(options, 1), SHORT_PROMPT)
            _, memory = whole_process(side.reply_command(options, options.decode_tokens), text)
            if turn >= 0:
                start.add(side.name, seconds)
                if memory is not None:
                    peak.add(side.name, memory)
    return [start, peak] if peak.samples else [start]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare with llama.cpp: speed, start and memory, as ratios.")
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="for every side (default: all cores)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: 5)")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of the prompt that is timed (default: 512)")
    parser.add_argument("--decode-at", type=int, nargs="+", default=[128, 2000], help="lengths of context (default: 128 2000)")
    parser.add_argument("--decode-tokens", type=int, default=64, help="tokens that are timed (default: 64)")
    parser.add_argument("--native", type=Path, metavar="DIR", help="folder of a natively compiled libllama, as a further peer")
    parser.add_argument("--json", action="store_true", help="print one object with every sample")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: expected at least 1")
    if max(options.prefill, *options.decode_at) + options.decode_tokens + 1 > CONTEXT:
        parser.error(f"the context of {CONTEXT} tokens has no room for this")
    if not options.model.is_file():
        parser.error(f"{options.model} is not a file")
    return options


def main() -> None:
    options = arguments()
    sides = [Side("ours", "ours"), Side("llama.cpp", "llamacpp")]
    if options.native is not None:
        sides.append(Side("native", "llamacpp", options.native.resolve()))
    measures, facts = throughput(options, sides)
    measures += processes(options, sides)
    setup = {"model": options.model.name, "threads": options.threads, "cpu": cpu_model(), "rounds": options.rounds}
    if options.json:
        print(json.dumps({**setup, "sides": facts, "measures": [m.row() for m in measures]}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in setup.items()))
    for name, fact in facts.items():
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in fact.items()))
    print(table(measures, [side.name for side in sides]))


if __name__ == "__main__":
    main()
