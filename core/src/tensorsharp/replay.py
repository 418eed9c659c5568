"""Writes composition logs, and replays them on the model that they were written with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsharp.engine.composition import VERSION, Composition
from tensorsharp.engine.replay import Record, Replayed, replay
from tensorsharp.errors import ConfigError, ModelError
from tensorsharp.opening import Opened, opened, running
from tensorsharp.protocols.backend import BackendOptions, StateSizes
from tensorsharp.protocols.layout import Format

if TYPE_CHECKING:
    from tensorsharp.registry import Registry


@dataclass(frozen=True, slots=True)
class Log:
    """A composition log. facts: its first line; records: the others."""

    facts: Mapping[str, Any]
    records: tuple[Record, ...]


def open_log(path: str | PathLike[str], this: Opened, kv_type: Format, sizes: StateSizes) -> Composition:
    """A new log that begins with what runs. ConfigError if it cannot be written."""
    facts = {
        "model": str(Path(this.file.path).resolve()),
        "fingerprint": this.file.fingerprint,
        "backend": this.backend.name,
        "arithmetic_id": this.backend.arithmetic_id,
        "kv_type": kv_type,
        "sizes": {**asdict(sizes), "blocks": list(sizes.blocks.items())},
    }
    return Composition(path, facts)


def read_log(path: str | PathLike[str]) -> Log:
    """The lines of a log; a last one that was not written to its end is left out. ConfigError for anything else that is wrong."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise ConfigError(f"{path}: line {number} is no JSON object.") from None
    if not records or records[0].get("composition") != VERSION:
        raise ConfigError(f"{path} does not begin as a composition log of version {VERSION} does.")
    return Log(records[0], tuple(records[1:]))


def replay_log(
    log: Log,
    model: str | PathLike[str] | None = None,
    *,
    backend: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    backend_options: Mapping[str, str] | None = None,
    registry: Registry | None = None,
) -> Iterator[Replayed]:
    """Compute every step of a log again, in order, and compare; each is given as soon as it is done.

    model, backend: None takes those of the log. Another backend, or another build of it, may be tried: then differences are
    what one wants to see. ModelError if the file holds another model, ConfigError if the log is not whole.
    """
    from tensorsharp.registry import Registry

    facts = log.facts
    options = BackendOptions(device, threads, backend_options or {})
    with opened(model or facts["model"], registry or Registry(), backend or facts["backend"], options) as this:
        if this.file.fingerprint != facts["fingerprint"]:
            raise ModelError(f"{this.file.path} is not the model of the log, which was {facts['model']}.")
        with running(this, this.model.layout(facts["kv_type"]), _sizes(facts["sizes"])) as (runner, store):
            yield from replay(log.records, runner, store)


def _sizes(data: Mapping[str, Any]) -> StateSizes:
    return StateSizes(**{**data, "blocks": dict(data["blocks"])})
