"""One side of the comparison of many streams at once, in a process of its own that takes commands as `contender` does.

    python -m benchmarks.streams ours|llamacpp MODEL --slots N --threads N --context N

llama.cpp is its own server, with streaming clients over HTTP on 127.0.0.1; ours is the library with as many threads that
read. Both get text, choose the likeliest token and go on after end tokens.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Barrier
from typing import Any, Protocol

from benchmarks.contender import serve

ADDRESS = "127.0.0.1"
PATIENCE_S = 600
"""Longest wait for one reply, or for one piece of it."""
PIECE_BYTES = 1 << 16
NO_TEXT = "the reply has no text, so nothing says when its first token came; ask for longer replies"


@dataclass(frozen=True, slots=True)
class Stream:
    """One reply. first, last: when its first text came and when it was complete, on the clock of `time.perf_counter`.

    prompt, cached, tokens: tokens of the prompt, how many of them were not computed again, and tokens of the reply.
    """

    first: float
    last: float
    prompt: int
    cached: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Wave:
    """Replies that were asked for at the same moment; times are seconds from then on.

    first_s: median time to the first text. wall_s: to the end of the last reply. rate: tokens a second of one stream,
    after its first text (median). prompt, cached, tokens: sums.
    """

    first_s: float
    wall_s: float
    rate: float
    prompt: int
    cached: int
    tokens: int


class Side(Protocol):
    def facts(self) -> dict[str, Any]: ...

    def stream(self, prompt: str, tokens: int) -> Stream:
        """A reply of so many tokens, read while it is made. Called by several threads at once."""
        ...


class Waves:
    """The commands of a side."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def facts(self) -> dict[str, Any]:
        return self._side.facts()

    def wave(self, prompts: list[str], tokens: int) -> dict[str, Any]:
        """A :class:`Wave`, as plain data."""
        ready = Barrier(len(prompts) + 1, timeout=PATIENCE_S)

        def ask(prompt: str) -> Stream:
            ready.wait()
            return self._side.stream(prompt, tokens)

        with ThreadPoolExecutor(len(prompts)) as readers:
            asked = [readers.submit(ask, prompt) for prompt in prompts]
            begin = time.perf_counter()
            ready.wait()
            streams = [one.result() for one in asked]
        for stream in streams:
            if stream.tokens != tokens:
                raise RuntimeError(f"{stream.tokens} tokens instead of {tokens}")
        wave = Wave(
            first_s=statistics.median(s.first for s in streams) - begin,
            wall_s=max(s.last for s in streams) - begin,
            rate=statistics.median((s.tokens - 1) / (s.last - s.first) for s in streams),
            prompt=sum(s.prompt for s in streams),
            cached=sum(s.cached for s in streams),
            tokens=sum(s.tokens for s in streams),
        )
        return asdict(wave)


class Ours:
    def __init__(self, options: argparse.Namespace) -> None:
        import tensorsharp as ts

        self._version = ts.__version__
        self._llm = ts.load(options.model, parallel=options.slots, threads=options.threads, ctx_size=options.context)
        self._slots = options.slots

    def facts(self) -> dict[str, Any]:
        report = self._llm.report()
        own = {k: report[k] for k in ("threads", "context", "arithmetic_id", "bitwise", "fallbacks")}
        return {"version": self._version, "slots": self._slots, **own}

    def stream(self, prompt: str, tokens: int) -> Stream:
        reply = self._llm.stream(
            prompt, raw=True, max_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True, timeout_s=float(PATIENCE_S)
        )
        times = [time.perf_counter() for _ in reply]
        last = time.perf_counter()
        usage = reply.result().usage
        if not times:
            raise RuntimeError(NO_TEXT)
        return Stream(times[0], last, usage.prompt, usage.cached, usage.completion)


class Peer:
    """llama.cpp's server at its best: flash attention, half-precision cache, a whole context for every slot; the rest,
    continuous batching and the prompt cache among it, as it is by default."""

    def __init__(self, options: argparse.Namespace) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(options.model)
        params.n_parallel = options.slots
        params.n_ctx = options.slots * options.context
        params.cpuparams.n_threads = options.threads
        params.cpuparams_batch.n_threads = options.threads
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F16
        params.hostnames = [ADDRESS]
        params.verbosity = 1  # errors only
        self._version = f"xllamacpp {xllamacpp.__version__}"
        self._threads = options.threads
        self._server = xllamacpp.Server(params)
        self._port = int(self._server.listening_address.rsplit(":", 1)[1])

    def facts(self) -> dict[str, Any]:
        link = self._ask("GET", "/props")
        props = json.loads(link.getresponse().read())
        link.close()
        context = props["default_generation_settings"]["n_ctx"]
        return {"version": self._version, "slots": props["total_slots"], "threads": self._threads, "context": context}

    def stream(self, prompt: str, tokens: int) -> Stream:
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        link = self._ask("POST", "/completion", json.dumps(asked))
        pieces, times = _read(link.getresponse())
        link.close()
        end = _last_event(pieces)
        return Stream(times[0], times[-1], end["tokens_evaluated"], end["timings"]["cache_n"], end["tokens_predicted"])

    def _ask(self, method: str, path: str, body: str | None = None) -> http.client.HTTPConnection:
        link = http.client.HTTPConnection(ADDRESS, self._port, timeout=PATIENCE_S)
        link.request(method, path, body, {"Content-Type": "application/json"})
        return link


def _read(response: http.client.HTTPResponse) -> tuple[bytes, list[float]]:
    """All bytes of a stream, and when each piece with an event came. They are looked at afterwards, so that reading
    costs the server next to nothing of the processor."""
    if response.status != http.HTTPStatus.OK:
        raise RuntimeError(f"the server answered {response.status}: {response.read().decode()}")
    pieces: list[bytes] = []
    times: list[float] = []
    while piece := response.read1(PIECE_BYTES):
        if b"data: " in piece:  # not one that only keeps the connection alive
            times.append(time.perf_counter())
        pieces.append(piece)
    return b"".join(pieces), times


def _last_event(stream: bytes) -> dict[str, Any]:
    events = [line for line in stream.splitlines() if line.startswith(b"data: ")]
    last: dict[str, Any] = json.loads(events[-1].removeprefix(b"data: ")) if events else {}
    if not last.get("stop"):
        raise RuntimeError(f"the server broke off: {stream[-1000:].decode(errors='replace')}")
    if len(events) == 1:
        raise RuntimeError(NO_TEXT)
    return last


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["ours", "llamacpp"])
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    options = parser.parse_args()
    side: Side = Ours(options) if options.side == "ours" else Peer(options)
    serve(Waves(side))


if __name__ == "__main__":
    main()
