"""The `tensorsharp` command: what is installed, what this machine can do, and the commands that apps bring.

An app's command is known by the name of its entry point and imported when it runs, so `--help`, `plugins` and `doctor`
work whatever a plugin does.
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorsharp import __version__, known
from tensorsharp.errors import ConfigError, PluginError, TensorSharpError

if TYPE_CHECKING:
    from tensorsharp.config import Resolved
    from tensorsharp.registry import PluginRow, Registry

INTERRUPTED = 130
GOOD = ("ready", "disabled")
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@dataclass
class Program:
    """What the commands of one invocation share; click hands it down as ``ctx.obj``."""

    config: Path | None = None
    verbosity: int = 0

    @cached_property
    def resolved(self) -> Resolved:
        """Settings of environment and file, without any flag of a command."""
        from tensorsharp.config import resolve

        return resolve(config=self.config)

    @cached_property
    def registry(self) -> Registry:
        """The plugins, without those that the settings disable."""
        from tensorsharp.registry import Registry

        return Registry(self.resolved.settings.disable_plugins, by=self.resolved.sources["disable_plugins"])


class Commands(click.Group):
    """Core's commands, and those of apps by the names of their entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_app_names(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name.startswith("-"):
            return own
        registry = ctx.ensure_object(Program).registry
        if not (registry.has("command", cmd_name) or known.distribution("command", cmd_name)):
            return None
        command = registry.load("command", cmd_name)
        if not isinstance(command, click.Command):
            row = registry.row("command", cmd_name)
            raise PluginError(f"The command plugin {row} names a {type(command).__name__}; expected a click.Command.")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Names and summaries; an app's command is not imported for it."""
        rows = [(name, command.get_short_help_str(80)) for name, command in sorted(self.commands.items())]
        rows += [(name, _app_summary(ctx, name)) for name in _app_names(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))


def _app_names(ctx: click.Context) -> list[str]:
    """Names of the installed apps' commands; none where the settings cannot be read, so that help is always there."""
    try:
        return ctx.ensure_object(Program).registry.names("command")
    except ConfigError:
        return []


def _app_summary(ctx: click.Context, name: str) -> str:
    row = ctx.ensure_object(Program).registry.row("command", name, probe=False)
    return row.spec.summary if row.state == "ready" and row.spec else f"({row.state}: {row.why})"


@click.group(cls=Commands, context_settings=CONTEXT)
@click.option("--config", type=click.Path(path_type=Path), help="Read settings from this TOML file.")
@click.option("-v", "--verbose", count=True, help="Say more; show tracebacks of errors.")
@click.version_option(__version__, prog_name="tensorsharp")
@click.pass_context
def tensorsharp(ctx: click.Context, config: Path | None, verbose: int) -> None:
    """Run language models from GGUF files on this machine."""
    program = ctx.ensure_object(Program)
    program.config, program.verbosity = config, verbose


@tensorsharp.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--kind", help="Only plugins of this kind, for example backend or model.")
@click.option("--broken", is_flag=True, help="Only plugins that cannot be used; exit code 1 if there is one.")
@click.pass_context
def plugins(ctx: click.Context, as_json: bool, kind: str | None, broken: bool) -> None:
    """List the installed plugins, with states and reasons."""
    if ctx.invoked_subcommand is not None:
        return
    from tensorsharp.doctor import summary
    from tensorsharp.plugin import GROUPS

    if kind is not None and kind not in GROUPS:
        raise ConfigError(f"--kind is '{kind}'; expected one of {', '.join(GROUPS)}.")
    registry = ctx.ensure_object(Program).registry
    rows = [row for row in registry.rows(kind) if not (broken and row.state in GOOD)]
    if as_json:
        _print_json({"plugins": [summary(row) for row in rows], "unmatched": list(registry.unmatched)})
    else:
        _print_rows(rows)
        _warn_unmatched(ctx.ensure_object(Program))
    if broken and (rows or registry.unmatched):
        ctx.exit(1)


