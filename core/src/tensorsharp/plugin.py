"""What a plugin says about itself.

A plugin's package `__init__` imports this module, nothing else of the project, and holds one or more
:class:`PluginSpec`. The entry point names the spec; the implementation is named by a string and imported on first
use, so that listing plugins never imports a heavy library.
"""

from __future__ import annotations

from dataclasses import dataclass, field

API_VERSION: tuple[int, int] = (1, 0)
"""Version of the plugin API, (major, minor). Minor grows by additions only; it is independent of the release version."""

GROUPS: dict[str, str] = {
    "backend": "tensorsharp.backends",
    "model": "tensorsharp.models",
    "drafter": "tensorsharp.drafters",
    "codec": "tensorsharp.codecs",
    "checkpoint_store": "tensorsharp.checkpoint_stores",
    "command": "tensorsharp.commands",
    "hook": "tensorsharp.hooks",
}
"""Kind of plugin -> entry-point group."""


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """One plugin, as data.

    target: ``"package.module:Name"``, imported on first use.
    api: the plugin API this was written against; usable if major is equal and minor is not newer than core's.
    summary: one line for people.
    capabilities: what it can do, as names; the conformance kit tests what is declared and that the rest is refused.
    requires: import names that must be importable before `target` is imported.
    probe: ``"package.module:function"``; called without arguments before use, returns None if the plugin can run
        on this machine, else one sentence that says why not.
    """

    target: str
    api: tuple[int, int]
    summary: str
    capabilities: frozenset[str] = field(default_factory=frozenset)
    requires: tuple[str, ...] = ()
    probe: str | None = None
