"""Stand-ins for tests of what surrounds a model: a tokenizer of bytes, a clock, and a model without tensors.

The model's logits are a hash of the tokens that a row sees, read back from the state through the batch's tables, rings
and slots. A block, slot, position or chunk that is wrong anywhere changes them; `expected_logits` needs no state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorsharp.errors import BackendError
from tensorsharp.protocols.backend import StateSizes, StateStore, StepResult
from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.layout import Format, Layout, Paged, Slot, State, Tail
from tensorsharp.reference.paging import read_rows, write_rows
from tensorsharp.state import HostStateStore

MASK = (1 << 64) - 1
SEED = 0x243F6A8885A308D3


def mixed(h: int, token: int) -> int:
    """One step of a 64-bit hash (multiply and fold, as in splitmix64)."""
    h = ((h ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0xBF58476D1CE4E5B9) & MASK
    return h ^ (h >> 31)


def hashed(tokens: Sequence[int], start: int = SEED) -> int:
    for token in tokens:
        start = mixed(start, token)
    return start


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A model as an engine sees it, with state of every kind it declares.

    window: also reads the newest `window` tokens from a windowed store. ring: also reads that many rows from a Tail.
    recurrent: also carries a hash in a Slot. Without options there is one paged store.
    """

    vocab_size: int = 256
    context_length: int = 4096
    window: int | None = None
    ring: int = 0
    recurrent: bool = False
    architecture: str = "fake"
    layers: int = 1
    width: int = 1

    def layout(self, kv_format: Format = "f32") -> Layout:
        """Stores keep token ids, so they are float32 whatever `kv_format` says."""
        found: dict[str, State] = {"all": Paged(1, "f32")}
        if self.window is not None:
            found["window"] = Paged(1, "f32", window=self.window)
        if self.ring:
            found["ring"] = Tail(1, self.ring)
        if self.recurrent:
            found["hash"] = Slot((4,))
        return found

    def logits(self, every: Sequence[int], recurrent: int) -> F32:
        """[vocab] of a row that sees the tokens `every`, with the recurrent hash after it."""
        h = hashed(every)
        if self.window is not None:
            h = hashed(every[-self.window :], h)
        if self.ring:
            h = hashed(every[-self.ring :], h)
        if self.recurrent:
            h = mixed(h, recurrent)
        return self._spread(h)

    def expected_logits(self, tokens: Sequence[int]) -> F32:
        """[n, vocab] after each token, from the definition alone."""
        return np.stack([self.logits(tokens[:n], hashed(tokens[:n])) for n in range(1, len(tokens) + 1)])

    def reply(self, prompt: Sequence[int], tokens: int) -> list[int]:
        """The greedy continuation of a prompt."""
        line = list(prompt)
        for _ in range(tokens):
            line.append(int(self.logits(line, hashed(line)).argmax()))
        return line[len(prompt) :]

    def _spread(self, h: int) -> F32:
        return np.array([(mixed(h, i) >> 40) / 2**21 - 4 for i in range(self.vocab_size)], np.float32)


