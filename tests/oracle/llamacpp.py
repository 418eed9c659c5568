"""llama.cpp through its C API: an implementation that nobody here wrote, called with ctypes.

The library is the extension module of the `xllamacpp` wheel, which exports the whole C API as dynamic symbols, or the
`libllama` of any folder. Only the few structures that are needed are declared here, after `llama.h` of October 2026.
A C structure whose layout has moved would be read as garbage, so the defaults that the library itself fills in are
compared with the known ones before anything is loaded; the context parameters are known in two layouts.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]

_P = ctypes.c_void_p
_I32 = ctypes.c_int32
_U32 = ctypes.c_uint32
_FLOAT = ctypes.c_float
_BOOL = ctypes.c_bool

KV_TYPES = {"f32": 0, "f16": 1}
"""Cache format -> number of the ggml type."""

_ERROR_LEVEL = 4

_MODE = ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0)
"""The library's own ggml comes first, so that another ggml in this process cannot stand in for it."""


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


class _Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", _I32),
        ("token", ctypes.POINTER(_I32)),
        ("embd", _P),
        ("pos", ctypes.POINTER(_I32)),
        ("n_seq_id", ctypes.POINTER(_I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


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
        f"{wrong}: this llama.cpp lays its parameters out in a way that tests/oracle/llamacpp.py does not declare; "
        "install a version that matches, or bring the declarations up to date."
    )


def find_library() -> Path | None:
    """The shared object of the installed `xllamacpp` wheel, or None. Does not import it."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return next((p for pattern in ("*.so", "*.pyd") for p in sorted(folder.glob(pattern))), None)


def library_in(folder: Path) -> Path:
    """The `libllama` of a natively compiled llama.cpp, whose companions lie beside it."""
    for name in ("libllama.so", "libllama.dylib", "llama.dll"):
        if (folder / name).exists():
            return folder / name
    raise OracleError(f"{folder} holds no libllama; name the folder with libllama.so, for example llama-cpp-python's lib folder.")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a context computes. The defaults are the ones for numerics; a benchmark names its own.

    chunk: most rows of one pass (llama.cpp's ubatch). context: rows of the cache. outputs: most rows of one decode call
    whose logits are kept. kv: "f32" or "f16". swa_full: keep every position of a sliding-window cache.
    """

    context: int = 1024
    chunk: int = 64
    threads: int = 1
    kv: str = "f32"
    flash_attention: bool = False
    outputs: int | None = None
    swa_full: bool = True


class LlamaCpp:
    """The loaded library."""

    def __init__(self, library: Path | None = None) -> None:
        path = library or find_library()
        if path is None:
            raise OracleError("llama.cpp is not installed; `pip install xllamacpp` brings it.")
        self.path = path
        self.lib = _declare(ctypes.CDLL(str(path), mode=_MODE))
        model = matching_layout(self.lib.llama_model_default_params, [_ModelParams], _MODEL_DEFAULTS)
        context = matching_layout(self.lib.llama_context_default_params, [_ContextParamsLater, _ContextParams], _CONTEXT_DEFAULTS)
        self.lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, model]
        self.lib.llama_init_from_model.argtypes = [_P, context]
        self.errors: list[str] = []
        self._log = _LOG(self._keep_error)
        self.lib.llama_log_set(self._log, None)
        self.lib.llama_backend_init()

    def _keep_error(self, level: int, text: bytes, _: Any) -> None:
        if level == _ERROR_LEVEL:
            self.errors.append(text.decode(errors="replace").strip())

    def describe(self) -> str:
        """Version and instruction sets, for reports."""
        version = importlib.metadata.version("xllamacpp") if self.path == find_library() else self.path.name
        info: bytes = self.lib.llama_print_system_info()
        return f"{version} ({info.decode().strip()})"

    def open(self, path: Path, *, repack: bool = False) -> Model:
        """Load a model on the CPU. repack: llama.cpp may rearrange weights for speed, which changes its arithmetic."""
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = repack
        self.errors.clear()
        handle = self.lib.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise OracleError(f"llama.cpp does not load {path}: {' / '.join(self.errors) or 'no reason given'}")
        return Model(self, handle)


