"""A model file, its family and a device, opened together; and what runs on them. For programs that need no engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from tensorsharp.errors import CapacityError
from tensorsharp.protocols.backend import Backend, BackendOptions, Runner, StateSizes, StateStore
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Layout
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.weights.gguf import open_gguf

if TYPE_CHECKING:
    from tensorsharp.registry import Registry


@dataclass(frozen=True, slots=True)
class Opened:
    """A model and the device it will run on; no state yet."""

    file: ModelFile
    model: IBatchedPagedModel
    backend: Backend

    def available(self) -> int:
        """Bytes that are left for state beside the weights. CapacityError if the weights themselves do not fit."""
        names = self.model.weights()
        needed = sum(info.nbytes for name, info in self.file.tensors.items() if name in names)
        free = self.backend.memory()[1]
        if needed > free:
            raise CapacityError(
                f"{self.file.path}: the weights need {needed:,} bytes; {free:,} are available on {self.backend.device}.",
                hint="Use a smaller quantisation of the model, or free some memory.",
            )
        return free - needed

    def facts(self) -> dict[str, Any]:
        """What is known of them, as plain data: device, arithmetic, whether the bitwise contract holds."""
        names = self.model.weights()
        bitwise = self.backend.bitwise(sorted({t.type_name for n, t in self.file.tensors.items() if n in names}))
        return {
            "model": self.file.path,
            "architecture": self.file.architecture,
            "backend": self.backend.name,
            "device": self.backend.device,
            "threads": self.backend.threads,
            "arithmetic_id": self.backend.arithmetic_id,
            "bitwise": asdict(bitwise),
            "facts": dict(self.backend.describe()),
        }


@contextmanager
def opened(path: str | PathLike[str], registry: Registry, backend: str, options: BackendOptions) -> Iterator[Opened]:
    """Open the file and its plugins; closed at the end."""
    with ExitStack() as stack:
        file = stack.enter_context(open_gguf(path))
        model = cast("IBatchedPagedModel", registry.load("model", file.architecture).from_file(file))
        device = cast("Backend", registry.load("backend", backend)(options))
        stack.callback(device.close)
        yield Opened(file, model, device)


@contextmanager
def running(this: Opened, layout: Layout, sizes: StateSizes) -> Iterator[tuple[Runner, StateStore]]:
    """Weights, state of these sizes and a runner; closed at the end. CapacityError if they do not fit."""
    with ExitStack() as stack:
        weights = this.backend.load(this.file, this.model.weights())
        stack.callback(weights.close)
        store = this.backend.state(layout, sizes)
        stack.callback(store.free)
        runner = this.backend.compile(this.model, weights, store)
        stack.callback(runner.close)
        yield runner, store
