"""How fast many requests run together that arrive at once, over numbers of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tensorsharp.errors import BackendError, ConfigError
from tensorsharp_app_cli import benchtext

if TYPE_CHECKING:
    from tensorsharp.llm import LLM
    from tensorsharp.types import Finished

WARM = 32


@dataclass(frozen=True, slots=True)
class Streams:
    """counts: how many requests run together, one measurement each. shared: tokens that their prompts begin with in common.
    own: tokens of each prompt after those. written: tokens of each reply. text: what the prompts are cut from; None: a
    generated text."""

    counts: tuple[int, ...]
    shared: int
    own: int
    written: int
    text: str | None

    @property
    def context(self) -> int:
        """Positions of a request."""
        return self.shared + self.own + self.written


@dataclass(frozen=True, slots=True)
class StreamRow:
    """What was measured with `streams` requests that arrive together.

    prompt_tokens, cached_tokens, gen_tokens: of all of them; cached: not computed, as another one had. wall_s: from the
    first submission to the last end. total_tps: gen_tokens over that. stream_tps: median rate of a reply after its first
    token. ttft_s: median time from submission to the first token.
    """

    streams: int
    prompt_tokens: int
    cached_tokens: int
    gen_tokens: int
    wall_s: float
    total_tps: float
    stream_tps: float
    ttft_s: float

    def csv(self) -> str:
        return ",".join(f"{value:.3f}" if isinstance(value, float) else str(value) for value in astuple(self))

    def data(self) -> dict[str, Any]:
        return asdict(self)


def read_counts(text: str) -> tuple[int, ...]:
    """The numbers of `1,4,8`. ConfigError if it is none."""
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or max(counts) > 1024:
        raise ConfigError(f"--concurrency is '{text}'; expected whole numbers from 1 to 1024 with commas between them.")
    return counts


def measure_streams(llm: LLM, asked: Streams, tell: Callable[[str], None]) -> Iterator[StreamRow]:
    """One row a count, as soon as it is measured. `tell` hears what is being done. ConfigError if the text is too short."""
    prompts = _prompts(llm, asked, max(asked.counts))
    tell("warming up")
    _run(llm, [prompts[0][:WARM]], 2, "warm")
    for number, count in enumerate(asked.counts):
        tell(f"running {count} requests of {asked.shared + asked.own} and {asked.written} tokens")
        began = time.perf_counter()
        ended = _run(llm, prompts[:count], asked.written, f"measurement {number}")
        yield _row(ended, time.perf_counter() - began)


def _prompts(llm: LLM, asked: Streams, count: int) -> list[list[int]]:
    """Prompts with the same beginning that go on differently."""
    needed = asked.shared + count * asked.own
    if asked.text is None:
        ids = benchtext.tokens(llm.tokenizer, needed).tolist()
    else:
        ids = llm.tokenize(asked.text)
        if len(ids) < needed:
            raise ConfigError(f"--prompt-file has {len(ids)} tokens; {count} requests need {needed}.", hint="Give a longer text.")
    shared, rest = ids[: asked.shared], ids[asked.shared :]
    return [shared + rest[i * asked.own : (i + 1) * asked.own] for i in range(count)]


def _run(llm: LLM, prompts: Sequence[list[int]], written: int, scope: str) -> list[Finished]:
    """Submit all, wait for all. scope: so that nothing is found from the measurement before."""
    params = {"max_tokens": written, "ignore_eos": True, "temperature": 0.0, "cache_scope": scope}
    handles = [llm.submit(ids, params)[0] for ids in prompts]
    ended = [handle.result() for handle in handles]
    for finished in ended:
        if finished.error is not None:
            raise BackendError(finished.error)
    return ended


def _row(ended: Sequence[Finished], wall_s: float) -> StreamRow:
    written = sum(f.usage.completion for f in ended)
    return StreamRow(
        streams=len(ended),
        prompt_tokens=sum(f.usage.prompt for f in ended),
        cached_tokens=sum(f.usage.cached for f in ended),
        gen_tokens=written,
        wall_s=wall_s,
        total_tps=written / wall_s,
        stream_tps=median(f.timings.decode_tps for f in ended),
        ttft_s=median(f.timings.queue_s + f.timings.prefill_s for f in ended),
    )
