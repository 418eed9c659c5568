"""The pages of the documentation that are written by machine: commands, settings, plugins, the library, changes.

Usage: python scripts/reference.py FOLDER

writes them as Markdown; MkDocs takes them from here (`hooks` in mkdocs.yml), so that they are never older than what they tell.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from starlette.routing import Route

import tensorsharp
from tensorsharp import config, llm
from tensorsharp.cli import Program
from tensorsharp.cli import tensorsharp as program
from tensorsharp.engine.stats import EngineStats, families
from tensorsharp.engine.tiers import TierStats
from tensorsharp.plugin import GROUPS
from tensorsharp.registry import PluginRow, Registry
from tensorsharp_app_server.api.openapi import described
from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.metrics import PREFIX

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
ROLE = re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`")
"""How docstrings name things of the code."""
ITEM = re.compile(r"^(?:(\S.*:)\n)?  (?=[\w, ]+: )", re.MULTILINE)
"""What stands below a heading in a docstring, `  name: text`."""
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]+`")
FOREIGN = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="((?:https?:)?//[^"]+)"')
UNITS = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
PARTS = {
    "Models": ("load", "LLM", "Generation", "Reply", "Engine"),
    "Conversations": ("ChatOptions", "ChatGeneration", "ChatReply", "ToolCall"),
    "Requests and what comes back": (
        *("SamplingParams", "Constraint", "GenerationRequest", "Usage", "Timings", "TokenEvent", "TokenLogprob", "Finished"),
    ),
    "Plugins": ("Registry", "PluginSpec"),
}
"""Heading of the library's page -> names; errors follow by themselves."""


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """(words, command, context) of every command that can be used, each behind the one it belongs to."""
    yield from _below("tensorsharp", program, click.Context(program, info_name="tensorsharp", obj=Program()))


def _below(words: str, command: click.Command, ctx: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield words, command, ctx
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            found = command.get_command(ctx, name)
            if found is not None:
                yield from _below(f"{words} {name}", found, click.Context(found, info_name=name, parent=ctx))


def options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option)]


def commands_page() -> str:
    """Usage, help and flags of every command, as `--help` shows them."""
    parts = [
        "# Commands and flags",
        "What `--help` says of each command. [Settings](settings.md) can also be given in other places.",
    ]
    for words, command, ctx in commands():
        parts += [f"## {words}", _fenced(command.get_usage(ctx).removeprefix("Usage: ")), _help(command.help or "")]
        rows = [one.get_help_record(ctx) for one in options(command) if not one.hidden]
        parts.append(_table("flag", "", rows=[(_code(row[0]), _plain(row[1])) for row in rows if row]))
    return _joined(parts)


def _help(text: str) -> str:
    r"""Paragraphs as they are; those that click is told to leave alone (`\b`) as code."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(_fenced(part[2:]) if part.startswith("\b\n") else _plain(part) for part in paragraphs)


def settings_page() -> str:
    """Every setting with its names, its default and what is expected."""
    users: dict[str, list[str]] = {}
    for words, command, _ in commands():
        for one in options(command):
            users.setdefault(one.name or "", []).append(words.removeprefix("tensorsharp "))
    rows = []
    for one in fields(config.Settings):
        flag = _code(config.flag(one.name)) if one.name in users else "none"
        taken = ", ".join(users.get(one.name, ()))
        rows.append((_code(one.name.replace("_", "-")), _value(one.name, one.default), config.EXPECTED[one.name], flag, taken))
    text = f"""
        A setting has one name in three places: `--ctx-size` on the command line, `{config.PREFIX}CTX_SIZE` in the environment,
        `ctx-size` in the TOML file. The first of these that gives a value wins; else the default holds. `tensorsharp config show`
        prints every value and where it comes from.

        The file is `config.toml` in the platform's configuration folder, or the one of `--config` or `{config.CONFIG_VARIABLE}`.
        In the environment `{config.PREFIX}DISABLE_PLUGINS` is a comma-separated list and `{config.PREFIX}STOP` is one string.
        Commands may have defaults of their own; their help tells them.
    """
    table = _table("setting", "default", "expected", "flag", "taken by", rows=rows)
    return _joined(["# Settings", inspect.cleandoc(text), table])


def _value(name: str, value: object) -> str:
    """A default as a person would write it."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if config.EXPECTED[name] == config.SIZE and isinstance(value, int) and value:
        return next(f"{value // unit}{letter}" for unit, letter in UNITS if value % unit == 0)
    if config.EXPECTED[name] == config.DURATION and isinstance(value, float):
        return f"{value / 60:g}m" if value >= 60 else f"{value:g}s"
    return f"{value:g}" if isinstance(value, float) else str(value)


