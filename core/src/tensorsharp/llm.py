"""Load a model file and talk to it: the library's front door."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from os import PathLike, fspath
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from tensorsharp.caching import DEFAULT_STORE, cache_config
from tensorsharp.engine.config import BUSY_TOKENS, SAVED_BLOCKS, SAVED_BYTES, STEP_TOKENS, EngineConfig, SchedulerConfig
from tensorsharp.engine.engine import Engine
from tensorsharp.engine.eventlog import EventLog
from tensorsharp.engine.handle import RequestHandle
from tensorsharp.engine.observer import Observer
from tensorsharp.engine.stats import EngineStats
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import ConfigError, RequestError, UnsupportedError
from tensorsharp.generation import Generation, Reply
from tensorsharp.opening import Opened
from tensorsharp.parameters import sampling_params
from tensorsharp.prompts import Prompt, Prompts
from tensorsharp.protocols.backend import Backend, BackendOptions
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.chat import ChatStyle, HasChatStyle
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import FORMAT_BYTES, Format
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.registry import Registry
from tensorsharp.starting import start_engine
from tensorsharp.types import Constraint, GenerationRequest, SamplingParams
from tensorsharp.weights.gguf import open_gguf

if TYPE_CHECKING:
    from tensorsharp.chat import ChatGeneration, ChatOptions
    from tensorsharp.dialect import Dialect
    from tensorsharp.hooks import Hooks
    from tensorsharp.text.constraints import Constraints
    from tensorsharp.text.template import ChatTemplate

__all__ = ["LLM", "Generation", "Reply", "load"]

Progress = Callable[[str, float], None]
"""(stage, fraction done): the stages are "open", "weights" and "tokenizer"."""
Message = Mapping[str, Any]

DEFAULT_BACKEND = "ggml"
DEFAULT_CONTEXT = 8192
REQUEST_OPTIONS = ("id", "priority", "timeout_s", "cache_scope", "constraint")
TEMPLATE_KEY = "tokenizer.chat_template"


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

    ctx_size: positions of one request, prompt and reply (None: the model's own, at most 8,192). kv_type: f16, bf16 or
    f32. parallel to saved_blocks: see :class:`~tensorsharp.engine.config.SchedulerConfig`. kv_codec: the plugin that encodes
    what is kept below the blocks of the device (None: as it is); kv_ram: bytes of host memory for that; kv_ssd: a folder for
    that, DIR or DIR:SIZE. checkpoints: a folder where the beginnings that prompts share outlive the process, kept by the plugin
    `checkpoint_store`. history_ids: whether the ids that the model made replace what re-tokenising past replies gives
    (:mod:`tensorsharp.prompts`). composition_log: a file that takes every step, prompts included, for
    :mod:`tensorsharp.replay`. progress is called on this thread.
    backend_options: the backend's own flags. registry: the plugins to choose from (None: all installed). ModelError if
    the file is refused, PluginError if no plugin serves it, ConfigError for a value that cannot be used, CapacityError
    with the numbers if memory does not suffice; nothing is left open then.
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


class LLM:
    """A loaded model. Thread-safe: requests of several threads run together, `parallel` at a time.

    Made by :func:`load`. Keyword arguments named `params` are the fields of
    :class:`~tensorsharp.types.SamplingParams`, and `id`, `priority`, `timeout_s` and `cache_scope` of
    :class:`~tensorsharp.types.GenerationRequest`; `constraint` is a :class:`~tensorsharp.types.Constraint`, and for
    conversations `history_ids` says whether ids that the model made replace those of past replies. An unknown one
    or a bad value is a RequestError, a full queue a CapacityError.
    """

    def __init__(
        self,
        file: ModelFile,
        model: IBatchedPagedModel,
        backend: Backend,
        engine: Engine,
        tokenizer: Tokenizer,
        owned: ExitStack,
        *,
        load_s: float = 0.0,
        capabilities: frozenset[str] = frozenset(),
        history_ids: bool = False,
    ) -> None:
        self.file = file
        self.model = model
        self.backend = backend
        self.engine = engine
        self.tokenizer = tokenizer
        self.load_s = load_s
        self.capabilities = capabilities
        self.prompts = Prompts(tokenizer, history_ids=history_ids, boundaries=lambda: engine.uses_boundaries)
        self._owned = owned

    # prompts in -------------------------------------------------------------------------------------------------

    def stream(self, prompt: str, *, system: str | None = None, raw: bool = False, **params: Any) -> Generation:
        """Start a reply; iterate the result for its text (`for` or `async for`).

        The prompt is one user message for the file's chat template, after `system` if given. With `raw`, or where the
        file has no template, it is used as it is.
        """
        if raw or not self.has_template:
            if system is not None:
                raise RequestError(
                    "A system prompt needs a chat template, and " + ("raw leaves it out." if raw else "this model has none."),
                    param="system",
                    hint="Write it into the prompt.",
                )
            return self.stream_ids(self.tokenizer.encode(prompt), **params)
        messages = [{"role": "user", "content": prompt}]
        return self.stream_chat(messages if system is None else [{"role": "system", "content": system}, *messages], **params)

    def stream_ids(self, ids: Sequence[int], **params: Any) -> Generation:
        """Start the continuation of token ids; see :meth:`stream`."""
        return self._start(Prompt(tuple(ids)), params)

    def generate(self, prompt: str, *, system: str | None = None, raw: bool = False, **params: Any) -> Reply:
        """The whole reply to a prompt; see :meth:`stream`."""
        return self.stream(prompt, system=system, raw=raw, **params).result()

    def astream(self, prompt: str, *, system: str | None = None, raw: bool = False, **params: Any) -> Generation:
        """:meth:`stream` under its asyncio name: `async for piece in llm.astream(...)`."""
        return self.stream(prompt, system=system, raw=raw, **params)

    async def agenerate(self, prompt: str, *, system: str | None = None, raw: bool = False, **params: Any) -> Reply:
        """:meth:`generate` for asyncio. Cancelling the task cancels the request."""
        return await self.stream(prompt, system=system, raw=raw, **params).wait()

    # conversations in -------------------------------------------------------------------------------------------

    def stream_chat(self, messages: Sequence[Message], **params: Any) -> Generation:
        """Start the reply to a conversation: messages with `role` and `content`. UnsupportedError without a template.

        The reply is its text as the model writes it; :meth:`start_chat` tells content, reasoning and tool calls apart.
        """
        return self._start(self.chat_prompt(messages, **params), params)

    def start_chat(self, messages: Sequence[Message], options: ChatOptions | None = None, **params: Any) -> ChatGeneration:
        """Start the reply to a conversation; iterate the result for deltas of content, reasoning and tool calls.

        RequestError names the field of messages, options or parameters that cannot be used, UnsupportedError what the
        model does not do, TemplateError what its template refuses.
        """
        from tensorsharp.chat import start_chat

        return start_chat(self, messages, options, params)

    def chat(self, messages: Sequence[Message], **params: Any) -> Reply:
        """The whole reply to a conversation."""
        return self.stream_chat(messages, **params).result()

    async def achat(self, messages: Sequence[Message], **params: Any) -> Reply:
        """:meth:`chat` for asyncio."""
        return await self.stream_chat(messages, **params).wait()

    # pieces -----------------------------------------------------------------------------------------------------

    @property
    def has_template(self) -> bool:
        """Whether the file has a chat template, or its family has one that fits the file's vocabulary."""
        return bool(self.file.metadata.get(TEMPLATE_KEY)) or self._fallback is not None

    @cached_property
    def template(self) -> ChatTemplate:
        """The file's chat template, or its family's. UnsupportedError if there is none."""
        from tensorsharp.text.template import load_template

        template = load_template(self.file, fallback=self._fallback) if self.has_template else None
        if template is None:
            raise UnsupportedError(
                f"{self.file.path} has no chat template ({TEMPLATE_KEY}).",
                hint="Give the model a plain prompt instead (raw=True, --raw).",
            )
        return template

    @cached_property
    def dialect(self) -> Dialect:
        """How the model writes conversations. UnsupportedError without a template."""
        from tensorsharp.dialect import Dialect

        return Dialect(self.template, self.tokenizer, self._style)

    @property
    def _style(self) -> ChatStyle | None:
        return self.model.chat if isinstance(self.model, HasChatStyle) else None

    @cached_property
    def _fallback(self) -> str | None:
        """The family's template, if the vocabulary has the control tokens that it is made of."""
        style = self._style
        if style is None or style.template is None:
            return None
        return style.template if all(len(self.tokenizer.encode(text, bos=False)) == 1 for text in style.tokens) else None

    def grammar(self, constraint: Constraint) -> Grammar:
        """A compiled constraint, for :class:`~tensorsharp.types.GenerationRequest`. RequestError says what is wrong and where."""
        return self._constraints.compile(constraint)

    @cached_property
    def _constraints(self) -> Constraints:
        from tensorsharp.text.constraints import Constraints

        return Constraints(self.tokenizer)

    def tokenize(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Ids of a text; see :meth:`tensorsharp.protocols.tokenizer.Tokenizer.encode`."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def tokenize_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a rendered conversation, ready for the reply; the beginning-of-text token once."""
        return list(self.chat_prompt(messages, history_ids=False).ids)

    def chat_prompt(self, messages: Sequence[Message], **params: Any) -> Prompt:
        """A conversation as :meth:`stream_chat` takes it. Of the parameters only `history_ids` and `cache_scope` matter."""
        from tensorsharp.text.toolcalls import Tools

        rendered = self.dialect.prompt(messages, Tools(())).rendered
        return self.prompts.make(rendered, scope=params.get("cache_scope"), history_ids=params.get("history_ids"))

    def tokenize_prompt(self, text: str) -> list[int]:
        """Ids of a text that a template made, in which the beginning-of-text token may stand already."""
        return self.prompts.encode(text)

    def fill_ids(self, before: str, after: str) -> list[int]:
        """Ids of a prompt whose reply stands between two texts. UnsupportedError if the model was not made for it."""
        from tensorsharp.text.fill import fill_tokens

        tokens = fill_tokens(self.file.metadata, self.tokenizer)
        if tokens is None:
            raise UnsupportedError(
                f"{self.file.path} names no tokens to fill in the middle with.", param="suffix", hint="Leave the suffix out."
            )
        return tokens.prompt(self.tokenizer, before, after)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids."""
        return self.tokenizer.decode(ids, special=special)

    def logits(self, ids: Sequence[int]) -> F32:
        """[n] token ids -> [n, vocab] float32: row i are the logits for the token after ids[i]."""
        return self.engine.logits(tuple(ids))

    def embed(self, texts: Sequence[str | Sequence[int]]) -> F32:
        """Texts, or their ids -> [texts, width] float32, rows of length 1. UnsupportedError if the file is not made for it."""
        from tensorsharp.embedding import pooling

        kind = pooling(self.file, self.capabilities)
        return self.engine.embed([self.tokenizer.encode(t) if isinstance(t, str) else t for t in texts], kind)

    def stats(self) -> EngineStats:
        return replace(self.engine.stats(), seam_tokens=self.prompts.seam_tokens)

    def report(self) -> dict[str, Any]:
        """Facts about this run, as plain data: device, arithmetic, whether the bitwise contract holds, fallbacks."""
        facts = Opened(self.file, self.model, self.backend).facts()
        return {**facts, "context": self.engine.limit, "fallbacks": dict(self.engine.stats().fallbacks), "load_s": self.load_s}

    def close(self) -> None:
        """End what runs, and give memory and file back. Idempotent."""
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def submit(
        self, prompt: Prompt | Sequence[int], params: Mapping[str, Any], grammar: Grammar | None = None
    ) -> tuple[RequestHandle, SamplingParams]:
        """Hand a prompt to the engine; its tokens come from the handle. params: see the class. grammar: a compiled constraint."""
        prompt = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
        options = {name: params[name] for name in REQUEST_OPTIONS if name in params}
        if options.get("constraint") is not None:
            if grammar is not None:
                raise RequestError("The reply is bound twice.", param="constraint", hint="Use ChatOptions.constraint alone.")
            grammar = self.grammar(options["constraint"])
        options["constraint"] = grammar
        sampling = sampling_params({n: value for n, value in params.items() if n not in options and n != "history_ids"})
        request = GenerationRequest(prompt.ids, sampling, self.tokenizer.end_tokens, prompt.boundaries, **options)
        handle = self.engine.submit(request)
        self.prompts.asked(prompt)
        return handle, sampling

    def _start(self, prompt: Prompt, params: Mapping[str, Any]) -> Generation:
        handle, sampling = self.submit(prompt, params)
        text = TextStream(self.tokenizer, sampling.stop)
        return Generation(handle, text, logprobs=sampling.logprobs is not None, prompt=prompt)
