"""An engine under random traffic for minutes: nothing may leak, no reply may change, memory has to stay flat.

    python benchmarks/soak.py MODEL [--minutes N] [--seed N] [--clients N] [--parallel N] [--blocks N] [--json]

Requests come at random, some together with the same beginning, some after an earlier reply. Most are read to the end, by
asyncio or by threads; the others are cancelled, dropped, cancelled with their task, or given too little time. The pool is
too small for all, so requests are preempted. Half of the time is without anything below the pool, half of it with tiers that
are too small and with checkpoints. Memory is sampled from when the backend has seen most shapes of steps, for each of which
it keeps something. At the end of each half nothing may be held, the books have to balance, and a sample of the replies has
to be what the same request gives alone, in an engine that finds nothing: whole ones `==`, those cut short a prefix.

Exit code 1 if anything is wrong. Traffic depends on the seed, and on how fast the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script's path is its own folder
from benchmarks.arguments import model_parser, read_options
from benchmarks.compare import cpu_model
from benchmarks.concurrency import Prompts
from benchmarks.memory import FLAT_MIB_MIN, Memory
from tensorsharp.engine.engine import EngineStats
from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.prefix import Link
from tensorsharp.engine.sequence import Sequence
from tensorsharp.engine.sizing import plan_state
from tensorsharp.errors import CapacityError
from tensorsharp.generation import Generation, Reply
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.protocols.backend import StateSizes
from tensorsharp.types import Constraint

STEP = 128
"""Rows of a step: few, so that there are many steps, and the graphs that a backend keeps for their shapes are soon all there."""
DRAIN_S = 120.0
PREFIXES = 6
WORDS = Constraint("regex", "[A-Z]?[a-z]+( [a-z]+){2,20}[.]")
Ending = Literal["read", "thread", "cancel", "drop", "task", "timeout"]
ENDINGS: dict[Ending, int] = {"read": 8, "thread": 4, "cancel": 2, "drop": 2, "task": 2, "timeout": 1}
"""What clients do, and how often."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One request. pieces: how many its client reads before it leaves; seconds: how long a task waits, or a request may take."""

    prompt: tuple[int, ...]
    params: dict[str, Any]
    ending: Ending
    pieces: int
    seconds: float


