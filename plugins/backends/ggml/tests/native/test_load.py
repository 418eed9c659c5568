"""Finding the library, choosing an instruction set, and the sentences when that fails."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tensorsharp.errors import PluginError
from tensorsharp_backend_ggml import native


def test_an_instruction_set_is_chosen_by_name(each: native.Kernels) -> None:
    assert native.load(each.isa).isa == each.isa
    assert all(each.pointer(name) for name in ("store", "attend", "rope", "conv", "scan", "top_k", "gelu"))


def test_instruction_sets_share_one_version(each: native.Kernels, portable: native.Kernels) -> None:
    assert each.version == portable.version
    assert each.isa == "portable" or each.pointer("attend") != portable.pointer("attend")


def test_the_environment_chooses_an_instruction_set(portable: native.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, "portable")
    assert native.load().isa == portable.isa


def test_an_unknown_instruction_set_is_refused(portable: native.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ISA_VARIABLE, "sse9")
    with pytest.raises(PluginError, match=r"TENSORSHARP_GGML_ISA is 'sse9'; expected one of avx512, avx2, portable\."):
        native.load()


def test_the_best_instruction_set_that_runs_is_the_default(portable: native.Kernels) -> None:
    runs = []
    for isa in native.ISAS:
        with contextlib.suppress(PluginError):
            runs.append(native.load(isa).isa)
    assert runs[-1] == "portable"
    assert native.load().isa == runs[0]


def test_an_instruction_set_that_cannot_run_is_refused(portable: native.Kernels) -> None:
    """A library that runs none of them stands for a processor without them."""

    class Library:
        @staticmethod
        def ts_select(name: bytes | None) -> None:
            return None

    with pytest.raises(
        PluginError, match=r"^isa asks for avx512, which this processor or this build of the kernels cannot run\.$"
    ):
        native._select(Library(), "avx512")  # type: ignore[arg-type]


def test_a_missing_library_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library_path", lambda: tmp_path / "_kernels.so")
    reason = native.why_not()
    assert reason == "the native kernels were not built: no working C++ compiler was found at installation."
    with pytest.raises(PluginError) as caught:
        native.load()
    assert caught.value.hint == "install a C++ compiler and reinstall tensorsharp-backend-ggml"


def test_a_library_that_does_not_load_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "_kernels.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "library_path", lambda: broken)
    reason = native.why_not()
    assert reason is not None
    assert reason.startswith(f"the native kernels in {broken} do not load: ")


def test_another_version_is_refused(portable: native.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ABI_VERSION", native.ABI_VERSION + 1)
    reason = native.why_not()
    assert reason is not None
    assert reason.endswith(f"have version {native.ABI_VERSION - 1}, this package needs {native.ABI_VERSION}.")
