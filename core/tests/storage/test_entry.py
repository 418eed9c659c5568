"""The entry format: what was packed comes back, and nothing else is taken for an entry."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.storage.entry import MAGIC, Entry, Head, pack, read_head, unpack

HEADS = st.builds(Head, st.text("ab\u00e9-", max_size=20), st.binary(max_size=16), st.binary(max_size=64))
ENTRIES = st.builds(Entry, HEADS, st.binary(max_size=200))
ONE = Entry(Head("key", b"parent", b"tokens"), b"payload")


@given(ENTRIES)
def test_what_was_packed_comes_back(entry: Entry) -> None:
    data = pack(entry)
    assert unpack(data) == entry
    assert len(data) == entry.nbytes
    assert read_head(io.BytesIO(data), len(data)) == entry.head


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: pack(ONE)[:12] + tail))
def test_other_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)


@given(ENTRIES, st.data())
def test_a_changed_entry_is_none(entry: Entry, data: st.DataObject) -> None:
    packed = bytearray(pack(entry))
    place = data.draw(st.integers(0, len(packed) - 1))
    packed[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError):
        unpack(bytes(packed))


def test_a_torn_or_longer_entry_is_none() -> None:
    data = pack(ONE)
    for wrong in [data[:n] for n in range(len(data))] + [data + b"\x00", data + data]:
        with pytest.raises(ValueError):
            unpack(wrong)
        with pytest.raises(ValueError):
            read_head(io.BytesIO(wrong), len(wrong))


def test_a_file_that_lies_about_its_size_is_not_read_into_memory() -> None:
    header = bytearray(pack(ONE)[:32])
    header[12:16] = b"\xff\xff\xff\x7f"
    with pytest.raises(ValueError, match="not what its header says"):
        read_head(io.BytesIO(bytes(header)), len(header))
    with pytest.raises(ValueError, match="ends before"):
        read_head(io.BytesIO(pack(ONE)[:40]), len(pack(ONE)))
    with pytest.raises(ValueError, match="does not begin"):
        unpack(pack(ONE).replace(MAGIC, b"TSENTRY\x1b"))
