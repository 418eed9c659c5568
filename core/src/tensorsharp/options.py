"""The flags that commands of several apps share, and the settings that they give together with environment and file.

A flag's value is text until the settings check it, so that a wrong one is refused with the same sentence wherever it
was written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tensorsharp.cli import Program
from tensorsharp.errors import ConfigError

if TYPE_CHECKING:
    from tensorsharp.config import Settings
    from tensorsharp.registry import Registry

logger = logging.getLogger(__name__)
Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

_OWN = "tensorsharp.options.own"
"""Where a command's context keeps the flags that belong to one backend alone: (backend, option) -> value."""

DEVICE = (
    click.option("--backend", metavar="NAME", help="The kind of device to run on; 'tensorsharp plugins' lists them."),
    click.option("--device", metavar="NAME", help="A device of the backend."),
    click.option("--threads", metavar="N", help="Threads to compute with."),
    click.option("--kv-type", metavar="f16|bf16|f32", help="How keys and values are kept.  [default: f16]"),
)
CONTEXT = click.option("-c", "--ctx-size", metavar="N", help="Tokens of prompt and reply together.  [default: at most 8192]")
STEPS = (
    click.option("--step-tokens", metavar="N", help="Most tokens that are computed in a step.  [default: 512]"),
    click.option("--chunk-tokens", metavar="N", help="Most tokens of one prompt in a step.  [default: 512]"),
    click.option("--saved-bytes", metavar="SIZE", help="Memory for recurrent state of prompts seen before.  [default: 256M]"),
    click.option("--saved-blocks", metavar="N", help="Blocks of a prompt from one such state to the next.  [default: 16]"),
    click.option(
        "--history-ids", is_flag=True, default=None, help="Keep past replies as the tokens that they were, not as their text."
    ),
    click.option("--composition-log", metavar="FILE", help="Write down every step, prompts included, for replay."),
)
SHARING = (
    click.option("--parallel", metavar="N", help="Requests that run at the same time."),
    click.option("--queue", metavar="N", help="Requests that may wait besides; more are refused."),
    click.option("--busy-tokens", metavar="N", help="Most prompt tokens in a step in which others reply.  [default: 256]"),
)
"""For commands that run many requests at once."""
CACHE = (
    click.option("--kv-ram", metavar="SIZE", help="Memory for blocks of prompts that left the device.  [default: none]"),
    click.option("--kv-ssd", metavar="DIR[:SIZE]", help="A folder for them, which later runs find.  [default size: 8G]"),
    click.option("--kv-codec", metavar="NAME", help="How they are encoded there; 'tensorsharp plugins' lists codecs."),
    click.option("--checkpoints", metavar="DIR[:N]", help="A folder for N beginnings that prompts share.  [default N: 4]"),
    click.option("--checkpoint-store", metavar="NAME", help="The plugin that keeps them.  [default: file]"),
)
NAMES = (
    click.option("--offline", is_flag=True, default=None, help="Use what is in the cache; download nothing."),
    click.option("--no-mmproj", is_flag=True, default=None, help="Leave out the model's file for images."),
)
"""For commands that take a MODEL and may download it."""
SAMPLING = (
    click.option("-n", "--max-tokens", metavar="N", help="Most tokens of a reply.  [default: what fits]"),
    click.option("--temp", "--temperature", metavar="T", help="0 takes the likeliest token.  [default: 0.8]"),
    click.option("--top-k", metavar="K", help="Draw from the K likeliest tokens; 0 is off.  [default: 40]"),
    click.option("--top-p", metavar="P", help="Draw from the likeliest tokens that sum to P; 1 is off.  [default: 0.95]"),
    click.option("--min-p", metavar="P", help="Leave out tokens less likely than P times the likeliest.  [default: 0.05]"),
    click.option("--repeat-penalty", metavar="X", help="Divide the scores of recent tokens by X; 1 is off.  [default: 1]"),
    click.option("--repeat-last-n", metavar="N", help="How many tokens are recent; -1 is all.  [default: 64]"),
    click.option("--presence-penalty", metavar="X", help="Take X off recent tokens; 0 is off.  [default: 0]"),
    click.option("--frequency-penalty", metavar="X", help="Take X off for each time a token is recent.  [default: 0]"),
    click.option("--seed", metavar="N", help="The same seed gives the same reply.  [default: random]"),
    click.option("--stop", metavar="TEXT", multiple=True, help="End the reply before this text; may be repeated."),
    click.option("--system", metavar="TEXT", help="The system message."),
    click.option("--think", metavar="on|off|LEVEL", help="Whether, or how much, to reason.  [default: as the model likes]"),
    click.option("--raw", is_flag=True, default=None, help="Leave the chat template out."),
)
_CACHE = ("kv_codec", "kv_ram", "kv_ssd", "checkpoints", "checkpoint_store")
_ALONE = (
    "device",
    "threads",
    "ctx_size",
    "kv_type",
    "step_tokens",
    "chunk_tokens",
    "saved_bytes",
    "saved_blocks",
    "history_ids",
    "composition_log",
    *_CACHE,
)
_TOGETHER = (*_ALONE, "parallel", "queue", "busy_tokens")
SAMPLING_SETTINGS = (
    *("max_tokens", "temp", "top_k", "top_p", "min_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty"),
)
"""The settings that choose tokens."""
_RENAMED = {"temp": "temperature"}
VERBOSE = click.option("-v", "--verbose", count=True, help="Say on stderr what is done, with speeds and facts about the run.")
LOG_FORMAT = click.option("--log-format", metavar="text|json", help="How the log is written to stderr.  [default: text]")
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def flags(*options: Decorator[Any]) -> Decorator[Any]:
    """Put options on a command, in this order in its help."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def backend_flag(backend: str, option: str, **how: Any) -> Decorator[Any]:
    """The flag `--BACKEND-OPTION` for an option that only this backend knows. how: arguments of click.option."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta.setdefault(_OWN, {})[backend, option] = value

    return click.option(f"--{backend}-{option.replace('_', '-')}", callback=keep, expose_value=False, **how)


