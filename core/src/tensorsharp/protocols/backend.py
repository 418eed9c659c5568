"""One kind of device: it loads weights, keeps state, and runs models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tensorsharp.protocols.batch import F32, Batch
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout
from tensorsharp.protocols.model import IBatchedPagedModel


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """What a user may choose about a device. threads: None = the backend's default. extra: the backend's own flags."""

    device: str | None = None
    threads: int | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bitwise:
    """Whether the bitwise contract holds for a configuration, and the sentence that says why not."""

    holds: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class StateSizes:
    """How much state to allocate.

    block_tokens: stream positions of a block, a multiple of 32 and of every stride. blocks: block group -> number of
    blocks. sequences: Tail rings. slots: recurrent slots. slack: rows one verify step may take back.
    """

    block_tokens: int
    blocks: Mapping[int | None, int]
    sequences: int
    slots: int = 0
    slack: int = 0


class StateStore(Protocol):
    """All state of all sequences, made from a declared layout. Blocks are numbered 0.. within their group.

    Which slot or block is current is the engine's knowledge: taking rows back after a verification is an assignment
    there and needs no call here.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def sizes(self) -> StateSizes: ...

    def block_bytes(self, group: int | None) -> int:
        """Bytes of one block of that group over all its stores."""
        ...

    def slot_bytes(self) -> int:
        """Bytes of one snapshot: every recurrent state and Tail ring of one sequence."""
        ...

    def copy(self, group: int | None, source: int, target: int) -> None:
        """Copy one block over another."""
        ...

    def read(self, group: int | None, block: int) -> bytes:
        """The block's rows of every store of the group, in layout order."""
        ...

    def write(self, group: int | None, block: int, data: bytes) -> None:
        """The inverse of `read`. ValueError if the size is wrong."""
        ...

    def snapshot(self, tail: int, slot: int) -> bytes:
        """Tail rings of ring slot `tail` and recurrent state of slot `slot` (-1: left out), exactly."""
        ...

    def restore(self, tail: int, slot: int, data: bytes) -> None:
        """The inverse of `snapshot`. ValueError if the size is wrong."""
        ...

    def free(self) -> None:
        """Give the memory back. Idempotent; nothing may be called afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step gave. Arrays belong to the caller until the next step of the same runner.

    logits [W, vocab] float32. taps: name -> [R, m], for every row of the batch; `output`: [W, m], for those of the logits.
    fallbacks: op name -> how many times it ran through the reference on the host.
    """

    logits: F32
    taps: Mapping[str, F32] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)


class Runner(Protocol):
    """A model bound to weights and state on one device."""

    def step(self, batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        """Compute one batch. Graphs are built once per signature, kept in a bounded LRU and replayed."""
        ...

    def close(self) -> None: ...


class Weights(Protocol):
    """A model's tensors on a device, bound without a copy where the format allows."""

    @property
    def nbytes(self) -> int: ...

    def close(self) -> None: ...


class Backend(Protocol):
    """One kind of device. Constructed with :class:`BackendOptions`; PluginError if it cannot run as asked."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def threads(self) -> int: ...

    @property
    def arithmetic_id(self) -> str:
        """Names everything that may change a bit of a result: library, kernels, their versions, device split."""
        ...

    def bitwise(self, types: Iterable[str]) -> Bitwise:
        """Whether the bitwise contract holds for weights of these tensor types ("Q4_1", ...)."""
        ...

    def describe(self) -> Mapping[str, str]:
        """Facts for people: library, version, instruction sets, kernels."""
        ...

    def memory(self) -> tuple[int, int]:
        """(total, available) bytes of the device."""
        ...

    def load(self, file: ModelFile, names: Iterable[str]) -> Weights:
        """Bind the named tensors. ModelError names a tensor whose type the backend does not know."""
        ...

    def state(self, layout: Layout, sizes: StateSizes) -> StateStore:
        """Allocate all state. CapacityError if it does not fit, with nothing changed."""
        ...

    def compile(self, model: IBatchedPagedModel, weights: Weights, state: StateStore) -> Runner: ...

    def close(self) -> None: ...
