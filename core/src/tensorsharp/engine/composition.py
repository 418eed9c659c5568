"""What every step was composed of, as lines of JSON that `tensorsharp.engine.replay` can compute again.

The first line tells what ran. Then come, in the order in which they happened: `request` before a request's first step,
`step` with its batch and a digest of each row of logits, `chosen` with the tokens that were added to replies, and every
movement of state between steps (`copy`, `read`, `write`, `snapshot`, `restore`). Prompts are in it, as token ids.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, fields
from os import PathLike
from typing import IO, Any

import numpy as np

from tensorsharp.engine.batch import Work
from tensorsharp.engine.prefix import blake
from tensorsharp.engine.sequence import Sequence
from tensorsharp.errors import ConfigError
from tensorsharp.protocols.backend import Runner, StateSizes, StateStore, StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.layout import Layout

VERSION = 1
logger = logging.getLogger("tensorsharp.engine")


class Composition:
    """Writes the log of one engine. facts: what is told of it in the first line. ConfigError if the file cannot be written.

    A write that fails later switches the log off and is reported; it ends no request.
    """

    def __init__(self, path: str | PathLike[str], facts: Mapping[str, Any]) -> None:
        try:
            self._file: IO[str] | None = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise ConfigError(f"composition_log {path} cannot be written: {error.strerror or error}.") from error
        self._steps = 0
        self._work: list[tuple[Sequence, int]] = []
        self.write("composition", VERSION, **facts)

    def write(self, kind: str, value: object, **facts: object) -> None:
        """One line."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps({kind: value, **facts}, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            logger.error("The composition log ends here, as it cannot be written: %s", error)
            self.close()

    def request(self, sequence: Sequence) -> None:
        """A request is computed for the first time."""
        params = asdict(sequence.request.params)
        params["logit_bias"] = list(params["logit_bias"].items())
        facts = {"id": sequence.request.id, "prompt": list(sequence.request.prompt_ids), "params": params}
        masked = sequence.guide is not None
        self.write("request", sequence.rank[1], **facts, seed=sequence.sampler.seed, masked=masked)

    def step(self, runner: Runner, work: SequenceOf[Work], batch: Batch, taps: SequenceOf[str]) -> StepResult:
        """Compute a batch and write it down; what the runner raises goes on. Of taps nothing is written."""
        self._steps += 1
        self._work = [(w.sequence, w.sequence.length) for w in work]
        facts = {"requests": [sequence.rank[1] for sequence, _ in self._work], "batch": batch_data(batch)}
        try:
            result = runner.step(batch, taps)
        except Exception as error:
            self.write("step", self._steps, **facts, error=f"{type(error).__name__}: {error}")
            raise
        self.write("step", self._steps, **facts, logits=digests(result))
        return result

    def chosen(self) -> None:
        """The step's tokens were handed out."""
        added = {s.rank[1]: s.ids[before : s.length].tolist() for s, before in self._work if s.length > before}
        self._work = []
        self.write("chosen", list(added.items()))

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


class RecordedStore:
    """A state store that writes down what is moved in it besides steps. Contents are named by their digest.

    What was not read from it before, because another process saved it or a codec made it, is written down whole, in base 64.
    """

    def __init__(self, store: StateStore, composition: Composition) -> None:
        self._store = store
        self._composition = composition
        self._read: set[str] = set()

    @property
    def layout(self) -> Layout:
        return self._store.layout

    @property
    def sizes(self) -> StateSizes:
        return self._store.sizes

    def block_bytes(self, group: int | None) -> int:
        return self._store.block_bytes(group)

    def slot_bytes(self) -> int:
        return self._store.slot_bytes()

    def copy(self, group: int | None, source: int, target: int) -> None:
        self._store.copy(group, source, target)
        self._composition.write("copy", [group, source, target])

    def read(self, group: int | None, block: int) -> bytes:
        data = self._store.read(group, block)
        self._out("read", [group, block], data)
        return data

    def write(self, group: int | None, block: int, data: bytes) -> None:
        self._store.write(group, block, data)
        self._in("write", [group, block], data)

    def snapshot(self, tail: int, slot: int) -> bytes:
        data = self._store.snapshot(tail, slot)
        self._out("snapshot", [tail, slot], data)
        return data

    def restore(self, tail: int, slot: int, data: bytes) -> None:
        self._store.restore(tail, slot, data)
        self._in("restore", [tail, slot], data)

    def _out(self, kind: str, where: list[int | None], data: bytes) -> None:
        name = digest(data)
        self._read.add(name)
        self._composition.write(kind, where, digest=name)

    def _in(self, kind: str, where: list[int | None], data: bytes) -> None:
        name = digest(data)
        whole = {} if name in self._read else {"data": b64encode(data).decode()}
        self._composition.write(kind, where, digest=name, **whole)

    def free(self) -> None:
        self._store.free()


def digest(data: bytes) -> str:
    return blake(data).hex()


def digests(result: StepResult) -> list[str]:
    """One for each row of logits."""
    return [digest(row.astype(np.float32).tobytes()) for row in result.logits]


def batch_data(batch: Batch) -> dict[str, Any]:
    """A batch as plain lists, which :func:`batch_from` turns back."""
    data = {f.name: value for f in fields(batch) if isinstance(value := getattr(batch, f.name), np.ndarray)}
    tables = [[group, table.tolist()] for group, table in batch.tables.items()]
    return {**{name: [value.dtype.name, value.shape, value.ravel().tolist()] for name, value in data.items()}, "tables": tables}


def batch_from(data: Mapping[str, Any]) -> Batch:
    """The batch that was written down."""
    arrays = {n: np.array(v[2], np.dtype(v[0])).reshape(v[1]) for n, v in data.items() if n != "tables"}
    return Batch(**arrays, tables={group: np.array(table, np.int32) for group, table in data["tables"]})
