"""Find plugins by entry point, say what state each is in, and import one when it is asked for by name.

Looking never imports an implementation: an entry point names a :class:`~tensorsharp.plugin.PluginSpec`, which is data.
A plugin that cannot be used is a row with a reason; it never takes another one down, and it is never replaced by
another one when it was asked for by name.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Literal

from tensorsharp import known
from tensorsharp.errors import PluginError
from tensorsharp.plugin import API_VERSION, GROUPS, PluginSpec

logger = logging.getLogger(__name__)

DISABLE_VARIABLE = "TENSORSHARP_DISABLE_PLUGINS"
"""Environment variable: comma-separated plugins that are left out (see :class:`Registry` for the form of a name)."""

State = Literal["ready", "unavailable", "disabled", "incompatible", "missing dependency", "broken", "shadowed"]


@dataclass(frozen=True, slots=True)
class PluginRow:
    """What is known about one entry point.

    why: one sentence unless ready. origin: the entry point's value. spec: None where it could not be read.
    traceback: of the exception that made the plugin broken.
    """

    kind: str
    name: str
    state: State
    distribution: str
    version: str
    origin: str
    why: str = ""
    spec: PluginSpec | None = None
    traceback: str | None = None

    @property
    def id(self) -> str:
        """``distribution/name``, which picks this plugin where another one has the same name."""
        return f"{self.distribution}/{self.name}"

    def __str__(self) -> str:
        return f"'{self.name}' ({self.distribution} {self.version})"


class Registry:
    """The installed plugins of every kind. Independent of any other instance; entry points are read once.

    disabled: names to leave out, each ``name``, ``distribution/name``, or one of these after ``kind:``. None: those of
        the environment variable ``TENSORSHARP_DISABLE_PLUGINS``. by: who disabled them, for the rows.
    """

    def __init__(self, disabled: Iterable[str] | None = None, *, by: str = DISABLE_VARIABLE) -> None:
        names = os.environ.get(DISABLE_VARIABLE, "").split(",") if disabled is None else disabled
        self._disabled = tuple(name.strip() for name in names if name.strip())
        self._by = by
        entries = metadata.entry_points()
        self._found = [row for kind, group in GROUPS.items() for row in _discover(kind, entries.select(group=group))]
        self._inspected: dict[tuple[str, str], PluginRow] = {}

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Names of the disable list that match no plugin: most likely misspelt."""
        return tuple(name for name in self._disabled if not any(_matches(name, row) for row in self._found))

    def names(self, kind: str) -> list[str]:
        """Names of one kind that are not disabled, sorted. Imports nothing."""
        return sorted({row.name for row in self._of(kind) if not self._is_disabled(row)})

    def has(self, kind: str, name: str) -> bool:
        """Whether some distribution registers that name (or ``distribution/name``), in whatever state."""
        return any(name in (row.name, row.id) for row in self._of(kind))

    def rows(self, kind: str | None = None, *, probe: bool = True) -> list[PluginRow]:
        """Every entry point with its state, by kind and name. probe: also ask whether it can run on this machine."""
        return [self._row(found, probe) for found in self._found if kind in (None, found.kind)]

    def row(self, kind: str, name: str, *, probe: bool = True) -> PluginRow:
        """The row that ``name`` or ``distribution/name`` stands for. PluginError if there is none."""
        candidates = [row for row in self._of(kind) if name in (row.name, row.id)]
        if not candidates:
            raise self._unknown(kind, name)
        rows = [self._row(row, probe) for row in candidates]
        if "/" in name:
            return self._inspect(candidates[0], probe)
        return next((row for row in rows if row.state not in ("disabled", "shadowed")), rows[0])

    def spec(self, kind: str, name: str) -> PluginSpec:
        """The spec of a plugin that can be used. PluginError says why it cannot."""
        return self._usable(kind, name)[1]

    def load(self, kind: str, name: str) -> Any:
        """Import what the plugin's spec names and return it.

        PluginError (exit code 2) if no plugin has that name, if it cannot run here, or, with the exception chained, if
        its import fails. `name` may be ``distribution/name``.
        """
        row, spec = self._usable(kind, name)
        try:
            return _resolve(spec.target)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"The {kind} plugin {row} failed to import {spec.target}: {_describe(error)}",
                hint=f"'tensorsharp plugins info {row.name}' shows where it comes from.",
            ) from error

    def _usable(self, kind: str, name: str) -> tuple[PluginRow, PluginSpec]:
        row = self.row(kind, name)
        if row.state != "ready" or row.spec is None:
            state = "missing a dependency" if row.state == "missing dependency" else row.state
            raise PluginError(f"The {kind} plugin {row} is {state}: {row.why}", hint=_advice(row))
        for other in self._of(kind):
            if (
                other.name == row.name
                and other.distribution != row.distribution
                and "/" not in name
                and not self._is_disabled(other)
            ):
                logger.warning("%s also provides the %s '%s'; using %s", other.distribution, kind, name, row.distribution)
        return row, row.spec

    def _of(self, kind: str) -> list[PluginRow]:
        if kind not in GROUPS:
            raise PluginError(f"There is no kind of plugin called '{kind}'; expected one of {', '.join(GROUPS)}.")
        return [row for row in self._found if row.kind == kind]

    def _is_disabled(self, row: PluginRow) -> bool:
        return any(_matches(name, row) for name in self._disabled)

    def _row(self, found: PluginRow, probe: bool) -> PluginRow:
        if self._is_disabled(found):
            return replace(found, state="disabled", why=f"disabled by {self._by}")
        first = next(row for row in self._of(found.kind) if row.name == found.name and not self._is_disabled(row))
        if first is not found:
            return replace(found, state="shadowed", why=f"{first.distribution} {first.version} also provides '{found.name}'")
        return self._inspect(found, probe)

    def _inspect(self, found: PluginRow, probe: bool) -> PluginRow:
        if self._is_disabled(found):
            return replace(found, state="disabled", why=f"disabled by {self._by}")
        key = (found.kind, found.id)
        if key not in self._inspected:
            self._inspected[key] = _inspect_spec(found)
        row = self._inspected[key]
        if probe and row.state == "ready" and row.spec is not None and row.spec.probe is not None:
            return _probe(row, row.spec.probe)
        return row

    def _unknown(self, kind: str, name: str) -> PluginError:
        from difflib import get_close_matches

        installed = self.names(kind)
        message = {"model": f"No model plugin serves '{name}'.", "command": f"The command '{name}' is not installed."}.get(
            kind, f"No {kind} plugin is called '{name}'."
        )
        distribution = known.distribution(kind, name)
        close = [] if distribution else get_close_matches(name, {*installed, *known.names(kind)}, n=1)
        hint = f"Try: pip install {distribution}" if distribution else f"Installed: {', '.join(installed) or 'none'}."
        if close:
            message += f" Did you mean '{close[0]}'?"
            if close[0] not in installed:
                hint = f"For '{close[0]}': pip install {known.distribution(kind, close[0])}"
        return PluginError(message, hint=hint)


