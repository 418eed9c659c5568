"""Requests made at random from /openapi.json, right ones and wrong ones: whatever comes, the server has an answer, and lives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from tensorsharp.testing.tinygguf import tiny, write_tiny
from tensorsharp_app_server.api.openapi import described
from tensorsharp_app_server.app import create_app
from tensorsharp_app_server.catalog import OneModel
from tensorsharp_app_server.host import ModelHost
from tests.e2e.served import Command, serving
from tests.fuzz.bodies import quick

schemathesis = pytest.importorskip("schemathesis", reason="run with nox -s fuzz")
pytestmark = pytest.mark.fuzz

EXAMPLES = 40
"""Random requests of an operation, besides those that cover the limits of every field."""
TEMPLATE = (
    "{# <think></think> #}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""With tools and reasoning, so that requests which have them are answered."""
CONFIG = schemathesis.Config.from_dict(
    {"seed": 0, "generation": {"max-examples": EXAMPLES, "deterministic": True, "database": "none", "no-shrink": True}}
)


def document() -> dict[str, Any]:
    """/openapi.json, which tests are made of before a server runs."""
    app = create_app(ModelHost(OneModel.__new__(OneModel), lambda path: pytest.fail("nothing is loaded")))
    return described([one for one in app.routes if isinstance(one, Route)])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own, as clients may delete what is in it."""
    checkpoint = tiny("llama", tokenizer="bytes", chat_template=TEMPLATE)
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny.gguf", checkpoint)


@pytest.fixture(scope="module")
def server(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    environment = [("HF_HUB_OFFLINE", "1")]
    log = tmp_path_factory.mktemp("log") / "log.txt"
    with log.open("w") as told, serving("--models-dir", file.parent, environment=environment, within=1800, log=told) as found:
        yield found


@pytest.fixture(scope="module")
def whole(file: Path) -> bytes:
    return file.read_bytes()


def expected(ctx: Any, response: Any, case: Any) -> None:
    """No failure but those that the document has, of which 500 says that there is a mistake."""
    status = response.status_code
    assert status < 500 or (status != 500 and str(status) in case.operation.definition.raw["responses"]), response.text


@schemathesis.openapi.from_dict(document(), config=CONFIG).parametrize()
def test_every_request_has_an_answer(case: Any, file: Path, whole: bytes, server: Command) -> None:
    case.body = quick(case.body, file.stem)
    case.call_and_validate(server.url, checks=[expected], timeout=60)
    assert server.process.poll() is None
    if not file.exists():
        file.write_bytes(whole)
