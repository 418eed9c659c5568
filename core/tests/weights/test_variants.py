"""What file names tell: quantisations, parts, projectors, and which model is meant."""

from __future__ import annotations

import pytest

from tensorsharp.errors import ModelNotFoundError
from tensorsharp.weights.variants import choose, family, quantisation, variants


@pytest.mark.parametrize(
    ("name", "quant"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("gemma-3-4b-it-q4_0.gguf", "Q4_0"),
        ("Qwen3-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("UD-IQ1_S/DeepSeek-R1-UD-IQ1_S-00001-of-00003.gguf", "UD-IQ1_S"),
        ("BF16/model-00001-of-00002.gguf", "BF16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("model.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("mistral-7b.fp16.gguf", "F16"),
        ("model-Q8_0-v2.gguf", "Q8_0"),
        ("tq2q4.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_is_read_from_the_name(name: str, quant: str | None) -> None:
    assert quantisation(name) == quant


def test_quantisations_of_one_model_are_of_one_family() -> None:
    names = ["Qwen3-8B-Q4_K_M.gguf", "Qwen3-8B-UD-Q4_K_XL.gguf", "x/qwen3-8b-bf16-00001-of-00002.gguf", "Qwen3-8B.gguf"]
    assert {family(name) for name in names} == {"qwen3-8b"}


def test_parts_belong_together_and_incomplete_models_are_left_out() -> None:
    found = variants(
        [
            "m-Q8_0-00002-of-00002.gguf",
            "m-Q8_0-00001-of-00002.gguf",
            "m-Q6_K-00001-of-00003.gguf",
            "m-Q6_K-00003-of-00003.gguf",
            "m-Q4_0.gguf",
            "m-Q4_0-imatrix.gguf",
            "README.md",
        ]
    )
    assert [(one.label, one.files) for one in found] == [
        ("Q4_0", ("m-Q4_0.gguf",)),
        ("Q8_0", ("m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf")),
    ]


def test_labels_are_unique() -> None:
    found = variants(["a-Q4_0.gguf", "b-Q4_0.gguf", "c.gguf"])
    assert [(one.label, one.quant) for one in found] == [("Q4_0", "Q4_0"), ("b-Q4_0", "Q4_0"), ("c", None)]


def test_a_projector_comes_with_every_model_of_its_folder() -> None:
    names = ["m-Q4_0.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf", "small/m-Q2_K.gguf", "small/mmproj-Q8_0.gguf", "z/m-Q8_0.gguf"]
    assert {one.label: one.projector for one in variants(names)} == {
        "Q4_0": "mmproj-F16.gguf",
        "Q2_K": "small/mmproj-Q8_0.gguf",
        "Q8_0": "mmproj-F16.gguf",
    }


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["m-BF16.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"], "Q4_K_M"),
        (["m-BF16.gguf", "m-Q2_K.gguf", "m-Q8_0.gguf"], "Q8_0"),
        (["m-Q3_K_S.gguf", "m-Q2_K.gguf"], "Q2_K"),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_0.gguf"], "UD-Q4_K_XL"),
        (["b.gguf", "a.gguf"], "a"),
    ],
)
def test_what_is_taken_where_nothing_is_asked_for(names: list[str], chosen: str) -> None:
    assert choose(variants(names), None, "it").label == chosen


@pytest.mark.parametrize(
    ("asked", "stem"),
    [
        ("q4_0", "a-Q4_0"),
        ("b-q4_0", "b-Q4_0"),
        ("b-Q4_0.gguf", "b-Q4_0"),
        ("Q2_K_XL", "sub/a-UD-Q2_K_XL"),
        ("UD-Q2_K_XL", "sub/a-UD-Q2_K_XL"),
        ("a-UD-Q2_K_XL", "sub/a-UD-Q2_K_XL"),
        ("sub/a-UD-Q2_K_XL.gguf", "sub/a-UD-Q2_K_XL"),
    ],
)
def test_a_model_is_asked_for_by_quantisation_or_file(asked: str, stem: str) -> None:
    found = variants(["a-Q4_0.gguf", "b-Q4_0.gguf", "sub/a-UD-Q2_K_XL.gguf"])
    assert choose(found, asked, "it").stem == stem


def test_what_there_is_not_is_told_with_what_there_is() -> None:
    with pytest.raises(ModelNotFoundError, match=r"^user/repo has no 'Q4_K_N'\.$") as caught:
        choose(variants(["m-Q4_K_M.gguf", "m-Q8_0.gguf"]), "Q4_K_N", "user/repo")
    assert caught.value.hint == "Did you mean 'Q4_K_M'? It has Q4_K_M, Q8_0."
    with pytest.raises(ModelNotFoundError, match=r"^user/repo holds no complete \.gguf model\.$"):
        choose([], None, "user/repo")
