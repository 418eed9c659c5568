"""A loaded model, and all that can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tensorsharp.engine.engine import Engine
from tensorsharp.engine.handle import RequestHandle, Watch
from tensorsharp.engine.stats import EngineStats
from tensorsharp.engine.stream import TextStream
from tensorsharp.errors import RequestError, UnsupportedError
from tensorsharp.generation import Generation, Reply, watch_stops
from tensorsharp.opening import Opened
from tensorsharp.parameters import sampling_params
from tensorsharp.prompts import Prompt, Prompts
from tensorsharp.protocols.backend import Backend
from tensorsharp.protocols.batch import F32
from tensorsharp.protocols.chat import ChatStyle, HasChatStyle
from tensorsharp.protocols.constraint import Grammar
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.model import IBatchedPagedModel
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.types import Constraint, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from tensorsharp.chat import ChatGeneration, ChatOptions
    from tensorsharp.dialect import Dialect
    from tensorsharp.text.constraints import Constraints
    from tensorsharp.text.template import ChatTemplate

__all__ = ["LLM", "Generation", "Reply"]

Message = Mapping[str, Any]

REQUEST_OPTIONS = ("id", "priority", "timeout_s", "cache_scope", "constraint")
TEMPLATE_KEY = "tokenizer.chat_template"


class LLM:
    """A loaded model. Thread-safe: requests of several threads run together, `parallel` at a time.

    Made by :func:`tensorsharp.load`. Keyword arguments named `params` are the fields of
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
        self.prompts = Prompts(tokenizer, history_ids=history_ids, boundaries=lambda: engine.uses_boundaries, limit=engine.limit)
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
            self.prompts.check(prompt)
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

    def warm_up(self) -> None:
        """Do now what the first requests would wait for: compute one token, and prepare for constraints if that is possible.

        The latter takes a second for 150,000 tokens, during which other threads stand still.
        """
        self.logits([self.tokenizer.bos or 0])
        with suppress(UnsupportedError):  # without llguidance, or without a vocabulary, there are no constraints
            self._constraints.prepare()

    @cached_property
    def _constraints(self) -> Constraints:
        from tensorsharp.text.constraints import Constraints

        return Constraints(self.tokenizer)

    def tokenize(self, text: str, *, special: bool = True, bos: bool | None = None) -> list[int]:
        """Ids of a text; see :meth:`tensorsharp.protocols.tokenizer.Tokenizer.encode`."""
        return self.tokenizer.encode(text, special=special, bos=bos)

    def tokenize_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a rendered conversation, ready for the reply; the beginning-of-text token once."""
        from tensorsharp.text.toolcalls import Tools

        return self.tokenize_prompt(self.dialect.prompt(messages, Tools(())).text)

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
        self.prompts.check(before + after)
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
        for text in texts:
            if isinstance(text, str):
                self.prompts.check(text, reply=0)
        return self.engine.embed([self.tokenizer.encode(t) if isinstance(t, str) else t for t in texts], kind)

    def stats(self) -> EngineStats:
        """What was counted and measured since loading: requests, tokens, cached prefixes, tiers, times."""
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
        self,
        prompt: Prompt | Sequence[int],
        params: Mapping[str, Any],
        grammar: Grammar | None = None,
        watch: Callable[[SamplingParams], Watch | None] | None = None,
    ) -> tuple[RequestHandle, SamplingParams]:
        """Hand a prompt to the engine; its tokens come from the handle. params: see the class. grammar: a compiled constraint.
        watch: makes what may end the reply by its tokens, if something does."""
        prompt = prompt if isinstance(prompt, Prompt) else Prompt(tuple(prompt))
        options = {name: params[name] for name in REQUEST_OPTIONS if name in params}
        if options.get("constraint") is not None:
            if grammar is not None:
                raise RequestError("The reply is bound twice.", param="constraint", hint="Use ChatOptions.constraint alone.")
            grammar = self.grammar(options["constraint"])
        options["constraint"] = grammar
        sampling = sampling_params({n: value for n, value in params.items() if n not in options and n != "history_ids"})
        request = GenerationRequest(prompt.ids, sampling, self.tokenizer.end_tokens, prompt.boundaries, **options)
        handle = self.engine.submit(request, None if watch is None else watch(sampling))
        self.prompts.asked(prompt)
        return handle, sampling

    def _start(self, prompt: Prompt, params: Mapping[str, Any]) -> Generation:
        handle, sampling = self.submit(prompt, params, watch=partial(watch_stops, self.tokenizer))
        text = TextStream(self.tokenizer, sampling.stop)
        return Generation(handle, text, logprobs=sampling.logprobs is not None, prompt=prompt)