def _discover(kind: str, entries: metadata.EntryPoints) -> Iterator[PluginRow]:
    """Rows of one group by name and distribution; the same entry point seen twice (editable and wheel) counts once."""
    seen = set()
    named = [(entry.name, *_distribution(entry), entry) for entry in entries]  # reads each one's metadata once: that is slow
    for _, name, version, entry in sorted(named, key=lambda found: found[:2]):
        if (entry.name, name) not in seen:
            seen.add((entry.name, name))
            yield PluginRow(kind, entry.name, "ready", name, version, entry.value)


def _distribution(entry: metadata.EntryPoint) -> tuple[str, str]:
    """Normalised name and version of the distribution that an entry point belongs to."""
    if entry.dist is None:
        return "unknown", ""
    return entry.dist.name.lower().replace("_", "-").replace(".", "-"), entry.dist.version


def _matches(name: str, row: PluginRow) -> bool:
    kind, _, rest = name.rpartition(":")
    return kind in ("", row.kind) and rest in (row.name, row.id)


def _resolve(reference: str) -> Any:
    """Import ``package.module:attribute.path``."""
    module, _, path = reference.partition(":")
    value: Any = import_module(module)
    for attribute in path.split("."):
        value = getattr(value, attribute)
    return value


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _broken(row: PluginRow, why: str, error: BaseException | None = None) -> PluginRow:
    text = None if error is None else "".join(traceback.format_exception(error))
    return replace(row, state="broken", why=why, traceback=text)


def _inspect_spec(found: PluginRow) -> PluginRow:
    try:
        spec = _resolve(found.origin)
    except (Exception, SystemExit) as error:
        return _broken(found, f"{found.origin} failed to load: {_describe(error)}", error)
    if not isinstance(spec, PluginSpec):
        return _broken(found, f"{found.origin} is of type {type(spec).__name__}; expected a tensorsharp.plugin.PluginSpec")
    found = replace(found, spec=spec)
    problem = _malformed(spec)
    if problem:
        return _broken(found, f"{found.origin}: {problem}")
    if spec.api[0] != API_VERSION[0] or spec.api[1] > API_VERSION[1]:
        here = "{}.{}".format(*API_VERSION)
        return replace(
            found, state="incompatible", why=f"written for plugin API {spec.api[0]}.{spec.api[1]}; this core has {here}"
        )
    missing = [name for name in spec.requires if not _importable(name)]
    if missing:
        why = f"needs {', '.join(missing)} ({_pip_line(found.distribution, missing)})"
        return replace(found, state="missing dependency", why=why)
    return found


def _malformed(spec: PluginSpec) -> str | None:
    api: object = spec.api
    if not (isinstance(api, tuple) and len(api) == 2 and all(isinstance(part, int) for part in api)):
        return f"api is {api!r}; expected a pair of integers like (1, 0)"
    for label, value in (("target", spec.target), ("probe", spec.probe)):
        parts = ("module", "name") if value is None else value.split(":")
        if len(parts) != 2 or not all(parts):
            return f"{label} is {value!r}; expected 'package.module:name'"
    return None


def _importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _pip_line(distribution: str, missing: Sequence[str]) -> str:
    """What installs import names: the requirement of that name, else the plugin again, which brings what it requires."""
    try:
        required = {_requirement_name(text) for text in metadata.requires(distribution) or ()}
    except metadata.PackageNotFoundError:
        required = set()
    named = [name.replace("_", "-").lower() for name in missing]
    return "pip install " + " ".join(named if set(named) <= required else [distribution])


def _requirement_name(text: str) -> str:
    end = next((i for i, c in enumerate(text) if not (c.isalnum() or c in "-_.")), len(text))
    return text[:end].replace("_", "-").replace(".", "-").lower()


def _probe(row: PluginRow, reference: str) -> PluginRow:
    try:
        reason = _resolve(reference)()
    except (Exception, SystemExit) as error:
        return _broken(row, f"its probe {reference} failed: {_describe(error)}", error)
    return row if reason is None else replace(row, state="unavailable", why=str(reason))


def _advice(row: PluginRow) -> str | None:
    if row.state == "disabled":
        return f"Take '{row.name}' out of {row.why.removeprefix('disabled by ')} to use it."
    if row.state == "incompatible":
        return f"Try: pip install --upgrade tensorsharp-core {row.distribution}"
    if row.state == "broken":
        return f"'tensorsharp plugins info {row.name}' shows the traceback."
    return None
