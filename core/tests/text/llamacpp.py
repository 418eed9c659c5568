"""llama.cpp's own tokenizer, through the shared object of the `xllamacpp` wheel: the reference for token ids.

Declarations follow llama.cpp's include/llama.h. Only the vocabulary of a file is loaded.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


class _ModelParams(ctypes.Structure):
    _fields_ = (
        ("devices", ctypes.c_void_p),
        ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32),
        ("split_mode", ctypes.c_int),
        ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int),
        ("main_gpu", ctypes.c_int32),
        ("tensor_split", ctypes.c_void_p),
        ("progress_callback", ctypes.c_void_p),
        ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("vocab_only", ctypes.c_bool),
        ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool),
        ("no_host", ctypes.c_bool),
        ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool),
    )


_LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_silent = _LogCallback(lambda level, text, data: None)
_Tokens = ctypes.POINTER(ctypes.c_int32)


def library_path() -> Path | None:
    """The shared object, or None where xllamacpp is not installed."""
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None or spec.origin is None or sys.platform == "win32":
        return None
    return next(Path(spec.origin).parent.glob("xllamacpp*.so"), None)


@cache
def _library() -> Any:
    path = library_path()
    assert path is not None
    lib = ctypes.CDLL(str(path))
    lib.llama_log_set.argtypes = [_LogCallback, ctypes.c_void_p]
    lib.llama_log_set.restype = None
    lib.llama_model_default_params.restype = _ModelParams
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, _ModelParams]
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_free.argtypes = [ctypes.c_void_p]
    lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_vocab_n_tokens.argtypes = [ctypes.c_void_p]
    lib.llama_vocab_is_eog.argtypes = [ctypes.c_void_p, ctypes.c_int32]
    lib.llama_vocab_is_eog.restype = ctypes.c_bool
    for name in ("llama_vocab_bos", "llama_vocab_eos"):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        ctypes.c_int32,
        _Tokens,
        ctypes.c_int32,
        ctypes.c_bool,
        ctypes.c_bool,
    ]
    lib.llama_detokenize.argtypes = [
        ctypes.c_void_p,
        _Tokens,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_bool,
        ctypes.c_bool,
    ]
    lib.llama_token_to_piece.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_bool,
    ]
    lib.llama_log_set(_silent, None)
    lib.llama_backend_init()
    return lib


class LlamaCppTokenizer:
    """The vocabulary of one GGUF file. `close()` when done."""

    def __init__(self, path: Path) -> None:
        params = _library().llama_model_default_params()
        params.vocab_only = True
        params.n_gpu_layers = 0
        self._model = _library().llama_model_load_from_file(str(path).encode(), params)
        if not self._model:
            raise ValueError(f"llama.cpp does not load {path}")
        self._vocab = _library().llama_model_get_vocab(self._model)

    def close(self) -> None:
        _library().llama_model_free(self._model)

    @property
    def vocab_size(self) -> int:
        return int(_library().llama_vocab_n_tokens(self._vocab))

    @property
    def bos(self) -> int:
        return int(_library().llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        return int(_library().llama_vocab_eos(self._vocab))

    @property
    def end_tokens(self) -> frozenset[int]:
        return frozenset(token for token in range(self.vocab_size) if _library().llama_vocab_is_eog(self._vocab, token))

    def encode(self, text: bytes, *, special: bool = True, add: bool = True) -> list[int]:
        """Ids of UTF-8 bytes. add: beginning and end of text as the file says."""
        room = len(text) * 4 + 16
        tokens = (ctypes.c_int32 * room)()
        count = _library().llama_tokenize(self._vocab, text, len(text), tokens, room, add, special)
        assert count >= 0
        return list(tokens[:count])

    def decode(self, ids: Sequence[int], *, special: bool = False) -> bytes:
        tokens = (ctypes.c_int32 * max(len(ids), 1))(*ids)
        room = 1 << 20
        text = ctypes.create_string_buffer(room)
        count = _library().llama_detokenize(self._vocab, tokens, len(ids), text, room, False, special)
        assert count >= 0
        return text.raw[:count]

    def piece(self, token: int, *, special: bool) -> bytes:
        room = 1 << 12
        text = ctypes.create_string_buffer(room)
        count = _library().llama_token_to_piece(self._vocab, token, text, room, 0, special)
        assert count >= 0
        return text.raw[:count]
