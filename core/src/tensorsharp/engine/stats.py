"""What an engine tells of itself: plain numbers for embedding, and the same as named families for a monitoring system."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorsharp.engine.checkpoints import CheckpointStats
from tensorsharp.engine.metrics import Distribution
from tensorsharp.engine.tiers import TierStats
from tensorsharp.types import FinishReason


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start, and what is in use now.

    tokens_reused: tokens whose state was found instead of computed, those of preempted requests included. refused: requests
    that found the queue full. blocks: block group -> (used, total). cached: block group -> blocks that nobody uses and a
    later request may find. seam_tokens: tokens of past replies whose state was not found, as re-tokenising a conversation cut
    their text otherwise than the model did; told by who makes prompts of texts. fallbacks: op name -> how many times it ran
    through the reference on the host.
    prefix_queried, prefix_hits: prompt tokens of requests that were started, and those of them that were found; None
    where this model's state cannot be reused. prompt_tokens: of requests that came to their first token. requests: how many
    ended, by reason. masks: of constrained rows; mask_s: processor time that they took, beside the model; mask_wait_s: what the
    engine waited for them. tiers: "ram" and "ssd", those that there are. checkpoints: None if none are kept. The rest are
    distributions, in seconds, rows or tokens; see :class:`~tensorsharp.engine.metrics.Metrics`.
    """

    running: int
    waiting: int
    steps: int
    tokens_computed: int
    tokens_generated: int
    tokens_reused: int
    preemptions: int
    refused: int
    blocks: Mapping[int | None, tuple[int, int]]
    cached: Mapping[int | None, int]
    fallbacks: Mapping[str, int]
    prefix_queried: int | None
    prefix_hits: int | None
    prompt_tokens: int
    requests: Mapping[FinishReason, int]
    masks: int
    mask_s: float
    mask_wait_s: float
    step_s: Distribution
    step_rows: Distribution
    first_token_s: Distribution
    next_token_s: Distribution
    request_s: Distribution
    queue_s: Distribution
    prefill_s: Distribution
    decode_s: Distribution
    request_prompt: Distribution
    request_reply: Distribution
    tiers: Mapping[str, TierStats] = field(default_factory=dict)
    checkpoints: CheckpointStats | None = None
    seam_tokens: int = 0

    @property
    def cache_usage(self) -> float | None:
        """The used part of the fullest block group, 0 to 1; None for a model without blocks."""
        return max((used / total for used, total in self.blocks.values() if total), default=None)


Samples = Mapping[tuple[str, ...], float | Distribution]


@dataclass(frozen=True, slots=True)
class Family:
    """Numbers of one kind. samples: label values -> number or distribution, with one label value for each of `labels`.

    name: without a prefix, as dashboards know it; a counter's without "_total".
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: Samples = field(default_factory=dict)
    labels: tuple[str, ...] = ()


def families(stats: EngineStats) -> Iterator[Family]:
    """The families that can be counted honestly; the others are absent."""
    yield Family("num_requests_running", "gauge", "Requests that are being computed.", {(): stats.running})
    yield Family("num_requests_waiting", "gauge", "Requests that wait.", {(): stats.waiting})
    if stats.cache_usage is not None:
        yield Family("kv_cache_usage_perc", "gauge", "Used part of the fullest block group, 0 to 1.", {(): stats.cache_usage})
    for name, help, value in _counters(stats):
        yield Family(name, "counter", help, {(): value})
    yield from _tiers(stats)
    reasons: Samples = {(reason,): count for reason, count in stats.requests.items()}
    yield Family("request_success", "counter", "Requests that ended, by reason.", reasons, ("finished_reason",))
    fallbacks: Samples = {(op,): count for op, count in stats.fallbacks.items()}
    yield Family("op_fallbacks", "counter", "Operations that ran through the reference on the host.", fallbacks, ("op",))
    for name, help, found in _distributions(stats):
        yield Family(name, "histogram", help, {(): found})


def _tiers(stats: EngineStats) -> Iterator[Family]:
    """Nothing where there are none."""
    if not stats.tiers:
        return
    tiers = {(name,): tier for name, tier in stats.tiers.items()}
    held: Samples = {key: tier.nbytes for key, tier in tiers.items()}
    yield Family("kv_tier_bytes", "gauge", "Bytes of the entries that a tier below the blocks holds.", held, ("tier",))
    limits: Samples = {key: tier.limit for key, tier in tiers.items()}
    yield Family("kv_tier_limit_bytes", "gauge", "Bytes that a tier may hold.", limits, ("tier",))
    hits: Samples = {key: tier.hits for key, tier in tiers.items()}
    yield Family("kv_tier_hits", "counter", "Entries that were found in a tier.", hits, ("tier",))
    lost: Samples = {key: tier.dropped + tier.refused + tier.failed for key, tier in tiers.items()}
    yield Family("kv_tier_lost", "counter", "Entries that a tier could not take.", lost, ("tier",))
    deleted: Samples = {key: tier.deleted for key, tier in tiers.items()}
    yield Family("kv_tier_deleted", "counter", "Files of a tier that were torn, changed or foreign.", deleted, ("tier",))


def _counters(stats: EngineStats) -> Iterator[tuple[str, str, float]]:
    yield "prompt_tokens", "Prompt tokens of requests that came to their first token, cached ones included.", stats.prompt_tokens
    yield "generation_tokens", "Tokens of replies.", stats.tokens_generated
    yield "num_preemptions", "How often a request was preempted.", stats.preemptions
    yield "requests_refused", "Requests that found the queue full.", stats.refused
    yield "engine_steps", "Batches that were computed.", stats.steps
    yield "computed_tokens", "Tokens that were computed, those of prompts and replies.", stats.tokens_computed
    yield "prefix_cache_seam_tokens", "Tokens of past replies that re-tokenising cut otherwise.", stats.seam_tokens
    yield "masks", "Rows whose tokens a constraint limited.", stats.masks
    yield "mask_seconds", "Processor time that masks took, beside the model.", stats.mask_s
    yield "mask_wait_seconds", "Time that the engine waited for masks.", stats.mask_wait_s
    if stats.prefix_queried is not None and stats.prefix_hits is not None:
        yield "prefix_cache_queries", "Prompt tokens that were looked up in the prefix cache.", stats.prefix_queried
        yield "prefix_cache_hits", "Prompt tokens that were found in the prefix cache.", stats.prefix_hits


def _distributions(stats: EngineStats) -> Iterator[tuple[str, str, Distribution]]:
    yield "time_to_first_token_seconds", "From submission to the first token.", stats.first_token_s
    yield "inter_token_latency_seconds", "From one token of a request to the next.", stats.next_token_s
    yield "e2e_request_latency_seconds", "From submission to the end.", stats.request_s
    yield "request_queue_time_seconds", "From submission to the first row that is computed.", stats.queue_s
    yield "request_prefill_time_seconds", "From there to the first token.", stats.prefill_s
    yield "request_decode_time_seconds", "From the first token to the last.", stats.decode_s
    yield "request_prompt_tokens", "Prompt tokens of a request.", stats.request_prompt
    yield "request_generation_tokens", "Tokens of a reply.", stats.request_reply
    yield "step_duration_seconds", "Time that a step takes.", stats.step_s
    yield "iteration_tokens", "Tokens that a step computes.", stats.step_rows
