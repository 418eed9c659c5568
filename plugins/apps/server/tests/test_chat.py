"""POST /v1/chat/completions, over the wire and through OpenAI's own client."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from harness import Served

CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "Hallo?"}]
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}
PROMPT = "[user]Hallo?[assistant]"


def test_an_answer(server: Served) -> None:
    server.director.script = "Grüße!\nZwei."
    data = server.post(CHAT, model="staged", messages=ASKED, seed=7)
    ids = server.llm.tokenize("Grüße!\nZwei.")
    assert (data["object"], data["model"]) == ("chat.completion", "staged")
    assert data["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Grüße!\nZwei.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt, cached = len(server.llm.tokenize(PROMPT)), data["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert data["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 14,
        "total_tokens": prompt + 14,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    assert (data["timings"]["prompt_n"], data["timings"]["predicted_n"]) == (prompt - cached, 14)
    (told,) = data["tensorsharp"]["replies"]
    assert (told["seed"], data["tensorsharp"]["bitwise"]) == (7, True)
    assert len(ids) == 14
    assert told["token_ids_sha256"] == hashlib.sha256(struct.pack("<14I", *ids)).hexdigest()


def test_the_client_streams(server: Served) -> None:
    whole = server.post(CHAT, model="staged", messages=ASKED, seed=3, max_tokens=40)
    stream = server.openai.chat.completions.create(
        model="staged", messages=ASKED, seed=3, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole["choices"][0]["message"]["content"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert [c.usage is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert chunks[-2].tensorsharp["replies"] == whole["tensorsharp"]["replies"]
    assert len({c.id for c in chunks}) == 1


def test_log_probabilities_have_an_entry_for_each_token(server: Served) -> None:
    asked: dict[str, Any] = {
        "model": "staged",
        "messages": ASKED,
        "seed": 5,
        "max_tokens": 60,
        "logprobs": True,
        "top_logprobs": 3,
    }
    choice = server.post(CHAT, **asked)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 60
    assert b"".join(bytes(e["bytes"]) for e in entries).decode("utf-8", "replace") == choice["message"]["content"]
    assert all(len(e["top_logprobs"]) == 3 and e["logprob"] <= e["top_logprobs"][0]["logprob"] <= 0 for e in entries)
    streamed = [
        entry
        for chunk in server.openai.chat.completions.create(stream=True, **asked)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert [e.model_dump() for e in streamed] == entries


def test_a_stop_string_is_not_told_in_any_way(server: Served) -> None:
    server.director.script = "eins zwei drei"
    choice = server.post(CHAT, model="staged", messages=ASKED, stop=["wei"], logprobs=True)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("eins z", "stop")
    assert b"".join(bytes(e["bytes"]) for e in choice["logprobs"]["content"]) == b"eins z"
    text = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in server.openai.chat.completions.create(model="staged", messages=ASKED, stop="wei", stream=True)
    )
    assert text == "eins z"


def test_choices_have_seeds_that_follow_each_other(server: Served) -> None:
    data = server.post(CHAT, model="staged", messages=ASKED, seed=11, n=3, max_tokens=8)
    texts = [choice["message"]["content"] for choice in data["choices"]]
    assert [r["seed"] for r in data["tensorsharp"]["replies"]] == [11, 12, 13]
    for i, text in enumerate(texts):
        alone = server.post(CHAT, model="staged", messages=ASKED, seed=11 + i, max_tokens=8)
        assert alone["choices"][0]["message"]["content"] == text
    streamed = ["", "", ""]
    for chunk in server.openai.chat.completions.create(model="staged", messages=ASKED, seed=11, n=3, max_tokens=8, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    assert data["usage"]["completion_tokens"] == 24


def test_cached_tokens_are_told(server: Served) -> None:
    long = [{"role": "user", "content": "y" * 100}]
    first = server.post(CHAT, model="staged", messages=long, max_tokens=1)
    second = server.post(CHAT, model="staged", messages=long, max_tokens=1)
    every = len(server.llm.tokenize(PROMPT.partition("]")[0] + "]"))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] <= every, "nothing but what every prompt begins with"
    known = second["usage"]["prompt_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == second["timings"]["cache_n"] == known


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"messages": []}, "messages", "empty_messages"),
        ({"messages": None}, "messages", "empty_messages"),
        ({"messages": "hi"}, "messages", "invalid_value"),
        ({"messages": ["hi"]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
        ({"tools": {}}, "tools", "invalid_value"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "function", "name": 3}}, "tool_choice.name", "invalid_value"),
        ({"reasoning_effort": "very"}, "reasoning_effort", "invalid_value"),
        (IMAGE, "messages[0].content[0]", "unsupported"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": -1}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value"),
        ({"max_tokens": "5"}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_value"),
        ({"temperature": True}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": -2}, "n", "invalid_value"),
        ({"seed": -1}, "seed", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": [1]}, "stop", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_value"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"logit_bias": {"300": 1}}, "logit_bias", "invalid_token"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1", "invalid_value"),
        ({"stop_token_ids": [300]}, "stop_token_ids", "invalid_token"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"model": 3}, "model", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, "messages", "context_length_exceeded"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, body: dict[str, Any], param: str, code: str) -> None:
    answer = server.http.post(CHAT, json={"model": "staged", "messages": ASKED} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert (
        error["message"].startswith(param)
        or code == "context_length_exceeded"
        or param == "logit_bias"
        or "top_logprobs" in param
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"a": NaN}', b"\xff", b'{"messages": "\\ud800"}', b"[" * 100_000, b'{"n": ' + b"9" * 5000 + b"}"]
)
def test_a_body_that_is_no_object_is_refused(server: Served, body: bytes) -> None:
    answer = server.http.post(CHAT, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")


def test_null_and_unknown_fields_are_ignored(server: Served) -> None:
    server.director.script = "ja"
    data = server.post(
        CHAT, model="staged", messages=ASKED, max_tokens=None, temperature=None, stop=None, wibble={"a": 1}, n=None
    )
    assert data["choices"][0]["message"]["content"] == "ja"


def test_the_longest_prompt_fits(server: Served) -> None:
    server.post(CHAT, model="staged", messages=ASKED, max_tokens=1)
    rest = 512 - len(server.llm.tokenize("[user][assistant]"))
    exact = server.post(CHAT, model="staged", messages=[{"role": "user", "content": "x" * (rest - 1)}])
    assert (exact["usage"]["total_tokens"], exact["choices"][0]["finish_reason"]) == (512, "length")
    over = server.http.post(CHAT, json={"model": "staged", "messages": [{"role": "user", "content": "x" * rest}]})
    assert over.json()["error"]["code"] == "context_length_exceeded"


def test_parts_of_text_are_joined(server: Served) -> None:
    parts = [{"type": "text", "text": "Hal"}, {"type": "text", "text": "lo"}]
    one = server.post(CHAT, model="staged", messages=[{"role": "user", "content": parts}], seed=1, max_tokens=9)
    two = server.post(CHAT, model="staged", messages=[{"role": "user", "content": "Hal\nlo"}], seed=1, max_tokens=9)
    assert one["choices"] == two["choices"]


def test_the_client_raises_its_own_errors(server: Served) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        server.openai.chat.completions.create(model="gpt-9", messages=ASKED)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        server.openai.chat.completions.create(model="staged", messages=ASKED, temperature=-1)
    assert bad.value.param == "temperature"


def test_an_error_after_the_first_byte_is_in_the_stream(server: Served) -> None:
    server.post(CHAT, model="staged", messages=ASKED, max_tokens=1)
    server.director.breaks = 5
    with pytest.raises(openai.APIError, match="the lamp went out"):
        list(server.openai.chat.completions.create(model="staged", messages=ASKED, stream=True))
    server.director.breaks = 3
    text = server.http.post(CHAT, json={"messages": ASKED, "model": "staged", "stream": True}).text
    lines = text.rstrip().split("\n\n")
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "backend_error"
    server.director.breaks = 3
    assert server.http.post(CHAT, json={"messages": ASKED, "model": "staged"}).status_code == 500
    assert server.post(CHAT, model="staged", messages=ASKED, max_tokens=1)["choices"]


def test_reasoning_is_counted(thinker: Served) -> None:
    thinker.director.script = "<think>Hm.</think>Ja."
    usage = thinker.post(CHAT, model="thinker", messages=ASKED, n=2)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * len("<think>Hm.")}, "a token is a letter"
    assert usage["completion_tokens"] == 2 * len("<think>Hm.</think>Ja.")


def test_past_replies_stay_the_ids_that_they_were_where_asked(server: Served) -> None:
    asked = [{"role": "user", "content": "Hallo?"}]
    first = server.post("/v1/chat/completions", model="staged", messages=asked, max_tokens=40, seed=3, history_ids=True)
    assert "history" not in first["tensorsharp"]
    said = first["choices"][0]["message"]["content"]
    turn = [*asked, {"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
    again = server.post("/v1/chat/completions", model="staged", messages=turn, max_tokens=2, history_ids=False)
    assert "history" not in again["tensorsharp"]
    refused = server.http.post("/v1/chat/completions", json={"model": "staged", "messages": asked, "history_ids": "yes"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "history_ids")


def test_prefixes_are_shared_with_the_same_salt_only(server: Served) -> None:
    asked = [{"role": "user", "content": "s" * 100}]

    def cached(salt: str) -> int:
        data = server.post("/v1/chat/completions", model="staged", messages=asked, max_tokens=1, cache_salt=salt)
        return int(data["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a") > 90, cached("a") > 90, cached("b") > 90] == [False, True, False]
