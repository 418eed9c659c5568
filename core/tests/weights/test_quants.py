"""Dequantisation, held against ggml's own `to_float` in every ggml library that is installed."""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tensorsharp.errors import ModelError
from tensorsharp.weights.ggml_types import GGML_TYPES, GGML_TYPES_BY_NAME, WITHDRAWN_TYPES, GGMLType
from tensorsharp.weights.quants import CHUNK_VALUES, dequantize

LIBRARIES = {"libggml": "lib64/libggml-base.so", "xllamacpp": "xllamacpp.abi3.so"}
DECODED_BY_GGML = [k for k in GGML_TYPES.values() if k.name not in {"F32", "F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K"}]
# ggml builds a neighbour table for these before it quantises the first value, which takes it half a minute in all.
QUANTIZED = [pytest.param(k, marks=pytest.mark.heavy if k.name.startswith(("IQ1", "IQ2")) else ()) for k in DECODED_BY_GGML]


class _Traits(ctypes.Structure):
    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("block_bytes", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class Ggml:
    """The few functions of a ggml library that the comparison needs."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        self.library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
        self.library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self.library.ggml_quantize_chunk.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_int64,
            ctypes.c_void_p,
        ]

    def traits(self, number: int) -> _Traits:
        traits = self.library.ggml_get_type_traits(number).contents
        assert isinstance(traits, _Traits)
        return traits

    def quantize(
        self, kind: GGMLType, values: npt.NDArray[np.float32], importance: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.uint8]:
        rows, columns = values.shape
        raw = np.zeros(values.size // kind.block_size * kind.block_bytes, dtype=np.uint8)
        written = self.library.ggml_quantize_chunk(
            kind.id, values.ctypes.data, raw.ctypes.data, 0, rows, columns, importance.ctypes.data
        )
        assert written == raw.size
        return raw

    def to_float(self, kind: GGMLType, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        address = self.traits(kind.id).to_float
        values = np.full(raw.size // kind.block_bytes * kind.block_size, np.nan, dtype=np.float32)
        TO_FLOAT(address)(raw.ctypes.data, values.ctypes.data, values.size)
        return values

    def q8_k_to_float(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """ggml lists no `to_float` for Q8_K but exports the function."""
        values = np.full(raw.size // 292 * 256, np.nan, dtype=np.float32)
        TO_FLOAT(("dequantize_row_q8_K", self.library))(raw.ctypes.data, values.ctypes.data, values.size)
        return values


@cache
def _load(module: str) -> Ggml:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not installed")
    return Ggml(Path(spec.origin).parent / LIBRARIES[module])


@pytest.fixture(params=sorted(LIBRARIES))
def ggml(request: pytest.FixtureRequest) -> Ggml:
    return _load(request.param)


def _bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return values.reshape(-1).view(np.uint32)


def _quantize(ggml: Ggml, kind: GGMLType, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    importance = np.random.default_rng(1).random((values.shape[1],), dtype=np.float32) + np.float32(0.5)
    return ggml.quantize(kind, values, importance)


def test_the_table_says_what_every_ggml_says(ggml: Ggml) -> None:
    for number, kind in GGML_TYPES.items():
        traits = ggml.traits(number)
        assert (traits.type_name.decode().upper(), traits.block_size, traits.block_bytes) == (
            kind.name,
            kind.block_size,
            kind.block_bytes,
        )
    assert [number for number in range(max(GGML_TYPES) + 1) if ggml.traits(number).block_size == 0] == sorted(WITHDRAWN_TYPES)


def test_the_table_says_what_the_gguf_package_says() -> None:
    from gguf import GGML_QUANT_SIZES

    for qtype, sizes in GGML_QUANT_SIZES.items():
        kind = GGML_TYPES[qtype.value]
        if kind.name == "Q8_1":
            continue  # The package gives its scales four bytes each; ggml has stored halves since 2024.
        assert (kind.name, (kind.block_size, kind.block_bytes)) == (qtype.name, sizes)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_what_ggml_quantised_decodes_to_ggmls_bits(ggml: Ggml, kind: GGMLType) -> None:
    rng = np.random.default_rng(kind.id)
    scales = np.array([[0.0], [1e-3], [1.0], [300.0]], dtype=np.float32)
    raw = _quantize(ggml, kind, rng.standard_normal((4, 512), dtype=np.float32) * scales)
    decoded = dequantize(raw, kind.name, (4, 512))
    assert decoded.shape == (4, 512)
    assert np.array_equal(_bits(decoded), _bits(ggml.to_float(kind, raw)))


@pytest.mark.parametrize("kind", DECODED_BY_GGML, ids=lambda kind: kind.name)
def test_random_bytes_decode_to_ggmls_bits(ggml: Ggml, kind: GGMLType) -> None:
    """Every code, index and sign bit, also those that no quantiser writes. NaN equals NaN: its payload depends on the CPU."""
    raw = np.random.default_rng(kind.id).integers(0, 256, size=65536 // kind.block_size * kind.block_bytes, dtype=np.uint8)
    expected = ggml.to_float(kind, raw)
    decoded = dequantize(raw, kind.name, expected.shape)
    same = (_bits(decoded) == _bits(expected)) | (np.isnan(decoded) & np.isnan(expected))
    assert same.all()
    assert (~np.isnan(decoded)).mean() > 0.9


@pytest.mark.parametrize("code", ["i1", "i2", "i4", "i8", "f4", "f8"])
def test_plain_numbers_become_the_nearest_float32(code: str) -> None:
    dtype = np.dtype(f"<{code}")
    extremes = [np.iinfo(dtype).min, np.iinfo(dtype).max] if dtype.kind == "i" else [-0.0, 1 / 3]
    values = np.array([[*extremes, 0, 1, -1, 100]], dtype=dtype)
    name = f"{dtype.kind.upper()}{8 * dtype.itemsize}"
    assert np.array_equal(_bits(dequantize(values.reshape(-1).view(np.uint8), name, (1, 6))), _bits(values.astype(np.float32)))


def test_q8_k_decodes_to_ggmls_bits(ggml: Ggml) -> None:
    raw = np.random.default_rng(0).integers(0, 256, size=(8, 292), dtype=np.uint8)
    raw[:, :4] = np.linspace(-2, 2, 8, dtype=np.float32).view(np.uint8).reshape(8, 4)
    flat = raw.reshape(-1)
    assert np.array_equal(_bits(dequantize(flat, "Q8_K", (8, 256))), _bits(ggml.q8_k_to_float(flat)))


def test_q8_1_is_scale_times_code() -> None:
    block = np.concatenate([np.array([0.5, 99.0], dtype="<f2").view(np.uint8), np.arange(-16, 16, dtype=np.int8).view(np.uint8)])
    assert dequantize(block, "Q8_1", (32,)).tolist() == [code / 2 for code in range(-16, 16)]


def test_a_tensor_longer_than_a_piece_decodes_like_its_parts() -> None:
    kind = GGML_TYPES_BY_NAME["Q6_K"]
    raw = np.random.default_rng(0).integers(0, 256, size=(CHUNK_VALUES // 256 + 3) * kind.block_bytes, dtype=np.uint8)
    whole = dequantize(raw, "Q6_K", (len(raw) // kind.block_bytes, 256))
    cut = 5 * kind.block_bytes
    assert np.array_equal(_bits(whole[5:]), _bits(dequantize(raw[cut:], "Q6_K", whole[5:].shape)))
    assert np.array_equal(_bits(whole[:5]), _bits(dequantize(raw[:cut], "Q6_K", (5, 256))))


@pytest.mark.parametrize("kind", GGML_TYPES.values(), ids=lambda kind: kind.name)
def test_every_type_of_the_table_decodes(kind: GGMLType) -> None:
    decoded = dequantize(np.zeros(3 * kind.block_bytes, dtype=np.uint8), kind.name, (3, kind.block_size))
    assert decoded.shape == (3, kind.block_size)
    assert decoded.dtype == np.dtype("f4")
    assert dequantize(np.zeros(0, dtype=np.uint8), kind.name, (0, kind.block_size)).shape == (0, kind.block_size)


@pytest.mark.parametrize(
    ("raw", "type_name", "shape", "expected"),
    [
        (np.zeros(20, np.uint8), "Q4_9", (32,), "blk.0.x has the type 'Q4_9'"),
        (np.zeros(20, np.uint8), "Q4_1", (31,), "blk.0.x has rows of 31 values; Q4_1 needs a multiple of 32"),
        (np.zeros(19, np.uint8), "Q4_1", (32,), "needs 20 bytes; got 19 values of uint8"),
        (np.zeros(20, np.int8), "Q4_1", (32,), "needs 20 bytes; got 20 values of int8"),
        (np.zeros(20, np.uint8), "Q4_1", (), "blk.0.x has rows of 1 values"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_name(
    raw: npt.NDArray[np.uint8], type_name: str, shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(ModelError) as caught:
        dequantize(raw, type_name, shape, tensor="blk.0.x")
    assert expected in str(caught.value)
