"""What is changed in a generated request, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz.bodies import quick


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"n": 128, "max_tokens": 10**30, "seed": 999}, {"n": 2, "max_tokens": 8, "seed": 999}),
        ({"options": {"num_predict": 50, "top_k": 50}}, {"options": {"num_predict": 8, "top_k": 50}}),
        ({"n": 1, "num_predict": -2, "max_tokens": 0.5}, {"n": 1, "num_predict": -2, "max_tokens": 0.5}),
        ({"n": "128", "max_tokens": True, "options": [900]}, {"n": "128", "max_tokens": True, "options": [900]}),
        ({"model": "x", "name": "y"}, {"model": "tiny", "name": "tiny"}),
        ({"model": "", "name": 7}, {"model": "", "name": 7}),
    ],
)
def test_large_counts_are_cut_and_a_text_becomes_the_name_of_the_model(body: dict[str, Any], sent: dict[str, Any]) -> None:
    assert quick(body, "tiny") == sent


@pytest.mark.parametrize("body", [None, [128], "n", 7, b"n"])
def test_what_is_no_object_stays(body: Any) -> None:
    assert quick(body, "tiny") is body