class Planner:
    """Draws requests of up to `context` tokens. Prompts have beginnings in common, which change over time."""

    def __init__(self, llm: LLM, seed: int, context: int) -> None:
        self.draw = random.Random(seed)
        self._llm = llm
        self._texts = Prompts(seed)
        self._context = context
        self._prefixes = [self._ids(context // 2) for _ in range(PREFIXES)]

    def _ids(self, most: int) -> tuple[int, ...]:
        """1 to `most` tokens of text that is new to every cache."""
        return tuple(self._llm.tokenize(self._texts.text(most))[: self.draw.randint(1, most)])

    def burst(self) -> list[Plan]:
        """Requests that arrive together: one, or a few with the same beginning."""
        number = self.draw.randrange(PREFIXES)
        if self.draw.random() < 0.1:
            self._prefixes[number] = self._ids(self._context // 2)
        return [self._plan(self._prefixes[number]) for _ in range(self.draw.choice((1, 1, 1, 2, 5)))]

    def further(self, said: tuple[int, ...]) -> None:
        """Later requests may go on after a reply."""
        if len(said) < 3 * self._context // 4:
            self._prefixes[self.draw.randrange(PREFIXES)] = said

    def _plan(self, prefix: tuple[int, ...]) -> Plan:
        draw = self.draw
        params: dict[str, Any] = {
            "max_tokens": draw.randint(1, self._context // 16),
            "seed": draw.randrange(1 << 31),
            "priority": draw.choice((0, 0, 1)),
            "temperature": draw.choice((0.0, 0.8, 1.2)),
        }
        if draw.random() < 0.2:
            params["logprobs"] = draw.randint(0, 3)
        if draw.random() < 0.2:
            params["stop"] = (draw.choice((".", "\n", "the")),)
        if draw.random() < 0.1:
            params["constraint"] = WORDS
        (ending,) = draw.choices(list(ENDINGS), list(ENDINGS.values()))
        seconds = draw.uniform(0.0, 2.0)
        if ending == "timeout":
            params["timeout_s"] = seconds
        own = self._ids(self._context // 16)
        return Plan(prefix + own, params, ending, draw.choice((0, 1, 5)), seconds)


class Traffic:
    """Clients of one engine. sample: what some of them got, so many that every reply of the run is as likely to be in it.

    started: requests that were taken, evaluations aside. refused: those that found the queue full.
    """

    def __init__(self, llm: LLM, planner: Planner, *, clients: int, sample: int) -> None:
        self.started = self.refused = 0
        self.sample: list[tuple[Plan, Reply]] = []
        self._llm = llm
        self._planner = planner
        self._clients = clients
        self._most = sample
        self._seen = 0

    async def run(self, seconds: float) -> None:
        """Traffic for so long, and until all clients have left."""
        until = time.monotonic() + seconds
        room = asyncio.Semaphore(self._clients)
        async with asyncio.TaskGroup() as clients:
            while time.monotonic() < until:
                for plan in self._planner.burst():
                    await room.acquire()
                    clients.create_task(self._client(plan)).add_done_callback(lambda _: room.release())
                await asyncio.sleep(self._planner.draw.expovariate(20))

    async def _client(self, plan: Plan) -> None:
        try:
            running = self._llm.stream_ids(plan.prompt, **plan.params)
        except CapacityError:
            self.refused += 1
            return
        self.started += 1
        reply = await self._read(running, plan)
        if reply is not None:
            self._planner.further(plan.prompt + reply.token_ids)
            self._keep(plan, reply)

    async def _read(self, running: Generation, plan: Plan) -> Reply | None:
        if plan.ending == "thread":
            return await asyncio.to_thread(running.result)
        if plan.ending == "task":
            try:
                async with asyncio.timeout(plan.seconds):
                    return await running.wait()
            except TimeoutError:
                return None
        if plan.ending in ("cancel", "drop"):
            await _pieces(running, plan.pieces)
            if plan.ending == "drop":
                return None
            running.cancel()
        return await running.wait()

    def _keep(self, plan: Plan, reply: Reply) -> None:
        """Reservoir sampling (Vitter 1985, algorithm R)."""
        self._seen += 1
        place = len(self.sample) if len(self.sample) < self._most else self._planner.draw.randrange(self._seen)
        if place < self._most:
            self.sample[place : place + 1] = [(plan, reply)]


async def _pieces(running: Generation, count: int) -> None:
    for _ in range(count):
        if await anext(running, None) is None:
            return


@contextmanager
def small_pool(blocks: int) -> Iterator[None]:
    """Engines that are made meanwhile have so many blocks that keep everything."""

    def plan(*args: Any, **options: Any) -> StateSizes:
        sizes = plan_state(*args, **options)
        return replace(sizes, blocks={group: blocks if group is None else n for group, n in sizes.blocks.items()})

    with mock.patch("tensorsharp.starting.plan_state", plan):
        yield


def phase(options: argparse.Namespace, seed: int, below: dict[str, Any]) -> dict[str, Any]:
    """Traffic over one engine, as plain data. below: what it keeps below its pool, as arguments of `load`. wrong: sentences."""
    room = {
        "parallel": options.parallel,
        "queue": options.clients,
        "step_tokens": STEP,
        "busy_tokens": STEP // 2,
        "chunk_tokens": STEP,
    }
    with small_pool(options.blocks), _engine(options, **room, **below) as llm:
        planner = Planner(llm, seed, options.context)
        traffic = Traffic(llm, planner, clients=options.clients + 4, sample=options.verify)
        asyncio.run(traffic.run(60 * options.warm))
        with Memory() as memory:
            asyncio.run(traffic.run(60 * options.minutes / 2))
        wrong = left_over(llm)
        stats = llm.stats()
    if sum(stats.requests.values()) != traffic.started:
        wrong.append(f"{traffic.started} requests were started, {dict(stats.requests)} ended")
    if memory.slope is not None and memory.slope > FLAT_MIB_MIN:
        wrong.append(f"memory grows by {memory.slope:.2f} MiB a minute")
    wrong += differing(options, traffic.sample)
    return {
        "below": sorted(below),
        "requests": dict(stats.requests),
        "refused": traffic.refused,
        "tokens": stats.tokens_generated,
        "reused": stats.tokens_reused,
        "preemptions": stats.preemptions,
        "tier_hits": {name: tier.hits for name, tier in stats.tiers.items()},
        "verified": len(traffic.sample),
        "memory": memory.report(),
        "wrong": wrong,
    }


def left_over(llm: LLM) -> list[str]:
    """What is still there after the last request, in sentences."""
    found = []
    if not llm.engine.drain(DRAIN_S):
        found.append(f"requests did not end: {llm.engine.requests()}")
        return found
    try:
        llm.engine.check_idle()
    except RuntimeError as error:
        found.append(str(error))
    gc.collect()
    living = Counter(type(one) for one in gc.get_objects())
    for kind in (RequestHandle, Sequence, Generation):
        if living[kind]:
            found.append(f"{living[kind]} objects of type {kind.__name__} are left")
    if living[Link] > named(llm.stats(), llm.engine.limit):
        found.append(f"{living[Link]} links are left")
    return found


def named(stats: EngineStats, limit: int) -> int:
    """Most links that cached blocks can hold: each that of its own and those of all before it, and the roots."""
    return sum(stats.cached.values()) * (limit // 32 + 1)


def differing(options: argparse.Namespace, sample: list[tuple[Plan, Reply]]) -> list[str]:
    """The replies that the same requests do not give alone, in sentences."""
    found = []
    with _engine(options, parallel=1) as llm:
        for number, (plan, reply) in enumerate(sample):
            params = {name: value for name, value in plan.params.items() if name not in ("timeout_s", "priority")}
            alone = llm.stream_ids(plan.prompt, cache_scope=str(number), **params).result()
            if not _agree(reply, alone):
                found.append(f"{plan} gave {reply}, and alone {alone}")
    return found


def _agree(reply: Reply, alone: Reply) -> bool:
    if reply.finish_reason in ("cancelled", "timeout"):
        return reply.token_ids == alone.token_ids[: len(reply.token_ids)]
    return all(
        getattr(reply, name) == getattr(alone, name) for name in ("token_ids", "text", "finish_reason", "logprobs", "stop")
    )


def _engine(options: argparse.Namespace, **how: Any) -> LLM:
    return load(options.model, ctx_size=options.context, threads=options.threads, **how)


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Both halves, as plain data."""
    with tempfile.TemporaryDirectory() as folder:
        below = {
            "kv_codec": "zstd",
            "kv_ram": options.ram,
            "kv_ssd": f"{folder}/ssd:{options.ssd}",
            "checkpoints": f"{folder}/checkpoints",
        }
        phases = [phase(options, options.seed, {}), phase(options, options.seed + 1, below)]
    return {"model": options.model.name, "cpu": cpu_model(), "minutes": options.minutes, "seed": options.seed, "phases": phases}


def arguments() -> argparse.Namespace:
    counts = {
        "seed": (0, 0, "of the traffic (default: 0)"),
        "clients": (12, 1, "requests at a time, and length of the queue (default: 12)"),
        "parallel": (8, 1, "sequences at a time (default: 8)"),
        "context": (1024, 64, "tokens of one request (default: 1024)"),
        "blocks": (36, 1, "of the pool (default: 36)"),
        "ram": (12 << 20, 1, "bytes of host memory, a few blocks of a small model (default: 12 MiB)"),
        "ssd": (48 << 20, 1, "bytes of files (default: 48 MiB)"),
        "verify": (40, 1, "replies of each half that are asked for again, alone (default: 40)"),
        "threads": (None, 1, "of the backend (default: all cores)"),
    }
    parser = model_parser("Random traffic for minutes: nothing leaks, no reply changes.", counts)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="of traffic, in two halves (default: 10)")
    parser.add_argument("--warm", type=float, default=2.0, metavar="N", help="minutes before each half (default: 2)")
    options = read_options(parser, counts)
    if options.blocks * 32 < options.context:
        parser.error("--blocks: expected room for at least one whole context, in blocks of 32 tokens")
    return options


def main() -> None:
    options = arguments()
    found = soak(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for half in found["phases"]:
            print("\n".join(f"{name}: {value}" for name, value in half.items()), end="\n\n")
    sys.exit(any(half["wrong"] for half in found["phases"]))


if __name__ == "__main__":
    main()
