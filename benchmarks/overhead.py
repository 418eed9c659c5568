"""What the server adds to the library: the time to the first text of an answer, and the processor time of a token.

    python benchmarks/overhead.py MODEL [--streams N] [--threads N] [--rounds N] [--json]

`tensorsharp serve` and a program that embeds the library take turns with the same questions, each in a process of its own;
the server's clients are in a third one. The first text is timed from when the request is sent over a new connection;
processor time is that of the server's process alone. Medians; the first round is not counted. Run it on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from tests.e2e.served import Command, serving

from benchmarks.arguments import CHAT_MODEL, read_arguments
from benchmarks.compare import Worker, cpu_model
from benchmarks.concurrency import Prompts

MOST_MS, MOST_PART = 5.0, 0.05
"""What the first text may take longer, and the part of a token's processor time that may be added."""
PATIENCE_S = 300


class Server:
    """The server, asked over HTTP."""

    def __init__(self, command: Command) -> None:
        self._address = urlsplit(command.url).netloc
        self._process = psutil.Process(command.process.pid)

    def first(self, prompt: str) -> float:
        """Seconds from sending a question to the first piece of its answer."""
        began = time.perf_counter()
        with closing(self._link()) as link:
            response = self._ask(link, prompt, 2)
            while b'"content":"' not in (line := response.readline()) or b'"role"' in line:
                if not line:
                    raise RuntimeError("the answer has no text, so nothing says when it began")
            took = time.perf_counter() - began
            response.read()
        return took

    def streams(self, prompts: list[str], tokens: int) -> dict[str, Any]:
        """Processor seconds of the server for answers of so many tokens at the same time, and their texts."""
        before = self._process.cpu_times()
        with ThreadPoolExecutor(len(prompts)) as readers:
            bodies = list(readers.map(lambda prompt: self._body(prompt, tokens), prompts))
        after = self._process.cpu_times()
        cpu = after.user + after.system - before.user - before.system
        return {"cpu_s": cpu, "texts": [_text(body) for body in bodies]}

    def _body(self, prompt: str, tokens: int) -> bytes:
        """A whole stream, which is looked at afterwards."""
        with closing(self._link()) as link:
            return self._ask(link, prompt, tokens).read()

    def _link(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=PATIENCE_S)

    def _ask(self, link: http.client.HTTPConnection, prompt: str, tokens: int) -> http.client.HTTPResponse:
        asked = {"messages": [{"role": "user", "content": prompt}], "max_tokens": tokens, "temperature": 0, "seed": 0}
        link.request("POST", "/v1/chat/completions", json.dumps(asked | {"ignore_eos": True, "stream": True}))
        response = link.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise RuntimeError(f"the server answered {response.status}: {response.read().decode()}")
        return response


def _text(body: bytes) -> str:
    events = [json.loads(line.removeprefix(b"data: ")) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])


@dataclass(slots=True)
class Comparison:
    """Both sides take turns. Samples of first texts are milliseconds, of tokens milliseconds of processor time."""

    options: argparse.Namespace
    server: Server
    library: Worker
    first: dict[str, list[float]] = field(default_factory=lambda: {"server": [], "library": []})
    token: dict[str, list[float]] = field(default_factory=lambda: {"server": [], "library": []})

    def round(self, turn: int) -> None:
        """Some questions one by one, then many at once; what turn -1 measures is not counted."""
        o, prompts = self.options, Prompts(turn + 1)
        for number, prompt in enumerate(prompts.apart(o.firsts, o.words)):
            took = {side: 1e3 * self._first(side, prompt) for side in _order(number)}
            if turn >= 0:
                self._note(self.first, took)
        asked = prompts.apart(o.streams, o.words)
        found = {side: self._streams(side, asked) for side in _order(turn)}
        if found["server"]["texts"] != found["library"]["texts"]:
            raise SystemExit("the server's answers are not the library's")
        if turn >= 0:
            self._note(self.token, {side: 1e3 * one["cpu_s"] / (o.streams * o.tokens) for side, one in found.items()})

    def _first(self, side: str, prompt: str) -> float:
        return self.server.first(prompt) if side == "server" else self.library.ask("first", prompt=prompt)

    def _streams(self, side: str, prompts: list[str]) -> dict[str, Any]:
        if side == "server":
            return self.server.streams(prompts, self.options.tokens)
        found: dict[str, Any] = self.library.ask("streams", prompts=prompts, tokens=self.options.tokens)
        return found

    def _note(self, samples: dict[str, list[float]], found: dict[str, float]) -> None:
        for side, value in found.items():
            samples[side].append(value)


def _order(number: int) -> tuple[str, str]:
    return ("server", "library") if number % 2 else ("library", "server")


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain data. first_ms: added; token: added, as a part of what the library takes."""
    room = {"threads": options.threads, "ctx-size": options.context, "parallel": options.streams}
    flags = [f"--{name}={value}" for name, value in room.items()]
    command = [sys.executable, "-m", "benchmarks.embedded", str(options.model), "--slots", str(options.streams)]
    command += ["--threads", str(options.threads), "--context", str(options.context)]
    with Worker("library", command) as library, serving(options.model, *flags, within=3600) as server:
        facts = library.ask("facts")
        comparison = Comparison(options, Server(server), library)
        for turn in range(-1, options.rounds):
            comparison.round(turn)
    first, token = ({side: statistics.median(v) for side, v in m.items()} for m in (comparison.first, comparison.token))
    return {
        "model": options.model.name,
        "cpu": cpu_model(),
        "library": facts,
        "streams": options.streams,
        "first_ms": {**first, "added": _added(comparison.first), "most": MOST_MS},
        "token_cpu_ms": {**token, "added_part": token["server"] / token["library"] - 1, "most": MOST_PART},
        "samples": {"first_ms": comparison.first, "token_cpu_ms": comparison.token},
    }


def _added(samples: dict[str, list[float]]) -> float:
    """The median of the differences: each prompt is asked of both."""
    return statistics.median(a - b for a, b in zip(samples["server"], samples["library"], strict=True))


def arguments() -> argparse.Namespace:
    counts = {
        "threads": (os.cpu_count() or 1, 1, "of the backend (default: all cores)"),
        "streams": (16, 1, "at the same time, and slots (default: 16)"),
        "rounds": (12, 1, "counted rounds (default: 12)"),
        "firsts": (4, 1, "first texts in a round (default: 4)"),
        "words": (20, 1, "of a question (default: 20)"),
        "tokens": (64, 2, "of an answer (default: 64)"),
        "context": (512, 2, "tokens of one stream (default: 512)"),
    }
    return read_arguments(
        "Measure what the server adds to the library, in time and processor time.",
        counts,
        model=CHAT_MODEL,
        json="print one object with every sample",
    )


def main() -> None:
    options = arguments()
    found = compare(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    del found["samples"]
    print("\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
