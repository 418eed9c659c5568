"""A model small enough to see through: its logits are a hash of everything that a row may see.

It keeps token ids in the paged store, in a windowed store, in a ring and in a recurrent slot, and reads them only
through the tables and slots of the batch. A wrong block, slot, position or chunk changes the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tensorsharp.engine.core import EngineCore
from tensorsharp.engine.sampler import Sampler
from tensorsharp.engine.seats import Seats
from tensorsharp.engine.sequence import Sequence as EngineSequence
from tensorsharp.protocols.backend import StateSizes, StepResult
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp.types import Finished, FinishReason, GenerationRequest, SamplingParams, TokenEvent

VOCAB = 61
WINDOW = 40
BLOCK = 32
RING = 4
MASK = (1 << 64) - 1
LAYOUT: Layout = {
    "k": Paged(1, "f32"),
    "w": Paged(1, "f32", window=WINDOW),
    "ring": Tail(1, RING),
    "slot": Slot((1,)),
}


def mix(h: int, x: int) -> int:
    h = (h ^ (x + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 & MASK
    return h ^ (h >> 29)


def row_logits(full: Sequence[int], window: Sequence[int], ring: Sequence[int], recurrent: int) -> F32:
    """[VOCAB] from all tokens so far, the last WINDOW, the last RING, and the recurrent hash."""
    h = recurrent
    for part in (full, window, ring):
        for token in part:
            h = mix(h, token)
        h = mix(h, MASK)
    values = [(mix(h, i) >> 11) / 2**53 for i in range(VOCAB)]
    return (np.array(values) * 12 - 6).astype(np.float32)


def recurrent_hash(tokens: Sequence[int]) -> int:
    h = 0
    for token in tokens:
        h = mix(h, token)
    return h


def expected_logits(ids: Sequence[int]) -> F32:
    """[n, VOCAB] what the model gives after each token, without any state."""
    prefixes = [ids[:n] for n in range(1, len(ids) + 1)]
    return np.stack([row_logits(p, p[-WINDOW:], p[-RING:], recurrent_hash(p)) for p in prefixes])


class FakeStore:
    """The store's arrays, full of numbers that no token has until they are written."""

    def __init__(self, sizes: StateSizes, layout: Layout = LAYOUT) -> None:
        self.layout = layout
        self.sizes = sizes
        self.k = np.full((sizes.blocks[None], BLOCK), -7)
        self.w = np.full((sizes.blocks[WINDOW], BLOCK), -7)
        self.ring = np.full((sizes.sequences, RING), -7)
        self.slot = [0xDEAD] * sizes.slots
        self.freed = False

    def free(self) -> None:
        self.freed = True


class FakeRunner:
    """Steps row by row. `before`: called with every batch; may raise. `poison`: changes the logits of a step."""

    def __init__(self, store: FakeStore, before: Callable[[Batch], None] = lambda batch: None) -> None:
        self.store = store
        self.before = before
        self.poison: Callable[[Batch, F32], None] = lambda batch, logits: None
        self.batches: list[Batch] = []
        self.closed = False

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        self.before(batch)
        self.batches.append(batch)
        rows = np.stack([self._row(batch, r) for r in range(batch.rows)])
        logits = rows[batch.wanted] if len(batch.wanted) else np.zeros((0, VOCAB), np.float32)
        self.poison(batch, logits)
        return StepResult(logits, fallbacks={"pool": 1})

    def _row(self, batch: Batch, r: int) -> F32:
        store, s, p, token = self.store, int(batch.seq[r]), int(batch.pos[r]), int(batch.tokens[r])
        assert p == batch.start[s] + r - batch.first_row[s]
        full, window = batch.tables[None][s], batch.tables[WINDOW][s]
        for array, table in ((store.k, full), (store.w, window)):
            assert table[p // BLOCK] >= 0
            array[table[p // BLOCK], p % BLOCK] = token
        ring = store.ring[batch.tail_slot[s]]
        ring[p % RING] = token
        first = r == batch.first_row[s]
        if first:
            self._state = 0 if batch.slot_in[s] < 0 else store.slot[batch.slot_in[s]]
        self._state = mix(self._state, token)
        if batch.slot_out[r] >= 0:
            store.slot[batch.slot_out[r]] = self._state
        low = max(0, p + 1 - WINDOW)
        return row_logits(
            [int(store.k[full[i // BLOCK], i % BLOCK]) for i in range(p + 1)],
            [int(store.w[window[i // BLOCK], i % BLOCK]) for i in range(low, p + 1)],
            [int(ring[i % RING]) for i in range(max(0, p + 1 - RING), p + 1)],
            self._state,
        )

    def close(self) -> None:
        self.closed = True


class FakeModel:
    """What the engine asks a model."""

    vocab_size = VOCAB


class Collector:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.ending: tuple[FinishReason, str | None] | None = None
        self.events: list[TokenEvent] = []
        self.finished: Finished | None = None

    @property
    def tokens(self) -> list[int]:
        return [e.token for e in self.events]

    def token(self, event: TokenEvent) -> None:
        assert self.finished is None
        assert event.index == len(self.events)
        self.events.append(event)

    def finish(self, finished: Finished) -> None:
        assert self.finished is None
        self.finished = finished


def sizes(blocks: int = 64, window_blocks: int = 64, sequences: int = 8) -> StateSizes:
    return StateSizes(BLOCK, {None: blocks, WINDOW: window_blocks}, sequences, sequences)


class Bench:
    """An engine core over the fake model, stepped by hand."""

    def __init__(
        self, state: StateSizes | None = None, *, context: int = 512, step: int = 64, chunk: int = 64, history: int = 0
    ) -> None:
        self.store = FakeStore(state or sizes())
        self.runner = FakeRunner(self.store)
        self.chunk = min(chunk, step)
        self.seats = Seats(LAYOUT, self.store.sizes, context, self.chunk)
        self.core = EngineCore(self.runner, self.seats, step_tokens=step, history=history)

    def add(self, request: GenerationRequest) -> Collector:
        sink = Collector()
        sampler = Sampler(request.params, request.params.seed or 0)
        self.core.add(EngineSequence(request, sampler, sink, limit=self.seats.limit, rows=self.chunk))
        return sink

    def step(self) -> bool:
        did = self.core.step()
        self.seats.check()
        return did

    def drain(self, most: int = 100_000) -> None:
        for _ in range(most):
            if not self.step():
                assert not self.core.busy
                assert all(pool.used == 0 for pool in self.seats.pools.values())
                return
        raise AssertionError("the engine does not come to an end")


def request(prompt: Sequence[int], **params: object) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), SamplingParams(**{"seed": 1, **params}))  # type: ignore[arg-type]


def prompt(length: int, salt: int = 0) -> list[int]:
    return [mix(salt, i) % VOCAB for i in range(length)]


def alone(asked: GenerationRequest, context: int = 512) -> Collector:
    """What a request gives with the whole engine to itself."""
    bench = Bench(context=context)
    sink = bench.add(asked)
    bench.drain()
    return sink


def blocks_in_use(core: EngineCore) -> Mapping[int | None, int]:
    return {g: p.used for g, p in core.seats.pools.items()}
