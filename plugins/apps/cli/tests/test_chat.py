"""Conversations: over a pipe in a process of its own, and on a terminal through prompt_toolkit's test input."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tensorsharp_app_cli.repl import session as module
from tensorsharp_app_cli.repl.commands import candidates
from tensorsharp_app_cli.repl.loop import converse
from tensorsharp_app_cli.repl.session import Session
from tensorsharp_app_cli.status import Status

if TYPE_CHECKING:
    from conftest import Make, World


ANSWER = "Grüße!\nZwei."


def test_each_line_is_a_message_of_one_conversation(world: World) -> None:
    assert world.command("chat", world.model, pipe=b"eins\n\n  zwei \n/bye\ndrei\n") == (0, f"{ANSWER}\n{ANSWER}\n", "")
    first = "[user]eins"
    assert world.prompts() == [f"{first}[assistant]", f"{first}[assistant]{ANSWER}[user]zwei[assistant]"]


def test_reasoning_that_a_model_has_not_is_left_to_it_by_a_command(world: World) -> None:
    code, out, err = world.command("chat", world.model, pipe=b"/think on\neins\n/think default\nzwei\n")
    assert (code, out) == (0, f"{ANSWER}\n")
    assert "\nhint: /think default leaves it to the model.\nthink: default\n" in err


def test_a_full_context_says_what_makes_room(world: World) -> None:
    long = b"x" * 100
    code, out, err = world.command("chat", world.model, "-c", "64", pipe=long + b"\neins\n" + long + b"\n")
    assert (code, out) == (0, f"{ANSWER}\n")
    told = err.splitlines()
    assert [line.partition(" ")[0] for line in told] == ["error:", "hint:"] * 2
    assert told[1].startswith("hint: Shorten the prompt")
    assert told[3] == "hint: /clear forgets the conversation; --ctx-size makes room for a longer one."


def test_messages_of_several_lines_and_commands_in_a_pipe(world: World) -> None:
    text = b'"""\n/eins\n zwei\n"""\n"""drei"""\n /vier\n/clear\n/xyz\nsix\n"""\nopen'
    code, out, err = world.command("chat", world.model, pipe=text)
    assert (code, out) == (0, f"{ANSWER}\n" * 5)
    assert err.splitlines() == [
        "The conversation is forgotten.",
        "error: There is no command '/xyz'.",
        "hint: '/help' lists the commands. With a space before it, it is a message.",
    ]
    prompts = world.prompts()
    assert prompts[0] == "[user]/eins\n zwei[assistant]"
    assert prompts[2].endswith(f"[user]drei[assistant]{ANSWER}[user]/vier[assistant]")
    assert prompts[3:] == ["[user]six[assistant]", f"[user]six[assistant]{ANSWER}[user]open[assistant]"]


def test_the_end_of_the_input_leaves(world: World) -> None:
    assert world.command("chat", world.model, "--system", "Kurz.", pipe=b"eins")[:2] == (0, f"{ANSWER}\n")
    assert world.prompts() == ["[system]Kurz.[user]eins[assistant]"]


def test_raw_lines_are_prompts_of_their_own(world: World) -> None:
    world.command("chat", world.model, "--raw", pipe=b"eins\nzwei\n")
    assert world.prompts() == ["eins", "zwei"]


def test_without_a_template_lines_are_prompts_of_their_own(world: World) -> None:
    world.model = str(world.write_model("plain.gguf", template=None))
    world.command("chat", world.model, pipe=b"eins\nzwei\n")
    assert world.prompts() == ["eins", "zwei"]


def test_a_message_that_does_not_fit_is_told_and_forgotten(world: World) -> None:
    code, out, err = world.command("chat", world.model, pipe=b"x" * 600 + b"\nzwei\n")
    assert (code, out) == (0, f"{ANSWER}\n")
    assert err.startswith("error: The prompt has 616 tokens; at most 499 fit")
    assert world.prompts() == ["[user]zwei[assistant]"]


def test_a_failed_answer_is_told_and_the_conversation_goes_on(world: World) -> None:
    code, out, err = world.command("chat", world.model, pipe=b"eins\n", BREAK="2")
    assert (code, out, err) == (0, "Gr", "error: the lamp went out\n")


def test_a_system_message_needs_a_template(world: World) -> None:
    code, out, err = world.command("chat", world.model, "--raw", "--system", "x", pipe=b"eins\n")
    assert (code, out) == (2, "")
    assert err.startswith("error: A system prompt needs a chat template")


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be sent Ctrl-C one by one there")
def test_interrupting_an_answer_keeps_it_as_far_as_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make: Make
) -> None:
    session = make()
    echo = module.print_pieces

    def interrupted(generation: Any, status: Status) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        echo(generation, status)

    monkeypatch.setattr(module, "print_pieces", interrupted)
    session.ask("eins")
    assert [message["role"] for message in session.messages] in (["user", "assistant"], [])
    assert not session.messages or ANSWER.startswith(session.messages[1]["content"])
    assert capsys.readouterr().out.endswith("\n")


