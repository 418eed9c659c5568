"""Models of the Hugging Face hub, by name: from its cache on this machine, else downloaded into it.

huggingface_hub brings its settings (HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE), its list of files and its
transfers with retries. What it leaves out is here: a download that was interrupted goes on where it ended, and content is
kept only if it has the hash that the hub promised.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorsharp.errors import CapacityError, DownloadError, ModelNotFoundError, did_you_mean
from tensorsharp.weights.entry import Entry
from tensorsharp.weights.hubcache import HubCache, HubName, cache_folder, hub_package
from tensorsharp.weights.variants import choose, variants

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

Progress = Callable[[str, int, int], None]
"""(file, bytes that are there, bytes in all), often, from the thread that downloads; what it raises ends the download."""


class Hub:
    """The hub and its cache. Safe to use from several threads and processes: they wait for each other's downloads.

    offline: nothing is asked of the network. cache, endpoint: instead of huggingface_hub's own. ConfigError if that package
    is missing.
    """

    def __init__(self, *, offline: bool = False, cache: Path | None = None, endpoint: str | None = None) -> None:
        hub_package()
        from huggingface_hub import constants

        self.offline = offline or constants.is_offline_mode()
        self.cache = HubCache(cache or cache_folder())
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")

    def entries(self) -> list[Entry]:
        """The complete models in the cache, by name."""
        return self.cache.entries()

    def find(self, name: HubName, *, projector: bool = True) -> Entry:
        """The model in the cache. Without a quantisation: by the order of :data:`variants.PREFERRED` among what is there.

        ModelNotFoundError lists what there is.
        """
        found = self.cache.variants(name.repo, projector=projector)
        if not found:
            known = {one.name.partition(":")[0] for one in self.entries()}
            hint = (
                did_you_mean(name.repo, known)
                or f"'tensorsharp list' tells what there is; 'tensorsharp pull {name}' downloads it."
            )
            raise ModelNotFoundError(f"The cache has no model of {name.repo}.", hint=hint)
        chosen = choose([variant for variant, _ in found], name.quant, f"The cache of {name.repo}")
        return next(one for variant, one in found if variant is chosen)

    def get(self, name: HubName, progress: Progress | None = None, *, projector: bool = True) -> Entry:
        """The model in the cache, else downloaded: what is here is used without asking for a newer one."""
        try:
            return self.find(name, projector=projector)
        except ModelNotFoundError as missing:
            if self.offline:
                raise ModelNotFoundError(f"{missing} Nothing is downloaded offline.", hint=missing.hint) from None
            return self.pull(name, progress, projector=projector)

    def pull(self, name: HubName, progress: Progress | None = None, *, projector: bool = True) -> Entry:
        """Download what the hub has now, as far as it is not here. projector: with the file for images, if there is one.

        ModelNotFoundError without such a repository or quantisation, DownloadError if the hub cannot be used or sent
        something wrong, CapacityError if the disk has no room. An interrupted download is resumed by the next.
        """
        tell = progress or (lambda file, done, total: None)
        if self.offline:
            raise DownloadError(
                f"{name} cannot be downloaded offline.", hint="Leave out --offline, and do not set HF_HUB_OFFLINE."
            )
        with self._errors(name.repo):
            from huggingface_hub import HfApi

            info = HfApi(endpoint=self.endpoint, library_name="tensorsharp").model_info(name.repo, files_metadata=True)
        files = {file.rfilename: file for file in info.siblings or ()}
        chosen = choose(variants(files), name.quant, name.repo)
        wanted = [*chosen.files, *([chosen.projector] if projector and chosen.projector else [])]
        commit = info.sha or ""
        try:
            self._room(name.repo, [files[file] for file in wanted])
            for file in wanted:
                self._fetch(name.repo, commit, files[file], tell)
            self.cache.seen(name.repo, commit)
        except OSError as error:
            raise DownloadError(f"{name} cannot be kept in {self.cache.folder}: {error.strerror or error}.") from error
        return self.find(HubName(name.repo, chosen.stem), projector=projector)

    def remove(self, name: HubName) -> int:
        """Delete a model from the cache, in all its versions; the bytes that were freed. What others still use stays.

        ModelNotFoundError if it is not there.
        """
        from huggingface_hub import scan_cache_dir

        gone = self.find(name)
        root = self.cache.repository(name.repo) / "snapshots"

        def own_name(path: Path) -> tuple[str, ...]:
            return path.relative_to(root).parts[1:]  # without the commit

        kept = {own_name(path) for one in self.cache.models(name.repo) if one.name != gone.name for path in one.files}
        unwanted = {own_name(path) for path in gone.files} - kept
        scan = scan_cache_dir(self.cache.folder)
        revisions = [revision for repo in scan.repos if repo.repo_id == name.repo for revision in repo.revisions]
        files = [file for one in revisions for file in one.files]
        going = [file for file in files if own_name(file.file_path) in unwanted]
        whole = len(going) == len(files)
        strategy = scan.delete_revisions(*(one.commit_hash for one in revisions)) if whole else scan.delete_files(*going)
        strategy.execute()
        return int(strategy.expected_freed_size)

    # one file ---------------------------------------------------------------------------------------------------------

    def _fetch(self, repo: str, commit: str, file: RepoSibling, tell: Progress) -> None:
        """Have one file in the cache, under its name."""
        from huggingface_hub.utils import WeakFileLock

        digest, size = _promised(file)
        pointer = self.cache.pointer(repo, commit, file.rfilename)
        blob = self.cache.blob(repo, digest)
        lock = self.cache.lock(repo, digest)
        lock.parent.mkdir(parents=True, exist_ok=True)
        blob.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if pointer.is_file() and (blob.is_file() or pointer.stat().st_size == size):
                tell(file.rfilename, size, size)
                return
            if not blob.is_file():
                self._download(repo, commit, file, blob, tell)
            self.cache.publish(blob, pointer)

    def _download(self, repo: str, commit: str, file: RepoSibling, blob: Path, tell: Progress) -> None:
        """Get the content, from where the last attempt ended, and keep it if it is what was promised."""
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers

        digest, size = _promised(file)
        part = blob.with_name(f"{digest}.incomplete")
        if part.exists() and part.stat().st_size > size:
            part.unlink()
        url = hf_hub_url(repo, file.rfilename, revision=commit, endpoint=self.endpoint)
        with part.open("ab") as out, self._errors(repo):
            done = out.tell()
            tell(file.rfilename, done, size)
            if done < size:
                bar = _bar(lambda count: tell(file.rfilename, count, size), done)
                http_get(url, out, resume_size=done, headers=build_hf_headers(library_name="tensorsharp"), tqdm_class=bar)
        if _hash(part, digest) != digest:
            part.unlink()
            raise DownloadError(
                f"{repo}: {file.rfilename} arrived with another hash than the hub promised ({digest}), and is not kept.",
                hint="Try again; if it happens again, something between here and the hub changes what it sends.",
            )
        os.replace(part, blob)

    def _room(self, repo: str, files: list[RepoSibling]) -> None:
        """CapacityError if what is missing does not fit on the disk."""
        missing = 0
        for file in files:
            digest, size = _promised(file)
            blob = self.cache.blob(repo, digest)
            part = blob.with_name(f"{digest}.incomplete")
            missing += 0 if blob.is_file() else size - (part.stat().st_size if part.is_file() else 0)
        self.cache.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.cache.folder).free
        if missing > free:
            raise CapacityError(
                f"{missing:,} bytes are to be downloaded; {free:,} are free in {self.cache.folder}.",
                hint="Free some space, or set HF_HUB_CACHE to a folder elsewhere.",
            )

    @contextmanager
    def _errors(self, repo: str) -> Iterator[None]:
        """What huggingface_hub and the network raise, as sentences."""
        from huggingface_hub import errors, get_session

        transport = import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or its successor
        try:
            yield
        except errors.GatedRepoError as error:
            raise DownloadError(
                f"{repo} is only for those who accepted its terms.",
                hint=f"Accept them at {self.endpoint}/{repo} and set HF_TOKEN to a token of yours.",
            ) from error
        except errors.RepositoryNotFoundError as error:
            near = did_you_mean(repo, {one.name.partition(":")[0] for one in self.entries()})
            raise ModelNotFoundError(
                f"The hub has no repository {repo}, or not for everybody.",
                hint=near or f"Check the name at {self.endpoint}/{repo}; for a private one set HF_TOKEN.",
            ) from error
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            hint = "Check HF_TOKEN." if status in (401, 403) else "Try again later."
            raise DownloadError(f"{self.endpoint} answered {status} for {repo}.", hint=hint) from error
        except errors.OfflineModeIsEnabled as error:
            raise DownloadError(f"{repo} cannot be downloaded offline.", hint="Do not set HF_HUB_OFFLINE.") from error
        except transport.HTTPError as error:
            raise DownloadError(
                f"{self.endpoint} cannot be reached for {repo}: {error or type(error).__name__}.",
                hint="Check the connection, or use what is here with --offline; a download goes on where it ended. If a "
                "file was meant, there is none of this name.",
            ) from error


def _promised(file: RepoSibling) -> tuple[str, int]:
    """(hash, bytes) that the hub tells of a file: SHA-256 of large files, git's SHA-1 of small ones."""
    digest = file.lfs.sha256 if file.lfs else file.blob_id
    if digest is None or file.size is None:
        raise DownloadError(f"The hub does not tell the hash and size of {file.rfilename}.")
    return digest, file.size


def _hash(path: Path, like: str) -> str:
    """The file's hash of the same kind as `like`."""
    with path.open("rb") as content:
        if len(like) == 64:
            return hashlib.file_digest(content, "sha256").hexdigest()
        header = b"blob %d\0" % path.stat().st_size
        return hashlib.sha1(header + content.read(), usedforsecurity=False).hexdigest()


def _bar(tell: Callable[[int], None], done: int) -> Any:
    """A class that http_get takes for a progress bar, and that tells how many bytes are there."""

    class Bar:
        def __init__(self, **_: Any) -> None:
            self.done = done

        def update(self, count: int) -> None:
            self.done += count
            tell(self.done)

        def __enter__(self) -> Bar:
            return self

        def __exit__(self, *_: object) -> None: ...

    return Bar
