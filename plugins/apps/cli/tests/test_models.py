"""`pull`, `list`, `show`, `rm`, `alias` and MODEL by name, with a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from tensorsharp.cli import run as tensorsharp
from tensorsharp.testing.fakehub import FakeHub, fake_hub
from tensorsharp_app_cli import downloads as module
from tensorsharp_app_cli.downloads import Downloads
from tensorsharp_app_cli.models import list_, rm
from tensorsharp_app_cli.tables import size

if TYPE_CHECKING:
    from conftest import World

REPO = "user/Scripted-GGUF"
ANSWER = "Grüße!\nZwei.\n"


@pytest.fixture
def remote(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    data = Path(world.model).read_bytes()
    files = {"scripted-Q4_K_M.gguf": data, "scripted-Q8_0.gguf": data + b"\0" * 32, "mmproj-F16.gguf": b"GGUF eyes"}
    with fake_hub({REPO: files}) as hub:
        monkeypatch.setenv("HF_HOME", str(world.folder / "hf"))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        yield hub


@pytest.fixture
def local(world: World, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """The same for commands in this process, where huggingface_hub has read its environment already."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(world.folder / "hf/hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", remote.url)
    template = f"{remote.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return remote


def called(command: click.Command, *arguments: str, typed: str | None = None) -> str:
    done = CliRunner().invoke(command, list(arguments), input=typed, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_model_is_answered_with_by_its_name(world: World, remote: FakeHub) -> None:
    code, out, err = world.command("run", REPO, "Hallo?", "--no-mmproj")
    assert (code, out) == (0, ANSWER)
    total = size(Path(world.model).stat().st_size)
    assert err.splitlines()[-1] == f"scripted-Q4_K_M.gguf: {total} of {total} (100 %)"
    before = len(remote.requests)
    assert world.command("run", f"{REPO}:q4_k_m", "Hallo?", "--offline") == (0, ANSWER, "")
    assert len(remote.requests) == before
    assert [file for file, _ in remote.transfers()] == ["scripted-Q4_K_M.gguf"]


def test_pulling_listing_showing_deleting(world: World, local: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> str:
        assert tensorsharp(list(arguments)) == 0
        return capsys.readouterr().out

    files = local.repos[REPO]
    pulled = json.loads(told("pull", f"{REPO}:Q8_0", "--json"))
    assert (pulled["name"], pulled["quant"]) == (f"{REPO}:Q8_0", "Q8_0")
    assert Path(pulled["path"]).read_bytes() == files["scripted-Q8_0.gguf"]
    assert Path(pulled["projector"]).read_bytes() == b"GGUF eyes"
    assert pulled["size"] == len(files["scripted-Q8_0.gguf"]) + 9
    told("alias", "set", "smol", f"{REPO}:Q8_0")
    listed = json.loads(told("list", "--json"))
    assert listed == {"models": [pulled], "aliases": {"smol": f"{REPO}:Q8_0"}}
    lines = told("list").splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "MODIFIED", "ALIAS"]
    assert lines[1].split()[::5] == [f"{REPO}:Q8_0", "smol"]
    assert json.loads(told("show", "smol", "--json"))["file"] == pulled["path"]
    assert world.command("run", "smol", "Hallo?")[1] == ANSWER
    assert told("rm", "smol", "--yes") == ""
    assert not Path(pulled["path"]).exists()
    assert json.loads(told("list", "--json"))["models"] == []
    assert tensorsharp(["list"]) == 0
    assert capsys.readouterr().err == "No model was downloaded yet; 'tensorsharp pull user/repo' does it.\n"


def test_show_downloads_nothing(world: World, remote: FakeHub) -> None:
    code, out, err = world.command("show", REPO)
    assert (code, out, remote.requests) == (3, "", [])
    assert err.startswith(f"error: The cache has no model of {REPO}.\nhint: 'tensorsharp list' tells what there is; ")


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (["run", f"{REPO}:Q5_0", "x"], 3, f"{REPO} has no 'Q5_0'.", "Did you mean 'Q8_0'? It has Q4_K_M, Q8_0."),
        (
            ["pull", "user/Nobody-GGUF"],
            3,
            "The hub has no repository user/Nobody-GGUF, or not for everybody.",
            "Check the name at ",
        ),
        (["run", "smol", "x"], 3, "'smol' is no file and no alias.", "'tensorsharp alias list' tells the aliases"),
        (["pull", "MODEL"], 3, "MODEL is a file, not a model of the hub; expected user/repo[:QUANT] or an alias of one.", None),
        (["pull", REPO, "--offline"], 1, f"{REPO} cannot be downloaded offline.", "Leave out --offline"),
        (
            ["run", REPO, "x", "--offline"],
            3,
            f"The cache has no model of {REPO}. Nothing is downloaded offline.",
            "'tensorsharp list'",
        ),
        (["rm", REPO, "-y"], 3, f"The cache has no model of {REPO}.", "'tensorsharp list' tells what there is"),
        (["alias", "set", "a/b", REPO], 2, "'a/b' cannot be an alias; expected letters", None),
        (["alias", "set", "a", "a"], 3, "'a' is no file and no alias.", "'tensorsharp alias list'"),
        (["alias", "set", "a", "no.gguf"], 3, "no.gguf does not exist; expected a .gguf file", None),
        (["alias", "rm", "a"], 3, "There is no alias 'a'.", None),
    ],
)
def test_mistakes_are_one_sentence_and_a_hint(
    world: World,
    local: FakeHub,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    error: str,
    hint: str | None,
) -> None:
    assert tensorsharp([argument.replace("MODEL", world.model) for argument in arguments]) == code
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0].startswith("error: " + error.replace("MODEL is", f"{world.model} is"))
    assert len(lines) == (1 if hint is None else 2)
    assert hint is None or lines[1].startswith(f"hint: {hint}")


