"""An engine on an opened model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike

from tensorsharp.engine.config import EngineConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.engine.observer import Observer
from tensorsharp.engine.sizing import left_for_state, plan_state
from tensorsharp.opening import Opened
from tensorsharp.protocols.layout import Format
from tensorsharp.reference.memory import host_memory


def start_engine(
    stack: ExitStack,
    this: Opened,
    config: EngineConfig,
    kv_type: Format,
    observers: Sequence[Observer],
    composition_log: str | PathLike[str] | None,
) -> Engine:
    """Plan the memory, then load the weights, allocate the state and start the engine; `stack` closes them."""
    available = this.available()
    layout = this.model.layout(kv_type)
    if this.backend.memory()[0] == host_memory()[0]:  # the device has no memory of its own
        available = left_for_state(layout, config, available)
    sequences, rows = config.scheduler.parallel, config.scheduler.rows
    sizes = plan_state(layout, context=config.context, sequences=sequences, rows=rows, available=available)
    composition = None
    if composition_log is not None:
        from tensorsharp.replay import open_log

        composition = open_log(composition_log, this, kv_type, sizes)
        stack.callback(composition.close)
    weights = this.backend.load(this.file, this.model.weights())
    stack.callback(weights.close)
    with ExitStack() as pending:
        store = this.backend.state(layout, sizes)
        pending.callback(store.free)
        runner = this.backend.compile(this.model, weights, store)
        pending.callback(runner.close)
        engine = Engine(this.model, runner, store, config, observers, composition)
        pending.pop_all()  # they are the engine's now
    return stack.enter_context(engine)
