"""The models of the matrix, and engines over them whose pools are as large as a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorsharp.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.opening import Opened, opened, running
from tensorsharp.protocols.backend import BackendOptions, StateSizes
from tensorsharp.protocols.layout import block_groups
from tensorsharp.registry import Registry
from tensorsharp.testing.minimodel import MiniModel
from tensorsharp.testing.running import open_backend
from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp.types import GenerationRequest, SamplingParams, TokenEvent
from tests.realmodels import GEMMA3, SMOLLM2, needs

BLOCK = 32
CHUNK = 96
TOKENS = 16
CONTEXT = 4 * BLOCK
TOGETHER = 16
NO_CACHE = CacheConfig()
Ids = tuple[int, ...]
Said = list[TokenEvent]


@dataclass(frozen=True, slots=True)
class Subject:
    """model: a real one, an architecture of tiny checkpoints, or "hybrid": attention, windows, convolution and recurrence."""

    model: str
    backend: str

    @property
    def recurrent(self) -> bool:
        return self.model == "hybrid"

    def file(self, folder: Path) -> Path | None:
        """Its file; None for the model that is made in memory."""
        if self.model == "hybrid":
            return None
        real = {"smollm2": SMOLLM2, "gemma3-270m": GEMMA3}.get(self.model)
        return write_tiny(folder / f"{self.model}.gguf", tiny(self.model)) if real is None else needs(real)


SUBJECTS = {
    "smollm2": Subject("smollm2", "ggml"),
    "gemma3-270m": Subject("gemma3-270m", "ggml"),
    "hybrid": Subject("hybrid", "ggml"),
    "reference-dense": Subject("llama", "reference"),
    "reference-sliding": Subject("gemma3", "reference"),
    "reference-hybrid": Subject("hybrid", "reference"),
}
WAYS = {
    "greedy": SamplingParams(max_tokens=TOKENS, temperature=0.0, seed=5, logprobs=2, ignore_eos=True),
    "seeded": SamplingParams(
        max_tokens=TOKENS, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5, logprobs=2, ignore_eos=True
    ),
}


@contextmanager
def engine(
    subject: Subject,
    file: Path | None,
    *,
    parallel: int = TOGETHER,
    blocks: int = TOGETHER * CONTEXT // BLOCK,
    chunk: int = CHUNK,
    cache: CacheConfig = NO_CACHE,
) -> Iterator[Engine]:
    """An engine with `blocks` blocks in every group."""
    with ExitStack() as stack:
        if file is None:
            backend = open_backend(subject.backend)
            stack.callback(backend.close)
            this = Opened(MiniModel.file(), MiniModel(), backend)
        else:
            this = stack.enter_context(opened(file, Registry(), subject.backend, BackendOptions()))
        layout = this.model.layout("f16")
        sizes = StateSizes(BLOCK, dict.fromkeys(block_groups(layout), blocks), parallel, parallel)
        runner, store = stack.enter_context(running(this, layout, sizes))
        scheduler = SchedulerConfig(parallel, step_tokens=CHUNK + parallel, chunk_tokens=chunk)
        config = EngineConfig(CONTEXT, scheduler, identity=f"{subject.model} {this.backend.arithmetic_id}", cache=cache)
        yield stack.enter_context(Engine(this.model, runner, store, config))


def text(subject: Subject, length: int, salt: int = 0) -> Ids:
    """Ids that every vocabulary here has."""
    return tuple((7 * i * i + 13 * i + 29 * salt + i * salt) % 60 + 1 for i in range(length))


def run(
    on: Engine, prompts: list[Ids], ways: list[str], scopes: list[str | None], *, boundaries: tuple[int, ...] = ()
) -> list[tuple[Said, int]]:
    """What is said to prompts that are submitted together, and how many tokens of each were found."""
    asked = [
        GenerationRequest(ids, WAYS[way], boundaries=tuple(b for b in boundaries if b < len(ids)), cache_scope=scope)
        for ids, way, scope in zip(prompts, ways, scopes, strict=True)
    ]
    handles = [on.submit(one) for one in asked]
    return [(list(h), h.result(600).usage.cached) for h in handles]
