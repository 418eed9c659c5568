"""Tell every hook plugin what happens. Each is isolated: one that fails is reported and switched off, nothing else is.

A hook plugin's target is a module, an object, or a class made without arguments; its functions are marked with
:data:`hookimpl`. One may take fewer arguments than the specification, so that an added argument breaks nobody. The
specifications below are the reference: each is called for its effect, and what it returns is collected in a list.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pluggy

from tensorsharp.engine.observer import StepEvent
from tensorsharp.errors import PluginError
from tensorsharp.registry import Registry
from tensorsharp.types import Finished, GenerationRequest

logger = logging.getLogger(__name__)

_PROJECT = "tensorsharp"
hookspec = pluggy.HookspecMarker(_PROJECT)
hookimpl = pluggy.HookimplMarker(_PROJECT)


class Specifications:
    """The hooks that exist."""

    @hookspec
    def on_model_loaded(self, path: str, architecture: str, backend: str) -> None:
        """A model file was loaded and is ready for requests."""

    @hookspec
    def on_model_unloaded(self, path: str) -> None:
        """A model is being closed; its memory is given back next."""

    @hookspec
    def on_request_start(self, request: GenerationRequest) -> None:
        """The engine accepted a request."""

    @hookspec
    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        """A request ended, for whatever reason; usage and timings are in `finished`."""

    @hookspec
    def on_step(self, step: StepEvent) -> None:
        """The engine computed a step, or failed to; the model waits until this returns."""

    @hookspec
    def add_routes(self, app: Any) -> None:
        """An HTTP application is being built; add routes to it."""

    @hookspec
    def add_log_processors(self) -> list[Any]:  # type: ignore[empty-body]
        """structlog processors that a program puts before its renderer."""


NAMES = tuple(name for name, _ in inspect.getmembers(Specifications, inspect.isfunction) if not name.startswith("_"))
"""Every hook, sorted by name."""


class Hooks:
    """The hook plugins of one process or engine. `failed` maps the name of each that is off to the sentence why."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.failed: dict[str, str] = {}
        self._manager = pluggy.PluginManager(_PROJECT)
        self._manager.add_hookspecs(Specifications)
        if registry is not None:
            for name in registry.names("hook"):
                self._load(registry, name)

    @property
    def active(self) -> list[str]:
        """Names of the plugins that are told."""
        return sorted(name for name, plugin in self._manager.list_name_plugin() if plugin is not None)

    def _load(self, registry: Registry, name: str) -> None:
        try:
            target = registry.load("hook", name)
            self.register(target() if inspect.isclass(target) else target, name)
        except Exception as error:
            self._switch_off(name, str(error), error)

    def register(self, plugin: object, name: str) -> None:
        """Add a plugin. PluginError if it implements a hook that does not exist or asks for arguments that do not."""
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.has_plugin(name):
                self._manager.unregister(plugin)
            raise PluginError(
                f"The hook plugin '{name}' is broken: {error}", hint=f"The hooks are {', '.join(NAMES)}."
            ) from error

    def call(self, hook: str, **arguments: Any) -> list[Any]:
        """Call one hook of every plugin, in the order of registration; what they returned, None left out. Never raises."""
        results = []
        for implementation in list(getattr(self._manager.hook, hook).get_hookimpls()):
            wanted = {name: arguments[name] for name in implementation.argnames}
            try:
                result = implementation.function(**wanted)
            except Exception as error:
                self._switch_off(implementation.plugin_name, f"{hook} raised {type(error).__name__}: {error}", error)
                continue
            if result is not None:
                results.append(result)
        return results

    def on_request_start(self, request: GenerationRequest) -> None:
        """Tell every plugin; with the two below this makes the hooks an observer of an engine."""
        self.call("on_request_start", request=request)

    def on_request_end(self, request: GenerationRequest, finished: Finished) -> None:
        self.call("on_request_end", request=request, finished=finished)

    def on_step(self, step: StepEvent) -> None:
        self.call("on_step", step=step)

    def _switch_off(self, name: str, why: str, error: Exception) -> None:
        logger.error("hook plugin '%s' is off from now on: %s", name, why, exc_info=error)
        self.failed[name] = why
        if self._manager.has_plugin(name):
            self._manager.unregister(name=name)
