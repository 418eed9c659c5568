"""What a caller hands to the engine and gets back: plain frozen data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from tensorsharp.errors import RequestError

if TYPE_CHECKING:
    from tensorsharp.protocols.constraint import Grammar

FinishReason = Literal["stop", "length", "cancelled", "timeout", "error"]
"""stop: an end token or stop string; length: max_tokens or the context is full."""
Effort = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model is to reason before it answers."""
EFFORTS: tuple[Effort, ...] = get_args(Effort)

SEEDS = 2**63
"""How many seeds there are, from 0 on."""


def random_seed() -> int:
    """A seed for who names none."""
    return int.from_bytes(os.urandom(8), "little") >> 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when a reply ends. Invalid values raise RequestError naming the field.

    temperature 0 is arg-max. top_k 0, top_p 1 and min_p 0 switch that filter off. seed None: a random one, reported
    with the reply. Penalties: `repeat_penalty` divides or multiplies (1 is off), `presence_penalty` and
    `frequency_penalty` subtract (0 is off), over the last `repeat_last_n` tokens (-1: all, 0: off). logit_bias: token
    id -> added value. logprobs: None for no log-probabilities, else how many alternatives a token (0..20) to report.
    """

    max_tokens: int | None = None
    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int | None = None
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        checks: tuple[tuple[str, bool, str], ...] = (
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature <= 100.0, "between 0 and 100"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("seed", self.seed is None or 0 <= self.seed < SEEDS, "between 0 and 2^63-1"),
            ("repeat_penalty", 0.01 <= self.repeat_penalty <= 100.0, "between 0.01 and 100"),
            ("repeat_last_n", self.repeat_last_n >= -1, "-1 (all), 0 (off) or more"),
            ("presence_penalty", -100.0 <= self.presence_penalty <= 100.0, "between -100 and 100"),
            ("frequency_penalty", -100.0 <= self.frequency_penalty <= 100.0, "between -100 and 100"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "between 0 and 20"),
            ("stop", all(self.stop), "strings that are not empty"),
        )
        for name, ok, expected in checks:
            self._require(ok, name, expected)

    def _check_types(self) -> None:
        for name in ("max_tokens", "seed", "logprobs"):
            self._require(getattr(self, name) is None or _is_number(getattr(self, name), int), name, "a whole number or None")
        for name in ("top_k", "repeat_last_n"):
            self._require(_is_number(getattr(self, name), int), name, "a whole number")
        for name in ("temperature", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty"):
            self._require(_is_number(getattr(self, name), float), name, "a number")
        self._require(_are(self.stop, str), "stop", "a tuple of strings")
        self._require(_are(self.stop_token_ids, int), "stop_token_ids", "a tuple of token ids")
        self._require(_is_bias(self.logit_bias), "logit_bias", "a mapping of token ids to numbers")

    def _require(self, ok: bool, name: str, expected: str) -> None:
        if not ok:
            raise RequestError(f"{name} is {getattr(self, name)!r:.100}; expected {expected}.", param=name, code="invalid_value")


def _is_number(value: object, kind: type[int] | type[float]) -> bool:
    """Whether a value is a whole number (int) or any number (float); true and false are neither."""
    return not isinstance(value, bool) and isinstance(value, int if kind is int else (int, float))


def _is_bias(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_number(k, int) and _is_number(v, float) for k, v in value.items())


def _are(values: object, kind: type) -> bool:
    return isinstance(values, tuple) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


ConstraintKind = Literal["json_object", "json_schema", "grammar", "lark", "regex", "choice"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What a reply must be. RequestError for a kind that there is not.

    source, by kind: json_object: nothing. json_schema: the schema as JSON. grammar: GBNF, with a rule `root`. lark: as
    llguidance reads it, with a rule `start`. regex: what the whole reply matches. choice: a JSON list of strings, one of
    which the reply is.

    after: the constraint begins behind the first occurrence of this text in the reply, such as the end of reasoning, and before
    it all is allowed but to end; empty: it begins with the reply. opening: where `after` is given, a reply that does not begin
    with this text is constrained from its start, with no line break in front if it may begin otherwise; empty: the prompt has
    begun what `after` ends.
    """

    kind: ConstraintKind
    source: str = ""
    after: str = ""
    opening: str = ""

    def __post_init__(self) -> None:
        checks = (
            ("kind", self.kind in get_args(ConstraintKind), f"one of {', '.join(get_args(ConstraintKind))}"),
            ("source", _are((self.source,), str), "a string"),
            ("after", _are((self.after,), str), "a string"),
            ("opening", _are((self.opening,), str), "a string"),
        )
        for name, ok, expected in checks:
            if not ok:
                raise RequestError(
                    f"The {name} of a constraint is {getattr(self, name)!r:.100}; expected {expected}.",
                    param="constraint",
                    code="invalid_value",
                )

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool) -> Self:
        """A reply that is JSON and fits a schema. Properties come in the schema's order."""
        return cls("json_schema", json.dumps(schema, ensure_ascii=False))

    @classmethod
    def choice(cls, texts: Iterable[str]) -> Self:
        """A reply that is one of these texts."""
        return cls("choice", json.dumps(list(texts), ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability under the raw logits (before penalties, bias, mask and temperature), float32."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token. `logprob` and `top` are None and empty unless the request asked for them."""

    token: int
    index: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request: prompt (of which `cached` were not computed again) and completion."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds and counts of one request. prefill_tps counts computed tokens only; 0.0 where nothing was done.

    mask_s: processor time that the masks of its constraint took, beside the model; mask_wait_s: what it waited for them.
    """

    queue_s: float = 0.0
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    decode_s: float = 0.0
    decode_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    mask_s: float = 0.0
    mask_wait_s: float = 0.0

    @property
    def prefill_tps(self) -> float:
        """Prompt tokens a second, of those that were computed."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens of the reply a second, from the first one to the last."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """How a request ended. `error` is the sentence where `reason` is "error"; `stop` what ended it, if a string did."""

    reason: FinishReason
    seed: int
    usage: Usage
    timings: Timings
    error: str | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """Token ids in, tokens out; the engine knows no text.

    end_tokens end the reply with reason "stop" (unless ignore_eos) and are not part of it.
    boundaries: offsets into prompt_ids, ascending: the end of the beginning that other prompts share, whose state is worth a
    checkpoint (0: there is none), then where messages start and where the reply does, at which recurrent state is worth keeping;
    of many that lie close together or far from the end, not each is kept.
    priority: higher ones are served first; equal ones in order of arrival. timeout_s: seconds after which the request ends
    with reason "timeout", whether it runs or waits. cache_scope: only requests of the same scope reuse each other's
    prefixes; None is the scope of all that name none. constraint: what the reply must be; end tokens are allowed exactly where
    it may end, and a reply that nothing can follow ends with reason "stop".
    """

    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    end_tokens: frozenset[int] = frozenset()
    boundaries: tuple[int, ...] = ()
    id: str | None = None
    priority: int = 0
    timeout_s: float | None = None
    cache_scope: str | None = None
    constraint: Grammar | None = None
