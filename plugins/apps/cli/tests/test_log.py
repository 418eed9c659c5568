"""What a program prints of the log: one line a record, with its numbers, as text or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import World

CODE = """
import logging, sys
from tensorsharp.log import configure
configure(int(sys.argv[1]), style=sys.argv[2])
logging.getLogger("tensorsharp.requests").info("request ended", extra={"id": "a", "tokens_out": 3})
logging.getLogger("tensorsharp.steps").debug("step", extra={"rows": 1})
"""


def printed(world: World, verbosity: int, style: str) -> list[str]:
    with world.start_python(CODE, str(verbosity), style) as process:
        return process.communicate(timeout=120)[1].decode().splitlines()


def test_a_record_is_one_json_object_with_its_numbers(world: World) -> None:
    lines = [json.loads(line) for line in printed(world, 2, "json")]
    assert [(x["logger"], x["event"], x["level"]) for x in lines] == [
        ("tensorsharp.requests", "request ended", "info"),
        ("tensorsharp.steps", "step", "debug"),
    ]
    assert (lines[0]["id"], lines[0]["tokens_out"], lines[1]["rows"]) == ("a", 3, 1)
    assert all(x["timestamp"].endswith("Z") for x in lines)


@pytest.mark.parametrize(("verbosity", "lines"), [(0, 0), (1, 1), (2, 2)])
def test_it_is_quiet_unless_asked(world: World, verbosity: int, lines: int) -> None:
    found = printed(world, verbosity, "text")
    assert len(found) == lines
    assert all("tokens_out=3" in line or "rows=1" in line for line in found)


def test_a_command_logs_its_request_if_asked_twice_and_never_what_was_asked(world: World) -> None:
    assert "request ended" not in world.command("run", world.model, "secret", "-v")[2]
    code, out, err = world.command("run", world.model, "secret", "-vv", "--log-format", "json")
    assert (code, out) == (0, "Grüße!\nZwei.\n")
    ends = [json.loads(line) for line in err.splitlines() if '"request ended"' in line]
    assert [(x["id"], x["model"], x["finish"], x["tokens_out"]) for x in ends] == [("request-1", "scripted.gguf", "stop", 14)]
    assert "secret" not in err
    assert "Gr" not in err
