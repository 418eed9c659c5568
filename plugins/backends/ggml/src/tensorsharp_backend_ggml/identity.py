"""What this build of the backend is, and what it promises: arithmetic id, bitwise contract, facts for `doctor`."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorsharp.protocols.backend import Bitwise
from tensorsharp_backend_ggml.library import Library
from tensorsharp_backend_ggml.native import Kernels

ALWAYS_STABLE = frozenset({"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"})
"""Weight types whose product in ggml takes one path whatever the number of rows, in every x86 build that was measured."""
NO_PRODUCT = frozenset({"I32"})
MANY_ROW_KERNELS = ("llamafile", "amx_int8")
"""Extras with which ggml switches to another kernel when a product has more rows."""


def arithmetic_id(library: Library, kernels: Kernels | None) -> str:
    """Library version, commit and file contents, and our kernels' version. Not the number of threads."""
    own = "none" if kernels is None else f"v{kernels.version}"
    return f"ggml-cpu/{library.version}/{library.commit}/{_digest(library.files)}/kernels={own}/{platform.machine().lower()}"


def _digest(files: Iterable[Path]) -> str:
    """The first 16 hex digits of SHA-256 over the library's files: two builds of one commit differ in their bits."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()[:16]


def bitwise(library: Library, kernels: Kernels | None, types: Iterable[str]) -> Bitwise:
    """Whether rows come out the same in every batch, for weights of these types.

    Our kernels multiply rows of every type one path only. Without them it is ggml's products that count.
    """
    if kernels is not None:
        return Bitwise(True)
    if "matmul_int8" in library.features:
        return Bitwise(False, "ggml multiplies two rows at a time on this CPU (matmul_int8), one where the number is odd.")
    extras = " and ".join(name for name in MANY_ROW_KERNELS if name in library.features)
    unstable = ", ".join(sorted(set(types) - ALWAYS_STABLE - NO_PRODUCT))
    if extras and unstable:
        return Bitwise(False, f"this ggml has {extras}, with which products for {unstable} depend on the number of rows.")
    return Bitwise(True)


def describe(library: Library, kernels: Kernels | None, absent: str | None) -> Mapping[str, str]:
    """Facts for people."""
    return {
        "library": "named by the user" if library.named else "libggml-python",
        "path": str(library.folder),
        "version": f"{library.version} ({library.commit})",
        "instruction sets": " ".join(library.features) or "none",
        "kernels": f"none: {absent}" if kernels is None else f"{kernels.isa}, version {kernels.version}",
    }
