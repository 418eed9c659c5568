"""The documentation names everything that people can call, set or implement, and its links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

import click
import pytest

from tensorsharp import config, hooks
from tensorsharp.cli import Program
from tensorsharp.cli import tensorsharp as program
from tensorsharp.plugin import GROUPS
from tensorsharp.registry import DISABLE_VARIABLE
from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.host import ModelHost

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WRITTEN = {
    (ROOT / "docs" / path).resolve(): write()
    for path, write in runpy.run_path(str(ROOT / "scripts/reference.py"))["PAGES"].items()
}
"""The pages that are written by machine, where the site has them."""
TEXT = "\n".join([*(page.read_text(encoding="utf-8") for page in PAGES), *WRITTEN.values()])
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")


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


@pytest.mark.parametrize("folder", ["core/src/tensorsharp", "core/src/tensorsharp/engine"])
def test_every_part_of_core_has_its_place_in_the_architecture(folder: str) -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    parts = {path.stem for path in (ROOT / folder).glob("*.py")} | {path.parent.name for path in (ROOT / folder).glob("*/*.py")}
    assert {name for name in parts if not name.startswith("_") and f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", GROUPS.values())
def test_every_entry_point_group_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", [config.CONFIG_VARIABLE, DISABLE_VARIABLE])
def test_every_variable_is_documented(name: str) -> None:
    assert f"`{name}`" in TEXT


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("plugins/*/*/README.md")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    astray = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        text = WRITTEN.get(path) or (path.read_text(encoding="utf-8") if path.suffix == ".md" and path.is_file() else "")
        if not (text or path.exists()) or (anchor and anchor not in anchors(text)):
            astray.append(f"{target}#{anchor}")
    assert astray == []


def anchors(text: str) -> set[str]:
    """What headings can be linked by."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def commands_shown() -> Iterator[tuple[str, str]]:
    """(page, line) of every command in a block that is for reading or running; what follows two spaces explains it."""
    for page in [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("plugins/*/*/README.md")]:
        for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            for line in re.findall(r"(?:^|\| |\()(tensorsharp [^|\n]*)", block, re.MULTILINE):
                yield str(page.relative_to(ROOT)), re.split(r"\s{2,}|\)", line)[0]


@pytest.mark.parametrize(("page", "line"), [*commands_shown()])
def test_commands_that_are_shown_exist_with_their_flags(page: str, line: str) -> None:
    command: click.Command = program
    ctx = click.Context(program, info_name="tensorsharp", obj=Program())
    words = shlex.split(line)[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(ctx, words.pop(0))
        assert found is not None
        command, ctx = found, click.Context(found, parent=ctx)
    _, rest, _ = command.make_parser(ctx).parse_args(words)  # raises for a flag that the command does not have
    assert rest == []


def addresses() -> list[str]:
    """What the server answers, each under one name: with `/v1` where that may be left out, without a part that varies."""
    found = {str(getattr(one, "path", "")).split("{")[0].rstrip("/") for one in create_app(cast("ModelHost", None)).routes}
    return sorted(path for path in found if f"/v1{path}" not in found and path not in ("", "/web", "/v1/health"))


@pytest.mark.parametrize("path", addresses())
def test_every_address_is_documented(path: str) -> None:
    assert re.search(rf"`(GET|POST|DELETE|HEAD) {path}[`/]|`{path}`|^## [A-Z]+ {path}(/|$)", TEXT, re.MULTILINE)


def sentences() -> set[str]:
    """Every text of the sources, with … for what is put into it."""
    texts = set()
    for path in [*ROOT.glob("core/src/**/*.py"), *ROOT.glob("plugins/*/*/src/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    return texts


def test_errors_are_those_of_the_sources() -> None:
    """A heading that ends with "…" is the beginning of a sentence."""
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) > 30
    known = sentences()
    assert [heading for heading in headings if not any(heading.strip("…") in text for text in known)] == []


def test_figures_of_the_readme_are_measured_ones() -> None:
    figures = re.findall(r"\d+\.\d+(?= (?:times|to \d))", (ROOT / "README.md").read_text(encoding="utf-8"))
    measured = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    assert len(figures) == 6
    assert [figure for figure in figures if figure not in re.findall(r"\d+\.\d+", measured)] == []
