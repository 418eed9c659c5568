"""How an engine schedules."""

from __future__ import annotations

from dataclasses import dataclass

from tensorsharp.errors import ConfigError

STEP_TOKENS = 512
"""Rows of a step, and of one prompt in it, unless configured otherwise."""
BUSY_TOKENS = 256
"""The same for steps that make replies too: half of it, so that they wait half as long for their next token."""

SAVED_BYTES = 1 << 28
"""256 MiB."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """context: positions of a sequence, prompt and reply. How many sequences run at once is the store's number of them.

    step_tokens: most rows of a step. chunk_tokens: most rows of one prompt in a step. busy_tokens: most prompt rows of a
    step in which replies are made too. queue: how many requests may wait besides those that run (None: any number).
    saved_bytes: most bytes for the state of prefixes that is not in blocks, of models with recurrent layers.
    history: previous tokens that each row carries, for models that look at them. identity: what else than tokens
    decides the state in a block: model, arithmetic, format of the rows.
    """

    context: int
    step_tokens: int = STEP_TOKENS
    chunk_tokens: int = STEP_TOKENS
    busy_tokens: int = BUSY_TOKENS
    queue: int | None = None
    saved_bytes: int = SAVED_BYTES
    history: int = 0
    identity: str = ""

    def __post_init__(self) -> None:
        least = {"context": 2, "step_tokens": 1, "chunk_tokens": 1, "busy_tokens": 1, "history": 0, "queue": 0, "saved_bytes": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise ConfigError(f"{name} is {value}; expected at least {lowest}.")

    @property
    def rows(self) -> int:
        """Most rows of one sequence in a step."""
        return min(self.chunk_tokens, self.step_tokens)
