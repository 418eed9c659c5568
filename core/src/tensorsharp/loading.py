"""Make a model file ready to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import attrgetter
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tensorsharp.caching import DEFAULT_STORE, cache_config
from tensorsharp.engine.config import BUSY_TOKENS, SAVED_BLOCKS, SAVED_BYTES, STEP_TOKENS, EngineConfig, SchedulerConfig
from tensorsharp.engine.eventlog import EventLog
from tensorsharp.engine.observer import Observer
from tensorsharp.errors import ConfigError
from tensorsharp.llm import LLM
from tensorsharp.opening import Opened
from tensorsharp.protocols.backend import Backend, BackendOptions
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import FORMAT_BYTES, Format
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.registry import Registry
from tensorsharp.starting import start_engine
from tensorsharp.weights.gguf import open_gguf

if TYPE_CHECKING:
    from tensorsharp.hooks import Hooks

Progress = Callable[[str, float], None]
"""(stage, fraction done): the stages are "open", "weights" and "tokenizer"."""

DEFAULT_BACKEND = "ggml"
DEFAULT_CONTEXT = 8192


def load(
    path: str | PathLike[str],
    *,
    backend: str = DEFAULT_BACKEND,
    device: str | None = None,
    threads: int | None = None,
    ctx_size: int | None = None,
    kv_type: str = "f16",
    parallel: int = 1,
    queue: int | None = None,
    step_tokens: int = STEP_TOKENS,
    chunk_tokens: int = STEP_TOKENS,
    busy_tokens: int = BUSY_TOKENS,
    saved_bytes: int = SAVED_BYTES,
    saved_blocks: int = SAVED_BLOCKS,
    kv_codec: str | None = None,
    kv_ram: int = 0,
    kv_ssd: str | PathLike[str] | None = None,
    checkpoints: str | PathLike[str] | None = None,
    checkpoint_store: str = DEFAULT_STORE,
    history_ids: bool = False,
    composition_log: str | PathLike[str] | None = None,
    progress: Progress | None = None,
    backend_options: Mapping[str, str] | None = None,
    registry: Registry | None = None,
) -> LLM:
    """Open a GGUF file and make it ready to run.

    Where it runs:
      backend, device, threads: the plugin, one of its devices, and how many threads (None: the backend's choice).
      backend_options: the backend's own flags.
      registry: the plugins to choose from (None: all that are installed).

    Memory and steps:
      ctx_size: positions of one request, prompt and reply (None: the model's own, at most 8,192).
      kv_type: f16, bf16 or f32.
      parallel to saved_blocks: fields of :class:`~tensorsharp.engine.config.SchedulerConfig`.

    What is kept of prompts:
      kv_ram: bytes of host memory for blocks that leave the device.
      kv_ssd: a folder for them, DIR or DIR:SIZE.
      kv_codec: the plugin that encodes them there (None: as they are).
      checkpoints: a folder where the beginnings that prompts share outlive the process.
      checkpoint_store: the plugin that keeps these.
      history_ids: whether ids that the model made replace what re-tokenising past replies gives
      (:mod:`tensorsharp.prompts`).

    What is told:
      progress: called on this thread, while loading.
      composition_log: a file that takes every step, prompts included, for :mod:`tensorsharp.replay`.

    ModelError if the file is refused, PluginError if no plugin serves it, ConfigError for a value that cannot be used,
    CapacityError with the numbers if memory does not suffice; nothing is left open then.
    """
    tell = progress or (lambda stage, fraction: None)
    if kv_type not in FORMAT_BYTES:
        raise ConfigError(f"kv_type is {kv_type!r}; expected one of {', '.join(FORMAT_BYTES)}.")
    scheduler = SchedulerConfig(parallel, queue, step_tokens, chunk_tokens, busy_tokens, saved_bytes, saved_blocks)
    began = time.perf_counter()
    with ExitStack() as stack:
        tell("open", 0.0)
        file = stack.enter_context(open_gguf(fspath(path)))
        tell("open", 1.0)
        with ThreadPoolExecutor(2, "tensorsharp-load") as workers:
            tokenizer = workers.submit(_load_tokenizer, file)
            fingerprint = workers.submit(attrgetter("fingerprint"), file)
            tell("weights", 0.0)
            plugins = registry or Registry()
            cache = cache_config(
                plugins,
                kv_codec=kv_codec,
                kv_ram=kv_ram,
                kv_ssd=kv_ssd,
                checkpoints=checkpoints,
                checkpoint_store=checkpoint_store,
            )
            model = cast("IBatchedPagedModel", plugins.load("model", file.architecture).from_file(file))
            context = _context(ctx_size, model.context_length)
            options = BackendOptions(device, threads, backend_options or {})
            runs_on = cast("Backend", plugins.load("backend", backend)(options))
            stack.callback(runs_on.close)
            hooks = _hooks(plugins)
            plugin = plugins.row("model", file.architecture, probe=False)
            layout = dict(model.layout(cast("Format", kv_type)))
            decides = (fingerprint.result(), runs_on.arithmetic_id, kv_type, plugin.id, plugin.version, layout)
            config = EngineConfig(context, scheduler, identity=" ".join(map(str, decides)), cache=cache)
            observers: list[Observer] = [EventLog(Path(file.path).name), *([] if hooks is None else [hooks])]
            this = Opened(file, model, runs_on)
            engine = start_engine(stack, this, config, cast("Format", kv_type), observers, composition_log)
            tell("weights", 1.0)
            tell("tokenizer", 0.0)
            ready = tokenizer.result()
            tell("tokenizer", 1.0)
        if hooks is not None:
            hooks.call("on_model_loaded", path=file.path, architecture=file.architecture, backend=runs_on.name)
            stack.callback(hooks.call, "on_model_unloaded", path=file.path)
        capabilities = frozenset() if plugin.spec is None else plugin.spec.capabilities
        seconds = time.perf_counter() - began
        facts: dict[str, Any] = {"load_s": seconds, "capabilities": capabilities, "history_ids": history_ids}
        return LLM(file, model, runs_on, engine, ready, stack.pop_all(), **facts)


def _hooks(plugins: Registry) -> Hooks | None:
    """The hook plugins, if there are any: most installations have none and need not load their manager."""
    if not plugins.names("hook"):
        return None
    from tensorsharp.hooks import Hooks

    return Hooks(plugins)


def _load_tokenizer(file: ModelFile) -> Tokenizer:
    from tensorsharp.text.tokenizer import load_tokenizer

    return load_tokenizer(file)


def _context(asked: int | None, longest: int) -> int:
    if asked is None:
        return min(longest, DEFAULT_CONTEXT)
    if not 2 <= asked <= longest:
        raise ConfigError(f"ctx_size is {asked}; expected 2 to {longest}, the context that the model was made for.")
    return asked
