"""Computes the steps of a composition log again and compares every bit of their logits, and the tokens chosen from them
(those of replies with a constraint excepted, as masks are not in the log).

The state that a step begins with is not in the log: it is what the steps before it left, so all of them are computed, in
order, on a fresh store of the same sizes. What was moved between steps (saved state that came back, a block from a tier)
is moved again; what came from outside, a checkpoint or file of an earlier process, is in the log whole.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorsharp.engine.composition import batch_from, digest, digests
from tensorsharp.engine.sampler import Sampler
from tensorsharp.errors import ConfigError
from tensorsharp.protocols.backend import Runner, StateStore
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.types import SamplingParams

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One step, computed again. requests: the ids of those in it. differences: a sentence for whatever is not the same."""

    number: int
    rows: int
    requests: tuple[str, ...]
    differences: tuple[str, ...] = ()


@dataclass
class _Request:
    """sampler: None where a mask took part, which the log does not hold: then only logits are compared."""

    id: str
    sampler: Sampler | None
    known: list[int]


@dataclass
class _Step:
    """The latest step, until its tokens are known."""

    record: Record
    batch: Batch
    logits: F32
    differences: list[str] = field(default_factory=list)


def replay(records: Iterable[Record], runner: Runner, store: StateStore) -> Iterator[Replayed]:
    """Every step after the first line, as soon as it is compared. ConfigError if lines are missing."""
    log = list(records)
    player = _Player(runner, store, needed={r["digest"] for r in log if "restore" in r or "write" in r})
    for record in log:
        if "step" in record and (done := player.flush()) is not None:
            yield done
        player.play(record)
    if (last := player.flush()) is not None:
        yield last


class _Player:
    """needed: digests of contents that come back later, the only ones that are kept."""

    def __init__(self, runner: Runner, store: StateStore, needed: set[str]) -> None:
        self._runner = runner
        self._store = store
        self._needed = needed
        self._kept: dict[str, bytes] = {}
        self._requests: dict[int, _Request] = {}
        self._step: _Step | None = None

    def play(self, record: Record) -> None:
        if "request" in record:
            self._requests[record["request"]] = _request(record)
        elif "step" in record:
            self._compute(record)
        elif "chosen" in record:
            self._choose(record)
        elif "copy" in record:
            self._store.copy(*record["copy"])
        elif "read" in record:
            self._keep(record, self._store.read(*record["read"]))
        elif "snapshot" in record:
            self._keep(record, self._store.snapshot(*record["snapshot"]))
        elif "write" in record:
            group, block = record["write"]
            self._store.write(group, block, self._content(record))
        elif "restore" in record:
            tail, slot = record["restore"]
            self._store.restore(tail, slot, self._content(record))

    def flush(self) -> Replayed | None:
        """What became of the latest step."""
        step, self._step = self._step, None
        if step is None:
            return None
        ids = tuple(self._requests[number].id for number in step.record["requests"])
        return Replayed(step.record["step"], step.batch.rows, ids, tuple(step.differences))

    def _compute(self, record: Record) -> None:
        batch = batch_from(record["batch"])
        none = np.zeros((0, 0), np.float32)
        if "error" in record:  # it failed then, and nobody used what it left
            self._step = _Step(record, batch, none)
            return
        result = self._runner.step(batch)
        self._step = _Step(record, batch, result.logits)
        for row, (was, now) in enumerate(zip(record["logits"], digests(result), strict=True)):
            if was != now:
                self._differ(f"the logits of wanted row {row} ({self._requests[_owner(self._step, row)].id}) are not the same")

    def _choose(self, record: Record) -> None:
        """Choose again from the step's logits. A request that was ended before its token was chosen has none here."""
        step = self._step
        if step is None:
            return
        left = {number: list(tokens) for number, tokens in record["chosen"]}
        for row in range(len(step.logits)):
            number = _owner(step, row)
            request, tokens = self._requests[number], left.get(number)
            if not tokens:
                continue
            was = tokens.pop(0)
            now = was if request.sampler is None else _chosen(request.sampler, step.logits[row], request.known)
            if now != was:
                self._differ(f"token {len(request.known)} of {request.id} was {was} and is {now}")
            request.known.append(was)

    def _keep(self, record: Record, data: bytes) -> None:
        was = record["digest"]
        if was in self._needed:
            self._kept[was] = data
        if digest(data) != was:
            self._differ(f"the {'block' if 'read' in record else 'snapshot'} that was read after it is not the same")

    def _content(self, record: Record) -> bytes:
        if "data" in record:
            return b64decode(record["data"])
        data = self._kept.get(record["digest"])
        if data is None:
            raise ConfigError("The log is not whole: state comes back that was never read before.")
        return data

    def _differ(self, sentence: str) -> None:
        if self._step is not None:
            self._step.differences.append(sentence)


def _owner(step: _Step, row: int) -> int:
    """The number of the request whose wanted row it is."""
    number: int = step.record["requests"][int(step.batch.seq[step.batch.wanted[row]])]
    return number


def _chosen(sampler: Sampler, row: F32, known: list[int]) -> int:
    return sampler.choose(row, np.array(known, np.int32), len(known)).token


def _request(record: Record) -> _Request:
    written = record["params"]
    tuples = {name: tuple(value) for name, value in written.items() if isinstance(value, list)}
    params = SamplingParams(**{**written, **tuples, "logit_bias": dict(written["logit_bias"])})
    return _Request(record["id"], None if record["masked"] else Sampler(params, record["seed"]), list(record["prompt"]))
