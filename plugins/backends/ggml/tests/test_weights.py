"""Weights are bound where they lie in the file; what cannot be used is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.reference.backend import ReferenceBackend
from tensorsharp.testing.blocks import random_tensor
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME
from tensorsharp_backend_ggml.backend import GgmlBackend
from tensorsharp_backend_ggml.binding import data_address

BLOCK = 256
PRODUCTS = sorted(
    name for name in GGML_TYPES_BY_NAME if name.startswith(("Q", "IQ", "TQ", "MXFP", "NVFP")) and name not in ("Q8_1", "Q8_K")
)
rng = np.random.default_rng(11)


@pytest.fixture
def backend() -> GgmlBackend:
    return GgmlBackend()


def test_tensors_stay_where_they_are(backend: GgmlBackend, memory_file: Any, float_tensors: Any) -> None:
    file = memory_file(
        {**float_tensors(a=np.ones((4, 8)), b=np.ones(8)), "q": ("Q8_0", (2, 32), random_tensor("Q8_0", (2, 32), 1, rng))}
    )
    weights: Any = backend.load(file, file.tensors)
    for name in file.tensors:
        assert data_address(weights.nodes[name].ptr) == file.raw(name).ctypes.data
    assert weights.nbytes == 4 * 8 * 4 + 8 * 4 + 2 * 34
    assert weights.nodes["q"].shape == (2, 32)
    weights.close()
    weights.close()


def test_unaligned_tensors_are_copied(memory_file: Any, float_tensors: Any, machine: Any, rows: Any, ragged_batch: Any) -> None:
    table = rng.standard_normal((6, 8)).astype(np.float32)
    one = machine(
        GgmlBackend(), memory_file(float_tensors(a=table), shift=4), lambda ops, batch: ops.take(ops.weight("a"), batch.tokens)
    )
    np.testing.assert_array_equal(one.step(ragged_batch(rows([3, 0, 5]))).logits, table[[3, 0, 5]])


@pytest.mark.parametrize("type_name", ["F16", "BF16"])
def test_narrow_vectors_are_widened(
    type_name: str, memory_file: Any, machine: Any, rows: Any, ragged_batch: Any, give: Any
) -> None:
    x = rng.standard_normal((3, 8)).astype(np.float32)
    file = memory_file(
        {
            "w": (type_name, (8,), random_tensor(type_name, (8,), 1, rng)),
            "m": (type_name, (3, 8), random_tensor(type_name, (3, 8), 1, rng)),
        }
    )

    def write(ops: Any, batch: Any) -> Any:
        return ops.mul(ops.mul(give(batch, "x", x), ops.weight("w")), ops.take(ops.weight("m"), batch.tokens))

    batch = ragged_batch(rows([0, 1, 2]))
    ours = machine(GgmlBackend(), file, write).step(batch).logits
    np.testing.assert_array_equal(ours, machine(ReferenceBackend(), file, write).step(batch).logits)


def test_vectors_of_64_bit_ids_become_32_bit_ids(
    memory_file: Any, float_tensors: Any, machine: Any, rows: Any, ragged_batch: Any
) -> None:
    names, table = np.array([4, 0, 2], np.int64), rng.standard_normal((5, 8)).astype(np.float32)
    file = memory_file({**float_tensors(t=table), "ids": ("I64", (3,), names)})
    one = machine(GgmlBackend(), file, lambda ops, batch: ops.take(ops.weight("t"), ops.take(ops.weight("ids"), batch.tokens)))
    np.testing.assert_array_equal(one.step(ragged_batch(rows([2, 0, 1]))).logits, table[[2, 4, 0]])


@pytest.mark.parametrize("type_name", PRODUCTS)
def test_products_and_rows_of_every_quantised_type(
    type_name: str, memory_file: Any, machine: Any, rows: Any, ragged_batch: Any, give: Any
) -> None:
    x = rng.standard_normal((5, 2 * BLOCK)).astype(np.float32)
    with np.errstate(invalid="ignore"):  # random bits of a scale may be a signalling NaN
        data = random_tensor(type_name, (24, 2 * BLOCK), 0.1, rng)
    file = memory_file({"w": (type_name, (24, 2 * BLOCK), data)})

    def product(ops: Any, batch: Any) -> Any:
        return ops.concat([ops.linear(give(batch, "x", x), ops.weight("w")), ops.take(ops.weight("w"), batch.tokens)])

    batch = ragged_batch(rows([0, 23, 7, 8, 9]))
    ours = machine(GgmlBackend(), file, product).step(batch).logits
    theirs = machine(ReferenceBackend(), file, product).step(batch).logits
    # A row taken is the same numbers: float32 products of the block's scale and integers, with one rounding apart.
    np.testing.assert_allclose(ours[:, 24:], theirs[:, 24:], rtol=1e-6, atol=1e-7)
    # A product rounds the activations to 8 bits, half a step of max/127 each: 512 independent errors add up to less
    # than 5 standard deviations of (max / 127 / sqrt 12) * the size of the weight row.
    size = np.sqrt(np.square(theirs[:, 24:]).sum(axis=1)).max()
    bound = 5 * size * np.abs(x).max(axis=1, keepdims=True) / 127 / np.sqrt(12)
    assert (np.abs(ours[:, :24] - theirs[:, :24]) < bound).all()


def test_missing_tensor_is_named(backend: GgmlBackend, memory_file: Any, float_tensors: Any) -> None:
    with pytest.raises(ModelError, match=r"memory\.gguf: tensor nothing\.weight is missing"):
        backend.load(memory_file(float_tensors(a=np.ones((1, 8)))), ["a", "nothing.weight"])


def _changed(file: Any, **fields: Any) -> Any:
    from dataclasses import replace

    file.tensors["a"] = replace(file.tensors["a"], **fields)
    return file


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"type_id": 4, "type_name": "Q4_2"}, r"tensor a has type Q4_2 \(4\), which ggml .* does not know"),
        ({"type_id": 999, "type_name": "999"}, r"tensor a has type 999 \(999\), which ggml .* does not know"),
        ({"type_id": 2, "type_name": "Q4_0"}, r"tensor a has shape \[4, 8\]; expected .* the last a multiple of 32"),
        ({"shape": (1, 1, 1, 4, 8)}, r"expected 1 to 4 axes"),
        ({"type_id": 28, "type_name": "F64"}, r"tensor a has type F64, which ggml cannot compute with"),
        ({"type_id": 27, "type_name": "I64"}, r"tensor a has type I64, which ggml cannot compute with"),
        ({"shape": (0, 8)}, r"expected 1 to 4 axes"),
        ({"nbytes": 124}, r"tensor a of type F32 has 124 bytes of data; its shape needs 128"),
    ],
)
def test_tensors_that_cannot_be_used_are_refused(
    fields: dict[str, Any], sentence: str, backend: GgmlBackend, memory_file: Any, float_tensors: Any
) -> None:
    with pytest.raises(ModelError, match=sentence):
        backend.load(_changed(memory_file(float_tensors(a=np.ones((4, 8)))), **fields), ["a"])
