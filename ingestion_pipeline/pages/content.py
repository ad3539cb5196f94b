"""Bodies on disk, named by what they hold and never by a URL: the same bytes are kept once."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
import zlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ingestion_pipeline.work.errors import Permanent, Transient

_NAME = re.compile(r"[0-9a-f]{64}")


class ContentStore:
    """A folder of compressed bodies, for its owner alone; many processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, body: bytes, *, durably: bool = True) -> str:
        """The body is on disk when this returns; the answer is the SHA-256 of the raw body.

        What can be made again need not be written durably: after a power cut `get` may miss it.
        """
        content_hash = hashlib.sha256(body).hexdigest()
        path = self._path(content_hash)
        if _is_file(path):
            os.utime(path, follow_symlinks=False)  # young again: `prune` leaves it alone
        else:
            _private_folder(path.parent)
            _write(path, zlib.compress(body), durably=durably)
        return content_hash

    def get(self, content_hash: str) -> bytes:
        """The body as it was put; a damaged object is moved aside, so that a `put` can heal it."""
        path = self._path(content_hash)
        try:
            body = zlib.decompress(_read(path))
        except FileNotFoundError as error:
            raise Transient(
                f"no content {content_hash} under {self._root}; fetch the page again",
                code="content_missing",
            ) from error
        except zlib.error:
            body = None
        if body is None or hashlib.sha256(body).hexdigest() != content_hash:
            raise _moved_aside(path)
        return body

    def prune(self, kept: Collection[str | None], *, older_than_seconds: float) -> int:
        """What is not among `kept` and was written longer ago is gone; how many files that was.

        The age protects what a run has just stored and not yet written down, and a put of the same
        body makes it young again.
        """
        before = time.time() - older_than_seconds
        gone = 0
        for path in self._root.glob("??/*"):
            name = path.parent.name + path.name
            with suppress(FileNotFoundError):  # another sweep was quicker
                if name not in kept and path.lstat().st_mtime < before:
                    path.unlink()
                    gone += 1
        return gone

    def _path(self, content_hash: str) -> Path:
        if not _NAME.fullmatch(content_hash):
            raise Permanent(
                f"{content_hash[:80]!r} is no content hash: 64 hexadecimal digits are",
                code="content_name",
            )
        return self._root / content_hash[:2] / content_hash[2:]


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _read(path: Path) -> bytes:
    if path.is_symlink():
        return b""  # not ours, and so damaged; O_NOFOLLOW stands for the race
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        return file.read()


def _moved_aside(path: Path) -> Transient:
    path.replace(path.with_name(f"{path.name}.damaged"))
    return Transient(
        f"content {path} was damaged and is moved aside; fetch the page again",
        code="content_damaged",
    )


def _private_folder(path: Path) -> None:
    if not path.is_dir():
        _private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def _write(path: Path, data: bytes, *, durably: bool) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durably:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durably:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
