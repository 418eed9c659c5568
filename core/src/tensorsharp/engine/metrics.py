"""What an engine counts and measures. No dependency, no lock: its own thread writes, any thread may read.

A reader may miss what is being counted at that moment, never more. Base units: seconds, tokens, rows. Clocks are monotonic.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tensorsharp.types import Finished, FinishReason

SECONDS = tuple(m * 10.0**e for e in range(-3, 3) for m in (1.0, 2.5, 5.0))
"""Upper bounds of buckets of seconds: 1 ms to 500 s."""
TOKENS = tuple(float(m * 10**e) for e in range(6) for m in (1, 2, 5))
"""Upper bounds of buckets of tokens: 1 to 500,000."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observations in buckets: counts[i] are those above bounds[i-1] and at most bounds[i], the last those above all.
    total: their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram:
    """Counts observations in fixed buckets."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


class Metrics:
    """Of one engine since its start. Evaluations (`Engine.logits`) count as computed tokens only, not as requests.

    prompt_tokens: of requests that came to their first token, those found in the cache included. queried, hits: prompt
    tokens of requests that were started, and those of them whose state was found.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.tokens_computed = 0
        self.tokens_generated = 0
        self.prompt_tokens = 0
        self.queried = 0
        self.hits = 0
        self.requests: Counter[FinishReason] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.step_s = Histogram(SECONDS)
        self.step_rows = Histogram(TOKENS)
        self.first_token_s = Histogram(SECONDS)
        self.next_token_s = Histogram(SECONDS)
        self.request_s = Histogram(SECONDS)
        self.queue_s = Histogram(SECONDS)
        self.prefill_s = Histogram(SECONDS)
        self.decode_s = Histogram(SECONDS)
        self.request_prompt = Histogram(TOKENS)
        self.request_reply = Histogram(TOKENS)

    def step(self, rows: int, fallbacks: Mapping[str, int]) -> None:
        """Rows were computed; how long all of it takes is known later."""
        self.steps += 1
        self.step_rows.observe(rows)
        self.fallbacks.update(fallbacks)

    def started(self, prompt: int, cached: int) -> None:
        """A request was given its first rows."""
        self.queried += prompt
        self.hits += cached

    def first_token(self, prompt: int, seconds: float) -> None:
        """seconds: since it was submitted."""
        self.tokens_generated += 1
        self.prompt_tokens += prompt
        self.first_token_s.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """seconds: since the token before."""
        self.tokens_generated += 1
        self.next_token_s.observe(seconds)

    def finished(self, finished: Finished, seconds: float) -> None:
        """seconds: since it was submitted. Times are measured of requests that came so far."""
        usage, timings = finished.usage, finished.timings
        self.requests[finished.reason] += 1
        self.request_s.observe(seconds)
        self.queue_s.observe(timings.queue_s)
        self.request_prompt.observe(usage.prompt)
        self.request_reply.observe(usage.completion)
        if usage.completion:
            self.prefill_s.observe(timings.prefill_s)
            self.decode_s.observe(timings.decode_s)
