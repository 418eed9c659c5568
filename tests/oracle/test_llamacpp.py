"""The harness itself, and llama.cpp computing again what the golden files recorded."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.accuracy.teacher import FAR, SHARE, WIDEST, compare, loaded
from tests.driver import Driver
from tests.goldens.make import TEXT, make_real, maker
from tests.goldens.records import ROWS, Float32, Greedy, TinyRun, one_minus_cosine
from tests.goldens.tinies import EMBEDDINGS, TINIES
from tests.oracle.capi import OracleError, matching_layout
from tests.oracle.dequantised import float32_copy
from tests.oracle.llamacpp import LlamaCpp, Settings, find_library, library_in, load, opened
from tests.realmodels import REAL_MODELS, needs


class Old(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int32), ("b", ctypes.c_int32), ("room", ctypes.c_char * 16)]


class New(ctypes.Structure):
    _fields_ = [("a", ctypes.c_int32), ("added", ctypes.c_int32), ("b", ctypes.c_int32), ("room", ctypes.c_char * 16)]


class Library:
    """A function that fills a structure in, and is read in the layout of `restype`."""

    __name__ = "defaults"
    restype: type[ctypes.Structure] = Old

    def __init__(self, memory: bytes) -> None:
        self.memory = memory

    def __call__(self) -> ctypes.Structure:
        return self.restype.from_buffer_copy(self.memory.ljust(32, b"\0"))


def ints(*values: int) -> bytes:
    return b"".join(v.to_bytes(4, "little") for v in values)


def test_the_layout_is_the_one_whose_defaults_come_out() -> None:
    known: dict[str, object] = {"a": 5, "b": 7}
    assert matching_layout(Library(ints(5, 7)), [New, Old], known) is Old
    assert matching_layout(Library(ints(5, 0, 7)), [New, Old], known) is New


def test_an_unknown_layout_is_refused_with_the_field() -> None:
    with pytest.raises(OracleError, match=r"defaults\(\)\.b is 9, expected 7"):
        matching_layout(Library(ints(5, 9, 9)), [New, Old], {"a": 5, "b": 7})


def test_a_folder_without_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="holds no libllama"):
        library_in(tmp_path)


@pytest.fixture
def llamacpp() -> LlamaCpp:
    if find_library() is None:
        pytest.skip("llama.cpp is not installed; pip install xllamacpp")
    return load()


@pytest.mark.oracle
def test_a_file_that_cannot_be_loaded_is_refused(llamacpp: LlamaCpp, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(OracleError, match=r"does not load .*broken\.gguf"):
        llamacpp.open(path)


@pytest.mark.oracle
@pytest.mark.usefixtures("llamacpp")
@pytest.mark.parametrize("name", [*TINIES, *EMBEDDINGS])
def test_tiny_goldens_are_reproduced(tmp_path: Path, name: str) -> None:
    maker(name)(name, tmp_path)
    recorded, again = TinyRun.of(name), TinyRun.of(name, tmp_path)
    assert again.digest == recorded.digest
    # Float32 sums in the order of this processor's kernels; the table of GELU makes gemma coarser.
    bound = 1e-3 if name == "tiny-gemma3" else 5e-6
    assert np.abs(again.logits - recorded.logits).max() <= bound * np.abs(recorded.logits).max()


@pytest.mark.oracle
@pytest.mark.usefixtures("llamacpp")
@pytest.mark.parametrize("key", REAL_MODELS)
def test_goldens_of_real_models_are_reproduced(tmp_path: Path, key: str) -> None:
    needs(REAL_MODELS[key])
    make_real(key, tmp_path)
    recorded, again = Greedy.of(key), Greedy.of(key, tmp_path)
    assert again.text == recorded.text
    for old, new, n in zip(recorded.ids, again.ids, recorded.prompt, strict=True):
        assert old[:n].tolist() == new[:n].tolist()
    before, now = Float32.of(key), Float32.of(key, tmp_path)
    assert now.ids.tolist() == before.ids.tolist()
    assert one_minus_cosine(now.logits.astype(np.float32), before.logits.astype(np.float32)).max() < 1e-4
    # Another processor rounds elsewhere; the size of the noise is a property of the quantisation.
    assert 0.8 < np.median(now.peer_whole) / np.median(before.peer_whole) < 1.25
    with loaded(key) as llm:
        count = compare(llm, again, range(len(again.text)))
    assert count.far <= FAR[key]
    assert count.lead < WIDEST
    assert count.different <= SHARE * again.own_differences()


@pytest.mark.oracle
@pytest.mark.parametrize("key", REAL_MODELS)
def test_whole_rows_against_a_float32_forward(llamacpp: LlamaCpp, key: str) -> None:
    path = needs(REAL_MODELS[key])
    settings = Settings(context=ROWS)
    with llamacpp.open(path) as model, model.context(settings) as context:
        ids = model.tokenize(TEXT.read_text("utf-8"))[:ROWS]
        theirs = context.logits(ids)
    with opened(float32_copy(path), settings) as (_, context):
        exact = context.logits(ids)
    noise = one_minus_cosine(theirs, exact)
    del theirs
    with Driver(path, backend="ggml", kv_format="f32") as driver:
        ours = driver.logits(ids)
    assert np.median(one_minus_cosine(ours, exact)) <= 1.2 * np.median(noise)
    with Driver(float32_copy(path), backend="ggml", kv_format="f32") as driver:
        ours = driver.logits(ids)
    assert one_minus_cosine(ours, exact).max() < 1e-4
