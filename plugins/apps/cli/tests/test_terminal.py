"""A conversation in a real terminal: a process of its own at the other end of a pseudo terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import World

if sys.platform == "win32":
    pytest.skip("pseudo terminals are another thing there", allow_module_level=True)

LIMIT_S = 60.0
CTRL_C, CTRL_D, CTRL_G, ENTER = "\x03", "\x04", "\x07", "\r"
COMMAND = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from tensorsharp.cli import main; main()"
"""Take the terminal, so that it sends its signals, and begin."""
ESCAPES = re.compile(r"\x1b(\[[0-9;?=>]*[A-Za-z]|[=>]|\][^\x07]*\x07)")


class Terminal:
    """What a person sees and types. Text is shown without the sequences that move and colour it."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._master = master
        self._bytes = b""
        self._read = 0

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._bytes.decode("utf-8", "replace"))

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Until it appears after what was waited for before; fails with the screen after a minute."""
        end = time.monotonic() + LIMIT_S
        while (found := self.text.find(text, self._read)) < 0:
            assert time.monotonic() < end, f"{text!r} did not come; there is {self.text[self._read :]!r}"
            self._take()
        self._read = found + len(text)

    def _take(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other end has left
                return
            self._bytes += data
            if b"\x1b[6n" in data:  # prompt_toolkit asks where the cursor is
                os.write(self._master, b"\x1b[1;1R")


@pytest.fixture
def terminal(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    import pty

    editor = world.folder / "editor"
    editor.write_text("#!/bin/sh\nprintf 'from the editor' > $1\n")
    editor.chmod(0o700)
    more = {"VISUAL": str(editor), "TERM": "xterm", "PAUSE": "0.02", "SLOW": str(world.folder / "slow"), "SCRIPT": "Ja. " * 40}
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    path = os.pathsep.join([str(world.folder / "site"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "chat", world.model],
        env={**os.environ, "PYTHONPATH": path},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    yield Terminal(master, process)
    process.kill()
    process.wait()
    os.close(master)


def test_a_conversation(world: World, terminal: Terminal) -> None:
    """Each wait for the prompt is a wait for the terminal to hand over keys, Ctrl-C among them, one by one."""
    terminal.wait_for("/help tells what there is.")
    terminal.wait_for(">")
    slow = world.folder / "slow"
    slow.touch()  # the whole reply would take half a minute, so that there is time to end it
    terminal.type(f"eins{ENTER}")
    terminal.wait_for("Ja. Ja. ")
    terminal.type(CTRL_C)
    terminal.wait_for("tok/s; cancelled")
    slow.unlink()
    terminal.wait_for(">")
    terminal.type(f"nothing{CTRL_C}")
    terminal.wait_for("nothing")
    terminal.wait_for(">")
    terminal.type(f"/save talk{ENTER}")
    terminal.wait_for("2 messages are in ")
    terminal.wait_for(">")
    terminal.type(f"half a thought{CTRL_G}")
    terminal.wait_for("from the editor")
    terminal.type(ENTER)
    terminal.wait_for("tok/s; stop")
    terminal.wait_for(">")
    terminal.type(CTRL_D)
    assert terminal.process.wait(timeout=LIMIT_S) == 0
    first, second = world.prompts()
    assert first == "[user]eins[assistant]"
    assert re.fullmatch(r"\[user\]eins\[assistant\](Ja\. ?|J|Ja)+\[user\]from the editor\[assistant\]", second)


def test_ctrl_c_at_an_empty_prompt_leaves(terminal: Terminal) -> None:
    terminal.wait_for("/help tells what there is.")
    terminal.wait_for(">")
    terminal.type(CTRL_C)
    assert terminal.process.wait(timeout=LIMIT_S) == 130
