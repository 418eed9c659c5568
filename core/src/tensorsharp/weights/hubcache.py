"""The Hugging Face cache on this machine, which other programs share: what it holds, and how a file gets into it.

`models--USER--REPO` holds `blobs` by hash, `snapshots/COMMIT` with links to them under the files' names, and `refs/main` with
the commit that was seen last. Source: huggingface_hub's guide "Understand caching".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tensorsharp.atomic import write_text
from tensorsharp.errors import ConfigError, DownloadError
from tensorsharp.weights.entry import Entry, entry
from tensorsharp.weights.variants import Variant, variants

_NAME = re.compile(
    r"(?:(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/)?(?P<repo>(?P<user>[\w.-]+)/(?P<name>[\w.-]+))/?(?::(?P<quant>.+))?",
    re.ASCII,
)
_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FOLDER = "models--"


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository on the hub, and perhaps one quantisation (or file) of it."""

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def hub_name(text: str) -> HubName | None:
    """What `user/repo[:QUANT]` names, with or without hf.co/ before it; None if the text is nothing of the kind."""
    match = _NAME.fullmatch(text)
    if match is None or (text.lower().endswith(".gguf") and match["quant"] is None):
        return None
    parts = (match["user"], match["name"])
    if any(part[0] in ".-" or part[-1] in ".-" or "--" in part or ".." in part for part in parts) or len(match["repo"]) > 96:
        return None
    return HubName(match["repo"], match["quant"])


class HubCache:
    """One cache folder. It may not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def repository(self, repo: str) -> Path:
        return self.folder / (_FOLDER + repo.replace("/", "--"))

    def entries(self, *, projector: bool = True) -> list[Entry]:
        """All complete models, by name."""
        repos = [path.name.removeprefix(_FOLDER).replace("--", "/") for path in self.folder.glob(f"{_FOLDER}*--*")]
        found = [one for repo in repos for one in self.models(repo, projector=projector)]
        return sorted(found, key=lambda one: one.name)

    def models(self, repo: str, *, projector: bool = True) -> list[Entry]:
        """The complete models of one repository, each from the newest snapshot that has it."""
        return [one for _, one in self.variants(repo, projector=projector)]

    def variants(self, repo: str, *, projector: bool = True) -> list[tuple[Variant, Entry]]:
        """:meth:`models`, each with what its files' names say."""
        found: dict[str, tuple[Variant, Entry]] = {}
        for snapshot in self._snapshots(repo):
            names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf") if path.is_file()]
            for one in variants(names):
                beside = snapshot / one.projector if projector and one.projector else None
                paths = [snapshot / name for name in one.files]
                with suppress(OSError):  # deleted meanwhile
                    name = str(HubName(repo, one.label))
                    found.setdefault(one.label, (one, entry(name, one.quant, paths, beside, _digest(paths[0]))))
        return list(found.values())

    def _snapshots(self, repo: str) -> Iterator[Path]:
        """The one that the hub showed last, then the others, the newest first."""
        folder = self.repository(repo) / "snapshots"
        current = None
        with suppress(OSError, UnicodeDecodeError):
            current = (self.repository(repo) / "refs" / "main").read_text(encoding="ascii").strip()
        with suppress(OSError):
            yield from sorted(folder.iterdir(), key=lambda path: (path.name != current, -path.stat().st_mtime))

    # what a download leaves ----------------------------------------------------------------------------------------

    def blob(self, repo: str, digest: str) -> Path:
        """Where the content with this hash belongs."""
        if not _HASH.fullmatch(digest):
            raise DownloadError(f"The hub calls a file of {repo} {digest!r}; expected a SHA-1 or SHA-256.")
        return self.repository(repo) / "blobs" / digest

    def lock(self, repo: str, digest: str) -> Path:
        """The file that is locked while this content is downloaded."""
        return self.folder / ".locks" / self.repository(repo).name / f"{digest}.lock"

    def pointer(self, repo: str, commit: str, name: str) -> Path:
        """Where a commit's file is found by its name. DownloadError for a name or commit that leads elsewhere."""
        parts = PurePosixPath(name).parts
        if not parts or not _HASH.fullmatch(commit) or any(part in ("/", "..") or set(part) & {"\\", ":"} for part in parts):
            raise DownloadError(f"The hub names a file of {repo} {name!r}, at {commit!r}; that cannot be kept.")
        return self.repository(repo).joinpath("snapshots", commit, *parts)

    def publish(self, blob: Path, pointer: Path) -> None:
        """Let the name lead to the content. Where there are no links the content moves there: never a second copy."""
        pointer.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            pointer.unlink()
        try:
            pointer.symlink_to(os.path.relpath(blob, pointer.parent))
        except OSError:
            os.replace(blob, pointer)

    def seen(self, repo: str, commit: str) -> None:
        """Note that main is at this commit."""
        write_text(self.repository(repo) / "refs" / "main", commit)


def cache_folder() -> Path:
    """Where huggingface_hub keeps its cache: HF_HUB_CACHE, else HF_HOME, else its own place."""
    hub_package()
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def hub_package() -> None:
    """ConfigError with what to install, if huggingface_hub is not there."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Models by name need huggingface_hub, which is not installed; expected it, or the path of a .gguf file.",
            hint="pip install 'tensorsharp-core[hub]'",
        ) from error


def _digest(path: Path) -> str | None:
    """The hash that names the blob behind a name; only the first step, because blobs may be links themselves."""
    try:
        name = Path(os.readlink(path)).name
    except OSError:
        return None
    return name if len(name) == 64 and _HASH.fullmatch(name) else None
