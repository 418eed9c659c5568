"""The runner: agreement with the reference, the bitwise contract, what a step gives, what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.errors import BackendError, UnsupportedError
from tensorsharp.inputs import Rope
from tensorsharp.ops import Source
from tensorsharp.protocols.batch import Batch
from tensorsharp.protocols.layout import Layout, Paged, Slot, Tail
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp.testing.blocks import random_tensor
from tensorsharp_backend_ggml.backend import GgmlBackend
from tensorsharp_backend_ggml.runner import bucket

WIDTH, HEADS, KV_HEADS, DIM, HIDDEN, VOCAB = 64, 4, 2, 16, 96, 50
ROPE = Rope(1.0 / 10000.0 ** (np.arange(DIM // 2) / (DIM // 2)), style="neox")
rng = np.random.default_rng(3)


def numbers(*shape: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def transformer_tensors(type_name: str) -> dict[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]]:
    """Two layers; matrices of the given type, norms in F32."""
    tensors: dict[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]] = {}

    def matrix(name: str, out: int, width: int) -> None:
        tensors[name] = (type_name, (out, width), random_tensor(type_name, (out, width), width**-0.5, rng))

    matrix("embd", VOCAB, WIDTH)
    for layer in range(2):
        for name, out, width in (
            ("q", HEADS * DIM, WIDTH),
            ("k", KV_HEADS * DIM, WIDTH),
            ("v", KV_HEADS * DIM, WIDTH),
            ("o", WIDTH, HEADS * DIM),
            ("gate", HIDDEN, WIDTH),
            ("up", HIDDEN, WIDTH),
            ("down", WIDTH, HIDDEN),
        ):
            matrix(f"{name}.{layer}", out, width)
        for name in ("norm1", "norm2"):
            tensors[f"{name}.{layer}"] = ("F32", (WIDTH,), 1.0 + numbers(WIDTH, scale=0.1))
    tensors["sinks"] = ("F32", (HEADS,), numbers(HEADS))
    return tensors


def transformer_layout(kv_format: Any = "f16") -> Layout:
    widths = KV_HEADS * DIM
    layout: Layout = {
        "k.0": Paged(widths, kv_format),
        "v.0": Paged(widths, kv_format),
        "k.1": Paged(widths, kv_format, window=40),
        "v.1": Paged(widths, kv_format, window=40),
    }
    return layout


def transformer(ops: Any, batch: Any) -> Any:
    """Attention with and without a window, sinks and softcap; gated MLP; tied head."""
    h = ops.take(ops.weight("embd"), batch.tokens)
    for layer, window in ((0, None), (1, 40)):
        ops.tap(f"layer.{layer}", h)
        x = ops.rms_norm(h, ops.weight(f"norm1.{layer}"), 1e-5)
        q = ops.reshape(ops.linear(x, ops.weight(f"q.{layer}")), (-1, HEADS, DIM))
        k = ops.reshape(ops.linear(x, ops.weight(f"k.{layer}")), (-1, KV_HEADS, DIM))
        angles = batch.angles(ROPE)
        q, k = ops.rope(q, angles, ROPE), ops.rope(k, angles, ROPE)
        ops.store(f"k.{layer}", ops.reshape(k, (-1, KV_HEADS * DIM)))
        ops.store(f"v.{layer}", ops.linear(x, ops.weight(f"v.{layer}")))
        source = Source(f"k.{layer}", batch.visible(window), f"v.{layer}", KV_HEADS)
        sinks, softcap = (ops.weight("sinks"), 0.0) if layer else (None, 20.0)
        a = ops.attend(q, [source], DIM**-0.5, sinks=sinks, softcap=softcap)
        h = ops.add(h, ops.linear(ops.reshape(a, (-1, HEADS * DIM)), ops.weight(f"o.{layer}")))
        x = ops.rms_norm(h, ops.weight(f"norm2.{layer}"), 1e-5)
        gate, up = ops.linear(x, ops.weight(f"gate.{layer}")), ops.linear(x, ops.weight(f"up.{layer}"))
        h = ops.add(h, ops.linear(ops.glu(gate, up, "gelu_tanh" if layer else "silu"), ops.weight(f"down.{layer}")))
    return ops.linear(ops.take(h, batch.wanted), ops.weight("embd"))


GROUPS = (None, 40)
PROMPT = [int(t) for t in rng.integers(0, VOCAB, 150)]
OTHER = [int(t) for t in rng.integers(0, VOCAB, 150)]


@pytest.fixture
def logits(rows: Any, ragged_batch: Any) -> Callable[..., npt.NDArray[np.float32]]:
    """(machine, chunk, blocks) -> [len(PROMPT), VOCAB], the prompt in chunks, every row wanted."""

    def run(one: Any, chunk: int, blocks: Sequence[int], *, beside: int = 0) -> npt.NDArray[np.float32]:
        out = []
        for start in range(0, len(PROMPT), chunk):
            parts = [rows(PROMPT[start : start + chunk], start, blocks)]
            if beside and start + beside <= len(OTHER):
                parts.insert(0, rows(OTHER[start : start + beside], start, range(40, 50)))
            batch = ragged_batch(*parts, groups=GROUPS)
            own = batch.seq == len(parts) - 1
            out.append(one.step(batch).logits[own])
        return np.concatenate(out)

    return run


# agreement -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_format", ["f16", "f32", "bf16"])
def test_agrees_with_the_reference(kv_format: str, any_backend: GgmlBackend, machine: Any, memory_file: Any, logits: Any) -> None:
    file = memory_file(transformer_tensors("F32"))
    ours = logits(machine(any_backend, file, transformer, transformer_layout(kv_format)), 64, range(8))
    theirs = logits(machine(ReferenceBackend(), file, transformer, transformer_layout(kv_format)), 64, range(8))
    # A key or value row may round to the neighbouring number of its format (2^-11, 2^-8) where float32 sums differ in
    # their last bit; without our kernels ggml also adds values in float16. Logits here are of size 1.
    native = not any_backend.describe()["kernels"].startswith("none")
    bound = {"f32": 2e-5, "f16": 2e-3, "bf16": 2e-2}[kv_format] if native else 2e-2
    assert np.abs(ours - theirs).max() < bound


@pytest.mark.parametrize("type_name", ["Q4_0", "Q8_0", "Q4_1", "F16", "BF16"])
def test_agrees_with_the_reference_for_narrow_weights(
    type_name: str, native_backend: Any, machine: Any, memory_file: Any, logits: Any
) -> None:
    file = memory_file(transformer_tensors(type_name))
    ours = logits(machine(native_backend(1), file, transformer, transformer_layout("f32")), 64, range(8))
    theirs = logits(machine(ReferenceBackend(), file, transformer, transformer_layout("f32")), 64, range(8))
    # ggml rounds the activations of a product: to 8 bits in blocks of 32 (error about 1/150 of their size), to 11 (F16)
    # or 8 (BF16) significant bits. 15 products in a row add up like independent errors, 4 times one
    # of them; gates and attention multiply two such results, which doubles it.
    bound = 8 * {"F16": 2**-11, "BF16": 2**-8}.get(type_name, 1 / 150)
    assert np.sqrt(np.square(ours - theirs).mean() / np.square(theirs).mean()) < bound


# the bitwise contract ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0", "F16", "BF16", "F32"])
def test_rows_do_not_depend_on_chunks_blocks_threads_or_company(
    type_name: str, backend_for: Any, machine: Any, memory_file: Any, logits: Any
) -> None:
    file = memory_file(transformer_tensors(type_name))
    layout = transformer_layout()
    expected = logits(machine(backend_for(1), file, transformer, layout), len(PROMPT), range(8))
    assert np.isfinite(expected).all()
    permuted = [9, 3, 30, 12, 2, 25, 8, 17]
    for chunk, threads, blocks, beside in (
        (1, 1, range(8), 0),
        (3, 2, permuted, 0),
        (7, 1, permuted, 3),
        (32, 2, range(8), 0),
        (33, 1, permuted, 40),
        (149, 2, range(20, 28), 1),
    ):
        got = logits(machine(backend_for(threads), file, transformer, layout), chunk, blocks, beside=beside)
        np.testing.assert_array_equal(got, expected, err_msg=f"chunks of {chunk}, {threads} threads")


def test_many_keys_and_many_rows_take_the_same_path(
    backend_for: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    """ggml's attention changes its path from 64 rows on, and for one row with 512 keys or more."""
    file = memory_file(transformer_tensors("Q8_0"))
    prompt = (PROMPT * 5)[:700]
    blocks = list(range(22))

    def run(cuts: Sequence[int]) -> npt.NDArray[np.float32]:
        one = machine(backend_for(1), file, transformer, transformer_layout())
        parts = pairwise([0, *cuts, len(prompt)])
        found = [one.step(ragged_batch(rows(prompt[a:b], a, blocks), groups=GROUPS)).logits for a, b in parts]
        return np.concatenate(found)

    expected = run([])
    np.testing.assert_array_equal(run([63, 126, 200, 300, 600, 695, 696, 697, 698, 699]), expected)


