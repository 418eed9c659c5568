"""Several replies to one prompt: all or none, with seeds that follow each other."""

from __future__ import annotations

from typing import Any

import pytest

from tensorsharp.choices import choices
from tensorsharp.errors import CapacityError, RequestError


class Started:
    def __init__(self, **params: Any) -> None:
        self.params = params
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def test_choice_i_has_the_seed_plus_i() -> None:
    made = choices(Started, 3, seed=7, max_tokens=2, id="a")
    assert [one.params for one in made] == [
        {"seed": 7, "max_tokens": 2, "id": "a"},
        {"seed": 8, "max_tokens": 2, "id": "a-1"},
        {"seed": 9, "max_tokens": 2, "id": "a-2"},
    ]
    assert [one.params["seed"] for one in choices(Started, 2, seed=2**63 - 1)] == [2**63 - 1, 0]


def test_without_a_seed_one_is_drawn_for_all() -> None:
    first, second = (choices(Started, 2) for _ in range(2))
    for made in (first, second):
        assert made[1].params["seed"] == (made[0].params["seed"] + 1) % 2**63
        assert "id" not in made[0].params
    assert first[0].params["seed"] != second[0].params["seed"]


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
def test_a_number_that_is_none(count: Any) -> None:
    with pytest.raises(RequestError, match="The number of choices is"):
        choices(Started, count)


def test_all_are_begun_or_none() -> None:
    begun: list[Started] = []

    def start(**params: Any) -> Started:
        if len(begun) == 2:
            raise CapacityError("full")
        begun.append(Started(**params))
        return begun[-1]

    with pytest.raises(CapacityError, match="full"):
        choices(start, 3, seed=1)
    assert [one.cancelled for one in begun] == [True, True]
