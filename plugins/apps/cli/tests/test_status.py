"""The line on stderr that says what is being done."""

from __future__ import annotations

import io
import os

import pytest

from tensorsharp_app_cli import status as module
from tensorsharp_app_cli.status import Status


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str, columns: int) -> str:
    """What one line of a terminal shows in the end; fails where it would have wrapped."""
    cells: list[str] = [" "] * columns
    column = 0
    for char in written:
        if char == "\r":
            column = 0
            continue
        assert char != "\n"
        assert column < columns - 1
        cells[column] = char
        column += 1
    return "".join(cells).rstrip()


def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stderr from now on; not a fixture, because pytest takes stderr back when a test begins."""
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setattr(module, "_columns", lambda: 16)
    return found


def test_it_replaces_itself_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow_terminal(monkeypatch)
    status = Status()
    assert status.shown
    status.say("reading a long text")
    assert screen(terminal.getvalue(), 16) == "reading a long"
    status.say("now")
    assert screen(terminal.getvalue(), 16) == "now ..."
    status.clear()
    assert screen(terminal.getvalue(), 16) == ""


def test_loading_tells_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow_terminal(monkeypatch)
    status = Status()
    status.loading("open", 0.0)
    assert screen(terminal.getvalue(), 16) == "opening the fil"
    before = terminal.getvalue()
    status.loading("open", 1.0)
    assert terminal.getvalue() == before


def test_without_a_terminal_it_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status()
    status.say("x")
    status.clear()
    assert (status.shown, capsys.readouterr().err) == (False, "")


def test_asked_to_speak_it_writes_lines(capsys: pytest.CaptureFixture[str]) -> None:
    status = Status(always=True)
    for text in ("x", "x", "y"):
        status.say(text)
    status.clear()
    assert capsys.readouterr().err == "x ...\ny ...\n"


def test_a_stream_that_is_no_terminal_has_eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert module._columns() == 80
    with open(os.devnull, "w", encoding="utf-8") as null:
        monkeypatch.setattr("sys.stderr", null)
        assert module._columns() == 80
