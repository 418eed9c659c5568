"""The commands of a conversation, and conversations that are saved."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tensorsharp.errors import ConfigError, ModelNotFoundError, PluginError, RequestError, TensorSharpError
from tensorsharp_app_cli.repl.commands import COMMANDS, candidates, command
from tensorsharp_app_cli.repl.session import Session

if TYPE_CHECKING:
    from conftest import Make, World

ANSWER = "Grüße!\nZwei."


def told(session: Session, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    command(session, text)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_help_names_every_command(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(make(), "/?", capsys).splitlines()
    assert [line.split()[0] for line in lines[: len(COMMANDS)]] == [f"/{one.names[0]}" for one in COMMANDS]
    assert "/help /?" in lines[0]


def test_parameters_hold_for_the_next_answer(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make()
    assert told(session, "/set parameter max-tokens 3", capsys) == "max-tokens: 3\n"
    session.ask("eins")
    assert capsys.readouterr().out == "Gr\ufffd\n"
    assert told(session, "/set parameter stop ße!", capsys) == "stop: 'ße!'\n"
    assert told(session, "/set parameter max-tokens default", capsys) == "max-tokens: default\n"
    session.ask("eins")
    assert capsys.readouterr().out == "Grü\n"
    assert told(session, "/set parameter temp", capsys).startswith("temp: 0.8; expected a number from 0")
    assert "top-k             40" in told(session, "/set parameter", capsys).splitlines()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("/set parameter temp hot", "/set parameter: temp is 'hot'; expected a number from 0", None),
        ("/set parameter tmp 1", "There is no parameter 'tmp'; expected one of max-tokens, ", "Did you mean 'temp'?"),
        ("/set parametr", "/set has no 'parametr'; expected parameter, system, think, verbose.", "Did you mean 'parameter'?"),
        ("/set", "/set is told nothing to change; expected parameter, system, think, verbose.", None),
        ("/set temp 1", "/set has no 'temp'; expected parameter, ", "Did you mean '/set parameter temp 1'?"),
        ("/set verbose maybe", "/set verbose is 'maybe'; expected on or off.", None),
        ("/think hard", "/set: think is 'hard'; expected on, off, minimal", None),
        ("/lod", "There is no command '/lod'.", "Did you mean '/load'? With a space before it, it is a message."),
        ("/save ../x", "'../x' cannot name a conversation; expected letters", None),
        ("/save", "'' cannot name a conversation", None),
        ("/save talk", "There are no messages yet that could be kept.", None),
    ],
)
def test_wrong_commands(make: Make, text: str, message: str, hint: str | None) -> None:
    session = make()
    before = session.settings
    with pytest.raises(ConfigError) as caught:
        command(session, text)
    assert str(caught.value).startswith(message)
    assert caught.value.hint == hint
    assert session.settings == before


def test_the_system_message(world: World, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make()
    assert told(session, "/system Kurz.", capsys) == "system: Kurz.\n"
    session.ask("eins")
    capsys.readouterr()
    assert told(session, '/set system ""', capsys).endswith("system: default\n")
    session.ask("zwei")
    assert world.prompts() == ["[system]Kurz.[user]eins[assistant]", f"[user]eins[assistant]{ANSWER}[user]zwei[assistant]"]
    with pytest.raises(RequestError, match="needs a chat template"):
        make(raw=True).change(system="Kurz.")


def test_verbose_is_a_line_after_an_answer(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make()
    told(session, "/set verbose on", capsys)
    session.ask("eins")
    assert capsys.readouterr().err.startswith("prompt ")
    told(session, "/set verbose off", capsys)
    session.ask("eins")
    assert capsys.readouterr().err == ""


def test_another_model_goes_on_with_the_conversation(world: World, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make()
    session.ask("eins")
    other = str(world.write_model("other.gguf", template="{% for m in messages %}<{{ m.content }}>{% endfor %}"))
    old = session.llm
    capsys.readouterr()
    assert told(session, f"/model {other}", capsys) == f"Going on with {other}.\n"
    with pytest.raises(TensorSharpError, match="The engine is closed"):
        old.stream("x")
    session.ask("zwei")
    assert world.prompts()[1] == f"<eins><{ANSWER}><zwei>"
    plain = str(world.write_model("plain.gguf", template=None))
    capsys.readouterr()
    assert told(session, f"/model {plain}", capsys).endswith("It has no chat template: each message stands alone.\n")
    session.ask("drei")
    assert world.prompts()[2] == "drei"
    assert len(session.messages) == 4


def test_what_cannot_be_loaded_keeps_what_there_is(world: World, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make(system="Kurz.")
    before = (session.llm, session.model, session.settings)
    plain = str(world.write_model("plain.gguf", template=None))
    for text, kind in [
        ("/model nothing", ModelNotFoundError),
        ("/backend nothing", PluginError),
        (f"/model {plain}", RequestError),
    ]:
        with pytest.raises(kind):
            command(session, text)
        assert (session.llm, session.model, session.settings) == before
    session.ask("eins")
    assert capsys.readouterr().out == f"{ANSWER}\n"
    assert told(session, "/backend scripted", capsys) == "Going on with scripted on stage.\n"
    assert told(session, "/backend", capsys).startswith("scripted on stage; there are ")


def test_show(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make(system="Kurz.", stop=("a", "b"))
    session.ask("eins")
    capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in told(session, "/show", capsys).splitlines())
    assert lines["backend"] == "scripted on stage"
    assert (lines["system"], lines["messages"], lines["stop"], lines["temp"]) == ("Kurz.", "2", "'a', 'b'", "0.8")


# saved conversations --------------------------------------------------------------------------------------------------


def test_a_conversation_is_kept_and_gone_on_with(world: World, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    session = make(system="Kurz.")
    session.ask("eins")
    capsys.readouterr()
    assert told(session, "/load", capsys) == "Nothing was saved yet.\n"
    told(session, "/save talk", capsys)
    elsewhere = world.folder / "elsewhere.json"
    told(session, f"/save {elsewhere}", capsys)
    assert told(session, "/load", capsys) == "talk\n"
    for name in ("talk", str(elsewhere)):
        other = make()
        assert told(other, f"/load {name}", capsys) == "2 messages.\n"
        assert (other.messages, other.settings.system) == (session.messages, "Kurz.")
    other.ask("zwei")
    assert world.prompts()[-1] == f"[system]Kurz.[user]eins[assistant]{ANSWER}[user]zwei[assistant]"
    assert candidates(other, "/load ta") == ["talk"]


GOOD = {"format": "tensorsharp-conversation", "version": 1, "model": "m", "system": None, "messages": []}
SAID = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "is no JSON: "),
        ([], "is no saved conversation; expected an object with"),
        ({**GOOD, "format": "other"}, "is no saved conversation"),
        ({**GOOD, "version": 2}, "version is 2; expected 1."),
        ({**GOOD, "system": 1}, "system and model have to be texts"),
        ({**GOOD, "model": None}, "system and model have to be texts"),
        ({**GOOD, "messages": {}}, "messages is dict; expected a list."),
        ({**GOOD, "messages": [{**SAID, "role": "assistant"}]}, "messages[0] is not a message; expected the role 'user'"),
        ({**GOOD, "messages": [SAID, SAID]}, "messages[1] is not a message; expected the role 'assistant'"),
        ({**GOOD, "messages": [{**SAID, "content": 1}]}, "messages[0] is not a message"),
    ],
)
def test_files_that_are_no_conversation(world: World, make: Make, data: object, message: str) -> None:
    path = world.folder / "talk.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    session = make()
    session.ask("eins")
    with pytest.raises(ConfigError) as caught:
        command(session, f"/load {path}")
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
    assert len(session.messages) == 2


def test_a_conversation_that_is_not_there(world: World, make: Make) -> None:
    session = make()
    session.ask("eins")
    command(session, "/save talk")
    with pytest.raises(ConfigError, match=r"^There is no conversation 'tolk' \(") as caught:
        command(session, "/load tolk")
    assert caught.value.hint == "Did you mean 'talk'?"
    path = world.folder / "none" / "talk.json"
    with pytest.raises(ConfigError, match=f"there is no folder {re.escape(str(path.parent))}"):
        command(session, f"/save {path}")
    assert not path.parent.exists()