# reasoning and screens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("terminal", "shown"), [(False, "Ja.\n"), (True, "\x1b[2mHm.\x1b[0m\n\nJa.\n")])
def test_reasoning_is_dimmed_on_a_terminal_and_left_out_of_pipes(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, shown: str
) -> None:
    from tensorsharp.text.deltas import ContentDelta, ReasoningDelta
    from tensorsharp_app_cli.printing import print_pieces

    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    print_pieces([ReasoningDelta("Hm."), ContentDelta("Ja.")], Status())
    assert capsys.readouterr().out == shown


def test_reasoning_is_not_part_of_the_conversation(
    make: Make, monkeypatch: pytest.MonkeyPatch, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] }}{% endfor %}[assistant]<think>"
    world.model = str(world.write_model("thinking.gguf", template=template))
    monkeypatch.setenv("SCRIPT", "Hm.</think>Ja.")
    session = make()
    session.ask("eins")
    assert session.messages == [{"role": "user", "content": "eins"}, {"role": "assistant", "content": "Ja."}]
    assert capsys.readouterr().out == "Ja.\n"


def test_an_answer_cannot_command_a_terminal(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCRIPT", "a\x1b[2J\tb\n")
    session = make()
    session.ask("eins")
    assert capsys.readouterr().out == "a\x1b[2J\tb\n\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    session.ask("zwei")
    assert capsys.readouterr().out == "a\\x1b[2J\tb\n\n"


# typing ---------------------------------------------------------------------------------------------------------------


def typed(keys: str, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a conversation in which a person types these keys."""
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with ExitStack() as stack:
        source = stack.enter_context(create_pipe_input())
        stack.enter_context(create_app_session(input=source, output=DummyOutput()))
        source.send_text(keys)
        converse(session)


CTRL_C, CTRL_D, ENTER, ALT_ENTER, UP = "\x03", "\x04", "\r", "\x1b\r", "\x1b[A"


@pytest.mark.parametrize("leaving", [CTRL_D, f"/bye{ENTER}"])
def test_leaving_a_terminal(
    world: World, make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leaving: str
) -> None:
    typed(f"eins{ENTER}{leaving}", make(), monkeypatch)
    assert world.prompts() == ["[user]eins[assistant]"]
    out, err = capsys.readouterr()
    assert (out, err) == (f"{ANSWER}\n", f"{world.model}, on scripted. /help tells what there is.\n")


def test_ctrl_c_drops_a_line_and_leaves_from_an_empty_one(world: World, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(f"wrong{CTRL_C}eins{ENTER}{CTRL_C}", make(), monkeypatch)
    assert world.prompts() == ["[user]eins[assistant]"]


@pytest.mark.parametrize(
    ("keys", "prompt"),
    [
        (f"eins{ALT_ENTER}zwei{ENTER}", "eins\nzwei"),
        (f'"""{ENTER}eins{ENTER} zwei{ENTER}"""{ENTER}', "eins\n zwei"),
        (f'"""/eins"""{ENTER}', "/eins"),
        (f" /eins{ENTER}", "/eins"),
    ],
)
def test_messages_of_several_lines(world: World, make: Make, monkeypatch: pytest.MonkeyPatch, keys: str, prompt: str) -> None:
    typed(keys + CTRL_D, make(), monkeypatch)
    assert world.prompts() == [f"[user]{prompt}[assistant]"]


def test_what_was_typed_is_there_the_next_time(world: World, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(f"eins{ENTER}{CTRL_D}", make(), monkeypatch)
    typed(f"{UP}{ENTER}{CTRL_D}", make(), monkeypatch)
    assert world.prompts() == ["[user]eins[assistant]"] * 2
    assert (world.folder / "state/tensorsharp/history").stat().st_mode & 0o77 == 0


def test_commands_are_completed(make: Make) -> None:
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from tensorsharp_app_cli.repl.prompt import CommandCompleter

    session = make()
    assert candidates(session, "/s") == ["/set", "/show", "/system", "/save"]
    assert candidates(session, "/set p") == ["parameter"]
    assert candidates(session, "/set parameter to") == ["top-k", "top-p"]
    assert candidates(session, "/set parameter top-k ") == []
    assert candidates(session, "/think o") == ["on", "off"]
    assert "scripted" in candidates(session, "/backend ")
    assert candidates(session, "/nothing ") == []
    words = CommandCompleter(session).get_completions(Document("/set parameter to"), CompleteEvent())
    assert [(word.text, word.start_position) for word in words] == [("top-k", -2), ("top-p", -2)]
    assert list(CommandCompleter(session).get_completions(Document(" /s"), CompleteEvent())) == []
