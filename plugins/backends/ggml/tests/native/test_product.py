"""quantise, linear, experts, convert, dots, norm, and the pool of threads."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.protocols.batch import F32
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME
from tensorsharp.weights.quants import dequantize
from tensorsharp_backend_ggml import native
from tensorsharp_backend_ggml.products import SIMPLE, SUPER, activation_bytes
from tensorsharp_backend_ggml.threads import Pool

from .harness import call, tensor

Bytes = npt.NDArray[np.uint8]
TYPES = SIMPLE | SUPER


def random_weights(type_id: int, shape: tuple[int, ...], rng: np.random.Generator) -> Bytes:
    """[.., row bytes] blocks of a format with random contents and scales of a plausible size."""
    info = GGML_TYPES_BY_NAME[TYPES[type_id]]
    blocks = shape[-1] // info.block_size
    raw = rng.integers(0, 256, (*shape[:-1], blocks, info.block_bytes), np.uint8)
    at = {"Q6_K": [208], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q4_1": [0, 2], "Q5_1": [0, 2]}.get(TYPES[type_id], [0])
    for offset in at:
        scale = (rng.uniform(-0.1, 0.1, raw.shape[:-1])).astype(np.float16)
        raw[..., offset : offset + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


def matrix(weights: Bytes, type_id: int, inner: int) -> native.TsTensor:
    """Rows of blocks as the tensor that they are: `inner` values a row, whatever their bytes."""
    out = tensor(weights)
    out.type, out.ne[0] = type_id, inner
    return out


def quantised(kernels: native.Kernels, x: F32, wide: bool, workers: int = 1) -> Bytes:
    out = np.zeros((len(x), activation_bytes(x.shape[1], wide)), np.uint8)
    call(kernels, "quantise", out, [x], native.TsQuantise(x.shape[1], int(wide)), workers=workers)
    return out


def product(kernels: native.Kernels, type_id: int, weights: Bytes, x: F32, workers: int = 1) -> F32:
    out = np.zeros((len(x), len(weights)), np.float32)
    activations = quantised(kernels, x, type_id in SUPER, workers)
    args = [activations, matrix(weights, type_id, x.shape[1])]
    call(kernels, "linear", out, args, native.TsLinear(x.shape[1]), workers=workers)
    return out


def activation_values(row: Bytes, inner: int, wide: bool) -> npt.NDArray[np.float64]:
    """What a quantised row stands for, read from its bytes: scales first, values last."""
    scales = row[: 4 * (inner // (256 if wide else 32))].view(np.float32).astype(np.float64)
    return np.repeat(scales, 256 if wide else 32) * row[-inner:].view(np.int8)


@pytest.mark.parametrize("type_id", TYPES, ids=TYPES.values())
def test_product_is_that_of_the_dequantised_weights(each: native.Kernels, type_id: int) -> None:
    """Exact integers leave only one float32 rounding a block: 1e-6 of the sum of magnitudes is ample."""
    rng = np.random.default_rng(type_id)
    weights, x = random_weights(type_id, (19, 512), rng), rng.standard_normal((5, 512), dtype=np.float32)
    rows = quantised(each, x, type_id in SUPER)
    exact = np.stack([activation_values(r, 512, type_id in SUPER) for r in rows])
    dense = dequantize(weights.reshape(-1), TYPES[type_id], (19, 512)).astype(np.float64)
    found = product(each, type_id, weights, x)
    assert np.all(np.abs(found - exact @ dense.T) <= 1e-6 * (np.abs(exact) @ np.abs(dense).T))


@pytest.mark.parametrize("type_id", TYPES, ids=TYPES.values())
def test_a_row_has_the_same_bits_in_any_company(each: native.Kernels, portable: native.Kernels, type_id: int) -> None:
    rng = np.random.default_rng(type_id)
    weights, x = random_weights(type_id, (77, 768), rng), rng.standard_normal((13, 768), dtype=np.float32)
    expected = product(portable, type_id, weights, x)
    for workers in (1, 2, 5):
        assert product(each, type_id, weights, x, workers).tobytes() == expected.tobytes()
    for count in (1, 2, 3, 4, 7):
        parts = [product(each, type_id, weights, x[i : i + count]) for i in range(0, 13, count)]
        assert np.concatenate(parts).tobytes() == expected.tobytes()


@pytest.mark.parametrize("type_id", TYPES, ids=TYPES.values())
def test_experts_are_products_of_the_chosen_matrix(each: native.Kernels, type_id: int) -> None:
    rng = np.random.default_rng(type_id)
    weights, x = random_weights(type_id, (4, 24, 256), rng), rng.standard_normal((3, 256), dtype=np.float32)
    index = np.array([[2, 0], [3, -1], [1, 1]], np.int32)
    out = np.full((3, 2, 24), 7, np.float32)
    args = [quantised(each, x, type_id in SUPER), matrix(weights, type_id, 256), index]
    call(each, "experts", out, args, native.TsLinear(256), workers=2)
    for r in range(3):
        for k in range(2):
            e = index[r, k]
            expected = np.zeros(24, np.float32) if e < 0 else product(each, type_id, weights[e], x[r : r + 1])[0]
            assert out[r, k].tobytes() == expected.tobytes()


def test_activations_are_rounded_to_nearest_even(each: native.Kernels) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :6] = [127.0, 0.5, 1.5, -2.5, -126.5, 3.49]
    row = quantised(each, x, wide=False)[0]
    assert row[-32:].view(np.int8)[:6].tolist() == [127, 0, 2, -2, -126, 3]
    assert row[:4].view(np.float32)[0] == 1.0
    assert row[4:6].view(np.int16)[0] == 127 + 0 + 2 - 2 - 126 + 3


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_does_not_vanish(each: native.Kernels, bad: float) -> None:
    rng = np.random.default_rng(0)
    weights, x = random_weights(8, (8, 64), rng), rng.standard_normal((2, 64), dtype=np.float32)
    x[1, 40] = bad
    found = product(each, 8, weights, x)
    assert np.isfinite(found[0]).all()
    assert not np.isfinite(found[1]).any()


def test_zeros_stay_zeros(each: native.Kernels) -> None:
    weights = random_weights(2, (8, 64), np.random.default_rng(0))
    assert product(each, 2, weights, np.zeros((1, 64), np.float32)).tolist() == [[0.0] * 8]


@pytest.mark.parametrize(("shape", "period"), [((5, 64), 64), ((3, 4, 20), 20), ((3, 4, 20), 80)])
def test_norm(each: native.Kernels, portable: native.Kernels, shape: tuple[int, ...], period: int) -> None:
    """Within 4 ulp of float64: the sum of squares in float32 has 8 lanes of at most 8 terms here."""
    rng = np.random.default_rng(1)
    x, weight = rng.standard_normal(shape, dtype=np.float32), rng.standard_normal(period, dtype=np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * weight.reshape(shape[1:] if period > shape[-1] else -1)
    found = [np.zeros_like(x), np.zeros_like(x)]
    for kernels, out in zip((each, portable), found, strict=True):
        call(kernels, "norm", out, [x, weight], native.TsNorm(shape[-1], period, 1e-5, 1), workers=3)
    assert np.all(np.abs(found[0] - expected) <= 4 * np.spacing(np.abs(expected).astype(np.float32)))
    assert found[0].tobytes() == found[1].tobytes()


def test_dots_call_the_given_product(each: native.Kernels) -> None:
    """Any function serves: one that counts its calls and returns the first weight plus the first value."""
    calls = []
    address, size = ctypes.c_void_p, ctypes.c_size_t
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int, address, size, address, size, address, size, ctypes.c_int)

    def first(n: int, result: int, _a: int, weight: int, _b: int, value: int, _c: int, rows: int) -> None:
        calls.append((n, rows))
        total = ctypes.c_float.from_address(weight).value + ctypes.c_float.from_address(value).value
        ctypes.c_float.from_address(result).value = total

    function = signature(first)
    weights = np.arange(20 * 8, dtype=np.float32).reshape(20, 8)
    x = 1000 * np.arange(3 * 8, dtype=np.float32).reshape(3, 8)
    out = np.zeros((3, 20), np.float32)
    call(each, "dots", out, [x, weights], native.TsDots(8, ctypes.cast(function, ctypes.c_void_p).value), workers=2)
    assert out.tolist() == (x[:, :1] + weights[:, 0]).tolist()
    assert calls == [(8, 1)] * 60


# the pool ------------------------------------------------------------------------------------------------------------


def pooled(
    kernels: native.Kernels, pool: Pool, name: native.Name, out: F32, args: list[Any], job: ctypes.Structure, parts: int
) -> None:
    assert pool.parallel is not None
    shared = native.TsCall(kernels.pointer(name), ctypes.addressof(job), pool.address, parts)
    call(kernels, pool.parallel, out, args, shared)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_pool_computes_every_part_once(kernels: native.Kernels, threads: int) -> None:
    """In-place addition shows a part that is computed twice, or not at all, as another number."""
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((40, 64), dtype=np.float32), rng.standard_normal(64, dtype=np.float32)
    expected = np.zeros_like(x)
    job = native.TsNorm(64, 64, 1e-5, 1)
    call(kernels, "norm", expected, [x, weight], job)
    pool = Pool(kernels, threads)
    try:
        for parts in (1, 2, 7, 40, 64):
            for _ in range(50):
                out = np.full_like(x, np.nan)
                pooled(kernels, pool, "norm", out, [x, weight], job, parts)
                assert out.tobytes() == expected.tobytes()
    finally:
        pool.close()
        pool.close()


def test_two_pools_work_side_by_side(kernels: native.Kernels) -> None:
    rng = np.random.default_rng(0)
    weights, x = random_weights(3, (64, 256), rng), rng.standard_normal((2, 256), dtype=np.float32)
    args, job = [quantised(kernels, x, False), matrix(weights, 3, 256)], native.TsLinear(256)
    expected = product(kernels, 3, weights, x)
    wrong: list[int] = []

    def drive() -> None:
        pool = Pool(kernels, 2)
        for i in range(200):
            out = np.zeros((2, 64), np.float32)
            pooled(kernels, pool, "linear", out, args, job, 8)
            if out.tobytes() != expected.tobytes():
                wrong.append(i)
        pool.close()

    threads = [threading.Thread(target=drive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