def plugins_page() -> str:
    """What this repository's packages bring, by kind."""
    parts = [
        "# Plugins and what they can do",
        "What the packages of this repository bring. `tensorsharp plugins` lists what is installed.",
    ]
    registry = Registry()
    for kind in GROUPS:
        rows = [_plugin(row) for row in registry.rows(kind, probe=False) if row.distribution.startswith("tensorsharp-")]
        if rows:
            heads = ("name", "", "package", "capabilities")[: 4 if any(row[3] for row in rows) else 3]
            table = _table(*heads, rows=[row[: len(heads)] for row in rows])
            parts += [f"## {kind.replace('_', ' ').capitalize()}s", table]
    return _joined(parts)


def _plugin(row: PluginRow) -> tuple[str, str, str, str]:
    summary, capabilities = (row.spec.summary, sorted(row.spec.capabilities)) if row.spec else (row.why or "", [])
    return _code(row.name), _plain(summary), _code(row.distribution), ", ".join(map(_code, capabilities))


def http_page() -> str:
    """Every address of the server with the fields that it takes, from its OpenAPI document."""
    document = described([one for one in create_app(cast("Any", None)).routes if isinstance(one, Route)])
    paths = document["paths"]
    intro = (
        "From the document that `GET /openapi.json` gives. `/v1` may be left out. [What the fields do](../server.md#requests)."
    )
    parts = ["# HTTP", intro]
    for path in sorted(path for path in paths if f"/v1{path}" not in paths):
        for method, about in paths[path].items():
            parts += [f"## {method.upper()} {path}", about["summary"], _table("field", "", "", rows=list(_fields(about)))]
    return _joined(parts)


