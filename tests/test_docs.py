"""The documentation names everything that people can call, set or implement, and its links lead somewhere."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from tensorsharp import config, hooks
from tensorsharp.plugin import GROUPS
from tensorsharp.registry import DISABLE_VARIABLE, Registry

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("name", hooks.NAMES)
def test_every_hook_is_documented_with_its_arguments(name: str) -> None:
    arguments = [a for a in inspect.signature(getattr(hooks.Specifications, name)).parameters if a != "self"]
    assert f"`{name}({', '.join(arguments)})`" in TEXT


def protocols() -> list[str]:
    """Names of the contracts that a plugin implements or is handed."""
    modules = [path.stem for path in (ROOT / "core/src/tensorsharp/protocols").glob("[a-z]*.py")]
    found = [(name, value) for m in modules for name, value in vars(import_module(f"tensorsharp.protocols.{m}")).items()]
    return sorted(
        {name for name, value in found if inspect.isclass(value) and getattr(value, "_is_protocol", False)} - {"Protocol"}
    )


@pytest.mark.parametrize("name", [*protocols(), "Ops", "PluginSpec"])
def test_every_contract_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", GROUPS.values())
def test_every_entry_point_group_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", config.EXPECTED)
def test_every_setting_is_documented_with_what_it_expects(name: str) -> None:
    expected = config.EXPECTED[name]
    assert f"| `{name.replace('_', '-')}` | {expected} |" in TEXT


def flags(command: click.Command) -> Iterator[str]:
    """What may be given to a command and to those below it, short forms left out."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        yield from flags(below)
    for option in command.params:
        yield from (flag for flag in option.opts if flag.startswith("--"))


@pytest.mark.parametrize("name", Registry().names("command"))
def test_every_flag_is_documented(name: str) -> None:
    known = set(flags(Registry().load("command", name))) - {"--verbose"}  # `-v` stands there
    assert {flag for flag in known if not re.search(rf"`?{flag}[` |]", TEXT)} == set()


@pytest.mark.parametrize("name", [config.CONFIG_VARIABLE, DISABLE_VARIABLE])
def test_every_variable_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("plugins/*/*/README.md")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [target for target in LINK.findall(text) if not (page.parent / target).exists()] == []
