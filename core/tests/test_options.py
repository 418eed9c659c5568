"""The flags that apps share: what they set, and what is said of those of one backend."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from typing import TYPE_CHECKING, Any

import click
import pytest

from tensorsharp import options
from tensorsharp.config import EXPECTED, resolve
from tensorsharp.engine.config import SchedulerConfig
from tensorsharp.errors import ConfigError
from tensorsharp.loading import load

if TYPE_CHECKING:
    from conftest import Site

ALL = (*options.DEVICE, options.CONTEXT, *options.STEPS, *options.CACHE, *options.SHARING, *options.SAMPLING)


def invoke(*arguments: str, alone: bool = False) -> dict[str, Any]:
    """What a command with every flag would load a model with."""

    @click.command()
    @options.flags(*ALL, options.backend_flag("chip", "lib_path", metavar="X"))
    @click.pass_context
    def command(ctx: click.Context, /, **given: Any) -> dict[str, Any]:
        return options.loading(ctx, options.settle(ctx, given), alone=alone)

    found = command.main(list(arguments), standalone_mode=False)
    assert isinstance(found, dict)
    return found


def test_every_parameter_of_the_scheduler_has_a_flag_a_setting_and_an_argument() -> None:
    names = {field.name for field in fields(SchedulerConfig)}
    assert names <= set(EXPECTED)
    assert names <= set(signature(load).parameters)
    flags = [argument for name in sorted(names) for argument in (f"--{name.replace('_', '-')}", "600")]
    assert {name: invoke(*flags)[name] for name in names} == dict.fromkeys(names, 600)


def test_defaults_are_those_of_the_library() -> None:
    defaults = {name: p.default for name, p in signature(load).parameters.items() if name not in ("path", "progress", "registry")}
    found = invoke()
    del found["registry"]
    assert found == defaults | {"backend_options": {}}


def test_a_command_that_runs_one_request_leaves_sharing_out() -> None:
    assert set(invoke()) - set(invoke(alone=True)) == {"parallel", "queue", "busy_tokens"}


def test_the_flag_of_one_backend_is_handed_to_it_and_to_no_other() -> None:
    assert invoke("--backend", "chip", "--chip-lib-path", "x")["backend_options"] == {"lib_path": "x"}
    with pytest.raises(ConfigError, match="--chip-lib-path is for the backend chip; the backend is 'other'"):
        invoke("--backend", "other", "--chip-lib-path", "x")


def test_sampling_settings_are_those_of_a_request() -> None:
    from tensorsharp.parameters import sampling_params
    from tensorsharp.types import SamplingParams

    assert sampling_params(options.sampling(resolve(environ={}).settings)) == SamplingParams()


@pytest.fixture
def unlogged() -> Iterator[None]:
    """Whatever a test does to the log, the next one finds it as it was."""
    logger = logging.getLogger("tensorsharp")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = handlers, level, propagate


@pytest.mark.usefixtures("unlogged")
def test_hook_plugins_add_processors_to_the_log(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.module(
        "stamping",
        "from tensorsharp.hooks import hookimpl\n"
        "def stamp(logger, name, event): return {**event, 'host': 'here'}\n"
        "@hookimpl\ndef add_log_processors(): return [stamp]\n",
    )
    site.module("silly", "from tensorsharp.hooks import hookimpl\n@hookimpl\ndef add_log_processors(): return 'stamp'\n")
    for name in ("silly", "stamping"):
        site.plugin("hook", name, f"spec_{name}", f"target='holder_{name}:{name}', api=(1, 0), summary='For tests.'")
        site.module(f"holder_{name}", f"import {name}\n")

    @click.command()
    @click.pass_context
    def command(ctx: click.Context) -> None:
        options.verbosity(ctx, 1, options.settle(ctx, {"log_format": "json"}))
        logging.getLogger("tensorsharp.requests").info("request ended", extra={"id": "r"})

    command.main([], standalone_mode=False)
    written = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (written["event"], written["id"], written["host"]) == ("request ended", "r", "here")
