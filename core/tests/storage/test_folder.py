"""A folder of entries: its limits, what it finds again, what it deletes, and several processes in it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorsharp.errors import ConfigError
from tensorsharp.storage.entry import Entry, Head, pack
from tensorsharp.storage.folder import SUFFIX, TEMPORARY, EntryFolder


def entry(name: str, size: int = 100, tokens: bytes = b"tokens") -> Entry:
    """One whose file has `size` bytes, different for every name."""
    empty = Entry(Head(name, b"parent", tokens), b"")
    return Entry(empty.head, (name.encode() * size)[: size - empty.nbytes])


def write(folder: EntryFolder, name: str, size: int = 100) -> bool:
    done = folder.write(name, entry(name, size))
    folder.check()
    return done


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def used(path: Path, name: str, when: int) -> None:
    """Say that an entry was used last so many nanoseconds after the epoch."""
    os.utime(path / f"{name}{SUFFIX}", ns=(when, when))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path)
    assert write(folder, "a")
    assert folder.read("a", entry("a").head) == entry("a").payload
    assert folder.head("a") == entry("a").head
    assert "a" in folder
    assert folder.read("b", entry("b").head) is None
    assert folder.head("b") is None
    assert (folder.deleted, folder.failed, folder.nbytes) == (0, 0, 100)
    folder.drop("a")
    assert (len(folder), folder.nbytes, on_disk(tmp_path)) == (0, 0, 0)


def test_the_limit_holds_to_the_byte(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path, limit=300)
    assert all(write(folder, name) for name in "abc")
    assert (folder.nbytes, folder.evicted) == (300, 0)
    assert folder.read("a", entry("a").head) is not None
    assert write(folder, "d", 101)
    assert folder.names() == ["a", "d"], "b and c are the longest unused, and one of them is not enough"
    assert write(folder, "e", 300)
    assert (folder.names(), on_disk(tmp_path)) == (["e"], 300)
    assert not write(folder, "f", 301)
    assert (folder.names(), folder.refused) == (["e"], 1)


def test_what_is_replaced_counts_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = []
    replace = os.replace

    def watched(source: Path, target: Path) -> None:
        most.append(on_disk(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    folder = EntryFolder(tmp_path, limit=350)
    for name in "abaacab":
        assert write(folder, name, 120)
    assert max(most) <= 350
    assert folder.nbytes == on_disk(tmp_path) <= 350


@settings(max_examples=40, deadline=None)
@given(work=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(60, 260), st.booleans()), max_size=30))
def test_the_newest_is_kept_within_the_limit(work: list[tuple[str, int, bool]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("folder")
    folder = EntryFolder(path, limit=500)
    sizes: dict[str, int] = {}
    for name, size, drop in work:
        if drop:
            folder.drop(name)
            continue
        assert write(folder, name, size)
        sizes[name] = size
        assert folder.read(name, entry(name).head) == entry(name, size).payload
        assert folder.nbytes == on_disk(path) <= 500
    again = EntryFolder(path, limit=500)
    assert set(again.names()) == set(folder.names())
    for name in again.names():
        assert again.read(name, entry(name).head) == entry(name, sizes[name]).payload


def test_it_is_indexed_again_in_order_of_use(tmp_path: Path) -> None:
    first = EntryFolder(tmp_path)
    for when, name in enumerate("abcd"):
        write(first, name)
        used(tmp_path, name, when + 1)
    first.touch("b")
    again = EntryFolder(tmp_path, limit=399)
    assert again.names() == ["c", "d", "b"]
    assert (again.evicted, again.nbytes) == (1, 300)
    again.check()


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: b"",
        lambda data: b"somebody else's file",
        lambda data: data[:8] + b"\x02" + data[9:],
    ],
    ids=["torn", "longer", "empty", "foreign", "another version"],
)
def test_what_is_no_entry_is_deleted_at_the_start(tmp_path: Path, harm: Any) -> None:
    for name in "ab":
        write(EntryFolder(tmp_path), name)
    path = tmp_path / f"a{SUFFIX}"
    path.write_bytes(harm(path.read_bytes()))
    folder = EntryFolder(tmp_path)
    assert (folder.deleted, folder.names(), path.exists()) == (1, ["b"], False)


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_a_flipped_byte_is_noticed_when_it_is_read(tmp_path: Path, place: int) -> None:
    folder = EntryFolder(tmp_path)
    write(folder, "a")
    path = tmp_path / f"a{SUFFIX}"
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)
    assert folder.read("a", entry("a").head) is None
    assert (folder.deleted, "a" in folder, path.exists()) == (1, False, False)
    folder.check()


def test_an_entry_under_another_name_is_deleted(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path)
    write(folder, "a")
    (tmp_path / f"a{SUFFIX}").rename(tmp_path / f"b{SUFFIX}")
    again = EntryFolder(tmp_path)
    assert again.read("b", entry("b").head) is None
    assert (again.deleted, again.names()) == (1, [])


def test_other_tokens_with_the_same_key_are_a_miss(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path)
    write(folder, "a")
    assert folder.read("a", entry("a", tokens=b"others").head) is None
    assert folder.read("a", Head("a", b"other parent", b"tokens")) is None
    assert (folder.deleted, folder.read("a", entry("a").head)) == (0, entry("a").payload)


def test_leftovers_are_deleted_and_other_files_are_not(tmp_path: Path) -> None:
    (tmp_path / f"1234{TEMPORARY}").write_bytes(pack(entry("a"))[:50])
    (tmp_path / "notes.txt").write_bytes(b"mine")
    (tmp_path / f"folder{SUFFIX}").mkdir()
    folder = EntryFolder(tmp_path, limit=100)
    assert (folder.leftovers, folder.deleted, len(folder)) == (1, 0, 0)
    write(folder, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a{SUFFIX}", f"folder{SUFFIX}", "notes.txt"]


def test_a_temporary_file_that_another_start_deletes_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = EntryFolder(tmp_path)
    replace = os.replace
    starts = []

    def disturbed(source: Path, target: Path) -> None:
        if not starts:
            starts.append(EntryFolder(tmp_path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", disturbed)
    assert write(folder, "a")
    assert starts[0].leftovers == 1
    assert folder.read("a", entry("a").head) == entry("a").payload


@pytest.mark.parametrize("coarse", [False, True], ids=["", "in one step of the clock of files"])
def test_two_share_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, coarse: bool) -> None:
    replace, tick = os.replace, time.time_ns()

    def in_one_step(source: Path, target: Path) -> None:
        replace(source, target)
        os.utime(tmp_path, ns=(tick, tick))

    if coarse:
        monkeypatch.setattr(os, "replace", in_one_step)
    one, two = (EntryFolder(tmp_path, limit=300) for _ in range(2))
    for number in range(12):
        write((one, two)[number % 2], f"n{number}")
        assert on_disk(tmp_path) <= 300
    assert two.read("n11", entry("n11").head) is not None
    assert one.read("n1", entry("n1").head) is None, "the other one gave it up"
    assert one.failed == two.failed == one.deleted == two.deleted == 0


def test_threads_share_the_limit(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path, limit=1000)
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(40):
                name = f"t{(number + i) % 9}"
                folder.write(name, entry(name, 90))
                assert folder.read(name, entry(name).head) in (None, entry(name, 90).payload)
                folder.check()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert on_disk(tmp_path) == folder.nbytes <= 1000


def test_a_full_disk_is_counted_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = EntryFolder(tmp_path)

    def full(self: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    for round in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            assert not any(write(folder, name) for name in "ab")
        assert (folder.failed, folder.nbytes, len(folder)) == (2 * round, 0, 0)
        assert [record.getMessage().split(": ")[-1] for record in caplog.records] == ["No space left on device"] * round
        assert write(folder, "a")
        folder.drop("a")


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file: the folder for cached state cannot be used"):
        EntryFolder(tmp_path / "file")


def test_books_that_do_not_balance_are_noticed(tmp_path: Path) -> None:
    folder = EntryFolder(tmp_path, limit=300)
    write(folder, "a")
    folder.nbytes = 99
    with pytest.raises(RuntimeError, match="100 bytes are kept, 99 are counted"):
        folder.check()
    folder.nbytes, folder.limit = 100, 99
    with pytest.raises(RuntimeError, match="99 are allowed"):
        folder.check()
    folder.limit, folder.entries = None, 0
    with pytest.raises(RuntimeError, match="1 entries are kept"):
        folder.check()
