"""The `tensorsharp` command: listings, exit codes, and that it survives whatever is installed."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tensorsharp import cli

if TYPE_CHECKING:
    from conftest import Site

COMMANDS = "tensorsharp.commands"
BACKEND = """
class Backend:
    name, device, threads, arithmetic_id = "fake", "cpu0", 3, "fake-1+exact"
    def __init__(self, options): assert options.device is None
    def bitwise(self, types): from tensorsharp.protocols.backend import Bitwise; return Bitwise(False, "sums run in any order")
    def describe(self): return {"library": "libfake 1.2"}
    def memory(self): return 8 << 30, 3 << 30
    def close(self): print("closed")
"""
APP = """
import click, sys
from tensorsharp.errors import ModelError, CapacityError

@click.command()
@click.argument("how")
def command(how):
    "Fail in a chosen way."
    if how == "model": raise ModelError("m.gguf: tensor 'x' is missing.", hint="Get the file again.")
    if how == "runtime": raise CapacityError("no room.")
    if how == "interrupt": raise KeyboardInterrupt
    if how == "bug": raise ZeroDivisionError("oops")
    if how == "usage": raise click.UsageError("that is not how")
    if how == "much": [print("x" * 1000) for _ in range(10000)]
"""


@pytest.fixture
def app(site: Site) -> Site:
    site.module("fly_impl", APP)
    site.plugin("command", "fly", "fly", "target='fly_impl:command', api=(1, 0), summary='Fly away'")
    return site


@pytest.fixture
def wrecks(app: Site) -> Site:
    """An environment in which much is broken, and one thing works."""
    app.module("wreck", "raise RuntimeError('spoiled')\n")
    app.distribution("acme-wreck", {COMMANDS: {"wreck": "wreck:spec"}, "tensorsharp.backends": {"wreck": "wreck:spec"}})
    app.plugin("model", "later", "later", "target='x:Y', api=(9, 0), summary=''")
    app.plugin("command", "sunk", "sunk", "target='sunk_impl:command', api=(1, 0), summary='Sinks'")
    app.module("sunk_impl", "import a_missing_library\n")
    app.plugin("command", "odd", "odd", "target='builtins:dict', api=(1, 0), summary='Odd'")
    return app


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["plugins"], ["plugins", "--json"], ["doctor"], ["config", "show"]]
)
def test_recovery_commands_survive(wrecks: Site, arguments: list[str]) -> None:
    done = wrecks.command(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_help_names_the_commands_of_apps_without_importing_them(wrecks: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert "fly" in text
    assert "Fly away" in text
    assert "spoiled" in text
    assert "fly_impl" not in sys.modules
    assert "sunk_impl" not in sys.modules


def test_plugins_prints_a_table(wrecks: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugins", "--kind", "model"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["KIND", "NAME", "STATE", "PACKAGE", "WHY"]
    assert [line.split(maxsplit=5) for line in lines if "later" in line] == [
        ["model", "later", "incompatible", "tensorsharp-model-later", "1.0", "written for plugin API 9.0; this core has 1.0"]
    ]


def test_plugins_broken_is_exit_code_1_only_if_there_is_one(wrecks: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugins", "--broken", "--json"]) == 1
    listed = json.loads(capsys.readouterr().out)["plugins"]
    assert {row["name"]: row["state"] for row in listed} == {"wreck": "broken", "later": "incompatible"}
    assert cli.run(["plugins", "--broken", "--kind", "codec"]) == 0


def test_plugins_info_shows_the_traceback(wrecks: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["plugins", "info", "acme-wreck/wreck"]) == 0
    assert "raise RuntimeError('spoiled')" in capsys.readouterr().out
    assert cli.run(["plugins", "info", "fly", "--json"]) == 0
    (detail,) = json.loads(capsys.readouterr().out)["plugins"]
    assert (detail["target"], detail["api"], detail["summary"]) == ("fly_impl:command", "1.0", "Fly away")
    assert cli.run(["plugins", "info", "flie"]) == 2
    assert capsys.readouterr().err == "error: No plugin is called 'flie'.\nhint: 'tensorsharp plugins' lists what is installed.\n"


def test_disabling_a_broken_plugin_recovers(wrecks: Site) -> None:
    done = wrecks.command("plugins", "--broken", "--json", TENSORSHARP_DISABLE_PLUGINS="wreck,later")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"plugins": [], "unmatched": []})


def test_a_misspelt_disabled_name_is_told(wrecks: Site) -> None:
    done = wrecks.command("plugins", TENSORSHARP_DISABLE_PLUGINS="wrek")
    assert (done.returncode, done.stderr) == (
        0,
        "warning: TENSORSHARP_DISABLE_PLUGINS disables 'wrek', which matches no plugin\n",
    )
    assert wrecks.command("plugins", "--broken", "--kind", "codec", TENSORSHARP_DISABLE_PLUGINS="wrek").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["fly", "fine"], 0, ""),
        (["fly", "model"], 3, "error: m.gguf: tensor 'x' is missing.\nhint: Get the file again.\n"),
        (["fly", "runtime"], 1, "error: no room.\n"),
        (["fly", "interrupt"], 130, ""),
        (["plugins", "--kind", "x"], 2, "error: --kind is 'x'; expected one of backend, model,"),
        (["--config", "absent.toml", "config", "show"], 2, "error: absent.toml: the configuration file cannot be read: "),
        (
            ["wreck"],
            2,
            "error: The command plugin 'wreck' (acme-wreck 1.0) is broken: wreck:spec failed to load: RuntimeError: spoiled\n",
        ),
        (["sunk"], 2, "error: The command plugin 'sunk' (tensorsharp-command-sunk 1.0) failed to import sunk_impl:command: "),
        (["odd"], 2, "error: The command plugin 'odd' (tensorsharp-command-odd 1.0) names a type; expected a click.Command.\n"),
    ],
)
def test_exit_code_and_sentence(
    wrecks: Site, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == code
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(("arguments", "said"), [(["plugin"], "Did you mean 'plugins'?"), (["fly", "usage"], "that is not how")])
def test_usage_errors_are_exit_code_2(app: Site, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert said in capsys.readouterr().err


def test_a_command_that_another_package_brings_names_it(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tensorsharp.known.table", lambda: {"command": {"soar": "acme-soar"}})
    assert cli.run(["soar", "x"]) == 2
    assert capsys.readouterr().err == "error: The command 'soar' is not installed.\nhint: Try: pip install acme-soar\n"


def test_verbose_shows_the_traceback(app: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-v", "fly", "model"]) == 3
    assert "Traceback" in capsys.readouterr().err
    assert cli.run(["fly", "model"]) == 3
    assert "Traceback" not in capsys.readouterr().err


def test_a_defect_is_not_hidden(app: Site) -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run(["fly", "bug"])


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="this system has no pipes that break")
def test_a_reader_that_leaves_ends_it_quietly(app: Site) -> None:
    code = (
        "import subprocess, sys; run = 'from tensorsharp.cli import main; main()';"
        "p = subprocess.Popen([sys.executable, '-c', run, 'fly', 'much'], stdout=subprocess.PIPE, stderr=subprocess.PIPE);"
        "p.stdout.read(10); p.stdout.close(); print(p.stderr.read(), p.wait())"
    )
    assert app.python(code).stdout == "b'' 1\n"


def test_doctor_shows_a_backend_and_survives_a_failing_one(site: Site) -> None:
    site.module("fake_impl", BACKEND)
    site.plugin("backend", "fake", "fake", "target='fake_impl:Backend', api=(1, 0), summary=''")
    site.plugin("backend", "torn", "torn", "target='torn_impl:Backend', api=(1, 0), summary=''")
    site.module("torn_impl", "def Backend(options):\n    raise OSError('libtorn.so is torn')\n")
    done = site.command("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "backend fake on cpu0, 3 threads, 3.0 GiB of 8.0 GiB available" in done.stdout
    assert "bitwise contract  does not hold: sums run in any order" in done.stdout
    assert "backend torn: failed: OSError: libtorn.so is torn" in done.stdout
    facts = json.loads(site.command("doctor", "--json").stdout.removeprefix("closed\n"))
    by_name = {entry["name"]: entry for entry in facts["backends"]}
    assert by_name["fake"]["describe"] == {"library": "libfake 1.2"}
    assert by_name["fake"]["arithmetic_id"] == "fake-1+exact"
    assert {"core", "python", "system", "processor", "cores", "memory_bytes", "cache", "plugins"} <= facts.keys()


def test_config_show_tells_value_and_source(site: Site) -> None:
    done = site.command("config", "show", "--json", TENSORSHARP_TOP_K="7")
    settings = json.loads(done.stdout)["settings"]
    assert settings["top_k"] == {"value": 7, "source": "TENSORSHARP_TOP_K"}
    assert settings["seed"] == {"value": None, "source": "default"}
