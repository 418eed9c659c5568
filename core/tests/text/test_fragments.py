"""Special tokens are found in llama.cpp's order: by length, not by place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.text.fragments import WHITE_SPACE, Fragment, SpecialTokens

SPECIAL = st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=5, unique=True)


def by_definition(text: str, special: list[str], strips: frozenset[int]) -> list[Fragment]:
    """One token after the other, longest first, cuts what is left of the text from left to right."""
    fragments: list[Fragment] = [text] if text else []
    for token in sorted(range(len(special)), key=lambda token: (-len(special[token]), token)):
        finer: list[Fragment] = []
        for fragment in fragments:
            rest = fragment
            while isinstance(rest, str) and special[token] in rest:
                before, _, rest = rest.partition(special[token])
                finer += [before, token] if before else [token]
                if token in strips:
                    rest = rest.lstrip(WHITE_SPACE)
            if rest != "":
                finer.append(rest)
        fragments = finer
    return fragments


@given(st.text("ab \n", max_size=30), SPECIAL, st.frozensets(st.integers(0, 4)))
def test_cuts_as_defined(text: str, special: list[str], strips: frozenset[int]) -> None:
    tokens = [(content, token) for token, content in enumerate(special)]
    assert SpecialTokens(tokens, strips).split(text) == by_definition(text, special, strips)


def test_length_counts_in_bytes() -> None:
    assert SpecialTokens([("abc", 0), ("céé", 1)]).split("abcéé") == ["ab", 1]


def test_what_is_found_is_not_looked_for_again() -> None:
    """As in vocabularies where runs of line breaks of every length are tokens."""

    class Looked(dict[str, int]):
        times = 0

        def __contains__(self, key: object) -> bool:
            self.times += 1
            return super().__contains__(key)

    tokens = SpecialTokens([("\n" * length, length) for length in range(1, 32)])
    looked = tokens._ids = Looked(tokens._ids)
    assert tokens.split("\n" * 3100) == [31] * 100
    assert looked.times == 31