def _fields(about: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for one in about.get("parameters", ()):
        yield _code(one["name"]), _plain(_kind(one["schema"])), "in the path" if one["in"] == "path" else "in the query"
    for content in about.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        for name, kind in schema.get("properties", {}).items():
            yield _code(name), _plain(_kind(kind)), "required" if name in schema.get("required", ()) else ""


def _kind(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words; null is left out, as every field may be absent."""
    if "enum" in schema:
        return ", ".join(str(value).lower() for value in schema["enum"] if value not in (None, ""))
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(filter(None, map(_kind, schema["anyOf"]))))
    kinds = schema.get("type", "anything")
    kind = " or ".join(one for one in ([kinds] if isinstance(kinds, str) else kinds) if one != "null")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is None and most is None:
        return kind
    return f"{kind}, {least} or more" if most is None else f"{kind}, {least} to {most}"


def metrics_page() -> str:
    """Every family of numbers that `/metrics` may have."""
    zero: dict[str, Any] = {one.name: 0 for one in fields(EngineStats)}
    tier: Any = TierStats(*(0 for _ in fields(TierStats)))
    shown = EngineStats(**zero | {"blocks": {None: (0, 1)}, "requests": {}, "fallbacks": {}, "tiers": {"ram": tier}})
    rows = [(_code(PREFIX + one.name), one.kind, ", ".join(("model", *one.labels)), one.help) for one in families(shown)]
    text = f"""
        What `GET /metrics` has, for Prometheus; counters end in `_total` there. Names are those of vLLM, where it has them, with
        `{PREFIX}` in place of `vllm:`. Those of the cache are absent for models whose state cannot be reused, those of tiers
        where there are none.
    """
    rows.append((_code(f"{PREFIX}models_loaded"), "gauge", "", "Models in memory."))
    return _joined(["# Metrics", inspect.cleandoc(text), _table("name", "kind", "labels", "", rows=sorted(rows))])


def library_page() -> str:
    """Signature and docstring of every public name."""
    errors = [name for name in tensorsharp.__all__ if name.endswith("Error")]
    errors.sort(key=lambda name: (name != "TensorSharpError", name))
    parts = [
        "# The library",
        "What `import tensorsharp` and `tensorsharp.llm` give. Everything is typed; errors are raised, never returned.",
    ]
    for heading, names in {**PARTS, "Errors": errors}.items():
        parts.append(f"## {heading}")
        for name in names:
            parts += _public(name, getattr(tensorsharp, name, None) or getattr(llm, name))
    return _joined(parts)


def _public(name: str, value: Any) -> list[str]:
    parts = [f"### {name}"]
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        parts.append(_signature(name, value))
    parts.append(_doc(value))
    for member, found in vars(value).items() if inspect.isclass(value) else ():
        function = _function(found)
        if not member.startswith("_") and function is not None:
            parts.append(f"#### {name}.{member}")
            parts += (
                [] if inspect.isdatadescriptor(found) or isinstance(found, cached_property) else [_signature(member, function)]
            )
            parts.append(_doc(function))
    return parts


def _function(member: Any) -> Any:
    """The function behind a method, classmethod or property; None for anything else."""
    for name in ("__func__", "fget", "func"):
        member = getattr(member, name, member)
    return member if inspect.isfunction(member) else None


def _signature(name: str, value: Any) -> str:
    """A call as it is written in the sources, in as many lines as it needs."""
    if inspect.isclass(value) and not is_dataclass(value):
        return ""
    signature = inspect.signature(value)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    given = [_parameter(one) for one in parameters]
    kinds = [one.kind for one in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = "" if inspect.isclass(value) else f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(given)}){back}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in given) + f"){back}"
    return _fenced(line, "python")


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    typed = "" if one.annotation is one.empty else f": {one.annotation}"
    default = "" if one.default is one.empty else f" = {one.default!r}".replace("<factory>", "…")
    return f"{stars}{one.name}{typed}{default}"


def _doc(value: Any) -> str:
    text = ROLE.sub(r"`\1`", inspect.getdoc(value) or "")
    return ITEM.sub(lambda found: f"{found[1]}\n\n- " if found[1] else "- ", text)


def _table(*heads: str, rows: list[Any]) -> str:
    if not rows:
        return ""
    lines = ["| " + " | ".join(cells) + " |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _plain(text: str) -> str:
    """Text of the program, in which nothing is meant as Markdown."""
    return re.sub(r"([|*<\[\]])", r"\\\1", textwrap.dedent(text))


def _fenced(text: str, language: str = "text") -> str:
    return f"```{language}\n{textwrap.dedent(text).strip()}\n```"


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _copied(name: str) -> Callable[[], str]:
    return lambda: (ROOT / name).read_text(encoding="utf-8")


PAGES: dict[str, Callable[[], str]] = {
    "reference/commands.md": commands_page,
    "reference/settings.md": settings_page,
    "reference/plugins.md": plugins_page,
    "reference/http.md": http_page,
    "reference/metrics.md": metrics_page,
    "reference/library.md": library_page,
    "changes.md": _copied("CHANGELOG.md"),
    "contributing.md": _copied("CONTRIBUTING.md"),
}
"""Path below docs/ -> what writes the page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """MkDocs calls this with the pages it found; the written ones are added."""
    from mkdocs.structure.files import File

    for path, write in PAGES.items():
        files.append(File.generated(config, path, content=write()))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    r"""MkDocs calls this with every page. A `|` in code divides no cells there, and the `\|` that others need would be shown."""
    return ROW.sub(lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), markdown)


def on_post_page(output: str, **_: object) -> None:
    """MkDocs calls this with every page that is ready: none may need anything from elsewhere to be read."""
    from mkdocs.exceptions import PluginError

    if foreign := FOREIGN.findall(output):
        raise PluginError(f"A page loads {foreign[0]}; expected nothing from elsewhere.")


def main(folder: Path) -> None:
    for path, write in PAGES.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
