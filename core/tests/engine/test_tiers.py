"""Host memory and files below the pools: limits, promotion, and what is written when."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorsharp.engine.background import Background
from tensorsharp.engine.ramtier import RamTier
from tensorsharp.engine.ssdtier import SsdTier
from tensorsharp.engine.tiers import Tiers
from tensorsharp.storage.entry import Entry, Head
from tensorsharp.storage.folder import EntryFolder


def entry(key: str, size: int = 100) -> Entry:
    """One that counts as `size` bytes."""
    empty = Entry(Head(key, b"parent", b"tokens"), b"")
    return Entry(empty.head, (key.encode() * size)[: size - empty.nbytes])


class Rig:
    """Both tiers, and a gate in front of the background's jobs that is open until `hold`."""

    def __init__(self, path: Path, *, ram: int | None = 300, ssd: int | None = 500, queue: int = 10_000) -> None:
        self.background = Background(queue)
        self.gate = threading.Event()
        self.gate.set()
        self.folder = EntryFolder(path, limit=ssd) if ssd is not None else None
        self.tiers = Tiers(
            None if ram is None else RamTier(ram), None if self.folder is None else SsdTier(self.folder, self.background)
        )

    def hold(self) -> None:
        """Let the background stand still until the gate is opened."""
        self.gate.clear()
        self.background.submit(0, lambda: self.gate.wait(20))

    def put(self, *keys: str, size: int = 100) -> None:
        for key in keys:
            self.tiers.put(entry(key, size))
        self.tiers.check()

    def names(self) -> list[str]:
        self.background.flush()
        self.tiers.check()
        return [] if self.folder is None else self.folder.names()


def test_what_memory_gives_up_is_written(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put("a", "b", "c")
    assert rig.names() == []
    rig.put("d", "e")
    assert rig.names() == ["a", "b"]
    assert all(key in rig.tiers for key in "abcde")
    stats = rig.tiers.stats()
    assert (stats["ram"].entries, stats["ram"].nbytes, stats["ram"].evicted) == (3, 300, 2)
    assert (stats["ssd"].entries, stats["ssd"].nbytes) == (2, 200)


def test_what_is_found_in_a_file_is_kept_in_memory_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.put("a", "b", "c", "d")
    rig.background.flush()
    assert rig.tiers.get(entry("a").head) == entry("a").payload
    assert rig.names() == ["a", "b"], "b had to make room for it in memory"
    assert rig.tiers.get(entry("a").head) == entry("a").payload
    assert [rig.tiers.stats()[name].hits for name in ("ram", "ssd")] == [1, 1]
    assert rig.tiers.get(entry("z").head) is None


def test_what_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=100)
    rig.put("a", "b")
    rig.background.flush()
    written = (tmp_path / "a.tskv").stat().st_ino
    rig.tiers.get(entry("a").head)
    rig.put("c")
    assert set(rig.names()) == {"a", "b"}
    assert (tmp_path / "a.tskv").stat().st_ino == written


def test_other_tokens_are_a_miss(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=100)
    rig.put("a", "b")
    for key in "ab":
        assert rig.tiers.get(Head(key, b"parent", b"others")) is None
        assert rig.tiers.get(Head(key, b"others", b"tokens")) is None
    rig.background.flush()
    assert rig.tiers.get(Head("a", b"parent", b"others")) is None
    assert rig.tiers.get(entry("a").head) is not None


def test_a_full_queue_drops_and_counts_and_never_waits(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=None, queue=250)
    rig.hold()
    rig.put("a", "b", "c", "d")
    assert rig.tiers.stats()["ssd"].dropped == 2
    assert [key in rig.tiers for key in "abcd"] == [True, True, False, False]
    assert rig.tiers.get(entry("a").head) == entry("a").payload, "found on its way"
    rig.gate.set()
    assert rig.names() == ["a", "b"]


def test_a_graceful_end_waits_for_room_and_writes_everything(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=300, queue=100)
    rig.put("a", "b", "c")
    rig.tiers.persist()
    assert rig.names() == ["a", "b", "c"]
    assert rig.tiers.stats()["ssd"].dropped == 0
    rig.background.close()
    rig.background.close()
    assert not rig.background.submit(1, lambda: None)


def test_what_is_dropped_is_gone_wherever_it_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=200)
    rig.put("a", "b", "c")
    rig.background.flush()
    rig.hold()
    rig.put("d")
    for key in "abcd":
        assert key in rig.tiers
        rig.tiers.drop(key)
        assert key not in rig.tiers
    rig.gate.set()
    assert rig.names() == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_dropped_while_it_is_written_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, ram=None)
    assert rig.folder is not None
    write = rig.folder.write

    def write_and_drop(name: str, one: Entry) -> bool:
        done = write(name, one)
        rig.tiers.drop(name)
        return done

    monkeypatch.setattr(rig.folder, "write", write_and_drop)
    rig.put("a")
    assert rig.names() == []


def test_one_that_is_too_large_for_memory_goes_to_the_files(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ram=99, ssd=100)
    rig.put("a")
    assert rig.names() == ["a"]
    assert rig.tiers.get(entry("a").head) == entry("a").payload
    rig.put("large", size=101)
    assert rig.names() == ["a"]
    assert rig.tiers.stats()["ssd"].refused == 1


def test_without_tiers_nothing_is_kept() -> None:
    tiers = Tiers()
    tiers.put(entry("a"))
    tiers.persist()
    tiers.drop("a")
    tiers.check()
    assert "a" not in tiers
    assert not tiers.touch("a")
    assert tiers.get(entry("a").head) is None
    assert tiers.stats() == {}


@given(st.lists(st.tuples(st.sampled_from(["put", "get", "drop", "touch"]), st.sampled_from("abcdef"), st.integers(60, 200))))
def test_memory_keeps_what_was_used_last(work: list[tuple[str, str, int]]) -> None:
    """Against a list of keys in order of use."""
    tier, order = RamTier(300), dict[str, Entry]()
    for what, key, size in work:
        known = order.pop(key, None)
        if what == "put":
            order[key] = entry(key, size)
            while sum(one.nbytes for one in order.values()) > 300:
                del order[next(iter(order))]
            tier.put(order[key])
        elif what == "drop":
            tier.drop(key)
        elif known is not None:
            order[key] = known
            if what == "get":
                assert tier.get(known.head) == known.payload
            else:
                tier.touch(key)
        else:
            assert key not in tier
            assert tier.get(entry(key).head) is None
        assert tier.entries() == list(order.values())
        tier.check()


def test_books_that_do_not_balance_are_noticed() -> None:
    tier = RamTier(200)
    tier.put(entry("a"))
    tier.nbytes = 99
    with pytest.raises(RuntimeError, match="100 bytes are kept, 99 are counted"):
        tier.check()
    background = Background(10)
    background.queued = 3
    with pytest.raises(RuntimeError, match="0 bytes are queued, 3 are counted"):
        background.check()
    background.close()


def test_a_job_that_fails_does_not_keep_others_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    background, done = Background(), []
    background.submit(1, lambda: 1 // 0)
    background.submit(1, lambda: done.append(1))
    background.flush()
    background.check()
    assert done == [1]
    assert "A background job failed" in caplog.text
    background.close()
