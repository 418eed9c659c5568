"""/api/chat and /api/generate, over the wire and through Ollama's own client."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import ollama
import pytest
from harness import until
from stage import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

ASKED = [{"role": "user", "content": "Hallo?"}]
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["n"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


@pytest.fixture
def client(server: Served) -> ollama.Client:
    return server.ollama


def lines(server: Served, path: str, **body: Any) -> list[dict[str, Any]]:
    answer = server.http.post(path, json={"model": "staged", **body})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson"), answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_an_answer(server: Served, client: ollama.Client) -> None:
    server.director.script = "Grüße!\nZwei."
    answer = client.chat("staged:latest", ASKED, options={"seed": 7})
    assert (answer.model, answer.message.role, answer.message.content) == ("staged", "assistant", "Grüße!\nZwei.")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (len(server.llm.tokenize("[user]Hallo?[assistant]")), 14)
    times = [getattr(answer, name) for name in DURATIONS]
    assert all(isinstance(time, int) and time >= 0 for time in times)
    assert times[0] > times[3] > 10_000, "nanoseconds of fourteen steps"


def test_the_reply_is_the_one_of_other_protocols(server: Served) -> None:
    asked: dict[str, Any] = {"model": "staged", "messages": ASKED}
    answer = server.post("/api/chat", **asked, options={"seed": 7, "num_predict": 20}, stream=False)
    other = server.post("/v1/chat/completions", **asked, seed=7, max_tokens=20)
    assert answer["message"]["content"] == other["choices"][0]["message"]["content"]
    assert answer["tensorsharp"] == other["tensorsharp"]


def test_a_stream_joins_to_the_whole(server: Served, client: ollama.Client) -> None:
    options = {"seed": 3, "num_predict": 40}
    whole = client.chat("staged", ASKED, options=options)
    parts = list(client.chat("staged", ASKED, options=options, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].done_reason, parts[-1].eval_count, whole.done_reason) == ("length", 40, "length")
    assert all(part.done_reason is None for part in parts[:-1])


def test_a_stream_is_what_is_sent_when_nothing_is_said(server: Served) -> None:
    server.director.script = "ja"
    said = [part["message"]["content"] for part in lines(server, "/api/chat", messages=ASKED)]
    written = [part["response"] for part in lines(server, "/api/generate", prompt="Hallo?")]
    assert ("".join(said), said[-1]) == ("".join(written), written[-1]) == ("ja", "")  # tokens may come together


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_goes_through_the_template(server: Served, client: ollama.Client, *, stream: bool) -> None:
    asked: dict[str, Any] = {"options": {"seed": 3, "num_predict": 30}, "stream": stream}
    chat = client.chat("staged", [{"role": "system", "content": "s"}, *ASKED], options=asked["options"])
    answer = client.generate("staged", "Hallo?", system="s", **asked)
    text = "".join(part.response or "" for part in answer) if stream else answer.response
    assert text == chat.message.content
    raw = client.generate("staged", "[system]s[user]Hallo?[assistant]", raw=True, options=asked["options"])
    assert raw.response == chat.message.content


def test_a_model_without_a_template_continues_the_prompt(server: Served) -> None:
    asked: dict[str, Any] = {"model": "second", "prompt": "eins", "stream": False, "options": {"seed": 2, "num_predict": 9}}
    assert server.post("/api/generate", **asked)["response"] == server.post("/api/generate", raw=True, **asked)["response"]
    refused = server.http.post("/api/generate", json={**asked, "system": "s"})
    assert (refused.status_code, "chat template" in refused.json()["error"]) == (400, True)
    server.post("/api/generate", model="staged", prompt="x", stream=False, options={"num_predict": 1})


def test_a_call_has_its_arguments_as_an_object(thinker: Served) -> None:
    client = thinker.ollama
    thinker.director.script = "Moment. " + CALL
    whole = client.chat("thinker", ASKED, tools=[WEATHER])
    parts = list(client.chat("thinker", ASKED, tools=[WEATHER], stream=True))
    streamed = [call for part in parts for call in part.message.tool_calls or ()]
    assert whole.message.content == "Moment." == "".join(part.message.content or "" for part in parts)
    for calls in (whole.message.tool_calls, streamed):
        assert [(call.function.name, call.function.arguments) for call in calls or ()] == [("weather", {"city": "Köln"})]
    assert whole.done_reason == "stop"
    thinker.director.script = "17 Grad"
    result = {"role": "tool", "tool_name": "weather", "content": "17"}
    answer = client.chat("thinker", [*ASKED, whole.message, result], tools=[WEATHER])
    assert answer.message.content == "17 Grad"


def test_several_calls_are_told_one_by_one(thinker: Served) -> None:
    thinker.director.script = CALL + CALL.replace("Köln", "Bern")
    parts = list(thinker.ollama.chat("thinker", ASKED, tools=[WEATHER], stream=True))
    calls = [[call.function.arguments["city"] for call in part.message.tool_calls or ()] for part in parts]
    assert [found for found in calls if found] == [["Köln"], ["Bern"]]


def test_a_call_can_be_required(thinker: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    asked: dict[str, Any] = {"messages": ASKED, "tools": [tool], "tool_choice": "required", "stream": False, "think": False}
    message = thinker.post("/api/chat", options={"seed": 1}, parallel_tool_calls=False, **asked)["message"]
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "weather", "arguments": {"a": "x"}}]
    # Ollama's client sends no fields but its own
    options = {"seed": 1, "tool_choice": "required", "parallel_tool_calls": False}
    calls = thinker.ollama.chat("thinker", ASKED, tools=[tool], options=options, think=False).message.tool_calls or ()
    assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", {"a": "x"})]
    named = {
        **asked,
        "options": {"seed": 1},
        "parallel_tool_calls": False,
        "tool_choice": {"type": "function", "name": "weather"},
    }
    calls = thinker.post("/api/chat", **named)["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "weather", "arguments": {"a": "x"}}]
    refused = thinker.http.post("/api/chat", json={"model": "thinker", "messages": ASKED, "options": {"tool_choice": 3}})
    assert (refused.status_code, "tool_choice" in refused.json()["error"]) == (400, True)


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_thought_is_told_apart(thinker: Served, *, stream: bool) -> None:
    client = thinker.ollama
    thinker.director.script = "<think>Hm, so.</think>Ja."
    answers: list[Any] = [
        client.chat("thinker", ASKED, think=True, stream=stream),
        client.generate("thinker", "Hallo?", think=True, stream=stream),
    ]
    for answer in answers:
        parts = [getattr(part, "message", part) for part in (answer if stream else [answer])]
        assert "".join(part.thinking or "" for part in parts) == "Hm, so."
        assert "".join(part.get("content", part.get("response")) or "" for part in parts) == "Ja."
    thinker.director.script = "Ja."
    assert client.chat("thinker", ASKED, think=False).message.thinking is None


def test_a_reply_fits_its_format(client: ollama.Client) -> None:
    for seed in range(3):
        answer = client.chat("staged", ASKED, format=SCHEMA, options={"seed": seed, "temperature": 1})
        assert 0 <= json.loads(answer.message.content or "")["n"] <= 99
        text = client.generate("staged", "x", format=SCHEMA, raw=True, options={"seed": seed})
        assert json.loads(text.response).keys() == {"n"}
    assert client.generate("staged", "x", format="json", options={"num_predict": 5, "seed": 1}).response.lstrip()[0] == "{"


def test_errors_name_the_field_in_their_text(server: Served) -> None:
    """There is nowhere else to name it."""
    answer = server.http.post("/api/chat", json={"model": "staged", "messages": ASKED, "format": {"type": "txt"}})
    assert (answer.status_code, answer.json()["error"][:24]) == (400, 'format: #/type is "txt";')


def test_log_probabilities(server: Served) -> None:
    asked: dict[str, Any] = {"messages": ASKED, "options": {"seed": 5, "num_predict": 30}, "logprobs": True, "top_logprobs": 2}
    whole = server.post("/api/chat", model="staged", stream=False, **asked)
    assert len(whole["logprobs"]) == 30
    assert b"".join(bytes(e["bytes"]) for e in whole["logprobs"]).decode("utf-8", "replace") == whole["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in whole["logprobs"])
    streamed = [entry for part in lines(server, "/api/chat", **asked) for entry in part.get("logprobs", ())]
    assert streamed == whole["logprobs"]


def test_a_stop_string_ends_the_reply(server: Served, client: ollama.Client) -> None:
    server.director.script = "eins zwei drei"
    answer = client.generate("staged", "x", options={"stop": ["wei"]})
    assert (answer.response, answer.done_reason) == ("eins z", "stop")


def test_fill_in_the_middle(serve: Serve, tmp_path: Any) -> None:
    from stage import write_model

    from tensorsharp.weights.folder import ModelsFolder

    fills = {f"tokenizer.ggml.fim_{role}_token_id": 290 + i for i, role in enumerate(("pre", "suf", "mid"))}
    write_model(tmp_path / "filling.gguf", **fills)
    server = serve(ModelsFolder(tmp_path))
    filled = server.ollama.generate("filling", "a", suffix="b", options={"seed": 3, "num_predict": 9})
    ids = [290, *server.llm.tokenize("a"), 291, *server.llm.tokenize("b"), 292]
    assert filled.response == server.post("/v1/completions", prompt=ids, seed=3, max_tokens=9)["choices"][0]["text"]


def test_models_are_loaded_and_closed_by_requests_without_a_question(serve: Serve) -> None:
    server = serve()
    client = server.ollama
    assert (client.generate("staged").done_reason, client.chat("staged", []).done_reason) == ("load", "load")
    (running,) = client.ps().models
    assert (running.model, running.context_length) == ("staged", 512)
    assert client.generate("staged", keep_alive=0).done_reason == "unload"
    assert until(lambda: not client.ps().models)
    client.chat("staged", ASKED, options={"num_predict": 1}, keep_alive="-1")
    assert server.host is not None
    assert server.host.loaded[0].expires is None
    client.chat("staged", ASKED, options={"num_predict": 1}, keep_alive="1h")
    assert server.host.loaded[0].expires is not None


@pytest.mark.parametrize("longest", [1e12, 1e18, 1e300])
def test_a_model_that_stays_longer_than_a_calendar_has_years_is_listed(serve: Serve, longest: float) -> None:
    client = serve().ollama
    client.generate("staged", keep_alive=longest)
    (one,) = client.ps().models
    assert one.expires_at is not None
    assert one.expires_at.year == 9999


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("chat", {"messages": "hi"}, "messages is"),
        ("chat", {"messages": ["hi"]}, "messages[0] is"),
        ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ("chat", {"messages": [{"role": "user", "content": "x" * 600}]}, "512"),
        ("chat", {"messages": ASKED, "tools": {}}, "tools is"),
        ("chat", {"messages": ASKED, "think": "very"}, "think is"),
        ("chat", {"messages": ASKED, "think": True}, "does not reason"),
        ("chat", {"messages": ASKED, "format": "xml"}, "format is"),
        ("chat", {"messages": ASKED, "format": {"type": "object", "not": {}}}, "not"),
        ("chat", {"messages": ASKED, "options": []}, "options is"),
        ("chat", {"messages": ASKED, "options": {"num_predict": 0}}, "options.num_predict is"),
        ("chat", {"messages": ASKED, "options": {"num_predict": -3}}, "options.num_predict is"),
        ("chat", {"messages": ASKED, "options": {"num_predict": "5"}}, "options.num_predict is"),
        ("chat", {"messages": ASKED, "options": {"temperature": -1}}, "options.temperature is"),
        ("chat", {"messages": ASKED, "options": {"stop": [1]}}, "options.stop is"),
        ("chat", {"messages": ASKED, "options": {"stop": [""]}}, "options.stop is"),
        ("chat", {"messages": ASKED, "options": {"mirostat": 2}}, "options.mirostat is"),
        ("chat", {"messages": ASKED, "keep_alive": "soon"}, "keep_alive is"),
        ("chat", {"messages": ASKED, "keep_alive": True}, "keep_alive is"),
        ("chat", {"messages": ASKED, "keep_alive": 10**400}, "keep_alive is"),
        ("chat", {"messages": ASKED, "options": {"logit_bias": {"5": 10**400}}}, "logit_bias[5] is"),
        ("chat", {"messages": ASKED, "options": {"repeat_penalty": 5e-324}}, "options.repeat_penalty is"),
        ("chat", {"messages": ASKED, "stream": "yes"}, "stream is"),
        ("chat", {"messages": ASKED, "logprobs": True, "top_logprobs": 21}, "top_logprobs is"),
        ("chat", {"messages": ASKED, "model": 3}, "model is"),
        ("generate", {"prompt": 3}, "prompt is"),
        ("generate", {"prompt": "x", "images": ["aGk="]}, "images cannot be read"),
        ("generate", {"prompt": "x", "template": "t"}, "template cannot be given"),
        ("generate", {"prompt": "x", "context": [1]}, "context is not read"),
        ("generate", {"prompt": "x", "raw": True, "system": "s"}, "system needs the chat template"),
        ("generate", {"prompt": "x", "suffix": "y"}, "middle"),
        ("generate", {"prompt": "x" * 600}, "512"),
        ("generate", {"prompt": "x" * 9000}, "The prompt has at least 512 tokens; at most 511 fit in the context of 512"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, path: str, body: dict[str, Any], words: str) -> None:
    answer = server.http.post(f"/api/{path}", json={"model": "staged", **body})
    assert (answer.status_code, answer.json().keys()) == (400, {"error"}), answer.text
    assert words in answer.json()["error"]


def test_the_client_raises_its_own_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("llama9", ASKED)
    assert missing.value.status_code == 404


def test_an_error_after_the_first_byte_is_in_the_stream(server: Served, client: ollama.Client) -> None:
    client.chat("staged", ASKED, options={"num_predict": 1})
    server.director.breaks = 5
    with pytest.raises(ollama.ResponseError, match="the lamp went out"):
        list(client.chat("staged", ASKED, stream=True))


def test_a_full_queue_is_503(serve: Serve) -> None:
    server = serve(loading={"parallel": 1, "queue": 0})
    client = server.ollama
    client.generate("staged", "x", options={"num_predict": 1})
    server.director.pace.clear()
    first = client.chat("staged", ASKED, stream=True, options={"num_predict": 2})
    begun = server.director.steps
    reader = threading.Thread(target=lambda: list(first))
    reader.start()
    assert server.director.wait_steps(begun + 1)
    answer = server.http.post("/api/chat", json={"model": "staged", "messages": ASKED})
    server.director.pace.set()
    reader.join(PATIENCE_S)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