def settle(ctx: click.Context, given: Mapping[str, Any], defaults: Mapping[str, object] = MappingProxyType({})) -> Settings:
    """The settings of this invocation: flags, then environment, then file, then the command's own defaults.

    ConfigError names what is wrong and where.
    """
    from tensorsharp.config import flag, resolve

    named = {name: None if value == () else value for name, value in given.items()}
    settings = resolve(named, config=ctx.ensure_object(Program).config, defaults=defaults).settings
    for backend, option in ctx.meta.get(_OWN, {}):
        if settings.backend not in (None, backend):
            name = flag(f"{backend}-{option}")
            raise ConfigError(f"{name} is for the backend {backend}; the backend is '{settings.backend}'.")
    return settings


def backend(ctx: click.Context, settings: Settings) -> tuple[str, dict[str, str]]:
    """The name of the backend, and the flags that are its own; it reads its environment variables itself."""
    from tensorsharp.loading import DEFAULT_BACKEND

    name = settings.backend or DEFAULT_BACKEND
    return name, {option: value for (owner, option), value in ctx.meta.get(_OWN, {}).items() if owner == name}


def loading(ctx: click.Context, settings: Settings, *, alone: bool = False) -> dict[str, Any]:
    """The keyword arguments of :func:`tensorsharp.loading.load` that settings and flags give.

    alone: for a command that runs one request at a time, whatever the settings say of sharing.
    """
    name, own = backend(ctx, settings)
    same = {option: getattr(settings, option) for option in (_ALONE if alone else _TOGETHER)}
    return {"backend": name, "backend_options": own, "registry": ctx.ensure_object(Program).registry, **same}


def sampling(settings: Settings) -> dict[str, Any]:
    """The settings that choose tokens, as keyword arguments of :meth:`tensorsharp.llm.LLM.stream`."""
    return {_RENAMED.get(name, name): getattr(settings, name) for name in SAMPLING_SETTINGS}


def reasoning(settings: Settings) -> Any:
    """The setting `think` as :attr:`tensorsharp.chat.ChatOptions.reasoning`."""
    return {"on": True, "off": False}.get(settings.think or "", settings.think)


def verbosity(ctx: click.Context, verbose: int, settings: Settings, *, alone: bool = False) -> int:
    """`-v` before and after the command count together. The log is rendered to stderr: warnings always, one line a request
    from 1 on, one a step from 2 on.

    alone: for a command that shows its one request itself; the log then lags one `-v` behind.
    """
    program = ctx.ensure_object(Program)
    total = verbose + program.verbosity
    if total or settings.log_format != "text":
        from tensorsharp.log import configure

        configure(max(0, total - alone), style=settings.log_format, processors=_log_processors(program.registry))
    return total


def _log_processors(registry: Registry) -> list[Any]:
    """What hook plugins, if there are any, put before the renderer of the log."""
    if not registry.names("hook"):
        return []
    from tensorsharp.hooks import Hooks

    processors: list[Any] = []
    for found in Hooks(registry).call("add_log_processors"):
        if isinstance(found, list) and all(map(callable, found)):
            processors += found
        else:
            logger.error("A hook plugin's add_log_processors returned %.100r; expected a list of structlog processors.", found)
    return processors