class FakeRunner:
    """Steps a :class:`FakeModel` over host state; the model's hash runs over what the state holds, not over what it was given.

    batches: every batch so far. fail: raise BackendError at the step with this number, once. BackendError too for a
    batch that contradicts itself.
    """

    def __init__(self, model: FakeModel, store: HostStateStore) -> None:
        self.model, self.store = model, store
        self.batches: list[Batch] = []
        self.fail: int | None = None
        self.closed = False

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        self.batches.append(batch)
        if self.fail == len(self.batches):
            raise BackendError(f"step {self.fail} was told to fail")
        rows = [self._row(batch, r) for r in range(batch.rows)]
        vocab = np.zeros((0, self.model.vocab_size), np.float32)
        return StepResult(np.stack([rows[r] for r in batch.wanted]) if len(batch.wanted) else vocab)

    def close(self) -> None:
        self.closed = True

    def _row(self, batch: Batch, r: int) -> F32:
        model, s, p = self.model, int(batch.seq[r]), int(batch.pos[r])
        if s < 0:
            return np.zeros(model.vocab_size, np.float32)
        if p != batch.start[s] + r - batch.first_row[s]:
            raise BackendError(f"row {r} has position {p}; its sequence says {batch.start[s] + r - batch.first_row[s]}")
        self._write(batch, r, s, p)
        every = self._read(batch, "all", s, range(p + 1))
        h = hashed(every)
        if model.window is not None:
            h = hashed(self._read(batch, "window", s, range(max(0, p + 1 - model.window), p + 1)), h)
        if model.ring:
            ring = self.store.arrays["ring"][batch.tail_slot[s]]
            h = hashed([_token(ring[i % len(ring), 0]) for i in range(max(0, p + 1 - model.ring), p + 1)], h)
        if model.recurrent:
            h = mixed(h, self._recur(batch, r, s))
        return model._spread(h)

    def _write(self, batch: Batch, r: int, s: int, p: int) -> None:
        one = Batch(
            tokens=batch.tokens[r : r + 1],
            pos=batch.pos[r : r + 1],
            seq=batch.seq[r : r + 1],
            first_row=batch.first_row,
            start=batch.start,
            length=batch.length,
            tables=batch.tables,
            tail_slot=batch.tail_slot,
            slot_in=batch.slot_in,
            slot_out=batch.slot_out[r : r + 1],
            wanted=batch.wanted,
        )
        x = batch.tokens[r : r + 1, None].astype(np.float32)
        for name, kind in self.store.layout.items():
            if isinstance(kind, Paged):
                write_rows(self.store, one, name, x)
        if self.model.ring:
            ring = self.store.arrays["ring"][batch.tail_slot[s]]
            ring[p % len(ring)] = x

    def _read(self, batch: Batch, name: str, s: int, rows: range) -> list[int]:
        return [_token(x) for x in read_rows(self.store, batch, name, s, np.array(rows))[:, 0]]

    def _recur(self, batch: Batch, r: int, s: int) -> int:
        """The hash after row r; it travels as four 16-bit numbers, which float32 holds exactly."""
        slots = self.store.arrays["hash"]
        if r == batch.first_row[s]:
            self._state = SEED if batch.slot_in[s] < 0 else _joined(slots[batch.slot_in[s]])
        self._state = mixed(self._state, int(batch.tokens[r]))
        if batch.slot_out[r] >= 0:
            slots[batch.slot_out[r]] = [float(self._state >> shift & 0xFFFF) for shift in (0, 16, 32, 48)]
        return self._state


def _token(x: np.generic) -> int:
    """A stored token id; memory that was never written is -9, which no prompt holds."""
    value = float(x)
    return int(value) if value == value else -9


def _joined(parts: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> int:
    return sum(max(_token(part), 0) << shift for part, shift in zip(parts, (0, 16, 32, 48), strict=True))


def fake_engine_parts(model: FakeModel, sizes: StateSizes) -> tuple[FakeRunner, StateStore]:
    """A runner and its store, which starts as NaN so that unwritten memory shows."""
    store = HostStateStore(model.layout(), sizes)
    for array in store.arrays.values():
        array[...] = np.nan
    return FakeRunner(model, store), store


class ByteTokenizer:
    """Ids 0..255 are bytes, 256 begins a text, 257 ends it. Implements `tensorsharp.protocols.tokenizer.Tokenizer`."""

    vocab_size = 258
    bos = 256
    eos = 257
    end_tokens = frozenset({257})

    def encode(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """UTF-8 bytes; bos None puts none. With `special`, <s> and </s> become the control tokens."""
        ids = [self.bos] if bos else []
        for piece in _pieces(text) if special else [text]:
            ids += {"<s>": [self.bos], "</s>": [self.eos]}.get(piece, list(piece.encode())) if special else list(piece.encode())
        return ids

    def at_least(self, text: str, most: int) -> int:
        return min(len(self.encode(text)), most + 1)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        return b"".join(self.piece(i).encode() if special and i > 255 else self.bytes_of(i) for i in ids).decode(errors="replace")

    def bytes_of(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def piece(self, token: int) -> str:
        if token > 255:
            return "<s>" if token == self.bos else "</s>"
        return chr(token) if 32 <= token < 127 else f"<0x{token:02X}>"


def _pieces(text: str) -> list[str]:
    """The text cut at <s> and </s>, which are pieces of their own."""
    found = [text]
    for mark in ("</s>", "<s>"):
        cut: list[str] = []
        for piece in found:
            parts = [piece] if piece == "</s>" else piece.split(mark)
            cut += [x for i, part in enumerate(parts) for x in ([mark, part] if i else [part])]
        found = cut
    return [piece for piece in found if piece]


@dataclass
class FakeClock:
    """Seconds that pass only when told to; stands for `time.monotonic` and `time.sleep`."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock does not run backwards, by {-seconds} seconds")
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
