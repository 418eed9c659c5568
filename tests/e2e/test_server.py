"""OpenAI's client against the served command, on real files, families and backends."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.e2e.served import PATIENCE_S, Command, serving, until
from tests.realmodels import SMOLLM2, needs

import tensorsharp
from tensorsharp.testing.tinygguf import tiny, write_tiny

ASKED: Any = [{"role": "user", "content": "Why is the sky blue?"}]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green", "blue"]}, "sure": {"type": "boolean"}},
    "required": ["color", "sure"],
    "additionalProperties": False,
}


def client(url: str, **how: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120, **how)


def refused(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which must end by itself."""
    command = [sys.executable, "-m", "tensorsharp", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("backend", ["ggml", "reference"])
def test_a_reply_is_the_one_of_the_library(model: Path, backend: str) -> None:
    with serving(model, "--backend", backend) as server, client(server.url) as ai:
        asked: Any = {"model": "tiny", "messages": ASKED, "seed": 3, "max_tokens": 20, "logprobs": True, "top_logprobs": 2}
        served = ai.chat.completions.create(**asked)
        assert server.end() == 0
    with tensorsharp.load(model, backend=backend) as llm:
        reply = llm.start_chat(ASKED, seed=3, max_tokens=20, logprobs=2).result()
        holds = llm.report()["bitwise"]["holds"]
    assert served.choices[0].message.content == reply.content
    digest = hashlib.sha256(struct.pack(f"<{len(reply.reply.token_ids)}I", *reply.reply.token_ids)).hexdigest()
    assert served.tensorsharp["replies"] == [{"index": 0, "seed": 3, "token_ids_sha256": digest}]  # type: ignore[attr-defined]
    assert served.tensorsharp["bitwise"] == holds  # type: ignore[attr-defined]
    logprobs = served.choices[0].logprobs
    assert logprobs is not None
    assert [e.logprob for e in logprobs.content or ()] == [e.logprob for e in reply.reply.logprobs or ()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_running_requests_finish(model: Path, number: int) -> None:
    with serving(model, "--grace", "60s") as server, client(server.url) as ai:
        on: Any = {"ignore_eos": True}
        stream = ai.chat.completions.create(model="tiny", messages=ASKED, max_tokens=100, stream=True, extra_body=on)
        first = next(stream)
        server.process.send_signal(number)
        rest = list(stream)
        assert (first.choices[0].delta.role, rest[-1].choices[0].finish_reason) == ("assistant", "length")
        assert server.process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["none.gguf"], 3, "none.gguf"),
        (["--port", "99999"], 2, "--port"),
        (["--host", "256.1.1.1"], 2, "listen"),
        (["--api-key-file", "nowhere"], 2, "nowhere"),
        (["--models-dir", "nowhere"], 2, "nowhere"),
        (["--keep-alive", "soon"], 2, "--keep-alive"),
        (["--backend", "nothing"], 2, "nothing"),
        (["--cors", "example.org"], 2, "--cors"),
        (["--offline", "user/repo"], 3, "The cache has no model of user/repo. Nothing is downloaded offline."),
    ],
)
def test_what_cannot_be_served_is_told(model: Path, arguments: list[str], code: int, words: str) -> None:
    given = arguments if arguments[0] in ("none.gguf", "--models-dir", "--offline") else [str(model), *arguments]
    done = refused("--port", "0", *given)
    assert (done.returncode, words in done.stderr) == (code, True), done.stderr


