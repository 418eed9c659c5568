"""What the backend says about itself: facts, the arithmetic id, and where the bitwise contract holds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tensorsharp.protocols.backend import BackendOptions
from tensorsharp_backend_ggml import identity, spec
from tensorsharp_backend_ggml.backend import GgmlBackend
from tensorsharp_backend_ggml.binding import FEATURES
from tensorsharp_backend_ggml.library import Library

KERNELS: Any = SimpleNamespace(isa="avx2", version="3")


def built(tmp_path: Path, *features: str, content: bytes = b"x", version: str = "0.25.3") -> Library:
    """A library that says it has these features, without any code."""
    answers = {f"cpu_has_{name}": (lambda name=name: int(name in features)) for name in FEATURES}
    library = Library(SimpleNamespace(**answers), tmp_path, version, "abc", True)  # type: ignore[arg-type]
    for path in library.files:
        path.write_bytes(content)
    return library


def test_the_spec_names_what_is_there() -> None:
    module, name = spec.target.split(":")
    assert (module, name) == (GgmlBackend.__module__, GgmlBackend.__name__)
    assert spec.probe == "tensorsharp_backend_ggml.probe:why_not"


def test_facts_with_our_kernels(native_backend: Any) -> None:
    facts: Mapping[str, str] = native_backend(1).describe()
    assert facts["library"] == "libggml-python"
    assert Path(facts["path"]).is_dir()
    assert facts["kernels"].split(",")[0] in ("avx512", "avx2", "portable")
    assert native_backend(1).bitwise(["Q4_K", "F16", "F32"]).holds


def test_facts_without_our_kernels() -> None:
    backend = GgmlBackend(BackendOptions(extra={"kernels": "off"}))
    assert backend.describe()["kernels"] == "none: they are switched off"
    assert backend.bitwise(["Q4_K", "F16", "F32"]).holds
    assert backend.arithmetic_id != GgmlBackend().arithmetic_id or "none" in GgmlBackend().arithmetic_id


@pytest.mark.parametrize(
    ("features", "types", "blame"),
    [
        ((), ["Q4_K", "IQ4_NL", "F32", "BF16"], None),
        (("avx512", "llamafile"), ["Q4_0", "Q8_0", "MXFP4", "I32"], None),
        (("llamafile",), ["Q4_0", "F32"], "llamafile, with which products for F32 "),
        (("amx_int8",), ["Q4_K"], "amx_int8, with which products for Q4_K "),
        (("neon", "matmul_int8"), ["Q4_0"], "matmul_int8"),
    ],
)
def test_where_the_contract_holds(features: tuple[str, ...], types: list[str], blame: str | None, tmp_path: Path) -> None:
    library = built(tmp_path, *features)
    found = identity.bitwise(library, None, types)
    assert found.holds is (blame is None)
    assert (blame or "") in (found.reason or "")
    assert identity.bitwise(library, KERNELS, types).holds, "our kernels multiply every type themselves"


def test_the_arithmetic_id_names_library_and_kernels(tmp_path: Path) -> None:
    def of(content: bytes = b"x", version: str = "0.25.3", kernels: Any = KERNELS) -> str:
        return identity.arithmetic_id(built(tmp_path, content=content, version=version), kernels)

    base = of()
    assert base == of()
    other = SimpleNamespace(isa="portable", version="3")
    assert base == of(kernels=other), "all instruction sets of our kernels give the same bits"
    assert (
        len({base, of(b"y"), of(version="0.25.2"), of(kernels=None), of(kernels=SimpleNamespace(isa="avx2", version="4"))}) == 5
    )


def test_threads_are_no_part_of_the_arithmetic(native_backend: Any) -> None:
    assert native_backend(1).arithmetic_id == native_backend(2).arithmetic_id


def test_memory_is_positive() -> None:
    total, available = GgmlBackend().memory()
    assert 0 < available <= total
