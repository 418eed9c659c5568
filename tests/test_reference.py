"""The reference pages tell everything that people can call or set, and what they tell is true."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any, cast

import click
import pytest
from starlette.routing import Route

import tensorsharp
from tensorsharp import config
from tensorsharp_app_server.api.openapi import described
from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.host import ModelHost

ROOT = Path(__file__).resolve().parent.parent
REFERENCE: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/reference.py"))
PAGES: dict[str, str] = {path: write() for path, write in REFERENCE["PAGES"].items()}
COMMANDS: dict[str, click.Command] = {words: command for words, command, _ in REFERENCE["commands"]()}
OPENAPI = described([one for one in create_app(cast("ModelHost", None)).routes if isinstance(one, Route)])
SETTING = re.compile(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (?:`(--[\w-]+)`|none) \|", re.MULTILINE)
NO_FLAG = {"disable_plugins"}
"""Settings that are read before a command is known."""


def section(words: str) -> str:
    """What the page says of one command."""
    return PAGES["reference/commands.md"].split(f"\n## {words}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_help_and_all_its_flags(words: str) -> None:
    command, told = COMMANDS[words], section(words)
    assert command.help
    assert f"```text\n{words} " in told
    for option in REFERENCE["options"](command):
        assert option.help, option.opts
        assert all(re.search(rf"\| `[^|]*(?<![\w-]){name}(?![\w-])", told) for name in option.opts), option.opts


def test_every_setting_is_told_with_the_value_that_holds() -> None:
    found = {
        name.replace("-", "_"): (default, expected, flag)
        for name, default, expected, flag in SETTING.findall(PAGES["reference/settings.md"])
    }
    assert found.keys() == config.EXPECTED.keys()
    defaults = config.Settings()
    for name, (default, expected, flag) in found.items():
        assert expected == config.EXPECTED[name]
        assert flag == ("" if name in NO_FLAG else config.flag(name))
        value = getattr(defaults, name)
        assert (None if value == () else value) == (None if default == "none" else config.checked(name, default, name)), name


def test_arguments_below_a_heading_are_a_list() -> None:
    told = PAGES["reference/library.md"]
    assert "\nMemory and steps:\n\n- ctx_size: positions of one request" in told
    assert "\n- kv_type: f16, bf16 or f32.\n- parallel to saved_blocks: fields of `SchedulerConfig`.\n" in told


@pytest.mark.parametrize("name", sorted({*tensorsharp.__all__} - {"API_VERSION", "__version__"}))
def test_every_public_name_is_told(name: str) -> None:
    page = PAGES["reference/library.md"]
    assert f"\n### {name}\n" in page
    value = getattr(tensorsharp, name)
    members = vars(value) if isinstance(value, type) else {}
    functions = {m: REFERENCE["_function"](found) for m, found in members.items() if not m.startswith("_")}
    assert [m for m, one in functions.items() if one and not (one.__doc__ and f"\n#### {name}.{m}\n" in page)] == []


def test_every_address_is_told_with_its_fields() -> None:
    page, paths = PAGES["reference/http.md"], OPENAPI["paths"]
    assert len(paths) >= 20
    for path, methods in paths.items():
        for method, about in methods.items():
            if f"/v1{path}" in paths:
                continue
            told = page.split(f"\n## {method.upper()} {path}\n")[1].split("\n## ")[0]
            assert about["summary"] in told
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            assert all(f"| `{name}` | " in told for name in body.get("properties", {}))


def test_docstrings_are_markdown_when_they_are_shown() -> None:
    assert re.findall(r":\w+:`", PAGES["reference/library.md"]) == []


def test_every_plugin_of_the_repository_is_told() -> None:
    page = PAGES["reference/plugins.md"]
    known = runpy.run_path(str(ROOT / "scripts/known.py"))["render"]()
    for name, distribution in re.findall(r'^"(.+)" = "(.+)"$', known, re.MULTILINE):
        assert re.search(rf"^\| `{name}` \| [^|]+ \| `{distribution}` \|", page, re.MULTILINE), name


def test_the_pages_can_be_written(tmp_path: Path) -> None:
    REFERENCE["main"](tmp_path)
    assert {str(path.relative_to(tmp_path).as_posix()) for path in tmp_path.rglob("*.md")} == PAGES.keys()
