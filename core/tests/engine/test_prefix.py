from __future__ import annotations

import gc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.engine.prefix import Chain, Prefixes, common


def chain(prefixes: Prefixes, ids: list[int], scope: str | None = None) -> Chain:
    made = prefixes.chain(scope)
    made.cover(np.array(ids, np.int32), len(ids))
    return made


def test_the_same_tokens_have_the_same_links_and_partial_blocks_have_none() -> None:
    prefixes = Prefixes(4)
    a, b = chain(prefixes, list(range(11))), chain(prefixes, list(range(8)))
    assert len(a.links) == 2
    assert all(x is y for x, y in zip(a.links, b.links, strict=True))


def test_a_link_stands_for_everything_before_it() -> None:
    prefixes = Prefixes(4)
    a, b = chain(prefixes, [1, 2, 3, 4, 5, 6, 7, 8]), chain(prefixes, [9, 2, 3, 4, 5, 6, 7, 8])
    assert common(a.links, b.links) == 0
    assert a.links[1] is not b.links[1]


def test_a_chain_grows_with_what_is_known() -> None:
    prefixes = Prefixes(4)
    ids = np.arange(12, dtype=np.int32)
    grown = prefixes.chain()
    for length in (3, 4, 9, 9, 12):
        grown.cover(ids, length)
        assert len(grown.links) == length // 4
    assert grown.links == chain(prefixes, list(range(12))).links


def test_scopes_share_nothing() -> None:
    prefixes = Prefixes(4)
    found = [chain(prefixes, [1, 2, 3, 4], scope).links[0] for scope in (None, "", "a", "b")]
    assert len({link.key for link in found}) == 4


def test_the_identity_is_part_of_every_key() -> None:
    keys = [chain(Prefixes(4, identity), [1, 2, 3, 4]).links[0].key for identity in ("", "model/f16", "model/f32")]
    assert len(set(keys)) == 3


@given(
    lines=st.lists(st.lists(st.integers(0, 1), max_size=20), min_size=2, max_size=12),
    bits=st.integers(0, 3),
)
def test_equal_keys_of_different_prefixes_are_never_confused(lines: list[list[int]], bits: int) -> None:
    """With a hash of 0 to 3 bits nearly every key is taken twice."""
    prefixes = Prefixes(2, hash=lambda data: bytes([sum(data) % (1 << bits)]))
    chains = [chain(prefixes, line) for line in lines]
    for a, one in zip(chains, lines, strict=True):
        for b, other in zip(chains, lines, strict=True):
            shared = common(a.links, b.links)
            assert one[: 2 * shared] == other[: 2 * shared]
    for a, one in zip(chains, lines, strict=True):
        for number, link in enumerate(a.links):
            assert link.tokens == np.array(one[2 * number : 2 * number + 2], np.int32).tobytes()
            assert number == 0 or link.parent is a.links[number - 1]


def test_links_that_nobody_holds_are_gone() -> None:
    prefixes = Prefixes(4)
    long = chain(prefixes, list(range(4000)))
    last = long.links[-1]
    assert len(prefixes) == 1001
    del long
    gc.collect()
    assert len(prefixes) == 1001, "the last link stands for all before it"
    del last
    gc.collect()
    assert len(prefixes) == 0


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_how_much_two_chains_have_in_common(shared: int, a: int, b: int) -> None:
    prefixes = Prefixes(1)
    one, two = chain(prefixes, [7] * shared + [1] * a), chain(prefixes, [7] * shared + [2] * b)
    assert common(one.links, two.links) == shared
