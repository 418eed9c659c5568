"""The native kernels: the structures of `native/ts.h` field by field, and the library that holds them.

Kernels are called by ggml as custom operations; Python only fills structures and hands out addresses. All builds of a
kernel (AVX-512, AVX2, portable) give the same bits, so the instruction set is no part of a backend's arithmetic.
"""

from __future__ import annotations

import ctypes
import os
import sys
from ctypes import c_char, c_float, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from tensorsharp.errors import PluginError

ABI_VERSION = 1
"""TS_ABI_VERSION of ts.h: raised when a structure, a kernel's meaning or a bit of any kernel's result changes."""
MAX_HEAD_DIM, MAX_TAPS, MAX_KEY_DIM = 1024, 32, 1024
"""Widest head of `attend`, most taps of `conv`, widest key of `scan` that the kernels' workspaces hold."""
ISA_VARIABLE = "TENSORSHARP_GGML_ISA"
ISAS = ("avx512", "avx2", "portable")
HINT = "install a C++ compiler and reinstall tensorsharp-backend-ggml"

Name = Literal[
    "store", "attend", "rope", "conv", "scan", "top_k", "gelu", "quantise", "linear", "experts", "convert", "dots", "norm"
]
_Fields = list[tuple[str, type]]


class TsTensor(ctypes.Structure):
    """ggml_tensor, as ggml 0.20 to 0.25 lays it out."""

    _fields_: ClassVar[_Fields] = [
        ("type", c_int32),
        ("buffer", c_void_p),
        ("ne", c_int64 * 4),
        ("nb", c_size_t * 4),
        ("op", c_int32),
        ("op_params", c_int32 * 16),
        ("flags", c_int32),
        ("src", c_void_p * 10),
        ("view_src", c_void_p),
        ("view_offs", c_size_t),
        ("data", c_void_p),
        ("name", c_char * 64),
        ("extra", c_void_p),
        ("padding", c_char * 8),
    ]


class TsBatch(ctypes.Structure):
    """The batch of a step: counts and addresses of int32 arrays. [rows]: pos, seq, slot_out; the others [sequences]."""

    _fields_: ClassVar[_Fields] = [
        ("rows", c_int32),
        ("sequences", c_int32),
        ("wanted", c_int32),
        ("reserved", c_int32),
        ("pos", c_void_p),
        ("seq", c_void_p),
        ("slot_out", c_void_p),
        ("first_row", c_void_p),
        ("start", c_void_p),
        ("length", c_void_p),
        ("tail_slot", c_void_p),
        ("slot_in", c_void_p),
    ]


class TsPaged(ctypes.Structure):
    """One paged store: rows [blocks, block_rows, width] at `base`, block table [sequences, table_capacity] at `table`.

    type: 0 f32, 1 f16, 2 bf16. Every row that a kernel touches must have a block.
    """

    _fields_: ClassVar[_Fields] = [
        ("base", c_void_p),
        ("type", c_int32),
        ("block_rows", c_int32),
        ("width", c_int64),
        ("table_capacity", c_int64),
        ("table", c_void_p),
    ]


class TsStore(ctypes.Structure):
    """store: x f32 [N, width]. at: 0, or address of int32 [N, 2] = (batch row, index)."""

    _fields_: ClassVar[_Fields] = [("batch", c_void_p), ("paged", c_void_p), ("at", c_void_p)]


class TsSource(ctypes.Structure):
    """One source of attend; see ts.h. Indices into the node's sources are -1 where there is none."""

    _fields_: ClassVar[_Fields] = [
        ("key", c_void_p),
        ("value", c_void_p),
        ("key_src", c_int32),
        ("value_src", c_int32),
        ("kv_heads", c_int32),
        ("value_dim", c_int32),
        ("range", c_void_p),
        ("range_src", c_int32),
        ("select_src", c_int32),
        ("select_k", c_int32),
        ("group", c_int32),
    ]


