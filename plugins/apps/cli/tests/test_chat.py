"""Conversations: over a pipe in a process of its own, and on a terminal through prompt_toolkit's test input."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tensorsharp.config import resolve
from tensorsharp_app_cli import chat
from tensorsharp_app_cli.answer import print_stream
from tensorsharp_app_cli.status import Status

if TYPE_CHECKING:
    from conftest import World

    from tensorsharp.llm import LLM

ANSWER = "Grüße!\nZwei."


def test_each_line_is_a_message_of_one_conversation(world: World) -> None:
    assert world.command("chat", world.model, pipe=b"eins\n\n  zwei \n/bye\ndrei\n") == (0, f"{ANSWER}\n{ANSWER}\n", "")
    first = "[user]eins"
    assert world.prompts() == [f"{first}[assistant]", f"{first}[assistant]{ANSWER}[user]zwei[assistant]"]


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


@pytest.fixture
def llm(world: World) -> Iterator[LLM]:
    from tensorsharp.llm import load

    with load(world.model, backend="scripted") as found:
        yield found


@pytest.mark.skipif(sys.platform == "win32", reason="processes cannot be sent Ctrl-C one by one there")
def test_interrupting_an_answer_keeps_it_as_far_as_it_came(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], llm: LLM
) -> None:
    conversation = chat.Conversation(llm, resolve(environ={}).settings)
    echo = print_stream

    def interrupted(generation: object, status: Status) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return echo(generation, status)  # type: ignore[arg-type]

    monkeypatch.setattr(chat, "print_stream", interrupted)
    conversation.ask("eins", Status())
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"]
    assert ANSWER.startswith(conversation.messages[1]["content"])
    assert capsys.readouterr().out.endswith("\n")


def typed(keys: str, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
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
        chat.converse(llm, resolve(environ={}).settings, Status())


CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


@pytest.mark.parametrize("leaving", [CTRL_D, f"/bye{ENTER}"])
def test_leaving_a_terminal(
    world: World, llm: LLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], leaving: str
) -> None:
    typed(f"eins{ENTER}{leaving}", llm, monkeypatch)
    assert world.prompts() == ["[user]eins[assistant]"]
    assert capsys.readouterr().out == f"{ANSWER}\n"


def test_ctrl_c_drops_a_line_and_leaves_from_an_empty_one(world: World, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        typed(f"wrong{CTRL_C}eins{ENTER}{CTRL_C}", llm, monkeypatch)
    assert world.prompts() == ["[user]eins[assistant]"]
