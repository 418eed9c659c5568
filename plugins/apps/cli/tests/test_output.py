"""What goes to stdout, whatever that is."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import World


LATIN = {"PYTHONIOENCODING": "latin-1", "SCRIPT": "1 €"}


def test_characters_that_the_output_lacks(world: World) -> None:
    assert world.command("run", world.model, "x", **LATIN) == (0, "1 ?\n", "")


def test_json_loses_nothing(world: World) -> None:
    code, out, _ = world.command("run", world.model, "x", "--json", **LATIN)
    assert (code, json.loads(out)["text"]) == (0, "1 €")
    assert r"1 \u20ac" in out
    assert "Grüße" in world.command("run", world.model, "x", "--json")[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device here that is always full")
def test_a_full_disk_is_one_sentence(world: World) -> None:
    code = "import sys; from tensorsharp.cli import run; sys.stdout = open('/dev/full', 'w'); code = run(sys.argv[1:])\n"
    code += "sys.stdout = sys.__stdout__; print(code)"
    with world.start_python(code, "run", world.model, "x") as process:
        out, err = process.communicate(timeout=60)
    assert out == b"1\n"
    assert err.startswith(b"error: The output cannot be written: No space left on device.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors are closed differently there")
def test_a_closed_input_is_no_pipe(world: World) -> None:
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, '-m', 'tensorsharp', *sys.argv[1:]])"
    assert world.python(code, "run", world.model, "x") == "Grüße!\nZwei.\n"
    assert world.prompts() == ["[user]x[assistant]"]