class TsAttend(ctypes.Structure):
    """attend: q f32 [rows, heads, head_dim] -> f32 [rows, heads, value_dim]. sinks_src: -1, or index of f32 [heads]."""

    _fields_: ClassVar[_Fields] = [
        ("batch", c_void_p),
        ("heads", c_int32),
        ("head_dim", c_int32),
        ("value_dim", c_int32),
        ("sources", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("sinks_src", c_int32),
        ("reserved", c_int32),
        ("source", TsSource * 4),
    ]


class TsRope(ctypes.Structure):
    """rope: x f32 [rows, H, D], angles f32 [rows, dims/2, 2] -> f32 [rows, H, D]."""

    _fields_: ClassVar[_Fields] = [
        ("dims", c_int32),
        ("offset", c_int32),
        ("neox", c_int32),
        ("inverse", c_int32),
    ]


class TsConv(ctypes.Structure):
    """conv: x f32 [rows, C], weight f32 [C, taps], bias f32 [C] or none; ring: address of f32 [tails, ring_rows, C]."""

    _fields_: ClassVar[_Fields] = [
        ("batch", c_void_p),
        ("ring", c_void_p),
        ("ring_rows", c_int32),
        ("taps", c_int32),
        ("dilation", c_int32),
        ("has_bias", c_int32),
    ]


class TsScan(ctypes.Structure):
    """scan: q, k f32 [rows, key_heads, key_dim], v f32 [rows, heads, value_dim], g f32 [rows, heads(, key_dim)], beta
    f32 [rows, heads] -> f32 [rows, heads, value_dim]; state: address of f32 [slots, heads, key_dim, value_dim]."""

    _fields_: ClassVar[_Fields] = [
        ("batch", c_void_p),
        ("state", c_void_p),
        ("heads", c_int32),
        ("key_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("delta", c_int32),
        ("tile", c_int32),
        ("gate_per_channel", c_int32),
        ("reserved", c_int32),
    ]


class TsTopK(ctypes.Structure):
    """top_k: x f32 [rows, N] -> int32 [rows, k]."""

    _fields_: ClassVar[_Fields] = [("k", c_int32), ("reserved", c_int32)]


class TsGelu(ctypes.Structure):
    """gelu: kind 0 tanh, 1 erf; gated: gelu(min(gate, limit)) * clamp(up, -limit, limit), no clamps for limit 0."""

    _fields_: ClassVar[_Fields] = [
        ("kind", c_int32),
        ("gated", c_int32),
        ("limit", c_float),
        ("reserved", c_int32),
    ]


class TsQuantise(ctypes.Structure):
    """quantise: x f32 [rows, inner] -> i8 [rows, activation_bytes(inner, super)]."""

    _fields_: ClassVar[_Fields] = [("inner", c_int64), ("super", c_int64)]


class TsLinear(ctypes.Structure):
    """linear: quantised activations, weights [outputs, inner] -> f32 [rows, outputs]."""

    _fields_: ClassVar[_Fields] = [("inner", c_int64)]


class TsConvert(ctypes.Structure):
    """convert: x f32 [rows, inner] -> i8 [rows, bytes]; from_float: address of ggml's conversion of a row."""

    _fields_: ClassVar[_Fields] = [("inner", c_int64), ("from_float", c_void_p)]


class TsDots(ctypes.Structure):
    """dots: as linear or experts, with ggml's own vec_dot at an address."""

    _fields_: ClassVar[_Fields] = [("inner", c_int64), ("vec_dot", c_void_p)]


class TsNorm(ctypes.Structure):
    """norm: x f32 [rows.., width], weight f32 of `period` elements (a multiple of width) or none."""

    _fields_: ClassVar[_Fields] = [("width", c_int64), ("period", c_int64), ("eps", c_float), ("has_weight", c_int32)]


class TsCall(ctypes.Structure):
    """parallel: the parts of a call of another kernel, for the threads of a pool."""

    _fields_: ClassVar[_Fields] = [("kernel", c_void_p), ("args", c_void_p), ("pool", c_void_p), ("parts", c_int64)]


class _TsKernels(ctypes.Structure):
    _fields_: ClassVar[_Fields] = [
        ("isa", ctypes.c_char_p),
        ("store", c_void_p),
        ("attend", c_void_p),
        ("rope", c_void_p),
        ("conv", c_void_p),
        ("scan", c_void_p),
        ("top_k", c_void_p),
        ("gelu", c_void_p),
        ("quantise", c_void_p),
        ("linear", c_void_p),
        ("experts", c_void_p),
        ("convert", c_void_p),
        ("dots", c_void_p),
        ("norm", c_void_p),
    ]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one instruction set.

    isa: "avx512", "avx2" or "portable". version: names the kernels' arithmetic, which no instruction set changes.
    """

    isa: str
    version: str
    library: ctypes.CDLL = field(repr=False)
    _addresses: dict[str, int] = field(repr=False)

    def pointer(self, name: Name) -> int:
        """Address of a kernel, to hand to `ggml_custom_4d`."""
        return self._addresses[name]


def library_path() -> Path:
    suffix = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
    return Path(__file__).with_name(f"_kernels.{suffix}")


def load(isa: str | None = None) -> Kernels:
    """The kernels for the instruction set `isa`, else for TENSORSHARP_GGML_ISA, else the best this processor runs.

    PluginError if the library is missing, does not load or is of another build, or if the instruction set that was
    asked for is unknown or cannot run here.
    """
    path = library_path()
    if not path.is_file():
        raise PluginError("the native kernels were not built: no working C++ compiler was found at installation.", hint=HINT)
    try:
        library = ctypes.CDLL(str(path))
        found = int(library.ts_abi_version())
    except (OSError, AttributeError) as error:
        raise PluginError(f"the native kernels in {path} do not load: {error}.", hint=HINT) from None
    if found != ABI_VERSION:
        raise PluginError(f"the native kernels in {path} have version {found}, this package needs {ABI_VERSION}.", hint=HINT)
    return _select(library, isa)


def _select(library: ctypes.CDLL, isa: str | None) -> Kernels:
    asked = isa or os.environ.get(ISA_VARIABLE) or None
    origin = "isa" if isa else ISA_VARIABLE
    if asked is not None and asked not in ISAS:
        raise PluginError(f"{origin} is {asked!r}; expected one of {', '.join(ISAS)}.")
    library.ts_select.argtypes = [ctypes.c_char_p]
    library.ts_select.restype = ctypes.POINTER(_TsKernels)
    table = library.ts_select(None if asked is None else asked.encode())
    if not table:
        raise PluginError(f"{origin} asks for {asked}, which this processor or this build of the kernels cannot run.")
    found = table.contents
    addresses = {name: int(getattr(found, name)) for name, _ in _TsKernels._fields_[1:]}
    return Kernels(found.isa.decode(), str(ABI_VERSION), library, addresses)


def why_not() -> str | None:
    """None if the native kernels can be used here, else one sentence that says why not."""
    try:
        load()
    except PluginError as error:
        return str(error)
    return None
