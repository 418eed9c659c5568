"""How an engine schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorsharp.errors import ConfigError

if TYPE_CHECKING:  # settings are read by commands that need no numpy
    from tensorsharp.protocols.checkpoint import IPrefixCheckpointStore
    from tensorsharp.protocols.codec import IKvBlockCodec

STEP_TOKENS = 512
"""Rows of a step, and of one prompt in it, unless configured otherwise."""
BUSY_TOKENS = 256
"""The same for steps that make replies too: half of it, so that they wait half as long for their next token."""

SAVED_BYTES = 1 << 28
"""256 MiB."""
SAVED_BLOCKS = 16
"""512 positions of the usual blocks, the rows of one step: a chunk of a prompt ends there anyway, and where another prompt parts
from it, at most one step is computed again. More often would cost steps, and the same bytes would not reach as far back."""

_AT_LEAST_ONE = ("parallel", "step_tokens", "chunk_tokens", "busy_tokens", "saved_blocks")


def _check(config: object, least: Mapping[str, int]) -> None:
    for name, lowest in least.items():
        value = getattr(config, name)
        if value is not None and value < lowest:
            raise ConfigError(f"{name} is {value}; expected at least {lowest}.")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a person may choose. Every field is also a setting of that name: a flag, a variable, a key, an argument of `load`.

    parallel: sequences that run at once. queue: how many requests may wait besides those (None: any number).
    step_tokens: most rows of a step, one for each reply. chunk_tokens: most rows of one prompt in a step. busy_tokens: most
    prompt rows of a step in which replies are made too. saved_bytes: most bytes for the state of prefixes that is not in
    blocks, of models with recurrent layers. saved_blocks: blocks of a prompt from one of these to the next, besides those where
    messages start. ConfigError for a value that cannot be used.
    """

    parallel: int = 1
    queue: int | None = None
    step_tokens: int = STEP_TOKENS
    chunk_tokens: int = STEP_TOKENS
    busy_tokens: int = BUSY_TOKENS
    saved_bytes: int = SAVED_BYTES
    saved_blocks: int = SAVED_BLOCKS

    def __post_init__(self) -> None:
        _check(self, {"queue": 0, "saved_bytes": 0, **dict.fromkeys(_AT_LEAST_ONE, 1)})
        if self.step_tokens < self.parallel:
            raise ConfigError(
                f"step_tokens is {self.step_tokens}; expected at least one row for each of {self.parallel} parallel requests."
            )

    @property
    def rows(self) -> int:
        """Most rows of one sequence in a step."""
        return min(self.chunk_tokens, self.step_tokens)


SSD_BYTES = 8 << 30
"""8 GiB."""


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """What lies below the blocks, all of it off unless asked for.

    codec: how blocks are kept there (None: as they are); one that loses something is applied to every full block. ram: bytes
    of host memory. ssd: the folder for files, ssd_bytes: how much of them. checkpoints: where the beginnings of prompts
    outlive the process.
    """

    codec: IKvBlockCodec | None = None
    ram: int = 0
    ssd: Path | None = None
    ssd_bytes: int = SSD_BYTES
    checkpoints: IPrefixCheckpointStore | None = None

    def __post_init__(self) -> None:
        _check(self, {"ram": 0, "ssd_bytes": 0})

    @property
    def lossy(self) -> bool:
        """Whether the codec changes what later rows see."""
        return self.codec is not None and not self.codec.lossless

    @property
    def used(self) -> bool:
        return bool(self.lossy or self.ram or self.ssd or self.checkpoints)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """context: positions of a sequence, prompt and reply. history: previous tokens that each row carries, for models that
    look at them. identity: what else than tokens decides the state in a block: model, arithmetic, format of the rows.
    """

    context: int
    scheduler: SchedulerConfig = SchedulerConfig()
    history: int = 0
    identity: str = ""
    cache: CacheConfig = CacheConfig()

    def __post_init__(self) -> None:
        _check(self, {"context": 2, "history": 0})

    @property
    def decides(self) -> str:
        """What else than tokens decides the state in a block: `identity`, and a codec that loses something."""
        return self.identity if self.cache.codec is None or not self.cache.lossy else f"{self.identity} {self.cache.codec.name}"
