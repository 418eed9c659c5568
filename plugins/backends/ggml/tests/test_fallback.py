"""What ggml and our kernels lack runs through the reference on the host: correct, counted, and never a lost error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import BackendError, ModelError
from tensorsharp.ops import Source
from tensorsharp.protocols.layout import Layout, Paged, Tail
from tensorsharp.reference import recurrence
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp_backend_ggml import native
from tensorsharp_backend_ggml.backend import GgmlBackend

RATIO, DIM, HEADS, TOP = 4, 16, 3, 6
LAYOUT: Layout = {
    "index": Paged(DIM, "f32", stride=RATIO),
    "k": Paged(DIM, "f32"),
    "entries": Paged(DIM, "f32", stride=RATIO),
    "ring": Tail(2 * DIM, RATIO - 1),
}
rng = np.random.default_rng(5)
WEIGHTS = {name: rng.standard_normal((50, n)).astype(np.float32) for name, n in (("x", 2 * DIM), ("q", HEADS * DIM), ("k", DIM))}
TOKENS = [int(t) for t in rng.integers(0, 50, 60)]


def sparse_attention(ops: Any, batch: Any) -> Any:
    """Pools rows into entries, selects entries and attends to them and to the open group: every op of the host's."""
    x, k = (ops.take(ops.weight(name), batch.tokens) for name in ("x", "k"))
    q = ops.reshape(ops.take(ops.weight("q"), batch.tokens), (-1, HEADS, DIM))
    windows = batch.windows(RATIO)
    entries = ops.pool(x, "ring", windows, RATIO)
    ops.store("k", k)
    ops.store("index", entries, at=windows)
    ops.store("entries", entries, at=windows)
    chosen = ops.select(q, None, "index", batch.strided(RATIO), TOP)
    whole = batch.strided(RATIO)
    sources = [Source("entries", whole, select=chosen), Source("k", batch.open_group(RATIO))]
    out = ops.attend(q, sources, 0.25)
    return ops.take(ops.reshape(out, (-1, HEADS * DIM)), batch.wanted)


@pytest.mark.parametrize("chunk", [60, 7, 1])
def test_sparse_attention(
    chunk: int, any_backend: GgmlBackend, machine: Any, memory_file: Any, float_tensors: Any, rows: Any, ragged_batch: Any
) -> None:
    file = memory_file(float_tensors(**WEIGHTS))
    one, reference = (machine(b, file, sparse_attention, LAYOUT) for b in (any_backend, ReferenceBackend()))
    theirs = reference.step(ragged_batch(rows(TOKENS))).logits
    found = [one.step(ragged_batch(rows(TOKENS[i : i + chunk], i, [5, 3, 9]))) for i in range(0, len(TOKENS), chunk)]
    # One softmax over at most 27 rows with the exponentials of two implementations.
    np.testing.assert_allclose(np.concatenate([f.logits for f in found]), theirs, rtol=1e-5, atol=1e-5)
    fallbacks = found[0].fallbacks
    assert fallbacks["select"] == 1
    assert fallbacks["pool"] == 1
    if any_backend.describe()["kernels"].startswith("none"):
        assert set(fallbacks) == {"select", "pool", "store", "attend"}
    else:
        assert set(fallbacks) == {"select", "pool"}


def test_nothing_falls_back_in_a_dense_model(
    any_backend: GgmlBackend, machine: Any, memory_file: Any, float_tensors: Any, rows: Any, ragged_batch: Any
) -> None:
    def dense(ops: Any, batch: Any) -> Any:
        q = ops.reshape(ops.take(ops.weight("q"), batch.tokens), (-1, HEADS, DIM))
        ops.store("k", ops.take(ops.weight("k"), batch.tokens))
        out = ops.attend(q, [Source("k", batch.visible())], 0.25)
        return ops.act(ops.reshape(out, (-1, HEADS * DIM)), "gelu_tanh")

    one = machine(any_backend, memory_file(float_tensors(**WEIGHTS)), dense, LAYOUT)
    assert one.step(ragged_batch(rows(TOKENS))).fallbacks == {}