def test_deleting_asks_first(local: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorsharp.weights.hub import Hub
    from tensorsharp.weights.hubcache import HubName

    path = Hub().pull(HubName(REPO, "Q8_0"), projector=False).path
    refused = CliRunner().invoke(rm, [REPO])
    assert str(refused.exception) == "There is no terminal to ask on; expected --yes."
    monkeypatch.setattr("tensorsharp_app_cli.models._terminal", lambda: True)
    called(rm, REPO, typed="n\n")
    assert path.exists()
    called(rm, REPO, typed="y\n")
    assert not path.exists()


def test_deleting_guesses_nothing(local: FakeHub) -> None:
    from tensorsharp.weights.hub import Hub
    from tensorsharp.weights.hubcache import HubName

    for quant in ("Q8_0", "Q4_K_M"):
        Hub().pull(HubName(REPO, quant))
    refused = CliRunner().invoke(rm, [REPO, "--yes"])
    assert str(refused.exception) == f"{REPO} is 2 models; expected one of {REPO}:Q4_K_M, {REPO}:Q8_0."
    assert len(json.loads(called(list_, "--json"))["models"]) == 2


def test_an_alias_of_a_file_holds_from_every_folder(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(world.model).parent)
    assert tensorsharp(["alias", "set", "mine", Path(world.model).name]) == 0
    assert tensorsharp(["alias", "set", "ours", "mine"]) == 0
    monkeypatch.chdir(world.folder)
    assert tensorsharp(["show", "ours", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["file"] == world.model
    assert tensorsharp(["alias", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"aliases": {"mine": world.model, "ours": "mine"}}
    assert tensorsharp(["alias", "set", "mine", "ours"]) == 2
    assert capsys.readouterr().err.startswith("error: Aliases go in a circle: mine -> ours -> mine (")


# progress -------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_a_line_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with Downloads() as shown:
        shown.tell("there.gguf", 8, 8)
        for now in (0.0, 1.0, 4.9, 5.0, 6.0, 7.0):
            shown.tell("m\x1b[2J.gguf", min(int(now * 1024), 7168), 7168)
    assert capsys.readouterr().err.splitlines() == [
        "m\\x1b[2J.gguf: 0 B of 7.0 KiB (0 %)",
        "m\\x1b[2J.gguf: 5.0 KiB of 7.0 KiB (71 %)",
        "m\\x1b[2J.gguf: 7.0 KiB of 7.0 KiB (100 %)",
    ]


# shells ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(world: World, shell: str) -> None:
    code, out, err = world.command("completion", shell)
    assert (code, err) == (0, "")
    assert "_TENSORSHARP_COMPLETE=" + shell in out


def test_commands_and_models_are_completed(world: World, remote: FakeHub) -> None:
    world.command("alias", "set", "scripted", REPO)
    world.command("pull", REPO)

    def completed(*words: str) -> list[str]:
        asked = {"_TENSORSHARP_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return world.command(**asked)[1].splitlines()

    assert "plain,pull" in completed("tensorsharp", "pu")
    assert completed("tensorsharp", "run", "scr") == ["plain,scripted", "file,scr"]
    assert completed("tensorsharp", "show", "user/") == [f"plain,{REPO}:Q4_K_M", "file,user/"]
    assert "plain,--offline" in completed("tensorsharp", "run", "--off")