@plugins.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def info(ctx: click.Context, name: str, as_json: bool) -> None:
    """Show everything about one plugin.

    NAME may be DISTRIBUTION/NAME, where several are called the same. A broken one is shown with its traceback.
    """
    from tensorsharp.doctor import summary

    rows = [row for row in ctx.ensure_object(Program).registry.rows() if name in (row.name, row.id)]
    if not rows:
        raise PluginError(f"No plugin is called '{name}'.", hint="'tensorsharp plugins' lists what is installed.")
    details = [summary(row) | _details(row) for row in rows]
    if as_json:
        _print_json({"plugins": details})
        return
    for number, detail in enumerate(details):
        click.echo("\n" * bool(number), nl=False)
        for key, value in detail.items():
            if key == "traceback" and value:
                click.echo(f"\n{value.rstrip()}")
            elif value:
                click.echo(f"{key:<13} {', '.join(value) if isinstance(value, list) else value}")


@tensorsharp.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Report this machine, the plugins, and where the bitwise contract holds."""
    from tensorsharp.doctor import lines, report

    program = ctx.ensure_object(Program)
    facts = report(program.registry, __version__)
    if as_json:
        _print_json(facts)
        return
    click.echo("\n".join(lines(facts)) + "\n")
    _print_rows(program.registry.rows())
    _warn_unmatched(program)


@tensorsharp.group()
def config() -> None:
    """Look at the settings."""


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def show(ctx: click.Context, as_json: bool) -> None:
    """Print every setting, its value and where the value comes from."""
    from tensorsharp.config import SECRET, config_file

    resolved = ctx.ensure_object(Program).resolved
    values = {name: "(hidden)" if value and name in SECRET else value for name, value in asdict(resolved.settings).items()}
    if as_json:
        settings = {name: {"value": value, "source": resolved.sources[name]} for name, value in values.items()}
        _print_json({"file": None if resolved.file is None else str(resolved.file), "settings": settings})
        return
    click.echo(f"file: {resolved.file or f'none ({config_file()} does not exist)'}")
    width = max(map(len, values))
    for name, value in values.items():
        click.echo(f"{name.replace('_', '-'):<{width}} {'' if value is None else json.dumps(value):<12} {resolved.sources[name]}")


def _details(row: PluginRow) -> dict[str, Any]:
    spec = row.spec
    return {
        "origin": row.origin,
        "summary": spec.summary if spec else None,
        "target": spec.target if spec else None,
        "api": ".".join(map(str, spec.api)) if spec else None,
        "capabilities": sorted(spec.capabilities) if spec else None,
        "requires": list(spec.requires) if spec else None,
        "probe": spec.probe if spec else None,
        "traceback": row.traceback,
    }


def _print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def _print_rows(rows: list[PluginRow]) -> None:
    header = ("KIND", "NAME", "STATE", "PACKAGE", "WHY")
    table = [header, *((row.kind, row.name, row.state, f"{row.distribution} {row.version}", _remark(row)) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(4)]
    for line in table:
        click.echo("  ".join([*(text.ljust(width) for text, width in zip(line[:4], widths, strict=True)), line[4]]).rstrip())


def _remark(row: PluginRow) -> str:
    if row.why:
        return row.why
    return " ".join(sorted(row.spec.capabilities)) if row.spec else ""


def _warn_unmatched(program: Program) -> None:
    for name in program.registry.unmatched:
        click.echo(f"warning: {program.resolved.sources['disable_plugins']} disables '{name}', which matches no plugin", err=True)


def _fail(error: TensorSharpError, verbosity: int) -> int:
    if verbosity:
        traceback.print_exception(error)
    click.echo(f"error: {error}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    return error.exit_code


def main(arguments: list[str] | None = None) -> None:
    """Run the command and end the process: 0 fine, 1 runtime error, 2 usage or configuration, 3 model, 130 interrupted."""
    program = sys.argv[1:] if arguments is None else arguments
    sys.exit(run(program))


def run(arguments: list[str]) -> int:
    """Run the command; the exit code. Errors of this project become one sentence on stderr.

    A `-v` before the command adds where they came from; one behind it is the command's own. Click itself ends the process
    quietly, with 1, where the reader of the output has left.
    """
    program = Program()
    try:
        result = tensorsharp.main(arguments, prog_name="tensorsharp", standalone_mode=False, obj=program)
    except TensorSharpError as error:
        return _fail(error, program.verbosity)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return result if isinstance(result, int) else 0
