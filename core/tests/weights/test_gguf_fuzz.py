"""Whatever happens to the bytes of a file, it opens or it is refused with ModelError."""

from __future__ import annotations

import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorsharp.errors import ModelError
from tensorsharp.weights.gguf import open_gguf
from tensorsharp.weights.quants import dequantize
from tensorsharp.weights.string_array import StringArray

EXTREMES = [0, 1, 2, 8, 9, 31, 32, 255, 256, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]
BOUND = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _written(folder: Path) -> bytes:
    path = folder / "valid.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_rope_freq_base(10000.0)
    writer.add_add_bos_token(True)
    writer.add_custom_alignment(32)
    writer.add_token_list(["<s>", "</s>", "", "▁a"])
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0])
    writer.add_tensor("token_embd.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("blk.0.attn_q.weight", np.arange(40, dtype=np.uint8).reshape(2, 20), raw_dtype=GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return _written(tmp_path_factory.mktemp("fuzz"))


def _open_and_read_all(content: bytes) -> None:
    """Every value and tensor is read to its last byte, so that a wrong bound would show."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant-00001-of-00002.gguf"
        path.write_bytes(content)
        with open_gguf(path) as file:
            assert len(file.fingerprint) == 64
            for value in file.metadata.values():
                if isinstance(value, StringArray):
                    assert len(value.tolist()) == len(value)
                elif isinstance(value, np.ndarray):
                    assert len(value.tobytes()) == value.nbytes
            for name, info in file.tensors.items():
                assert len(file.raw(name).tobytes()) == info.nbytes
                assert dequantize(file.raw(name), info.type_name, info.shape).shape == info.shape


def test_the_unchanged_file_opens(valid: bytes) -> None:
    _open_and_read_all(valid)


@BOUND
@given(data=st.data())
def test_changed_bytes_open_or_are_refused(valid: bytes, data: st.DataObject) -> None:
    content = bytearray(valid)
    positions = st.integers(0, len(content) - 1)
    for position, value in data.draw(st.lists(st.tuples(positions, st.integers(0, 255)), min_size=1, max_size=6)):
        content[position] = value
    with suppress(ModelError):
        _open_and_read_all(bytes(content))


@BOUND
@given(data=st.data())
def test_extreme_numbers_open_or_are_refused(valid: bytes, data: st.DataObject) -> None:
    content = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 3))):
        code = data.draw(st.sampled_from(["<Q", "<I"]))
        position = data.draw(st.integers(0, len(content) - struct.calcsize(code)))
        struct.pack_into(code, content, position, data.draw(st.sampled_from(EXTREMES)) % 2 ** (8 * struct.calcsize(code)))
    with suppress(ModelError):
        _open_and_read_all(bytes(content))


@BOUND
@given(data=st.data())
def test_cut_and_spliced_files_open_or_are_refused(valid: bytes, data: st.DataObject) -> None:
    places = st.integers(0, len(valid))
    head, tail = valid[: data.draw(places)], valid[data.draw(places) :]
    with suppress(ModelError):
        _open_and_read_all(head + data.draw(st.binary(max_size=40)) + tail)


@settings(BOUND, max_examples=200)
@given(content=st.binary(max_size=300))
def test_noise_behind_a_header_is_refused(content: bytes) -> None:
    with suppress(ModelError):
        _open_and_read_all(b"GGUF\x03\x00\x00\x00" + content)
