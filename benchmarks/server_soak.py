"""A server under many streaming clients, of which some leave: no error but theirs, no reply changes, nothing leaks.

    python benchmarks/server_soak.py MODEL [--minutes N] [--seed N] [--clients N] [--json]

`tensorsharp serve` runs in a process of its own. Every client asks for one of a few conversations, again and again, over
OpenAI's chat completions; what each gives alone was asked for before. One in five leaves: as soon as the request is sent,
which for most of them is while it waits; before the first token; in the middle, by closing, by a reset, or by closing only
its own half. At the end nothing may run, wait or hold a block, the server has to have said nothing on stderr, and its memory
has to be flat.

Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from tests.e2e.served import Command, serving

from benchmarks.arguments import CHAT_MODEL, model_parser, read_options
from benchmarks.compare import cpu_model
from benchmarks.concurrency import Prompts
from benchmarks.memory import FLAT_MIB_MIN, Memory

PATIENCE_S = 300
"""Longest wait for one piece of a reply: with all clients, and the machine shared with others."""
SETTLE_S = 30
LEAVES = 0.2
RAM = "16M"
LONG_GONE = struct.pack("ii", 1, 0)
"""Linger for no time: closing is a reset."""
CHAT = "/v1/chat/completions"
Leaving = Literal["sent", "told", "middle", "reset", "half"]
WAYS: tuple[Leaving, ...] = ("sent", "told", "middle", "reset", "half")


class WrongError(Exception):
    """Something that must not happen."""


@dataclass(frozen=True, slots=True)
class Said:
    """A conversation, and the reply to it."""

    body: dict[str, Any]
    content: str
    finish: str


class Soak:
    """Clients of one server. counts: how many requests survived, or left in which way. wrong: sentences."""

    def __init__(self, url: str) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.asked: list[Said] = []
        self._address = urlsplit(url).netloc

    def prepare(self, bodies: list[dict[str, Any]]) -> None:
        """Ask for every reply alone."""
        for body in bodies:
            with closing(self._link()) as link:
                choice = json.loads(_answer(link, body).read())["choices"][0]
            self.asked.append(Said(body, choice["message"]["content"], choice["finish_reason"]))

    def run(self, clients: int, seconds: float, seed: int) -> None:
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as threads:
            for number in range(clients):
                threads.submit(self._client, random.Random(f"{seed} {number}"), until)

    def stats(self) -> dict[str, Any]:
        """What the server holds for its model."""
        with closing(self._link()) as link:
            link.request("GET", "/stats")
            found: dict[str, Any] = json.loads(link.getresponse().read())["models"][0]
            return found

    def settled(self) -> dict[str, Any]:
        """The same, once nothing is held any more; what is held after a while is wrong."""
        until = time.monotonic() + SETTLE_S
        while (held := _held(self.stats())) and time.monotonic() < until:
            time.sleep(0.1)
        if held:
            self.wrong.append(f"held at the end: {held}")
        return self.stats()

    def _client(self, draw: random.Random, until: float) -> None:
        while time.monotonic() < until:
            said = draw.choice(self.asked)
            way = draw.choice(WAYS) if draw.random() < LEAVES else None
            try:
                self._once(said, way, draw.randint(1, 8))
            except Exception as error:  # whatever it is, the run goes on and tells it
                self.wrong.append(f"{way or 'survivor'} of {said.body}: {type(error).__name__}: {error}")
            self.counts[way or "survived"] += 1

    def _once(self, said: Said, way: Leaving | None, pieces: int) -> None:
        with closing(self._link()) as link:
            body = said.body | {"stream": True}
            if way == "sent":
                link.request("POST", CHAT, json.dumps(body))
                return
            response = _answer(link, body)
            if way is None:
                _check(said, list(_events(response)))
            else:
                _leave(link, response, way, pieces)

    def _link(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self._address, timeout=PATIENCE_S)


def _answer(link: http.client.HTTPConnection, body: dict[str, Any]) -> http.client.HTTPResponse:
    link.request("POST", CHAT, json.dumps(body))
    response = link.getresponse()
    if response.status != http.HTTPStatus.OK:
        raise WrongError(f"status {response.status}: {response.read()[:500]!r}")
    return response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """All events of a stream that ends as it should."""
    for line in response:
        if line == b"data: [DONE]\n":
            return
        if line.startswith(b"data: "):
            found = json.loads(line.removeprefix(b"data: "))
            if "error" in found:
                raise WrongError(str(found))
            yield found
    raise WrongError("the stream ends without [DONE]")


def _check(said: Said, events: list[dict[str, Any]]) -> None:
    choices = [choice for one in events for choice in one["choices"]]
    content = "".join(choice["delta"].get("content", "") for choice in choices)
    finish = choices[-1]["finish_reason"]
    if (content, finish) != (said.content, said.finish):
        raise WrongError(f"{content!r} ({finish}) instead of {said.content!r} ({said.finish})")


def _leave(link: http.client.HTTPConnection, response: http.client.HTTPResponse, way: Leaving, pieces: int) -> None:
    """Read some events, the first of which comes before any token, and be gone when this returns."""
    for number, _ in enumerate(_events(response)):
        if way == "told" or number == pieces:
            break
    if way == "half":
        link.sock.shutdown(socket.SHUT_WR)
        with suppress(http.client.IncompleteRead):  # that is how it ends, once the server has noticed
            response.read()
    elif way == "reset":
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LONG_GONE)
        response.close()


def _held(stats: dict[str, Any]) -> dict[str, Any]:
    """What somebody runs, waits for or holds."""
    blocks = {group: used for group, (used, _) in stats["engine"]["blocks"].items() if used}
    facts = {"running": stats["running"], "waiting": stats["waiting"], "users": stats["users"], "blocks": blocks}
    return {name: value for name, value in facts.items() if value}


def conversations(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Requests with beginnings in common. The whole of each fits into the context, whatever the tokens are."""
    draw, texts = random.Random(options.seed), Prompts(options.seed)
    letters = options.context // 4
    systems = [texts.text(letters)[: draw.randint(1, letters)] for _ in range(4)]
    found = []
    for _ in range(options.distinct):
        user = texts.text(letters)[: draw.randint(1, letters)]
        body: dict[str, Any] = {
            "messages": [{"role": "system", "content": draw.choice(systems)}, {"role": "user", "content": user}],
            "max_tokens": draw.randint(1, options.context // 12),
            "temperature": draw.choice((0, 0.8)),
            "seed": draw.randrange(1 << 31),
        }
        found.append(body | ({"regex": "([a-z]{1,9} ){2,20}"} if draw.random() < 0.1 else {}))
    return found


def flags(options: argparse.Namespace) -> list[str]:
    """Small steps, so that there are many of them, and a little below the pool."""
    sizes = {"ctx-size": options.context, "parallel": options.parallel, "queue": options.clients, "step-tokens": 128}
    sizes |= {"busy-tokens": 64} | ({} if options.threads is None else {"threads": options.threads})
    return [*(f"--{name}={value}" for name, value in sizes.items()), f"--kv-ram={RAM}"]


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as plain data."""
    life = 60 * (options.warm + options.minutes) + 3600
    with tempfile.TemporaryFile("w+") as log, serving(options.model, *flags(options), log=log, within=life) as server:
        run = Soak(server.url)
        run.prepare(conversations(options))
        run.run(options.clients, 60 * options.warm, options.seed + 1)
        with Memory(server.process.pid) as memory:
            run.run(options.clients, 60 * options.minutes, options.seed)
        stats = run.settled()
        _ended(run, server)
        log.seek(0)
        if told := log.read():
            run.wrong.append(f"the server told: {told}")
    if memory.slope is not None and memory.slope > FLAT_MIB_MIN:
        run.wrong.append(f"memory grows by {memory.slope:.2f} MiB a minute")
    return {
        "model": options.model.name,
        "cpu": cpu_model(),
        "minutes": options.minutes,
        "clients": options.clients,
        "counts": dict(run.counts),
        "requests": stats["engine"]["requests"],
        "tokens": stats["engine"]["tokens_generated"],
        "memory": memory.report(),
        "wrong": run.wrong,
    }


def _ended(run: Soak, server: Command) -> None:
    code = server.end()
    if code != 0:
        run.wrong.append(f"the server ended with exit code {code}")


def arguments() -> argparse.Namespace:
    counts = {
        "seed": (0, 0, "of the traffic (default: 0)"),
        "clients": (64, 1, "at a time, and length of the queue (default: 64)"),
        "distinct": (64, 1, "conversations, each asked for alone before (default: 64)"),
        "parallel": (16, 1, "sequences at a time (default: 16)"),
        "context": (512, 64, "tokens of one request (default: 512)"),
        "threads": (None, 1, "of the backend (default: all cores)"),
    }
    parser = model_parser(
        "Many streaming clients, some of which leave: nothing leaks, no reply changes.", counts, model=CHAT_MODEL
    )
    parser.add_argument("--minutes", type=float, default=3.0, metavar="N", help="of traffic (default: 3)")
    parser.add_argument("--warm", type=float, default=3.0, metavar="N", help="minutes before that (default: 3)")
    return read_options(parser, counts)


def main() -> None:
    options = arguments()
    found = soak(options)
    print(json.dumps(found, indent=2) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
