"""Hook plugins are told what happens; one that fails is switched off and harms nobody."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tensorsharp.errors import PluginError
from tensorsharp.hooks import NAMES, Hooks, hookimpl
from tensorsharp.registry import Registry

if TYPE_CHECKING:
    from conftest import Site


class Listener:
    """Keeps what it hears; takes fewer arguments than the specification has."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @hookimpl
    def on_model_unloaded(self, path: str) -> str:
        self.heard.append(path)
        return "heard"

    @hookimpl
    def on_model_loaded(self, architecture: str) -> None:
        self.heard.append(architecture)


class Raising:
    calls = 0

    @hookimpl
    def on_model_unloaded(self, path: str) -> None:
        self.calls += 1
        raise ValueError(f"no room for {path}")


class Misspelt:
    @hookimpl
    def on_model_unloded(self, path: str) -> None: ...


class WrongArgument:
    @hookimpl
    def on_model_unloaded(self, file: str) -> None: ...


def test_the_hooks_that_exist() -> None:
    assert NAMES == (
        "add_log_processors",
        "add_routes",
        "on_model_loaded",
        "on_model_unloaded",
        "on_request_end",
        "on_request_start",
        "on_step",
    )


def test_everybody_is_told_and_answers_are_collected() -> None:
    hooks, first, second = Hooks(), Listener(), Listener()
    hooks.register(first, "first")
    hooks.register(second, "second")
    assert hooks.call("on_model_unloaded", path="m.gguf") == ["heard", "heard"]
    assert hooks.call("on_model_loaded", path="m.gguf", architecture="llama", backend="ggml") == []
    assert first.heard == second.heard == ["m.gguf", "llama"]


def test_one_that_raises_is_reported_and_off_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    hooks, raising, listener = Hooks(), Raising(), Listener()
    hooks.register(listener, "listener")
    hooks.register(raising, "raising")
    with caplog.at_level(logging.ERROR, "tensorsharp.hooks"):
        assert hooks.call("on_model_unloaded", path="a") == ["heard"]
        assert hooks.call("on_model_unloaded", path="b") == ["heard"]
    assert raising.calls == 1
    assert listener.heard == ["a", "b"]
    assert hooks.active == ["listener"]
    assert hooks.failed == {"raising": "on_model_unloaded raised ValueError: no room for a"}
    (record,) = caplog.records
    assert "'raising' is off from now on" in record.getMessage()
    assert record.exc_info


@pytest.mark.parametrize(("plugin", "named"), [(Misspelt(), "on_model_unloded"), (WrongArgument(), "file")])
def test_a_hook_that_no_specification_has_is_refused(plugin: object, named: str) -> None:
    hooks, listener = Hooks(), Listener()
    hooks.register(listener, "listener")
    with pytest.raises(PluginError, match=named):
        hooks.register(plugin, "odd")
    assert hooks.active == ["listener"]
    assert hooks.call("on_model_unloaded", path="a") == ["heard"]
    hooks.register(Listener(), "after")
    assert hooks.active == ["after", "listener"]


def test_installed_hooks_are_loaded_each_for_itself(site: Site) -> None:
    module = "from tensorsharp.hooks import hookimpl\n@hookimpl\ndef {hook}(path):\n    return path.upper()\n"
    site.module("hk_good_impl", module.format(hook="on_model_unloaded"))
    site.module("hk_typo_impl", module.format(hook="on_model_unlouded"))
    site.module("hk_bad_impl", "raise RuntimeError('spoiled')\n")
    for name in ("good", "typo", "bad"):
        target = f"hk_{name}_impl:hooks" if name == "bad" else f"hk_{name}_holder:hooks"
        site.module(f"hk_{name}_holder", f"import hk_{name}_impl as hooks\n")
        site.plugin("hook", name, f"hk_{name}", f"target='{target}', api=(1, 0), summary=''")
    hooks = Hooks(Registry())
    assert hooks.active == ["good"]
    assert hooks.call("on_model_unloaded", path="m") == ["M"]
    assert "on_model_unlouded" in hooks.failed["typo"]
    assert "RuntimeError: spoiled" in hooks.failed["bad"]