class _Owned:
    """A handle that is given back once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Model(_Owned):
    """A loaded model with its vocabulary."""

    def __init__(self, api: LlamaCpp, handle: int) -> None:
        self._api = api
        self._lib = api.lib
        self.handle = handle
        self._vocab = self._lib.llama_model_get_vocab(handle)
        self.vocab_size: int = self._lib.llama_vocab_n_tokens(self._vocab)

    @property
    def chat_template(self) -> str | None:
        found: bytes | None = self._lib.llama_model_chat_template(self.handle, None)
        return None if found is None else found.decode()

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        data = text.encode()
        out = (_I32 * (len(data) + 8))()
        n = self._lib.llama_tokenize(self._vocab, data, len(data), out, len(out), add_special, parse_special)
        if n < 0:
            raise OracleError(f"llama_tokenize needs room for {-n} ids")
        return list(out[:n])

    def piece(self, token: int) -> bytes:
        """The bytes of one token, control tokens included."""
        out = ctypes.create_string_buffer(256)
        n = self._lib.llama_token_to_piece(self._vocab, token, out, len(out), 0, True)
        return out.raw[:n]

    def context(self, settings: Settings) -> Context:
        return Context(self._api, self, settings)

    def close(self) -> None:
        if self.handle:
            self._lib.llama_model_free(self.handle)
            self.handle = 0


class Context(_Owned):
    """One sequence's timeline on a model."""

    def __init__(self, api: LlamaCpp, model: Model, settings: Settings) -> None:
        self._lib = api.lib
        self._vocab_size = model.vocab_size
        outputs = settings.outputs or settings.chunk
        params = self._lib.llama_context_default_params()
        params.n_ctx = settings.context
        params.n_batch = params.n_ubatch = settings.chunk
        params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = int(settings.flash_attention)
        params.type_k = params.type_v = KV_TYPES[settings.kv]
        params.swa_full = settings.swa_full
        api.errors.clear()
        self._handle = self._lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise OracleError(f"llama.cpp makes no context of {settings}: {' / '.join(api.errors) or 'no reason given'}")
        self._memory = self._lib.llama_get_memory(self._handle)
        self.chunk = settings.chunk
        self.length = 0

    def decode(self, tokens: Sequence[int], *, wanted: bool | Sequence[int] = True) -> F32:
        """Compute at most `chunk` tokens that follow what is there. wanted: all rows, none, or these rows.

        Returns [rows wanted, vocab], a copy.
        """
        n = len(tokens)
        rows = list(range(n)) if wanted is True else [] if wanted is False else list(wanted)
        flags = (ctypes.c_int8 * n)()
        for row in rows:
            flags[row] = 1
        seq = (_I32 * 1)(0)
        batch = _Batch(
            n_tokens=n,
            token=(_I32 * n)(*tokens),
            pos=(_I32 * n)(*range(self.length, self.length + n)),
            n_seq_id=(_I32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(_I32) * n)(*[ctypes.cast(seq, ctypes.POINTER(_I32))] * n),
            logits=flags,
        )
        code = self._lib.llama_decode(self._handle, batch)
        if code:
            raise OracleError(f"llama_decode of {n} tokens at position {self.length} returned {code}")
        self.length += n
        out = np.empty((len(rows), self._vocab_size), np.float32)
        for i, row in enumerate(rows):
            out[i] = np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._handle, row), shape=(self._vocab_size,))
        return out

    def synchronize(self) -> None:
        """Wait for what was started."""
        self._lib.llama_synchronize(self._handle)

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on."""
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise OracleError(f"llama.cpp cannot take the sequence back to {length} tokens")
        self.length = length

    def logits(self, tokens: Sequence[int]) -> F32:
        """[len(tokens), vocab] of a text from its start, computed in pieces of `chunk` rows."""
        self.truncate(0)
        return np.concatenate([self.decode(tokens[at : at + self.chunk]) for at in range(0, len(tokens), self.chunk)])

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` most likely tokens after the prompt, one after the other; end tokens are ordinary tokens."""
        self.truncate(0)
        row = self.logits(prompt)[-1:]
        out: list[int] = []
        while True:
            out.append(int(row[-1].argmax()))
            if len(out) == count:
                return out
            row = self.decode(out[-1:])

    def close(self) -> None:
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = 0


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _P)


def _declare(lib: ctypes.CDLL) -> ctypes.CDLL:
    """Argument and result types of the functions used here."""
    ids = ctypes.POINTER(_I32)
    text = ctypes.c_char_p
    functions: dict[str, tuple[Any, list[Any]]] = {
        "llama_backend_init": (None, []),
        "llama_log_set": (None, [_LOG, _P]),
        "llama_print_system_info": (text, []),
        "llama_model_default_params": (None, []),
        "llama_context_default_params": (None, []),
        "llama_model_load_from_file": (_P, []),
        "llama_model_free": (None, [_P]),
        "llama_model_get_vocab": (_P, [_P]),
        "llama_model_chat_template": (text, [_P, text]),
        "llama_vocab_n_tokens": (_I32, [_P]),
        "llama_tokenize": (_I32, [_P, text, _I32, ids, _I32, _BOOL, _BOOL]),
        "llama_token_to_piece": (_I32, [_P, _I32, text, _I32, _I32, _BOOL]),
        "llama_init_from_model": (_P, []),
        "llama_free": (None, [_P]),
        "llama_get_memory": (_P, [_P]),
        "llama_memory_seq_rm": (_BOOL, [_P, _I32, _I32, _I32]),
        "llama_decode": (_I32, [_P, _Batch]),
        "llama_synchronize": (None, [_P]),
        "llama_get_logits_ith": (ctypes.POINTER(_FLOAT), [_P, _I32]),
    }
    for name, (result, arguments) in functions.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise OracleError(f"{lib._name} exports no {name}; it is not a llama.cpp library of a known version.") from None
        function.restype = result
        function.argtypes = arguments
    return lib


@contextmanager
def opened(path: Path, settings: Settings, *, repack: bool = False) -> Iterator[tuple[Model, Context]]:
    """A model and one context on it, both closed at the end."""
    with LlamaCpp().open(path, repack=repack) as model, model.context(settings) as context:
        yield model, context


if __name__ == "__main__":
    sys.stdout.write(LlamaCpp().describe() + "\n")
