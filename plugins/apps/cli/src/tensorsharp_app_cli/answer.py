"""One prompt, one answer: streamed to stdout, or as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tensorsharp import options
from tensorsharp.errors import RequestError
from tensorsharp_app_cli import facts
from tensorsharp_app_cli.output import emit_json
from tensorsharp_app_cli.printing import print_pieces

if TYPE_CHECKING:
    from tensorsharp.chat import ChatGeneration
    from tensorsharp.config import Settings
    from tensorsharp.generation import Generation
    from tensorsharp.llm import LLM
    from tensorsharp_app_cli.status import Status

Message = dict[str, str]


def answer(llm: LLM, prompt: str, settings: Settings, status: Status, *, as_json: bool) -> None:
    """Print the reply to a prompt, and nothing else, on stdout."""
    status.say("reading the prompt")
    generation = start(llm, prompt, (), settings, **({"logprobs": settings.logprobs} if as_json else {}))
    if as_json:
        data = facts.as_data(llm, generation.result())
        status.clear()
        emit_json(data)
    else:
        print_pieces(generation, status)
    if status.shown:
        click.echo(facts.speeds(generation.result()), err=True)


def without_template(llm: LLM, settings: Settings) -> bool:
    """Whether prompts are given to the model as they are. RequestError for a system message, which needs a template."""
    plain = settings.raw or not llm.has_template
    if plain and settings.system is not None:
        raise RequestError(
            "A system prompt needs a chat template, which --raw leaves out or the model lacks.",
            param="system",
            hint="Write it into the prompt.",
        )
    return plain


def start(llm: LLM, prompt: str, before: Sequence[Message], settings: Settings, **extra: Any) -> Generation | ChatGeneration:
    """Start the reply to a prompt, after the system message of the settings and the messages before."""
    params = options.sampling(settings) | extra
    if without_template(llm, settings):
        return llm.stream(prompt, raw=True, **params)
    from tensorsharp.chat import ChatOptions

    system = [] if settings.system is None else [{"role": "system", "content": settings.system}]
    messages = [*system, *before, {"role": "user", "content": prompt}]
    return llm.start_chat(messages, ChatOptions(reasoning=options.reasoning(settings)), **params)
