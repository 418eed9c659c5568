"""llama.cpp through its C API: an implementation that nobody here wrote, called with ctypes.

The library is the extension module of the `xllamacpp` wheel, which exports the whole C API as dynamic symbols, or the
`libllama` of any folder.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_int32
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.oracle.capi import LOG_CALLBACK, Batch, Message, OracleError, declare

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

KV_TYPES = {"f32": 0, "f16": 1}
"""Cache format -> number of the ggml type."""

_ERROR_LEVEL = 4

_MODE = ctypes.DEFAULT_MODE | getattr(os, "RTLD_DEEPBIND", 0)
"""The library's own ggml comes first, so that another ggml in this process cannot stand in for it."""


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
    whose logits are kept. kv: "f32" or "f16". swa_full: keep every position of a sliding-window cache. embeddings: pool rows as
    the file says instead of giving logits.
    """

    context: int = 1024
    chunk: int = 64
    threads: int = 1
    kv: str = "f32"
    flash_attention: bool = False
    outputs: int | None = None
    swa_full: bool = True
    embeddings: bool = False


class LlamaCpp:
    """The loaded library; see :func:`load`."""

    def __init__(self, path: Path | None) -> None:
        if path is None:
            raise OracleError("llama.cpp is not installed; `pip install xllamacpp` brings it.")
        self.path = path
        self.lib = declare(ctypes.CDLL(str(path), mode=_MODE))
        self.errors: list[str] = []
        self._log = LOG_CALLBACK(self._keep_error)
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

    def chat_text(self, style: str, messages: Sequence[tuple[str, str]]) -> str:
        """A conversation of (role, content), ready for the reply, by one of llama.cpp's own writers, without the first token."""
        chat = (Message * len(messages))(*(Message(role.encode(), content.encode()) for role, content in messages))
        room = ctypes.create_string_buffer(1 << 16)
        length = self.lib.llama_chat_apply_template(style.encode(), chat, len(messages), True, room, len(room))
        if not 0 <= length <= len(room):
            raise OracleError(f"llama.cpp does not write this conversation as {style!r}.")
        return room.raw[:length].decode()

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


@cache
def load(library: Path | None = None) -> LlamaCpp:
    """The library (None: that of the installed wheel), once in a process: it keeps the callback of the log for good."""
    return LlamaCpp(library or find_library())


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
        out = (c_int32 * (len(data) + 8))()
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
        self._width: int = self._lib.llama_model_n_embd(model.handle)
        outputs = settings.outputs or settings.chunk
        params = self._lib.llama_context_default_params()
        params.n_ctx = settings.context
        params.n_batch = params.n_ubatch = settings.chunk
        params.n_outputs_max = params.n_outputs_max_per_seq = outputs
        params.n_threads = params.n_threads_batch = settings.threads
        params.flash_attn_type = int(settings.flash_attention)
        params.type_k = params.type_v = KV_TYPES[settings.kv]
        params.swa_full = settings.swa_full
        params.embeddings = settings.embeddings
        api.errors.clear()
        self._handle = self._lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise OracleError(f"llama.cpp makes no context of {settings}: {' / '.join(api.errors) or 'no reason given'}")
        self._memory = self._lib.llama_get_memory(self._handle)
        self.chunk = settings.chunk
        self.length = 0

    def advance(self, tokens: Sequence[int], rows: Sequence[int] = ()) -> None:
        """Compute at most `chunk` tokens that follow what is there; logits of `rows` are kept inside the library."""
        n = len(tokens)
        flags = (ctypes.c_int8 * n)()
        for row in rows:
            flags[row] = 1
        seq = (c_int32 * 1)(0)
        batch = Batch(
            n_tokens=n,
            token=(c_int32 * n)(*tokens),
            pos=(c_int32 * n)(*range(self.length, self.length + n)),
            n_seq_id=(c_int32 * n)(*[1] * n),
            seq_id=(POINTER(c_int32) * n)(*[ctypes.cast(seq, POINTER(c_int32))] * n),
            logits=flags,
        )
        code = self._lib.llama_decode(self._handle, batch)
        if code:
            raise OracleError(f"llama_decode of {n} tokens at position {self.length} returned {code}")
        self.length += n

    def decode(self, tokens: Sequence[int]) -> F32:
        """[len(tokens), vocab] of at most `chunk` tokens that follow what is there, a copy."""
        import numpy as np  # a process that only decodes does without

        n = len(tokens)
        self.advance(tokens, range(n))
        out = np.empty((n, self._vocab_size), np.float32)
        for row in range(n):
            out[row] = np.ctypeslib.as_array(self._lib.llama_get_logits_ith(self._handle, row), shape=(self._vocab_size,))
        return out

    def embedding(self, tokens: Sequence[int]) -> F32:
        """[width] of at most `chunk` tokens, pooled as the file says, not normalised; in a context made for embeddings."""
        import numpy as np

        self.truncate(0)
        self.advance(tokens, range(len(tokens)))
        return np.ctypeslib.as_array(self._lib.llama_get_embeddings_seq(self._handle, 0), shape=(self._width,)).copy()

    def likeliest(self) -> int:
        """The most likely token after the last row that was asked for, found by the library's own sampler."""
        sampler = self._lib.llama_sampler_init_greedy()
        token: int = self._lib.llama_sampler_sample(sampler, self._handle, -1)
        self._lib.llama_sampler_free(sampler)
        return token

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
        import numpy as np

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


@contextmanager
def opened(path: Path, settings: Settings, *, repack: bool = False) -> Iterator[tuple[Model, Context]]:
    """A model and one context on it, both closed at the end."""
    with load().open(path, repack=repack) as model, model.context(settings) as context:
        yield model, context


if __name__ == "__main__":
    sys.stdout.write(load().describe() + "\n")