def test_a_broken_file_ends_the_server(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    done = refused(str(broken), "--port", "0")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert str(broken) in done.stderr
    assert refused(str(broken), "--port", "0", "--host", "0.0.0.0").stderr.startswith("warning: no key is asked for;")


def test_a_file_and_a_folder_are_one_too_many(tmp_path: Path) -> None:
    done = refused("some.gguf", "--models-dir", str(tmp_path), "--port", "0")
    assert (done.returncode, done.stderr) == (2, "error: Both MODEL and --models-dir are given; expected one of them.\n")


def test_a_folder_says_which_flag_takes_it(tmp_path: Path) -> None:
    done = refused(str(tmp_path), "--port", "0")
    assert done.returncode == 3
    assert done.stderr.endswith(f"hint: All models of a folder: tensorsharp serve --models-dir {tmp_path}\n")


def test_a_port_that_is_taken(model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = refused(str(model), "--port", port)
    assert (done.returncode, port in done.stderr) == (2, True)


def test_a_folder_of_models_with_a_key_of_the_environment(model: Path) -> None:
    environment = [("TENSORSHARP_API_KEY", "geheim"), ("TENSORSHARP_KEEP_ALIVE", "1s")]
    with serving("--models-dir", model.parent, environment=environment) as server:
        with pytest.raises(openai.AuthenticationError), client(server.url) as ai:
            ai.models.list()
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="geheim", max_retries=0) as ai:
            assert [one.id for one in ai.models.list()] == ["tiny"]
            assert ai.completions.create(model="tiny", prompt="x", max_tokens=3).usage is not None


def test_embeddings_are_those_of_the_library(tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "vectors.gguf", tiny("qwen3", tokenizer="bytes", pooling=3))
    texts: Any = ["the rain", "in the town"]
    with serving(file) as server, client(server.url) as ai:
        asked: Any = {"model": "vectors", "input": texts}
        found = ai.embeddings.create(**asked)  # the client asks for base64
        plain = ai.embeddings.create(**asked, encoding_format="float")
        one = ai.embeddings.create(model="vectors", input="the rain")
    with tensorsharp.load(file) as llm:
        expected = llm.embed(texts).tolist()
    assert [one.embedding for one in plain.data] == expected
    assert [one.embedding for one in found.data] == expected
    assert one.data[0].embedding == expected[0]
    assert found.usage.prompt_tokens == sum(len(llm.tokenize(text)) for text in texts)


# SmolLM2 ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Command]:
    with serving(needs(SMOLLM2), "--ctx-size", "1024") as server:
        yield server


@pytest.fixture
def ai(smollm2: Command) -> Iterator[openai.OpenAI]:
    with client(smollm2.url) as found:
        yield found


@pytest.fixture(scope="module")
def name(smollm2: Command) -> str:
    found: str = httpx.get(f"{smollm2.url}/v1/models", timeout=PATIENCE_S).json()["data"][0]["id"]
    return found


def test_chat_and_stream_agree(ai: openai.OpenAI, name: str) -> None:
    asked: Any = {"model": name, "messages": ASKED, "seed": 1, "max_tokens": 24}
    whole = ai.chat.completions.create(**asked)
    text = whole.choices[0].message.content
    assert text
    assert "sky" in text.lower()
    chunks = list(ai.chat.completions.create(stream=True, **asked))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == text


def test_log_probabilities_reassemble_the_text(ai: openai.OpenAI, name: str) -> None:
    emojis: Any = [{"role": "user", "content": "Write three emojis."}]
    asked: Any = {"model": name, "messages": emojis, "max_tokens": 16, "seed": 2, "logprobs": True, "top_logprobs": 5}
    choice = ai.chat.completions.create(**asked).choices[0]
    entries = (choice.logprobs.content if choice.logprobs else None) or []
    assert b"".join(bytes(e.bytes or ()) for e in entries).decode("utf-8", "replace") == choice.message.content
    assert all(len(e.top_logprobs) == 5 for e in entries)


def test_a_schema_is_followed(ai: openai.OpenAI, name: str) -> None:
    asked: Any = {"model": name, "messages": ASKED, "seed": 4, "max_tokens": 60}
    asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": SCHEMA}}
    choice = ai.chat.completions.create(**asked).choices[0]
    value = json.loads(choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert (value["color"] in ("red", "green", "blue"), type(value["sure"]), len(value)) == (True, bool, 2)


def test_tools_are_shown_to_the_model_and_results_are_read(ai: openai.OpenAI, name: str) -> None:
    plain = ai.chat.completions.create(model=name, messages=ASKED, max_tokens=1)
    told = ai.chat.completions.create(model=name, messages=ASKED, max_tokens=1, tools=TOOLS)
    assert told.usage is not None
    assert plain.usage is not None
    assert told.usage.prompt_tokens > plain.usage.prompt_tokens + 40
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    messages: Any = [
        {"role": "user", "content": "What is the weather in Bern?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "17 degrees and rain"},
    ]
    answer = ai.chat.completions.create(model=name, messages=messages, tools=TOOLS, max_tokens=40, temperature=0)
    assert answer.choices[0].message.content


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_tool_can_be_required(ai: openai.OpenAI, name: str, choice: Any) -> None:
    asked: Any = {"model": name, "messages": [{"role": "user", "content": "What is the weather in Bern?"}], "seed": 6}
    asked |= {"tools": TOOLS, "tool_choice": choice, "max_tokens": 80, "parallel_tool_calls": False, "temperature": 0}
    answer = ai.chat.completions.create(**asked).choices[0]
    (call,) = answer.message.tool_calls or ()
    assert (answer.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert isinstance(json.loads(call.function.arguments)["city"], str)
    name_, arguments = "", ""
    for chunk in ai.chat.completions.create(stream=True, **asked):
        for part in (chunk.choices[0].delta.tool_calls or ()) if chunk.choices else ():
            name_ += part.function.name or ""
            arguments += part.function.arguments or ""
    assert (name_, arguments) == (call.function.name, call.function.arguments)


def test_errors_are_the_client_s_own(ai: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.BadRequestError) as long:
        ai.chat.completions.create(model=name, messages=[{"role": "user", "content": "word " * 2000}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        ai.chat.completions.create(model="gpt-9", messages=ASKED)


def test_a_stream_that_is_closed_ends_the_request(ai: openai.OpenAI, smollm2: Command, name: str) -> None:
    stream = ai.chat.completions.create(model=name, messages=ASKED, stream=True, logit_bias={"2": -100})
    for _, _chunk in zip(range(3), stream, strict=False):
        continue
    stream.close()

    def engine() -> Any:
        return httpx.get(f"{smollm2.url}/stats", timeout=PATIENCE_S).json()["models"][0]["engine"]

    assert until(lambda: engine()["requests"].get("cancelled") == 1)
    assert engine()["running"] == 0


def test_answers_do_not_depend_on_company(ai: openai.OpenAI, name: str) -> None:
    asked: Any = {"model": name, "messages": ASKED, "max_tokens": 12, "n": 4, "seed": 20}
    together = [choice.message.content for choice in ai.chat.completions.create(**asked).choices]
    alone = [ai.chat.completions.create(**{**asked, "n": 1, "seed": 20 + i}).choices[0].message.content for i in range(4)]
    assert together == alone


def test_a_past_reply_stays_the_ids_that_it_was(ai: openai.OpenAI, name: str) -> None:
    """A reply cut within words, which its text would be cut otherwise: the next turn finds all of it where ids are kept."""
    kept: Any = {"history_ids": True}
    first = ai.chat.completions.create(model=name, messages=ASKED, seed=8, max_tokens=60, extra_body=kept)
    said = first.choices[0].message.content
    turn: Any = [*ASKED, {"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]
    again = ai.chat.completions.create(model=name, messages=turn, max_tokens=4, extra_body=kept)
    history = again.tensorsharp["history"]  # type: ignore[attr-defined]
    assert history["replies"] == 1
    assert len(history["prompt_ids_sha256"]) == 64
    assert first.usage is not None
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 1
    plain = ai.chat.completions.create(model=name, messages=turn, max_tokens=4)
    assert "history" not in plain.tensorsharp  # type: ignore[attr-defined]
