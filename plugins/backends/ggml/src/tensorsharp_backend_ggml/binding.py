"""ctypes declarations of the part of ggml's C interface that this backend calls.

Pointers are plain integers (`c_void_p`). Only functions and constants whose meaning is the same in ggml 0.20.2 to 0.25.3
are listed: enumerations that changed in between (glu and precision kinds) are reached through named functions.
Source of the facts: ggml's headers ggml.h, ggml-alloc.h, ggml-backend.h and ggml-cpu.h.
"""

from __future__ import annotations

import ctypes as c
from typing import Any

F32, F16, I8, I32, I64, BF16 = 0, 1, 24, 26, 27, 30
"""enum ggml_type of the element types that graphs compute with."""
TYPES = 43
"""Number of element types, removed ones included."""

STATUS_SUCCESS = 0
ALL_THREADS = -1
"""n_tasks of a custom op that uses every thread."""
MAX_ARGS = 9
"""`ggml_custom_4d` takes fewer arguments than a tensor has sources (10)."""
ALIGNMENT = 32
"""A tensor's data must start at a multiple of this many bytes."""
MAX_THREADS = 512

CUSTOM_OP = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_int, c.c_void_p)
"""(dst tensor, thread, threads, userdata)."""

_P, _I, _L, _Z, _F, _B, _S = c.c_void_p, c.c_int, c.c_int64, c.c_size_t, c.c_float, c.c_bool, c.c_char_p


