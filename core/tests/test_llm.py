from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.tests.llmfakes import MODEL, installed, write_file

from tensorsharp.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ModelError,
    PluginError,
    RequestError,
    TensorSharpError,
    UnsupportedError,
)
from tensorsharp.llm import LLM
from tensorsharp.loading import load
from tensorsharp.parameters import sampling_params
from tensorsharp.protocols.backend import StepResult
from tensorsharp.protocols.batch import Batch
from tensorsharp.testing.fakes import FakeRunner
from tensorsharp.types import Constraint, GenerationRequest, SamplingParams


@pytest.fixture(autouse=True)
def plugins(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from installed(site, monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_file(tmp_path / "model.gguf")


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with load(path, backend="fake", parallel=4, ctx_size=600) as made:
        yield made


def expected(prompt: list[int], count: int) -> list[int]:
    return MODEL.reply(prompt, count)


def test_a_prompt_goes_through_the_template(llm: LLM) -> None:
    reply = llm.generate("Hi", system="Be brief.", max_tokens=6, temperature=0, ignore_eos=True)
    ids = llm.tokenize("<|endoftext|>[system]Be brief.[user]Hi>")
    assert list(reply.token_ids) == expected(ids, 6)
    assert (reply.finish_reason, reply.usage.prompt, reply.usage.completion) == ("length", len(ids), 6)
    assert reply.text == b"".join(llm.tokenizer.bytes_of(t) for t in reply.token_ids).decode(errors="replace")
    assert reply.logprobs is None


def test_raw_prompts_skip_the_template(llm: LLM) -> None:
    reply = llm.generate("Hi", raw=True, max_tokens=6, temperature=0, ignore_eos=True)
    assert list(reply.token_ids) == expected(llm.tokenize("Hi"), 6)
    with pytest.raises(RequestError, match="raw leaves it out"):
        llm.stream("Hi", raw=True, system="no")


def test_a_file_without_a_template_takes_prompts_as_they_are(tmp_path: Path) -> None:
    path = write_file(tmp_path / "plain.gguf", template=None)
    with load(path, backend="fake") as llm:
        reply = llm.generate("Hi", max_tokens=3, temperature=0, ignore_eos=True)
        assert list(reply.token_ids) == expected(llm.tokenize("Hi"), 3)
        with pytest.raises(UnsupportedError, match=r"plain.gguf has no chat template \(tokenizer.chat_template\)"):
            llm.chat([{"role": "user", "content": "Hi"}])
        with pytest.raises(RequestError, match="this model has none"):
            llm.generate("Hi", system="Be brief.")


def test_a_conversation_begins_with_one_beginning(tmp_path: Path) -> None:
    path = write_file(tmp_path / "bos.gguf", {"tokenizer.ggml.add_bos_token": True})
    with load(path, backend="fake") as llm:
        ids = llm.tokenize_chat([{"role": "user", "content": "Hi"}])
        assert ids == llm.tokenize("<|endoftext|>[user]Hi>", bos=False)
        assert llm.chat([{"role": "user", "content": "Hi"}], max_tokens=1).usage.prompt == len(ids)


def test_pieces_join_to_the_text(llm: LLM) -> None:
    pieces = list(llm.stream("Hello", max_tokens=40, temperature=1, seed=4))
    whole = llm.generate("Hello", max_tokens=40, temperature=1, seed=4)
    assert "".join(pieces) == whole.text
    assert whole.seed == 4


def test_a_stop_string_ends_the_reply_and_is_left_out(llm: LLM) -> None:
    free = llm.generate("Hello", max_tokens=60, temperature=0, ignore_eos=True)
    visible = [i for i, c in enumerate(free.text) if c.isascii() and c.isprintable()]
    stop = free.text[visible[5]]
    at = free.text.index(stop)
    cut = llm.generate("Hello", max_tokens=60, temperature=0, ignore_eos=True, stop=stop)
    assert (cut.text, cut.finish_reason, cut.stop) == (free.text[:at], "stop", stop)
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert cut.usage.completion == len(cut.token_ids)
    assert stop.encode() in llm.tokenizer.bytes_of(cut.token_ids[-1])


def test_what_a_stop_string_ends_does_not_depend_on_when_it_is_read(llm: LLM) -> None:
    free = llm.generate("Hello", max_tokens=60, temperature=0, ignore_eos=True)
    stop = next(c for c in free.text[5:] if c.isascii() and c.isprintable())
    length = llm.generate("Hello", max_tokens=60, temperature=0, ignore_eos=True, stop=stop).usage.completion
    for limit in (length, 60):
        before = llm.stats()
        running = llm.stream("Hello", max_tokens=limit, temperature=0, ignore_eos=True, stop=stop)
        llm.engine.check_idle()
        reply, after = running.result(), llm.stats()
        assert (reply.stop, reply.usage.completion) == (stop, length)
        assert after.tokens_generated - before.tokens_generated == length
        assert after.requests["stop"] - before.requests["stop"] == 1


def test_end_tokens_of_the_file_end_a_reply(llm: LLM) -> None:
    bias = {min(llm.tokenizer.end_tokens): 100.0}
    reply = llm.generate("Hello", temperature=0, logit_bias=bias, max_tokens=5)
    assert (reply.token_ids, reply.text, reply.finish_reason, reply.stop) == ((), "", "stop", None)


def test_log_probabilities_are_reported_for_each_token(llm: LLM) -> None:
    reply = llm.generate("Hello", max_tokens=3, temperature=0, logprobs=2, ignore_eos=True)
    assert reply.logprobs is not None
    assert [e.token for e in reply.logprobs] == list(reply.token_ids)
    assert all(e.logprob == e.top[0].logprob and len(e.top) == 2 for e in reply.logprobs)


def test_several_streams_at_once_are_what_each_is_alone(llm: LLM) -> None:
    streams = [llm.stream(f"Number {i}", max_tokens=20, seed=i) for i in range(6)]
    together = [s.result() for s in streams]
    alone = [llm.generate(f"Number {i}", max_tokens=20, seed=i) for i in range(6)]
    assert [r.token_ids for r in together] == [r.token_ids for r in alone]


def test_asyncio(llm: LLM) -> None:
    async def run() -> tuple[list[str], str, str]:
        pieces = [p async for p in llm.astream("Hello", max_tokens=20, seed=1)]
        whole, chat = await asyncio.gather(
            llm.agenerate("Hello", max_tokens=20, seed=1),
            llm.achat([{"role": "user", "content": "Hello"}], max_tokens=20, seed=1),
        )
        return pieces, whole.text, chat.text

    pieces, whole, chat = asyncio.run(run())
    assert "".join(pieces) == whole == chat == llm.generate("Hello", max_tokens=20, seed=1).text


def test_a_stream_that_is_dropped_is_cancelled(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, steps = llm.engine._runner, threading.Semaphore(50)
    compute = runner.step

    def step(batch: Batch, taps: Sequence[str] = ()) -> StepResult:
        assert steps.acquire(timeout=20)
        return compute(batch, taps)

    monkeypatch.setattr(runner, "step", step)  # it can be dropped before it ends
    stream = llm.stream("Hello", ignore_eos=True, max_tokens=500)
    handle = stream._handle
    next(stream)
    del stream
    gc.collect()
    steps.release(500)
    assert handle.result(20).reason == "cancelled"


def test_a_failing_request_raises_after_what_it_gave(llm: LLM) -> None:
    runner = llm.engine._runner
    assert isinstance(runner, FakeRunner)
    runner.fail = 3
    stream = llm.stream("Hello", ignore_eos=True, max_tokens=500)
    with pytest.raises(BackendError, match="step 3 was told to fail"):
        stream.result()
    assert len(stream._events) == 2
    assert llm.generate("Hello", ignore_eos=True, max_tokens=5).usage.completion == 5


def test_a_constrained_reply(llm: LLM) -> None:
    constraint = Constraint.json_schema({"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 3, "maxItems": 3})
    replies = [llm.generate("Hello", constraint=constraint, temperature=1, seed=seed, max_tokens=200) for seed in range(3)]
    for reply in replies:
        assert reply.finish_reason == "stop"
        assert len(json.loads(reply.text)) == 3
        assert reply.timings.mask_s > 0
    assert llm.stats().masks == sum(reply.usage.completion for reply in replies)
    with pytest.raises(RequestError, match="constraint is 'json'; expected a Constraint"):
        llm.stream("Hello", constraint="json")
    with pytest.raises(RequestError, match="#/type is"):
        llm.stream("Hello", constraint=Constraint.json_schema({"type": 3}))


@pytest.mark.parametrize("possible", [True, False])
def test_what_is_warm_is_not_done_again(llm: LLM, monkeypatch: pytest.MonkeyPatch, *, possible: bool) -> None:
    if not possible:
        monkeypatch.setitem(sys.modules, "llguidance", None)
    llm.warm_up()
    assert llm.stats().steps == 1
    if possible:
        monkeypatch.setattr("tensorsharp.text.constraints.TokenTrie", None)
        assert llm.generate("Hi", constraint=Constraint.choice(["a"])).text == "a"


def test_logits_and_tokens(llm: LLM) -> None:
    ids = llm.tokenize("the cat")
    assert llm.detokenize(ids) == "the cat"
    assert np.array_equal(llm.logits(ids), MODEL.expected_logits(ids))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"temprature": 1}, "'temprature' is not a parameter; expected one of max_tokens, temperature"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": "hot"}, "temperature is 'hot'; expected a number"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": 2.5}, "top_k is 2.5; expected a whole number"),
        ({"seed": "7"}, "seed is '7'; expected a whole number or None"),
        ({"logit_bias": {"a": 1}}, "logit_bias is"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids is"),
        ({"stop": ["a", ""]}, "stop is"),
        ({"stop": 3}, "stop is 3; expected a tuple of strings"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        sampling_params(params)


def test_a_parameter_that_is_misspelt_is_named_rightly() -> None:
    with pytest.raises(RequestError) as caught:
        sampling_params({"temprature": 1})
    assert caught.value.hint == "Did you mean 'temperature'?"


def test_one_stop_string_or_several() -> None:
    assert sampling_params({"stop": "ab"}).stop == ("ab",)
    assert sampling_params({"stop": ["a", "b"], "stop_token_ids": [3]}).stop_token_ids == (3,)


def test_the_report(llm: LLM, path: Path) -> None:
    llm.generate("Hello", max_tokens=2)
    report = llm.report()
    assert report.pop("load_s") > 0
    assert report == {
        "model": str(path),
        "architecture": "fakeling",
        "context": 600,
        "backend": "fake",
        "device": "nowhere",
        "threads": 3,
        "arithmetic_id": "fake/1",
        "bitwise": {"holds": False, "reason": "only a fake, of F32"},
        "facts": {"made of": "hashes"},
        "fallbacks": {},
    }


def test_progress_and_the_default_context(path: Path) -> None:
    told: list[tuple[str, float]] = []
    with load(path, backend="fake", threads=7, progress=lambda stage, done: told.append((stage, done))) as llm:
        assert llm.engine.limit == 8192
        assert llm.backend.threads == 7
    assert told == [(stage, done) for stage in ("open", "weights", "tokenizer") for done in (0.0, 1.0)]
    llm.close()


def refused(path: Path, **arguments: Any) -> Callable[[], LLM]:
    return lambda: load(path, **{"backend": "fake", **arguments})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kv_type": "q4"}, ConfigError, "kv_type is 'q4'; expected one of f16, bf16, f32"),
        ({"parallel": 0}, ConfigError, "parallel is 0"),
        ({"ctx_size": 9001}, ConfigError, "ctx_size is 9001; expected 2 to 9000"),
        ({"ctx_size": 1}, ConfigError, "ctx_size is 1"),
        ({"backend": "absent"}, PluginError, "absent"),
        ({"backend_options": {"free": "15"}}, CapacityError, "the weights need 16 bytes; 15 are available on nowhere"),
        ({"backend_options": {"free": "1000"}}, CapacityError, "context of 8,192 tokens needs 32,768 bytes; 984 are available"),
        ({"backend_options": {"fail": "weights"}}, BackendError, "no weights"),
        ({"backend_options": {"fail": "state"}}, BackendError, "no state"),
        ({"backend_options": {"fail": "runner"}}, BackendError, "no runner"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_leaves_nothing_open(
    path: Path, arguments: dict[str, Any], error: type[TensorSharpError], words: str
) -> None:
    with pytest.raises(error, match=words):
        refused(path, **arguments)()


def test_a_file_that_nobody_serves(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="unheard"):
        load(write_file(tmp_path / "x.gguf", architecture="unheard"), backend="fake")


def test_a_broken_tokenizer_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"'tokenizer\.ggml\.model' is 'unheard'"):
        load(write_file(tmp_path / "x.gguf", {"tokenizer.ggml.model": "unheard"}), backend="fake")
    (tmp_path / "y.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=r"y\.gguf"):
        load(tmp_path / "y.gguf", backend="fake")


def test_a_pool_shrinks_to_the_memory_that_there_is(path: Path) -> None:
    with load(path, backend="fake", ctx_size=320, parallel=8, backend_options={"free": str(16 + 12 * 32 * 4)}) as llm:
        assert llm.stats().blocks == {None: (0, 12)}


@pytest.mark.parametrize(("host", "blocks"), [(1 << 40, 12), (1 << 41, 15)], ids=["shared", "its own"])
def test_memory_for_what_leaves_the_blocks_is_not_planned_with(
    path: Path, host: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorsharp.starting.host_memory", lambda: (host, host))
    free = {"free": str(16 + 15 * 32 * 4)}
    with load(path, backend="fake", ctx_size=320, parallel=8, kv_ram=3 * 32 * 4, backend_options=free) as llm:
        assert llm.stats().blocks == {None: (0, blocks)}


def test_hook_plugins_are_told(path: Path, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorsharp.hooks import hookimpl

    told: list[tuple[object, ...]] = []

    class Listener:
        @hookimpl
        def on_model_loaded(self, path: str, backend: str) -> None:
            told.append(("loaded", path, backend))

        @hookimpl
        def on_model_unloaded(self, path: str) -> None:
            told.append(("unloaded", path))

        @hookimpl
        def on_request_start(self, request: Any) -> None:
            told.append(("start", request.prompt_ids))

        @hookimpl
        def on_request_end(self, request: Any, finished: Any) -> None:
            told.append(("end", request.prompt_ids, finished.reason, finished.usage.completion))
            raise ValueError("a hook's own fault")

    here = types.ModuleType("llm_hooks")
    here.__dict__.update(Listener=Listener)
    monkeypatch.setitem(sys.modules, "llm_hooks", here)
    site.plugin("hook", "listener", "llm_hook_spec", "target='llm_hooks:Listener', api=(1, 0), summary='For tests.'")
    with load(path, backend="fake", ctx_size=600) as llm:
        ids = tuple(llm.tokenize("ab"))
        assert len(llm.generate("ab", raw=True, max_tokens=3).token_ids) == 3
    assert told[0] == ("loaded", str(path), "fake")
    assert told[1:] == [("start", ids), ("end", ids, "length", 3)], "a hook that raised is switched off, and fails no request"


def test_a_second_turn_reads_only_what_is_new(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Tell me something that is long enough for a few blocks."}]
    reply = llm.chat(messages, max_tokens=40, temperature=0, ignore_eos=True)
    assert reply.usage.cached == 0
    line = [*llm.tokenize_chat(messages), *reply.token_ids, *llm.tokenize(" And then?", bos=False)]
    second = llm.engine.submit(GenerationRequest(tuple(line), SamplingParams(max_tokens=10, temperature=0)))
    assert [e.token for e in second] == expected(line, 10)
    known = len(line) - len(llm.tokenize(" And then?", bos=False)) - 1
    assert second.result().usage.cached == known


def test_options_of_a_request_are_no_sampling_parameters(llm: LLM) -> None:
    text = "x" * 100
    scopes = ("a", "b", "a", None)
    given = [llm.generate(text, raw=True, max_tokens=3, cache_scope=s, priority=1, timeout_s=60.0) for s in scopes]
    assert [r.usage.cached for r in given] == [0, 0, 99, 0]
    with pytest.raises(RequestError, match="timeout_s is -1"):
        llm.generate(text, timeout_s=-1)


def test_the_same_tokens_of_another_configuration_have_other_keys(path: Path) -> None:
    def key(**arguments: Any) -> bytes:
        with load(path, backend="fake", **arguments) as llm:
            chain = llm.engine._core.scheduler.prefixes.chain()
            chain.cover(np.zeros(32, np.int32), 32)
            return chain.links[0].key

    keys = [key(), key(kv_type="f32"), key()]
    assert keys[0] == keys[2] != keys[1]
