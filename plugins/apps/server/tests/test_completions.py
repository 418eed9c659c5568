"""POST /v1/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from conftest import Serve
    from harness import Served

PATH = "/v1/completions"


def texts(data: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in data["choices"]]


def test_a_text_and_its_ids_are_the_same_prompt(server: Served) -> None:
    text = server.post(PATH, model="staged", prompt="one two", seed=1)
    ids = server.llm.tokenize("one two")
    assert texts(server.post(PATH, model="staged", prompt=ids, seed=1)) == texts(text)
    assert (text["object"], text["usage"]["completion_tokens"]) == ("text_completion", 16)


def test_several_prompts_have_several_choices_each(server: Served) -> None:
    data = server.post(PATH, model="staged", prompt=["one", "two"], n=2, seed=5, max_tokens=6)
    for i, (prompt, seed) in enumerate([("one", 5), ("one", 6), ("two", 5), ("two", 6)]):
        assert data["choices"][i]["text"] == texts(server.post(PATH, model="staged", prompt=prompt, seed=seed, max_tokens=6))[0]
    assert [choice["index"] for choice in data["choices"]] == [0, 1, 2, 3]
    assert data["usage"]["prompt_tokens"] == sum(len(server.llm.tokenize(p)) for p in ("one", "two"))
    assert data["usage"]["completion_tokens"] == 24


def test_a_stream_joins_to_the_whole(server: Served) -> None:
    asked: dict[str, Any] = {"model": "staged", "prompt": ["one", [72, 73]], "seed": 5, "max_tokens": 30, "echo": True}
    whole = server.openai.completions.create(**asked)
    streamed = ["", ""]
    for chunk in server.openai.completions.create(stream=True, **asked):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in whole.choices]
    assert whole.choices[0].text.startswith("one")
    assert whole.choices[1].text.startswith(server.llm.detokenize([72, 73]))


def test_log_probabilities_are_columns(server: Served) -> None:
    asked: dict[str, Any] = {"model": "staged", "prompt": "one", "seed": 5, "max_tokens": 40, "logprobs": 2}
    choice = server.post(PATH, **asked)["choices"][0]
    columns = choice["logprobs"]
    assert {len(column) for column in columns.values()} == {40}
    assert columns["text_offset"][0] == 0
    assert all(
        0 <= a <= b <= len(choice["text"]) for a, b in zip(columns["text_offset"], columns["text_offset"][1:], strict=False)
    )
    streamed: dict[str, list[Any]] = {name: [] for name in columns}
    for chunk in server.openai.completions.create(stream=True, **asked):
        if chunk.choices[0].logprobs:
            for name, column in chunk.choices[0].logprobs.model_dump().items():
                streamed[name] += column
    assert streamed == columns


def log_softmax(row: Any) -> Any:
    lowered = row.astype("f8") - row.max()
    return lowered - np.log(np.exp(lowered).sum())


@pytest.mark.parametrize("stream", [False, True])
def test_an_echoed_prompt_has_log_probabilities(server: Served, *, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "staged", "prompt": "one two", "seed": 5, "max_tokens": 3, "logprobs": 2, "echo": True}
    if stream:
        columns: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for chunk in server.openai.completions.create(stream=True, **asked):
            for name, column in (chunk.choices[0].logprobs.model_dump() if chunk.choices[0].logprobs else {}).items():
                columns[name] += column
    else:
        columns = server.post(PATH, **asked)["choices"][0]["logprobs"]
    ids = server.llm.tokenize("one two")
    rows = server.llm.logits(ids)
    expected = [float(np.float32(log_softmax(row)[token])) for row, token in zip(rows, ids[1:], strict=False)]
    assert columns["token_logprobs"][: len(ids)] == [None, *expected]
    assert (columns["top_logprobs"][0], len(columns["tokens"])) == (None, len(ids) + 3)
    assert "".join(columns["tokens"][: len(ids)]) == "one two"
    assert columns["text_offset"][: len(ids)] == [len("".join(columns["tokens"][:i])) for i in range(len(ids))]


def test_prompts_can_be_scored_without_writing(server: Served) -> None:
    asked: dict[str, Any] = {"model": "staged", "prompt": ["one", [72, 73, 74]], "logprobs": 1, "echo": True}
    scored = server.post(PATH, **asked, max_tokens=0)
    written = server.post(PATH, **asked, max_tokens=1)
    for one, two in zip(scored["choices"], written["choices"], strict=True):
        assert two["text"].startswith(one["text"])
        assert one["logprobs"]["token_logprobs"] == two["logprobs"]["token_logprobs"][:-1]
    assert scored["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing"),
        ({"prompt": None}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt", "invalid_value"),
        ({"prompt": [True]}, "prompt", "invalid_value"),
        ({"prompt": ""}, "prompt", "empty_prompt"),
        ({"prompt": [300]}, "prompt", "invalid_token"),
        ({"prompt": [-1]}, "prompt", "invalid_token"),
        ({"prompt": "x" * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": "x" * 9000}, "prompt", "context_length_exceeded"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "invalid_value"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"prompt": "x", "max_tokens": 0, "echo": True, "stream": True}, "stream", "invalid_value"),
        ({"prompt": "", "max_tokens": 0, "echo": True, "logprobs": 1}, "prompt", "empty_prompt"),
        ({"prompt": "x", "best_of": 2}, "best_of", "invalid_value"),
        ({"prompt": "x", "suffix": "y"}, "suffix", "unsupported"),
        ({"prompt": ["x", "z"], "suffix": "y"}, "suffix", "invalid_value"),
    ],
)
def test_a_field_that_is_wrong_is_named(server: Served, body: dict[str, Any], param: str, code: str) -> None:
    answer = server.http.post(PATH, json={"model": "staged", **body})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


def test_fill_in_the_middle(serve: Serve, models: Any, tmp_path: Any) -> None:
    from stage import write_model

    from tensorsharp.weights.folder import ModelsFolder

    fills = {f"tokenizer.ggml.fim_{role}_token_id": 290 + i for i, role in enumerate(("pre", "suf", "mid"))}
    write_model(tmp_path / "filling.gguf", **fills)
    server = serve(ModelsFolder(tmp_path))
    filled = server.post(PATH, prompt="a <|im_end|>", suffix="b", seed=3)
    a, b = (server.llm.tokenize(text, special=False) for text in ("a <|im_end|>", "b"))
    assert texts(filled) == texts(server.post(PATH, prompt=[290, *a, 291, *b, 292], seed=3))
    assert filled["usage"]["prompt_tokens"] == len(a) + len(b) + 3
