"""store, rope, gelu and top_k."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorsharp.protocols.batch import F32
from tensorsharp_backend_ggml import native

from .harness import Paged, Rows, call, stored

SETTINGS = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SPECIAL = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 1e30, -1e30, math.inf, -math.inf, 6e-8, 2.9e-8, 3e-8, 6.1e-5, 1e-40, 2048.5]


def bits(x: F32) -> np.ndarray:
    """float32 as integers, so that -0 and 0 differ."""
    return np.ascontiguousarray(x).view(np.uint32)


# store ---------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(
    kind=st.sampled_from(["f16", "bf16", "f32"]),
    width=st.sampled_from([1, 7, 8, 64, 100]),
    workers=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 99),
)
def test_store_rounds_to_nearest_even(each: native.Kernels, kind: str, width: int, workers: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = Rows([(30, 5), (0, 1), (64, 40)], padding=2)
    x = (rng.standard_normal((len(rows.seq), width)) * np.exp(rng.uniform(-20, 12, (len(rows.seq), width)))).astype(np.float32)
    x.flat[: len(SPECIAL)] = SPECIAL[: x.size]
    paged = Paged(3, 120, width, kind, seed=seed)
    before = paged.data.copy()
    job = native.TsStore(batch=rows.address, paged=paged.address, at=None)
    call(each, "store", np.zeros(1, np.float32), [x], job, workers=workers)
    with np.errstate(over="ignore"):
        expected = stored(x, kind)
    for r in range(len(rows.seq) - 2):
        s, p = rows.seq[r], rows.pos[r]
        block = paged.table[s, p // 32]
        assert paged.data[block, p % 32].tobytes() == expected[r].tobytes()
        before[block, p % 32] = paged.data[block, p % 32]
    assert before.tobytes() == paged.data.tobytes()  # nothing else was touched


def test_store_rounds_every_kind_of_half(each: native.Kernels) -> None:
    """Around every representable half: the value, its neighbours in float32, and the midpoint to the next."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middle = (halves[:-1] + halves[1:]) / 2
    x = np.concatenate([halves, np.nextafter(halves, np.inf), middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    x = np.concatenate([x, -x]).astype(np.float32)
    x = np.concatenate([x, np.zeros(-len(x) % 1024, np.float32)]).reshape(-1, 1024)
    rows, paged = Rows([(0, len(x))]), Paged(1, len(x), 1024, "f16")
    call(each, "store", np.zeros(1, np.float32), [x], native.TsStore(batch=rows.address, paged=paged.address, at=None))
    with np.errstate(over="ignore"):
        assert np.array_equal(paged.read(0, np.arange(len(x))), x.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_store_keeps_a_nan(each: native.Kernels, kind: str) -> None:
    x = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF, 0x7F800000], np.uint32).view(np.float32).reshape(1, 4)
    x = np.tile(x, (1, 5))
    rows, paged = Rows([(0, 1)]), Paged(1, 1, 20, kind)
    call(each, "store", np.zeros(1, np.float32), [x], native.TsStore(batch=rows.address, paged=paged.address, at=None))
    read = paged.read(0, np.array([0]))[0].reshape(5, 4)
    assert np.isnan(read[:, :3]).all()
    assert (read[:, 3] == np.inf).all()


def test_store_at_windows_skips_what_is_missing(each: native.Kernels) -> None:
    rows, paged = Rows([(6, 2), (3, 1)], padding=1), Paged(2, 8, 4, "f32", block_rows=8)
    at = np.array([[1, 1], [2, 0], [-1, -1], [3, 2]], np.int32)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    job = native.TsStore(batch=rows.address, paged=paged.address, at=at.ctypes.data)
    call(each, "store", np.zeros(1, np.float32), [x], job, workers=3)
    assert np.array_equal(paged.read(0, np.array([1]))[0], x[0])
    assert np.array_equal(paged.read(1, np.array([0]))[0], x[1])
    assert np.isfinite(paged.data).sum() == 8


# rope ----------------------------------------------------------------------------------------------------------------


@SETTINGS
@given(
    neox=st.booleans(),
    inverse=st.booleans(),
    dims=st.sampled_from([2, 16, 30, 64]),
    offset=st.sampled_from([0, 4]),
    rest=st.sampled_from([0, 3]),
    workers=st.sampled_from([1, 2, 5]),
)
def test_rope_rotates_pairs(
    each: native.Kernels, neox: bool, inverse: bool, dims: int, offset: int, rest: int, workers: int
) -> None:
    rng = np.random.default_rng(dims)
    x = rng.standard_normal((5, 3, offset + dims + rest)).astype(np.float32)
    angles = rng.standard_normal((5, dims // 2, 2)).astype(np.float32)
    out = np.full_like(x, np.nan)
    job = native.TsRope(dims=dims, offset=offset, neox=int(neox), inverse=int(inverse))
    call(each, "rope", out, [x, angles], job, workers=workers)
    expected = x.copy()
    part = expected[..., offset : offset + dims]
    half = dims // 2
    a, b = (part[..., :half], part[..., half:]) if neox else (part[..., ::2], part[..., 1::2])
    c, s = angles[:, None, :, 0], angles[:, None, :, 1] * np.float32(-1 if inverse else 1)
    a[...], b[...] = a * c - b * s, a * s + b * c
    assert np.array_equal(bits(out), bits(expected))


def test_rope_takes_strided_heads(each: native.Kernels) -> None:
    """Queries and gates interleaved in one row: heads of a view."""
    whole = np.random.default_rng(0).standard_normal((4, 3, 32)).astype(np.float32)
    angles = np.random.default_rng(1).standard_normal((4, 8, 2)).astype(np.float32)
    view, job = whole[..., :16], native.TsRope(dims=16, neox=1)
    found, expected = np.empty((2, 4, 3, 16), np.float32)
    call(each, "rope", found, [view, angles], job)
    call(each, "rope", expected, [np.ascontiguousarray(view), angles], job)
    assert np.array_equal(found, expected)


# gelu ----------------------------------------------------------------------------------------------------------------


def gelu(kernels: native.Kernels, x: F32, kind: int, up: F32 | None = None, limit: float = 0.0, workers: int = 1) -> F32:
    out = np.full_like(x, np.nan)
    job = native.TsGelu(kind=kind, gated=int(up is not None), limit=limit)
    call(kernels, "gelu", out, [x] if up is None else [x, up], job, workers=workers)
    return out


def exact_gelu(x: float, kind: int) -> float:
    if kind == 1:
        return 0.5 * x * math.erfc(-x / math.sqrt(2))
    z = 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x / (1 + math.exp(-z)) if z > -700 else 0.0


@pytest.mark.parametrize("kind", [0, 1])
def test_gelu_is_accurate(each: native.Kernels, kind: int) -> None:
    """16 units of 2^-24 of the result down to -2; below, the tail's exponent (at most 100) is rounded to float32 first,
    which moves it by 100 * 3 * 2^-24. Where e^-2z overflows, the result is zero instead of less than 16 * 2^-128."""
    x = np.concatenate([np.linspace(-14, 14, 8001), np.logspace(-30, 1.5, 500), [-100.0, 100.0, 0.0]]).astype(np.float32)
    expected = np.array([exact_gelu(float(v), kind) for v in x])
    units = np.where(x > -2, 16, 300)
    assert (np.abs(gelu(each, x, kind) - expected) <= units * 2.0**-24 * np.abs(expected) + 2.0**-124).all()


@SETTINGS
@given(
    kind=st.sampled_from([0, 1]),
    n=st.integers(1, 70),
    limit=st.sampled_from([0.0, 0.7, 7.0]),
    workers=st.sampled_from([1, 2, 3, 5]),
    seed=st.integers(0, 99),
)
def test_gated_gelu_clamps_and_does_not_depend_on_place(
    each: native.Kernels, portable: native.Kernels, kind: int, n: int, limit: float, workers: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    gate, up = (rng.standard_normal((3, n)).astype(np.float32) * np.float32(3) for _ in range(2))
    found = gelu(each, gate, kind, up, limit, workers)
    bound = limit or np.inf
    one = np.array([[gelu(portable, np.array([v]), kind)[0] for v in row] for row in np.minimum(gate, np.float32(bound))])
    assert np.array_equal(bits(found), bits(one * np.clip(up, np.float32(-bound), np.float32(bound))))


def test_gelu_of_nan_is_nan(each: native.Kernels) -> None:
    for kind in (0, 1):
        assert np.isnan(gelu(each, np.full(3, np.nan, np.float32), kind)).all()


# top_k ---------------------------------------------------------------------------------------------------------------


def top_k(kernels: native.Kernels, x: F32, k: int, workers: int = 1) -> np.ndarray:
    out = np.full((len(x), k), -7, np.int32)
    call(kernels, "top_k", out, [x], native.TsTopK(k=k), workers=workers)
    return out


@SETTINGS
@given(
    x=st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, math.inf, -math.inf, math.nan]), min_size=1, max_size=40),
    k=st.integers(1, 45),
    workers=st.sampled_from([1, 3]),
)
def test_top_k_is_exact_with_ties_and_nan(each: native.Kernels, x: list[float], k: int, workers: int) -> None:
    rows = np.array([x, x[::-1]], np.float32)
    for found, row in zip(top_k(each, rows, k, workers), rows, strict=True):
        order = sorted(range(len(row)), key=lambda i: (math.isnan(row[i]), -row[i] if row[i] == row[i] else 0, i))
        assert found.tolist() == (order + [-1] * k)[:k]


def test_top_k_over_a_large_vocabulary(kernels: native.Kernels) -> None:
    x = np.random.default_rng(3).standard_normal((2, 262_144)).astype(np.float16).astype(np.float32)  # full of ties
    for k in (1, 40, 3000):
        expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
        assert np.array_equal(top_k(kernels, x, k, 2), expected)


def test_structures_have_the_sizes_of_the_header() -> None:
    """On a 64-bit machine; a wrong field would shift everything after it."""
    sizes = {"Tensor": 336, "Batch": 80, "Paged": 40, "Store": 24, "Source": 56, "Attend": 264, "Rope": 16, "Conv": 32}
    sizes |= {"Scan": 48, "TopK": 8, "Gelu": 16}
    assert {name: ctypes.sizeof(getattr(native, f"Ts{name}")) for name in sizes} == sizes