def test_an_error_on_the_host_ends_the_step_and_only_that_step(
    any_backend: GgmlBackend,
    machine: Any,
    memory_file: Any,
    float_tensors: Any,
    rows: Any,
    ragged_batch: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = machine(any_backend, memory_file(float_tensors(**WEIGHTS)), sparse_attention, LAYOUT)
    batch = ragged_batch(rows(TOKENS))
    expected = one.step(batch).logits

    def broken(*_: Any, **__: Any) -> None:
        raise ArithmeticError("the ring is gone")

    with monkeypatch.context() as patch:
        patch.setattr(recurrence, "pool", broken)
        with pytest.raises(BackendError, match="the ring is gone"):
            one.step(batch)
    np.testing.assert_array_equal(one.step(batch).logits, expected)


def test_a_wrong_result_on_the_host_is_an_error(
    any_backend: GgmlBackend,
    machine: Any,
    memory_file: Any,
    float_tensors: Any,
    rows: Any,
    ragged_batch: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = machine(any_backend, memory_file(float_tensors(**WEIGHTS)), sparse_attention, LAYOUT)
    monkeypatch.setattr(recurrence, "pool", lambda *_, **__: np.zeros((2, 3), np.float32))
    with pytest.raises(BackendError, match="broadcast"):
        one.step(ragged_batch(rows(TOKENS)))


def test_what_is_too_wide_for_our_kernels_runs_on_the_host(
    native_backend: Any, machine: Any, memory_file: Any, float_tensors: Any, rows: Any, ragged_batch: Any
) -> None:
    wide, taps = native.MAX_HEAD_DIM + 8, native.MAX_TAPS + 1
    layout: Layout = {"k": Paged(wide, "f32"), "ring": Tail(4, taps - 1)}

    def write(ops: Any, batch: Any) -> Any:
        x = ops.take(ops.weight("x"), batch.tokens)
        ops.store("k", x)
        a = ops.reshape(ops.attend(ops.reshape(x, (-1, 1, wide)), [Source("k", batch.visible())], 0.1), (-1, wide))
        return ops.concat([a, ops.conv(ops.split(x, [4, wide - 4])[0], "ring", ops.weight("kernel"))])

    file = memory_file(float_tensors(x=rng.standard_normal((50, wide)), kernel=rng.standard_normal((4, taps))))
    found = machine(native_backend(1), file, write, layout).step(ragged_batch(rows(TOKENS)))
    theirs = machine(ReferenceBackend(), file, write, layout).step(ragged_batch(rows(TOKENS))).logits
    np.testing.assert_array_equal(found.logits, theirs)
    assert found.fallbacks == {"attend": 1, "conv": 1}


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (lambda ops, batch: ops.store("nothing", ops.weight("k")), "paged store 'nothing'"),
        (lambda ops, batch: ops.store("ring", ops.weight("k")), "paged store 'ring'"),
        (lambda ops, batch: ops.store("k", ops.weight("x")), "`store k`"),
        (lambda ops, batch: ops.conv(ops.weight("x"), "k", ops.weight("x")), "Tail state 'k'"),
        (
            lambda ops, batch: ops.attend(ops.reshape(ops.weight("q"), (-1, 6, 8)), [Source("k", batch.visible())], 1.0),
            "`attend`",
        ),
    ],
)
def test_state_that_is_not_declared_is_refused(
    write: Any,
    sentence: str,
    any_backend: GgmlBackend,
    machine: Any,
    memory_file: Any,
    float_tensors: Any,
    rows: Any,
    ragged_batch: Any,
) -> None:
    one = machine(any_backend, memory_file(float_tensors(**WEIGHTS)), write, LAYOUT)
    with pytest.raises(ModelError, match=sentence):
        one.step(ragged_batch(rows(TOKENS)))
