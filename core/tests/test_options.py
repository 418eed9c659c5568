"""The flags that apps share: what they set, and what is said of those of one backend."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any

import click
import pytest

from tensorsharp import options
from tensorsharp.config import EXPECTED, resolve
from tensorsharp.engine.config import SchedulerConfig
from tensorsharp.errors import ConfigError
from tensorsharp.loading import load

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
