"""The memory that all graphs of a runner share: what one leaves there never reaches another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import CapacityError
from tensorsharp.inputs import ModelBatch
from tensorsharp.ops import Ops

WIDTH = 64
SIZES = (1, 2, 40, 3, 100, 1, 40, 2, 100, 3)
rng = np.random.default_rng(5)
TENSORS = {
    "embd": ("F32", (50, WIDTH), rng.standard_normal((50, WIDTH)).astype(np.float32)),
    "w": ("F32", (WIDTH, WIDTH), (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)),
}


def layers(ops: Ops, batch: ModelBatch) -> Any:
    """Some products one after the other, with what they began with added, so that several results are needed at a time."""
    h = ops.take(ops.weight("embd"), batch.tokens)
    for layer in range(4):
        ops.tap(f"layer.{layer}", h)
        h = ops.add(ops.linear(ops.add(h, h), ops.weight("w")), h)
    return h


@pytest.fixture
def tokens() -> list[int]:
    return [int(token) for token in rng.integers(0, 50, 100)]


def test_graphs_of_all_sizes_in_turn(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, tokens: list[int]
) -> None:
    one = machine(native_backend(2), memory_file(TENSORS), layers)
    expected = machine(native_backend(1), memory_file(TENSORS), layers).step(ragged_batch(rows(tokens)), ["layer.2"])
    for size in SIZES:
        found = one.step(ragged_batch(rows(tokens[:size])), ["layer.2"])
        np.testing.assert_array_equal(found.logits, expected.logits[:size])
        np.testing.assert_array_equal(found.taps["layer.2"], expected.taps["layer.2"][:size])


def test_graphs_of_as_many_nodes_have_plans_of_their_own(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, tokens: list[int]
) -> None:
    def step(one: Any, tap: str) -> Any:
        return one.step(ragged_batch(rows(tokens[:9])), [tap])

    one, taps = machine(native_backend(1), memory_file(TENSORS), layers), ["layer.1", "layer.2", "layer.3"]
    for tap in (*taps, *reversed(taps)):
        found, alone = step(one, tap), step(machine(native_backend(1), memory_file(TENSORS), layers), tap)
        np.testing.assert_array_equal(found.logits, alone.logits)
        np.testing.assert_array_equal(found.taps[tap], alone.taps[tap])
    assert len(one.runner._graphs) == len(taps)


def test_a_tap_may_have_any_name(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, tokens: list[int]
) -> None:
    def write(ops: Ops, batch: ModelBatch) -> Any:
        h = ops.take(ops.weight("embd"), batch.tokens)
        ops.tap("logits", h)
        return ops.linear(h, ops.weight("w"))

    found = machine(native_backend(1), memory_file(TENSORS), write).step(ragged_batch(rows(tokens)), ["logits"])
    np.testing.assert_array_equal(found.taps["logits"], TENSORS["embd"][2][tokens])
    assert not np.array_equal(found.logits, found.taps["logits"])


def test_smaller_graphs_take_no_memory(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, tokens: list[int]
) -> None:
    runner = machine(native_backend(1), memory_file(TENSORS), layers).runner
    runner.step(ragged_batch(rows(tokens)))
    whole = runner._scratch.nbytes
    for size in (1, 2, 40):
        runner.step(ragged_batch(rows(tokens[:size])))
    assert (len(runner._graphs), runner._scratch.nbytes) == (4, whole)


def test_a_larger_graph_ends_those_before_it(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, tokens: list[int]
) -> None:
    runner = machine(native_backend(1), memory_file(TENSORS), layers).runner
    for size in (1, 100):
        runner.step(ragged_batch(rows(tokens[:size])))
    assert len(runner._graphs) == 1


def test_no_memory_ends_a_step_and_not_the_runner(
    native_backend: Any,
    machine: Any,
    memory_file: Any,
    rows: Any,
    ragged_batch: Any,
    tokens: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = machine(native_backend(1), memory_file(TENSORS), layers)
    expected = one.step(ragged_batch(rows(tokens[:5]))).logits
    with monkeypatch.context() as patch:
        patch.setattr(one.runner._scratch._ggml, "gallocr_reserve", lambda *_: False)
        with pytest.raises(CapacityError, match="does not fit in memory"):
            one.step(ragged_batch(rows(tokens[:6])))
    np.testing.assert_array_equal(one.step(ragged_batch(rows(tokens[:5]))).logits, expected)