class InitParams(c.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", _Z), ("mem_buffer", _P), ("no_alloc", _B))


class ThreadpoolParams(c.Structure):
    """struct ggml_threadpool_params."""

    _fields_ = (
        ("cpumask", _B * MAX_THREADS),
        ("n_threads", _I),
        ("prio", _I),
        ("poll", c.c_uint32),
        ("strict_cpu", _B),
        ("paused", _B),
    )


class TensorHead(c.Structure):
    """The leading fields of struct ggml_tensor, up to its data pointer."""

    _fields_ = (
        ("type", _I),
        ("buffer", _P),
        ("ne", _L * 4),
        ("nb", _Z * 4),
        ("op", _I),
        ("op_params", c.c_int32 * 16),
        ("flags", c.c_int32),
        ("src", _P * 10),
        ("view_src", _P),
        ("view_offs", _Z),
        ("data", _P),
    )


def _same(result: Any, names: str, *args: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    return {f"ggml_{name}": (result, args) for name in names.split()}


BASE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **_same(_S, "version commit"),
    **_same(_L, "blck_size", _I),
    **_same(_Z, "type_size", _I),
    **_same(_Z, "tensor_overhead"),
    **_same(_Z, "nbytes", _P),
    **_same(_P, "init", InitParams),
    **_same(None, "free", _P),
    **_same(_Z, "graph_overhead_custom", _Z, _B),
    **_same(_P, "new_graph_custom", _P, _Z, _B),
    **_same(None, "build_forward_expand", _P, _P),
    **_same(_I, "graph_n_nodes", _P),
    **_same(_P, "new_tensor_4d", _P, _I, _L, _L, _L, _L),
    # views and shapes
    **_same(_P, "view_4d", _P, _P, _L, _L, _L, _L, _Z, _Z, _Z, _Z),
    **_same(_P, "reshape_4d", _P, _P, _L, _L, _L, _L),
    **_same(_P, "repeat_4d", _P, _P, _L, _L, _L, _L),
    **_same(_P, "permute", _P, _P, _I, _I, _I, _I),
    **_same(_P, "concat", _P, _P, _P, _I),
    **_same(_P, "cast", _P, _P, _I),
    # one operand
    **_same(_P, "cont dup sqr sqrt sgn abs tanh relu sigmoid silu exp softplus gelu_erf soft_max sum_rows", _P, _P),
    **_same(_P, "rms_norm norm scale", _P, _P, _F),
    **_same(_P, "scale_bias clamp", _P, _P, _F, _F),
    # two and more operands
    **_same(_P, "add sub mul div mul_mat get_rows swiglu_split reglu_split dsv4_hc_pre", _P, _P, _P),
    **_same(_P, "swiglu_oai", _P, _P, _P, _F, _F),
    **_same(_P, "mul_mat_id add_id set_rows", _P, _P, _P, _P),
    **_same(_P, "dsv4_hc_comb", _P, _P, _P, _P, _F, c.c_int32),
    **_same(_P, "flash_attn_ext", _P, _P, _P, _P, _P, _F, _F, _F),
    **_same(None, "flash_attn_ext_add_sinks", _P, _P),
    **_same(_P, "custom_4d", _P, _I, _L, _L, _L, _L, _P, _I, _P, _I, _P),
    # memory and running
    **_same(_P, "backend_cpu_buffer_type"),
    **_same(_P, "backend_cpu_buffer_from_ptr", _P, _Z),
    **_same(None, "backend_buffer_free", _P),
    **_same(_I, "backend_tensor_alloc", _P, _P, _P),
    **_same(_P, "gallocr_new", _P),
    **_same(None, "gallocr_free", _P),
    **_same(_B, "gallocr_reserve gallocr_alloc_graph", _P, _P),
    **_same(_Z, "gallocr_get_buffer_size", _P, _I),
    **_same(_I, "backend_graph_compute", _P, _P),
    **_same(None, "backend_free", _P),
    **_same(None, "threadpool_params_init", _P, _I),
}
"""Functions of libggml-base: name -> (result, arguments)."""


class TypeTraits(c.Structure):
    """What ggml's CPU code has for a type: a row's conversion from float, and the product of two rows."""

    _fields_ = (("from_float", _P), ("vec_dot", _P), ("vec_dot_type", _I), ("nrows", _L))


X86 = ("sse3", "ssse3", "avx", "avx_vnni", "avx2", "bmi2", "f16c", "fma")
X86_WIDE = ("avx512", "avx512_vbmi", "avx512_vnni", "avx512_bf16", "amx_int8")
OTHERS = ("neon", "arm_fma", "fp16_va", "dotprod", "matmul_int8", "sve", "sme", "riscv_v", "vsx", "vxe", "wasm_simd")
FEATURES = (*X86, *X86_WIDE, *OTHERS, "llamafile")
"""What `ggml_cpu_has_*` answers for: the instruction sets the library was built with, and llamafile's matrix product."""

CPU: dict[str, tuple[Any, tuple[Any, ...]]] = {
    **_same(_P, "backend_cpu_init"),
    **_same(None, "backend_cpu_set_n_threads", _P, _I),
    **_same(None, "backend_cpu_set_threadpool", _P, _P),
    **_same(None, "backend_cpu_set_use_ref", _P, _B),
    **_same(_P, "threadpool_new", _P),
    **_same(None, "threadpool_free", _P),
    **_same(c.POINTER(TypeTraits), "get_type_traits_cpu", _I),
    **_same(_I, " ".join(f"cpu_has_{name}" for name in FEATURES)),
}
"""Functions of libggml-cpu."""


class Ggml:
    """The declared functions as attributes, without the prefix `ggml_`. AttributeError names one that is missing."""

    def __init__(self, base: c.CDLL, cpu: c.CDLL) -> None:
        for library, table in ((base, BASE), (cpu, CPU)):
            for name, (result, args) in table.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, args
                setattr(self, name.removeprefix("ggml_"), function)

    def traits(self, type_id: int) -> TypeTraits:
        """ggml's CPU functions for a type that it knows."""
        found: TypeTraits = self.get_type_traits_cpu(type_id).contents
        return found

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"ggml_{name} is not declared")


def data_address(tensor: int) -> int:
    """Address of a tensor's data; 0 before it is allocated."""
    return int(TensorHead.from_address(tensor).data or 0)
