"""The part of llama.cpp's C API that the harness calls: structures, their known defaults, functions.

After `llama.h` of October 2026. A C structure whose layout has moved would be read as garbage, so the defaults that the
library itself fills in are compared with the known ones before anything is loaded; the context parameters are known in
two layouts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_P = ctypes.c_void_p
_I32 = ctypes.c_int32
_U32 = ctypes.c_uint32
_FLOAT = ctypes.c_float
_BOOL = ctypes.c_bool


class OracleError(RuntimeError):
    """llama.cpp is missing, has another layout, or refused a call."""


_ROOM = ("room", ctypes.c_char * 64)
"""A library with a longer structure writes here instead of over foreign memory; by value the surplus is never read."""


class _ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", _P),
        ("tensor_buft_overrides", _P),
        ("n_gpu_layers", _I32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", _I32),
        ("tensor_split", _P),
        ("progress_callback", _P),
        ("progress_callback_user_data", _P),
        ("kv_overrides", _P),
        ("vocab_only", _BOOL),
        ("check_tensors", _BOOL),
        ("use_extra_bufts", _BOOL),
        ("no_host", _BOOL),
        ("no_alloc", _BOOL),
        ("load_mtp", _BOOL),
        _ROOM,
    ]


_CONTEXT_HEAD: list[tuple[str, Any]] = [
    ("n_ctx", _U32),
    ("n_batch", _U32),
    ("n_ubatch", _U32),
    ("n_seq_max", _U32),
    ("n_rs_seq", _U32),
    ("n_outputs_max", _U32),
    ("n_outputs_max_per_seq", _U32),
    ("n_threads", _I32),
    ("n_threads_batch", _I32),
    ("ctx_type", ctypes.c_int),
    ("rope_scaling_type", ctypes.c_int),
    ("pooling_type", ctypes.c_int),
    ("attention_type", ctypes.c_int),
    ("flash_attn_type", ctypes.c_int),
    ("rope_freq_base", _FLOAT),
    ("rope_freq_scale", _FLOAT),
    ("yarn_ext_factor", _FLOAT),
    ("yarn_attn_factor", _FLOAT),
    ("yarn_beta_fast", _FLOAT),
    ("yarn_beta_slow", _FLOAT),
    ("yarn_orig_ctx", _U32),
    ("defrag_thold", _FLOAT),
    ("cb_eval", _P),
    ("cb_eval_user_data", _P),
    ("type_k", ctypes.c_int),
    ("type_v", ctypes.c_int),
    ("abort_callback", _P),
    ("abort_callback_data", _P),
]
_CONTEXT_TAIL: list[tuple[str, Any]] = [
    ("embeddings", _BOOL),
    ("offload_kqv", _BOOL),
    ("no_perf", _BOOL),
    ("op_offload", _BOOL),
    ("swa_full", _BOOL),
    ("kv_unified", _BOOL),
    ("samplers", _P),
    ("n_samplers", ctypes.c_size_t),
    ("ctx_other", _P),
    _ROOM,
]


class _ContextParams(ctypes.Structure):
    """As in llama-cpp-python 0.3.36 (ggml 0.25.3)."""

    _fields_ = [*_CONTEXT_HEAD, *_CONTEXT_TAIL]


class _ContextParamsLater(ctypes.Structure):
    """As in xllamacpp 2026.10.11549: eight more bytes, zero by default, stand before the flags."""

    _fields_ = [*_CONTEXT_HEAD, ("added", _P), *_CONTEXT_TAIL]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", _I32),
        ("token", ctypes.POINTER(_I32)),
        ("embd", _P),
        ("pos", ctypes.POINTER(_I32)),
        ("n_seq_id", ctypes.POINTER(_I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("content", ctypes.c_char_p)]


_MODEL_DEFAULTS: dict[str, object] = {
    "devices": None,
    "tensor_buft_overrides": None,
    "n_gpu_layers": -1,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "progress_callback": None,
    "kv_overrides": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_host": False,
    "no_alloc": False,
    "load_mtp": False,
}
_CONTEXT_DEFAULTS: dict[str, object] = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "n_rs_seq": 0,
    "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1,
    "n_threads": 4,
    "n_threads_batch": 4,
    "ctx_type": 0,
    "rope_scaling_type": -1,
    "pooling_type": -1,
    "attention_type": -1,
    "flash_attn_type": -1,
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
    "defrag_thold": -1.0,
    "cb_eval": None,
    "type_k": 1,
    "type_v": 1,
    "abort_callback": None,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "samplers": None,
    "n_samplers": 0,
    "ctx_other": None,
}


def matching_layout(function: Any, layouts: Sequence[type[ctypes.Structure]], known: dict[str, object]) -> type[ctypes.Structure]:
    """The layout in which `function`, called without arguments, gives the known defaults; declares it as the result.

    OracleError names the first field that differs in the last layout tried: then the structure has moved.
    """
    wrong = ""
    for layout in layouts:
        function.restype = layout
        params = function()
        found = {name: getattr(params, name) for name in known}
        if found == known:
            return layout
        name = next(n for n in known if found[n] != known[n])
        wrong = f"{function.__name__}().{name} is {found[name]!r}, expected {known[name]!r}"
    raise OracleError(
        f"{wrong}: this llama.cpp lays its parameters out in a way that tests/oracle/capi.py does not declare; "
        "install a version that matches, or bring the declarations up to date."
    )


LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _P)


def declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    """Give the functions used here their argument and result types. OracleError if the library has others."""
    ids = ctypes.POINTER(_I32)
    text = ctypes.c_char_p
    functions: dict[str, tuple[Any, list[Any]]] = {
        "llama_backend_init": (None, []),
        "llama_log_set": (None, [LOG_CALLBACK, _P]),
        "llama_print_system_info": (text, []),
        "llama_model_default_params": (None, []),
        "llama_context_default_params": (None, []),
        "llama_model_load_from_file": (_P, []),
        "llama_model_free": (None, [_P]),
        "llama_model_get_vocab": (_P, [_P]),
        "llama_model_chat_template": (text, [_P, text]),
        "llama_chat_apply_template": (_I32, [text, ctypes.POINTER(Message), ctypes.c_size_t, _BOOL, text, _I32]),
        "llama_vocab_n_tokens": (_I32, [_P]),
        "llama_tokenize": (_I32, [_P, text, _I32, ids, _I32, _BOOL, _BOOL]),
        "llama_token_to_piece": (_I32, [_P, _I32, text, _I32, _I32, _BOOL]),
        "llama_init_from_model": (_P, []),
        "llama_free": (None, [_P]),
        "llama_get_memory": (_P, [_P]),
        "llama_memory_seq_rm": (_BOOL, [_P, _I32, _I32, _I32]),
        "llama_decode": (_I32, [_P, Batch]),
        "llama_synchronize": (None, [_P]),
        "llama_sampler_init_greedy": (_P, []),
        "llama_sampler_sample": (_I32, [_P, _P, _I32]),
        "llama_sampler_free": (None, [_P]),
        "llama_get_logits_ith": (ctypes.POINTER(_FLOAT), [_P, _I32]),
        "llama_get_embeddings_seq": (ctypes.POINTER(_FLOAT), [_P, _I32]),
        "llama_model_n_embd": (_I32, [_P]),
    }
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise OracleError(f"{lib._name} exports no {name}; it is not a llama.cpp library of a known version.") from None
        function.restype = result
        function.argtypes = arguments
    model = matching_layout(lib.llama_model_default_params, [_ModelParams], _MODEL_DEFAULTS)
    context = matching_layout(lib.llama_context_default_params, [_ContextParamsLater, _ContextParams], _CONTEXT_DEFAULTS)
    lib.llama_model_load_from_file.argtypes = [text, model]
    lib.llama_init_from_model.argtypes = [_P, context]
    return lib