def test_wanted_rows_and_taps_change_nothing(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    batch = ragged_batch(rows(PROMPT[:20]), groups=GROUPS)
    full = one.step(batch)
    some = one.step(ragged_batch(rows(PROMPT[:20]), wanted=[19, 3], groups=GROUPS), taps=["layer.1"])
    np.testing.assert_array_equal(some.logits, full.logits[[19, 3]])
    again = one.step(batch, taps=["layer.0", "layer.1"])
    np.testing.assert_array_equal(again.logits, full.logits)
    np.testing.assert_array_equal(again.taps["layer.1"], some.taps["layer.1"])
    assert again.taps["layer.0"].shape == (20, WIDTH)


# what a step gives ---------------------------------------------------------------------------------------------


def test_a_replayed_graph_takes_new_tokens_positions_and_blocks(
    native_backend: Any, machine: Any, memory_file: Any, logits: Any, rows: Any, ragged_batch: Any
) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    expected = logits(one, len(PROMPT), range(8))
    one.step(ragged_batch(rows(OTHER[:1], 0, [50]), groups=GROUPS))
    graphs = len(one.runner._graphs)
    for p in range(70):
        found = one.step(ragged_batch(rows(PROMPT[p : p + 1], p, [60, 33, 41]), groups=GROUPS))
        np.testing.assert_array_equal(found.logits[0], expected[p])
    assert len(one.runner._graphs) == graphs


def test_no_row_wanted(native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    whole = one.step(ragged_batch(rows(PROMPT[:40]), groups=GROUPS)).logits
    silent = one.step(ragged_batch(rows(PROMPT[:39], 0, [5, 6]), wanted=[], groups=GROUPS), taps=["layer.1"])
    assert silent.logits.shape == (0, VOCAB)
    assert silent.taps["layer.1"].shape == (39, WIDTH)
    last = one.step(ragged_batch(rows(PROMPT[39:40], 39, [5, 6]), groups=GROUPS)).logits
    np.testing.assert_array_equal(last[0], whole[39])


def test_embedded_rows_have_no_token(
    any_backend: GgmlBackend, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    def embed(ops: Any, batch: Any) -> Any:
        return ops.add(ops.take(ops.weight("embd"), batch.tokens), batch.rows_in)

    file = memory_file(transformer_tensors("F32"))
    given = numbers(3, WIDTH)
    given[0] = 0.0
    batch = ragged_batch(rows([4, -1, -1]), rows_in=given)
    ours = machine(any_backend, file, embed).step(batch).logits
    np.testing.assert_array_equal(ours, machine(ReferenceBackend(), file, embed).step(batch).logits)
    np.testing.assert_array_equal(ours[1:], given[1:])


def test_results_outlive_the_runner(native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    found = one.runner.step(ragged_batch(rows(PROMPT[:9]), groups=GROUPS))
    kept = found.logits.copy()
    one.runner.close()
    one.runner.close()
    np.testing.assert_array_equal(found.logits, kept)
    with pytest.raises(BackendError, match="closed"):
        one.runner.step(ragged_batch(rows(PROMPT[:9]), groups=GROUPS))


def test_two_runners_side_by_side(native_backend: Any, machine: Any, memory_file: Any, logits: Any) -> None:
    file = memory_file(transformer_tensors("Q4_0"))
    backend = native_backend(2)
    first, second = (machine(backend, file, transformer, transformer_layout()) for _ in range(2))
    a = logits(first, 70, range(8))
    b = logits(second, 70, range(8))
    np.testing.assert_array_equal(a, b)
    first.runner.close()
    np.testing.assert_array_equal(logits(second, 33, range(8)), a)


def test_graphs_are_bounded(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorsharp_backend_ggml.runner.MAX_GRAPHS", 3)
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    expected = one.step(ragged_batch(rows(PROMPT[:1]), groups=GROUPS)).logits
    for n in (2, 3, 4, 5):
        one.step(ragged_batch(rows(PROMPT[:n]), groups=GROUPS))
        assert len(one.runner._graphs) <= 3
    np.testing.assert_array_equal(one.step(ragged_batch(rows(PROMPT[:1]), groups=GROUPS)).logits, expected)


def test_infinite_logits_are_handed_over(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    tensors = transformer_tensors("F32")
    tensors["embd"][2].view(np.float32)[7, 0] = np.inf
    one = machine(native_backend(1), memory_file(tensors), transformer, transformer_layout())
    found = one.step(ragged_batch(rows([7, 1, 2]), rows([1, 2, 3], 0, range(8, 12)), groups=GROUPS)).logits
    assert not np.isfinite(found[0]).all()


@pytest.mark.parametrize("tokens", [[0, 1 << 20], [-2]])
def test_tokens_outside_the_vocabulary_are_refused(
    tokens: list[int], native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    with pytest.raises(BackendError, match="token ids"):
        one.step(ragged_batch(rows(tokens), groups=GROUPS))


def test_unknown_tap_is_refused(native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any) -> None:
    one = machine(native_backend(1), memory_file(transformer_tensors("Q8_0")), transformer, transformer_layout())
    with pytest.raises(UnsupportedError, match=r"no tap 'layer\.9'"):
        one.step(ragged_batch(rows([1]), groups=GROUPS), taps=["layer.9"])


def test_buckets_waste_little() -> None:
    for n in range(1, 700):
        found = bucket(n)
        assert n <= found < n + 32
        assert found == bucket(found)
        assert found <= n * 1.5


# recurrent state -----------------------------------------------------------------------------------------------

CHANNELS = 2 * KV_HEADS * DIM + HEADS * DIM
RECURRENT: Layout = {"ring": Tail(CHANNELS, 3), "state": Slot((HEADS, DIM, DIM))}


def recurrent_tensors() -> dict[str, tuple[str, tuple[int, ...], npt.NDArray[Any]]]:
    plain = {
        "embd": numbers(VOCAB, WIDTH),
        "in": numbers(CHANNELS, WIDTH, scale=WIDTH**-0.5),
        "kernel": numbers(CHANNELS, 4, scale=0.5),
        "shift": numbers(CHANNELS, scale=0.1),
        "gate": numbers(HEADS, WIDTH, scale=WIDTH**-0.5),
        "beta": numbers(HEADS, WIDTH, scale=WIDTH**-0.5),
        "out": numbers(VOCAB, HEADS * DIM, scale=0.1),
    }
    return {name: ("F32", a.shape, a) for name, a in plain.items()}


def recurrent(ops: Any, batch: Any) -> Any:
    x = ops.take(ops.weight("embd"), batch.tokens)
    mixed = ops.act(ops.conv(ops.linear(x, ops.weight("in")), "ring", ops.weight("kernel"), ops.weight("shift")), "silu")
    q, k, v = ops.split(mixed, [KV_HEADS * DIM, KV_HEADS * DIM, HEADS * DIM])
    q, k = (ops.rms_norm(ops.reshape(t, (-1, KV_HEADS, DIM)), None, 1e-6) for t in (q, k))
    k = ops.mul(k, DIM**-0.5)
    g = ops.mul(ops.act(ops.linear(x, ops.weight("gate")), "softplus"), -1.0)
    beta = ops.act(ops.linear(x, ops.weight("beta")), "sigmoid")
    o = ops.scan(q, k, ops.reshape(v, (-1, HEADS, DIM)), g, beta, "state", delta=True, heads="tile")
    return ops.linear(ops.take(ops.reshape(o, (-1, HEADS * DIM)), batch.wanted), ops.weight("out"))


def recurrent_logits(one: Any, rows: Any, ragged_batch: Callable[..., Batch], chunk: int) -> npt.NDArray[np.float32]:
    out, slot = [], -1
    for start in range(0, 50, chunk):
        part = PROMPT[start : min(50, start + chunk)]
        taken = 1 if slot != 1 else 2
        batch = ragged_batch(rows(part, start, (), 2, slot, [-1] * (len(part) - 1) + [taken]), groups=())
        out.append(one.step(batch).logits)
        slot = taken
    return np.concatenate(out)


def test_recurrent_state_agrees_with_the_reference(
    any_backend: GgmlBackend, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    file = memory_file(recurrent_tensors())
    ours = recurrent_logits(machine(any_backend, file, recurrent, RECURRENT), rows, ragged_batch, 16)
    theirs = recurrent_logits(machine(ReferenceBackend(), file, recurrent, RECURRENT), rows, ragged_batch, 50)
    # Sums of up to 96 products of size 1 in another order, carried through 50 steps of a contracting recurrence.
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_recurrent_state_does_not_depend_on_chunks(
    native_backend: Any, machine: Any, memory_file: Any, rows: Any, ragged_batch: Any
) -> None:
    file = memory_file(recurrent_tensors())
    expected = recurrent_logits(machine(native_backend(1), file, recurrent, RECURRENT), rows, ragged_batch, 50)
    for chunk in (1, 3, 7, 49):
        got = recurrent_logits(machine(native_backend(2), file, recurrent, RECURRENT), rows, ragged_batch, chunk)
        np.testing.assert_array_equal(got, expected)
