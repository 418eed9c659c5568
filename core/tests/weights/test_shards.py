"""Models split over several files."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from tensorsharp.errors import ModelError
from tensorsharp.weights.gguf import open_gguf

COUNT = 3


def _values(index: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(index + 10 * seed).standard_normal((2, 8)).astype(np.float32)


def _write(folder: Path, *, architecture: str = "llama", per_shard: int = 2, tensors: int = 5, seed: int = 0) -> list[Path]:
    """A model of `tensors` tensors, split by the `gguf` package."""
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / "model.gguf", architecture, split_max_tensors=per_shard)
    writer.add_name("split")
    for index in range(tensors):
        writer.add_tensor(f"blk.{index}.weight", _values(index, seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = _write(tmp_path / "model")
    assert [path.name for path in paths] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    return paths


def _refusal(path: Path) -> ModelError:
    with pytest.raises(ModelError) as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)
    return caught.value


def _patch(path: Path, key: str, code: str, value: int) -> None:
    """Overwrite a scalar metadata value in place."""
    content = bytearray(path.read_bytes())
    start = content.index(key.encode()) + len(key) + 4
    struct.pack_into(code, content, start, value)
    path.write_bytes(content)


@pytest.mark.parametrize("given", range(COUNT))
def test_any_file_opens_the_whole_model(paths: list[Path], given: int) -> None:
    file = open_gguf(paths[given])
    assert file.path == str(paths[0])
    assert file.shard_paths == tuple(map(str, paths))
    assert file.metadata["general.name"] == "split"
    assert [(info.name, info.shard) for info in file.tensors.values()] == [(f"blk.{i}.weight", i // 2) for i in range(5)]
    for index in range(5):
        name = f"blk.{index}.weight"
        assert file.raw(name).tobytes() == _values(index).tobytes()
        assert np.shares_memory(file.raw(name), file.shard(index // 2))
    with pytest.raises(IndexError):
        file.shard(COUNT)


def test_fingerprint_covers_every_file_and_no_path(paths: list[Path], tmp_path: Path) -> None:
    fingerprint = open_gguf(paths[0]).fingerprint
    assert open_gguf(paths[2]).fingerprint == fingerprint
    other = _write(tmp_path / "other", seed=1)
    assert open_gguf(other[0]).fingerprint != fingerprint
    shutil.copy(paths[0], other[0])
    shutil.copy(paths[1], other[1])
    assert open_gguf(other[0]).fingerprint != fingerprint
    shutil.copy(paths[2], other[2])
    assert open_gguf(other[0]).fingerprint == fingerprint


def test_a_missing_file_is_named(paths: list[Path]) -> None:
    paths[1].unlink()
    error = _refusal(paths[0])
    assert str(error) == f"{paths[0]} is one of 3 files, of which 1 is missing: {paths[1]}."
    assert error.hint == "Download all files of the model into one folder."
    paths[0].unlink()
    assert str(_refusal(paths[2])) == f"{paths[2]} is one of 3 files, of which 2 are missing, the first {paths[0]}."


def test_a_damaged_later_file_is_named(paths: list[Path]) -> None:
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    assert str(_refusal(paths[0])).startswith(f"{paths[2]}: tensor 'blk.4.weight' needs bytes")


def test_a_renamed_file_says_what_its_name_should_be(paths: list[Path]) -> None:
    renamed = paths[1].rename(paths[1].with_name("second.gguf"))
    assert str(_refusal(renamed)) == (
        f"{renamed}: says that it is file 2 of 3 of a split model; its name should end in -00002-of-00003.gguf."
    )


def test_swapped_files_are_refused(paths: list[Path], tmp_path: Path) -> None:
    swap = paths[1].rename(tmp_path / "swap")
    paths[2].rename(paths[1])
    swap.rename(paths[2])
    assert f"{paths[1]}: 'split.no' is 2; expected 1" in str(_refusal(paths[0]))


def test_files_of_models_with_other_counts_are_refused(paths: list[Path], tmp_path: Path) -> None:
    shutil.copy(_write(tmp_path / "four", tensors=8)[1], paths[1])
    assert f"{paths[1]}: 'split.count' is 4; expected 3" in str(_refusal(paths[0]))


def test_files_of_models_with_other_tensor_totals_are_refused(paths: list[Path], tmp_path: Path) -> None:
    shutil.copy(_write(tmp_path / "six", tensors=6)[1], paths[1])
    assert str(_refusal(paths[0])) == (f"{paths[1]}: 'split.tensors.count' is 6, but {paths[0]} says 5: files of two models.")


def test_a_later_file_of_another_architecture_is_refused(paths: list[Path]) -> None:
    content = paths[1].read_bytes()
    key = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 5) + b"qwen2"
    tensors, keys = struct.unpack_from("<QQ", content, 8)
    # Two keys of the shard make room for one more of a length that keeps the data aligned.
    header = content[:8] + struct.pack("<QQ", tensors, keys + 1) + key
    pad = -len(key) % 32
    filler = struct.pack("<Q", 1) + b"x" + struct.pack("<IQ", 8, pad + 32 - 21) + b"y" * (pad + 32 - 21)
    paths[1].write_bytes(header[:8] + struct.pack("<QQ", tensors, keys + 2) + key + filler + content[24:])
    assert str(_refusal(paths[0])) == (
        f"{paths[1]}: 'general.architecture' is 'qwen2', but {paths[0]} says 'llama': files of two models."
    )


def test_the_same_tensor_in_two_files_is_refused(paths: list[Path]) -> None:
    content = paths[1].read_bytes()
    paths[1].write_bytes(content.replace(b"blk.2.weight", b"blk.0.weight"))
    assert str(_refusal(paths[0])) == f"{paths[1]}: tensor 'blk.0.weight' is also in {paths[0]}."


def test_a_wrong_tensor_total_is_refused(paths: list[Path]) -> None:
    for path in paths:
        _patch(path, "split.tensors.count", "<i", 7)
    assert str(_refusal(paths[0])) == f"{paths[0]}: the 3 files hold 5 tensors; 'split.tensors.count' says 7."


def test_a_split_count_that_is_no_number_is_refused(paths: list[Path]) -> None:
    for path in paths:
        _patch(path, "split.tensors.count", "<i", -1)
    assert "'split.tensors.count' is -1" in str(_refusal(paths[0]))


def test_one_file_that_calls_itself_a_split_of_one_opens(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_uint16("split.no", 0)
    writer.add_uint16("split.count", 1)
    writer.add_tensor("t", _values(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert list(open_gguf(tmp_path / "m.gguf").tensors) == ["t"]
