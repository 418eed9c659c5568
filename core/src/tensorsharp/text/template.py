"""Chat templates: from messages to the text that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from types import TracebackType
from typing import Any, Final, NoReturn

from jinja2 import Template, TemplateSyntaxError, meta

from tensorsharp.errors import ModelError, TemplateError
from tensorsharp.protocols.file import ModelFile
from tensorsharp.text.limits import LimitError, Limits
from tensorsharp.text.sandbox import Sandbox

TEMPLATE_KEY: Final = "tokenizer.chat_template"
MAX_MESSAGE: Final = 300
_DEFAULT_ROLES: Final = {"bos": 1, "eos": 2}
_STRFTIME_WIDTH: Final = re.compile(r"%[-_0^#+]*\d")


class RefusalError(Exception):
    """What `raise_exception` in a template raises: the template's own words about the conversation."""


class ChatTemplate:
    """A compiled template. Immutable and safe to share between threads.

    source: Jinja, with the names that transformers gives to chat templates (`messages`, `tools`, `add_generation_prompt`,
    `bos_token`, `eos_token`, `raise_exception`, `strftime_now`, `{% generation %}`, `{% break %}`, `{% continue %}`).
    where: what errors call it. TemplateError if it is malformed.
    """

    def __init__(self, source: str, bos: str = "", eos: str = "", *, where: str = "chat template") -> None:
        self.source = source
        self.where = where
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self._environment = Sandbox()
        self._environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        try:
            self._code = self._environment.compile(source, None, where)
        except TemplateSyntaxError as error:
            self._fail(error.message or "is malformed", error.lineno, error)
        except Exception as error:
            self._fail(_sentence(error), None, error)

    @cached_property
    def variables(self) -> frozenset[str]:
        """Names that the template reads and does not set itself everywhere."""
        return frozenset(meta.find_undeclared_variables(self._environment.parse(self.source)))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The conversation as text.

        messages: `role` and `content` each, and what else the template reads. tools: function schemas. Further names
        are handed to the template. TemplateError if it refuses the conversation, fails, or goes over its limits of time
        and size, which are far above what real templates use (:mod:`tensorsharp.text.limits`).
        """
        variables = {
            **self._tokens,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        try:
            environment = self._environment.limited(limits := Limits(variables))
            template = Template.from_code(environment, self._code, environment.make_globals(None))
            pieces = []
            for piece in template.root_render_func(template.new_context(variables)):
                limits.tick()
                limits.charge(len(piece))
                pieces.append(piece)
            return "".join(pieces)
        except Exception as error:
            self._fail(_sentence(error), _line(error.__traceback__), error)

    def _fail(self, sentence: str, line: int | None, error: Exception) -> NoReturn:
        place = self.where if line is None else f"{self.where}, line {line}"
        text = " ".join(sentence.split())
        raise TemplateError(f"{place}: {text[:MAX_MESSAGE]}{'…' if len(text) > MAX_MESSAGE else ''}") from error


def load_template(file: ModelFile, name: str | None = None, *, fallback: str | None = None) -> ChatTemplate | None:
    """The chat template of a model file, or None if it has none. name: one of its variants, for example `tool_use`.

    fallback: used if the file has none.

    TemplateError if it is malformed; ModelError if the metadata is no text.
    """
    key = TEMPLATE_KEY if name is None else f"{TEMPLATE_KEY}.{name}"
    source = file.metadata.get(key) or fallback
    if source is None:
        return None
    if not isinstance(source, str):
        raise ModelError(f"{file.path}: '{key}' is {source!r:.100}; expected a Jinja template.")
    return ChatTemplate(source, _token_text(file, "bos"), _token_text(file, "eos"), where=f"{file.path}: '{key}'")


def _token_text(file: ModelFile, role: str) -> str:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    default = _DEFAULT_ROLES[role] if file.metadata.get("tokenizer.ggml.model") == "llama" else None
    token = file.metadata.get(f"tokenizer.ggml.{role}_token_id", default)
    if tokens is None or not isinstance(token, int) or not 0 <= token < len(tokens):
        return ""
    return str(tokens[token])


def _raise_exception(message: Any) -> NoReturn:
    raise RefusalError(str(message) if isinstance(message, str) else "the template gives no reason")


def _strftime_now(format: str) -> str:
    if len(format) > 256 or _STRFTIME_WIDTH.search(format):
        raise LimitError("it formats the date with a width")
    return datetime.now().astimezone().strftime(format)


def _sentence(error: Exception) -> str:
    if isinstance(error, RefusalError):
        return f"the template refuses the conversation: {error}"
    if isinstance(error, LimitError):
        return f"the template was stopped: {error}"
    if isinstance(error, RecursionError):
        return "the template was stopped: it calls itself too deeply"
    return f"the template fails: {str(error) or type(error).__name__}"


def _line(trace: TracebackType | None) -> int | None:
    """The template's line that the error comes from."""
    line = None
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, Template):
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line
