"""Downloads into the Hugging Face cache, from a hub on this machine that can misbehave."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorsharp.errors import CapacityError, ConfigError, DownloadError, ModelNotFoundError
from tensorsharp.testing.fakehub import FakeHub, fake_hub
from tensorsharp.weights.hub import Hub
from tensorsharp.weights.hubcache import HubName, hub_name

CHUNK = 1000
BIG = random.Random(1).randbytes(10 * CHUNK)
REPO = "user/Tiny-GGUF"
MAIN = HubName(REPO)
FILES = {
    "README.md": b"# Tiny",
    "tiny-Q4_K_M.gguf": BIG,
    "tiny-Q8_0-00001-of-00002.gguf": b"GGUF first",
    "tiny-Q8_0-00002-of-00002.gguf": b"GGUF second",
    "mmproj-F16.gguf": b"GGUF eyes",
}


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", CHUNK)
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with fake_hub({REPO: FILES}) as hub:
        yield hub


@pytest.fixture
def hub(remote: FakeHub, tmp_path: Path) -> Hub:
    return Hub(cache=tmp_path / "hub", endpoint=remote.url)


def offline(hub: Hub) -> Hub:
    return Hub(cache=hub.cache.folder, endpoint="http://127.0.0.1:1", offline=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("user/repo", HubName("user/repo")),
        ("user/repo:Q4_0", HubName("user/repo", "Q4_0")),
        ("hf.co/user/repo:sub/file.gguf", HubName("user/repo", "sub/file.gguf")),
        ("https://huggingface.co/user/repo/", HubName("user/repo")),
        ("repo", None),
        ("a/b/c", None),
        ("folder/model.gguf", None),
        ("../repo", None),
        ("user/..", None),
        ("us--er/repo", None),
        ("user/", None),
        ("/user/repo", None),
        ("user/repo:", None),
        ("üser/repo", None),
        (f"user/{'x' * 92}", None),
    ],
)
def test_names(text: str, name: HubName | None) -> None:
    assert hub_name(text) == name


def test_a_model_is_downloaded_once_and_told_while_it_comes(hub: Hub, remote: FakeHub) -> None:
    told: list[tuple[str, int, int]] = []
    model = hub.get(MAIN, lambda *progress: told.append(progress))
    assert (model.name, model.quant, model.size) == (f"{REPO}:Q4_K_M", "Q4_K_M", len(BIG) + len(FILES["mmproj-F16.gguf"]))
    assert model.path.read_bytes() == BIG
    assert model.projector is not None
    assert model.projector.read_bytes() == FILES["mmproj-F16.gguf"]
    assert told[:12] == [("tiny-Q4_K_M.gguf", done, len(BIG)) for done in range(0, len(BIG) + 1, CHUNK)] + [
        ("mmproj-F16.gguf", 0, 9)
    ]
    before = len(remote.requests)
    assert hub.get(MAIN) == hub.get(HubName(REPO, "q4_k_m")) == offline(hub).get(MAIN) == model
    assert len(remote.requests) == before


def test_parts_follow_and_the_projector_stays_away_if_told(hub: Hub) -> None:
    model = hub.get(HubName(REPO, "Q8_0"), projector=False)
    assert [path.read_bytes() for path in model.paths] == [b"GGUF first", b"GGUF second"]
    assert (model.path, model.projector) == (model.paths[0], None)


def test_other_programs_find_what_was_downloaded(hub: Hub) -> None:
    """huggingface_hub is the oracle of its own cache: it finds each file and no fault, and content is there once."""
    from huggingface_hub import hf_hub_download, scan_cache_dir

    model = hub.get(MAIN)
    found = hf_hub_download(REPO, "tiny-Q4_K_M.gguf", cache_dir=hub.cache.folder, local_files_only=True)
    assert Path(found) == model.path
    scan = scan_cache_dir(hub.cache.folder)
    assert (scan.warnings, scan.size_on_disk, len(scan.repos)) == ([], model.size, 1)
    held = [path for path in hub.cache.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in held if "blobs" in path.parts) == model.size


def test_what_other_programs_downloaded_is_found(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import hf_hub_download

    path = hf_hub_download(REPO, "tiny-Q4_K_M.gguf", cache_dir=hub.cache.folder, endpoint=remote.url)
    before = len(remote.transfers())
    assert str(hub.get(MAIN).path) == path
    assert hub.pull(MAIN, projector=False).digest == Path(path).resolve().name
    assert len(remote.transfers()) == before


def test_an_interrupted_download_goes_on_where_it_ended(hub: Hub, remote: FakeHub) -> None:
    def interrupt(file: str, done: int, total: int) -> None:
        if done == 3 * CHUNK:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.get(MAIN, interrupt)
    assert hub.entries() == []
    told: list[int] = []
    model = hub.get(MAIN, lambda file, done, total: told.append(done), projector=False)
    assert model.path.read_bytes() == BIG
    (kept,) = {int(wanted[6:-1]) for _, wanted in remote.transfers() if wanted}
    assert 2 * CHUNK <= kept <= 3 * CHUNK  # what was told but not yet written is lost
    assert told[0] == kept
    assert not list(hub.cache.folder.rglob("*.incomplete"))


def test_a_dropped_connection_is_taken_up_again(hub: Hub, remote: FakeHub) -> None:
    remote.drop_after = 4 * CHUNK
    assert hub.get(MAIN).path.read_bytes() == BIG
    assert [wanted for file, wanted in remote.transfers() if file == "tiny-Q4_K_M.gguf"] == [None, f"bytes={4 * CHUNK}-"]


def test_a_server_that_cannot_resume_sends_all_again(hub: Hub, remote: FakeHub) -> None:
    remote.drop_after, remote.ignore_range = 4 * CHUNK, True
    assert hub.get(MAIN).path.read_bytes() == BIG


def test_content_with_another_hash_is_not_kept(hub: Hub, remote: FakeHub) -> None:
    remote.corrupt = True
    with pytest.raises(DownloadError, match=r"tiny-Q4_K_M\.gguf arrived with another hash than the hub promised"):
        hub.get(MAIN)
    assert hub.entries() == []
    remote.corrupt = False
    assert hub.get(MAIN).path.read_bytes() == BIG


def test_a_newer_version_is_pulled_and_the_same_one_is_not(hub: Hub, remote: FakeHub) -> None:
    old = hub.pull(MAIN)
    before = len(remote.transfers())
    assert hub.pull(MAIN) == old
    assert len(remote.transfers()) == before
    remote.repos[REPO]["tiny-Q4_K_M.gguf"] = b"GGUF new"
    assert hub.get(MAIN) == old
    new = hub.pull(MAIN)
    assert (new.path.read_bytes(), hub.get(MAIN)) == (b"GGUF new", new)
    assert [file for file, _ in remote.transfers()[before:]] == ["tiny-Q4_K_M.gguf"]


def test_files_other_than_large_ones_have_git_hashes(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorsharp.testing.fakehub.LARGE", ())
    assert hub.get(MAIN).path.read_bytes() == BIG
    assert hub.get(MAIN).digest is None
    remote.corrupt = True
    with pytest.raises(DownloadError, match="another hash"):
        hub.get(HubName(REPO, "Q8_0"))


def test_two_threads_download_once(hub: Hub, remote: FakeHub) -> None:
    threads = [threading.Thread(target=hub.pull, args=(MAIN,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file for file, _ in remote.transfers()) == ["mmproj-F16.gguf", "tiny-Q4_K_M.gguf"]


def test_without_links_content_is_there_once(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    model = hub.get(MAIN)
    assert model.path.read_bytes() == BIG
    assert not list((hub.cache.repository(REPO) / "blobs").iterdir())
    before = len(remote.transfers())
    assert hub.pull(MAIN) == model
    assert len(remote.transfers()) == before


# what is refused ------------------------------------------------------------------------------------------------------


def test_a_repository_that_is_not_there(hub: Hub) -> None:
    hub.get(MAIN)
    with pytest.raises(ModelNotFoundError, match=r"^The hub has no repository user/Tiny-GGFU, or not for everybody\.$") as caught:
        hub.get(HubName("user/Tiny-GGFU"))
    assert caught.value.hint == f"Did you mean '{REPO}'?"
    with pytest.raises(ModelNotFoundError) as caught:
        hub.get(HubName("somebody/else"))
    assert caught.value.hint is not None
    assert "for a private one set HF_TOKEN" in caught.value.hint


def test_a_quantisation_that_is_not_there(hub: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match=rf"^{REPO} has no 'Q4_K_L'\.$") as caught:
        hub.get(HubName(REPO, "Q4_K_L"))
    assert caught.value.hint == "Did you mean 'Q4_K_M'? It has Q4_K_M, Q8_0."


def test_a_token_opens_private_repositories(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.private[REPO] = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelNotFoundError, match="or not for everybody"):
        hub.get(MAIN)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hub.get(MAIN).path.read_bytes() == BIG


def test_a_gated_repository(hub: Hub, remote: FakeHub) -> None:
    remote.gated.add(REPO)
    with pytest.raises(DownloadError, match="only for those who accepted its terms") as caught:
        hub.get(MAIN)
    assert caught.value.hint == f"Accept them at {remote.url}/{REPO} and set HF_TOKEN to a token of yours."


def test_a_hub_that_fails_or_is_not_there(hub: Hub, remote: FakeHub, tmp_path: Path) -> None:
    remote.broken = True
    with pytest.raises(DownloadError, match=rf"^{remote.url} answered 500 for {REPO}\.$"):
        hub.get(MAIN)
    with pytest.raises(DownloadError, match=r"^http://127\.0\.0\.1:1 cannot be reached for user/Tiny-GGUF: "):
        Hub(cache=tmp_path / "hub", endpoint="http://127.0.0.1:1").get(MAIN)


def test_offline_nothing_is_asked(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFoundError, match=r"^The cache has no model of user/Tiny-GGUF\. Nothing is downloaded offline\.$"):
        offline(hub).get(MAIN)
    with pytest.raises(DownloadError, match="cannot be downloaded offline"):
        offline(hub).pull(MAIN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotFoundError, match="Nothing is downloaded offline"):
        Hub(cache=hub.cache.folder, endpoint=remote.url).get(MAIN)
    assert remote.requests == []


def test_a_full_disk_is_told_before_the_download(hub: Hub, remote: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 10008})())
    with pytest.raises(CapacityError, match=r"^10,009 bytes are to be downloaded; 10,008 are free in "):
        hub.get(MAIN)
    assert remote.transfers() == []
    assert hub.get(MAIN, projector=False).size == 10_000


def test_a_cache_that_cannot_be_written(remote: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"cannot be kept in .*file/hub: Not a directory\.$"):
        Hub(cache=tmp_path / "file" / "hub", endpoint=remote.url).get(MAIN)


@pytest.mark.parametrize("name", ["../../evil.gguf", "/evil.gguf", "a\\..\\evil.gguf", "c:evil.gguf"])
def test_a_name_that_leads_out_of_the_cache(hub: Hub, remote: FakeHub, name: str) -> None:
    remote.repos["user/evil"] = {name: b"GGUF evil"}
    with pytest.raises(DownloadError, match="that cannot be kept"):
        hub.get(HubName("user/evil"))


def test_the_package_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="Models by name need huggingface_hub") as caught:
        Hub()
    assert caught.value.hint == "pip install 'tensorsharp-core[hub]'"


# the cache ------------------------------------------------------------------------------------------------------------


def test_entries_and_removal(hub: Hub, remote: FakeHub) -> None:
    remote.repos["other/One"] = {"one.gguf": b"GGUF one", "config.json": b"{}"}
    eight, four = hub.get(HubName(REPO, "Q8_0")), hub.get(HubName(REPO, "Q4_K_M"))
    one = hub.get(HubName("other/One"))
    assert [entry.name for entry in hub.entries()] == ["other/One:one", f"{REPO}:Q4_K_M", f"{REPO}:Q8_0"]
    assert hub.remove(HubName(REPO, "Q4_K_M")) == len(BIG)
    assert [entry.name for entry in hub.entries()] == ["other/One:one", f"{REPO}:Q8_0"]
    assert not four.path.exists()
    assert eight.projector is not None
    assert eight.projector.exists()
    assert hub.remove(HubName(REPO, "Q8_0")) == eight.size
    assert not hub.cache.repository(REPO).exists()
    with pytest.raises(ModelNotFoundError, match=f"^The cache has no model of {REPO}"):
        hub.remove(MAIN)
    assert one.path.exists()


def test_removal_takes_all_versions_and_leaves_what_is_no_model(hub: Hub, remote: FakeHub) -> None:
    from huggingface_hub import hf_hub_download

    hub.pull(MAIN, projector=False)
    remote.repos[REPO]["tiny-Q4_K_M.gguf"] = b"GGUF new"
    hub.pull(MAIN, projector=False)
    readme = hf_hub_download(REPO, "README.md", cache_dir=hub.cache.folder, endpoint=remote.url)
    assert hub.remove(MAIN) == len(BIG) + len(b"GGUF new")
    assert hub.entries() == []
    assert Path(readme).read_bytes() == FILES["README.md"]


def test_settings_of_the_environment(tmp_path: Path) -> None:
    code = "from tensorsharp.weights.hub import Hub; hub = Hub(); print(hub.cache.folder, hub.endpoint, hub.offline)"

    def told(**environment: str) -> str:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        done = subprocess.run([sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert told(HF_HOME="/a", HF_ENDPOINT="http://h/") == f"{Path('/a/hub')} http://h False"
    assert told(HF_HOME="/a", HF_HUB_CACHE="/b", HF_HUB_OFFLINE="1") == f"{Path('/b')} https://huggingface.co True"
