"""What every plugin owes: a spec that is data, an installed type marker, an API version that fits."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from importlib import metadata
from importlib.resources import files
from typing import Any, ClassVar

from tensorsharp.plugin import API_VERSION, GROUPS, PluginSpec

HEAVY = ("numpy", "torch", "mlx", "ggml", "jinja2", "tokenizers", "gguf", "pydantic", "hypothesis", "pytest")
"""Modules that naming a plugin must not import."""


class PluginChecks:
    """plugin: the name of the entry point."""

    kind: ClassVar[str]
    plugin: ClassVar[str]

    @classmethod
    def spec(cls) -> PluginSpec:
        """The plugin's spec, through its entry point. PluginError if it is not installed or cannot run."""
        from tensorsharp.registry import Registry

        return Registry().spec(cls.kind, cls.plugin)

    @classmethod
    def implementation(cls) -> Any:
        """What the spec names, imported."""
        from tensorsharp.registry import Registry

        return Registry().load(cls.kind, cls.plugin)

    @classmethod
    def entry_point(cls) -> str:
        """``package:attribute`` of the spec."""
        found = {entry.value for entry in metadata.entry_points(group=GROUPS[cls.kind]) if entry.name == cls.plugin}
        assert len(found) == 1, f"{len(found)} entry points are called {cls.plugin!r}: {sorted(found)}"
        return found.pop()

    def test_naming_the_plugin_imports_nothing_heavy(self) -> None:
        module, _, attribute = self.entry_point().partition(":")
        code = f"import sys, json, {module} as m; m.{attribute}.target; print(json.dumps(sorted(sys.modules)))"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        loaded = set(json.loads(out.stdout))
        assert not loaded & set(HEAVY), f"importing {module} also imports {sorted(loaded & set(HEAVY))}"
        assert self.spec().target.partition(":")[0] not in loaded, "the spec's module imports the implementation"

    def test_the_spec_is_complete(self) -> None:
        spec = self.spec()
        assert re.fullmatch(r"[\w.]+:[\w.]+", spec.target), f"target {spec.target!r} is not package.module:Name"
        assert spec.api[0] == API_VERSION[0]
        assert spec.api[1] <= API_VERSION[1]
        assert spec.summary.strip()
        assert "\n" not in spec.summary
        odd = [name for name in spec.capabilities if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)]
        assert not odd, f"capabilities are lower-case words joined by hyphens, not {odd}"

    def test_types_are_published(self) -> None:
        package = self.entry_point().partition(":")[0].partition(".")[0]
        assert (files(package) / "py.typed").is_file(), f"package {package} has no py.typed"

    def test_the_probe_answers_in_a_sentence(self) -> None:
        probe = self.spec().probe
        if probe is None:
            return
        module, _, name = probe.partition(":")
        answer = getattr(importlib.import_module(module), name)()
        assert answer is None or (isinstance(answer, str) and answer.strip() and "\n" not in answer)
