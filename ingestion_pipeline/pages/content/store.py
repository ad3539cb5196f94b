"""The content store: compressed bodies in files named by their SHA-256."""

import ctypes
import errno
import hashlib
import heapq
import math
import os
import re
import struct
import sys
import time
import zlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from threading import local
from typing import cast
from uuid import uuid4

from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.tasks.errors import FATAL_ERRNOS, Fatal, Permanent, Transient

# A file where a folder should be, or a limit on file sizes, would fail every object. An object
# that alone cannot be read (EACCES, EISDIR, EIO) fails its poll, not the run.
_BROKEN_STORE = FATAL_ERRNOS | {errno.EEXIST, errno.ENOTDIR, errno.EFBIG}


@contextmanager
def storage_errors_fatal() -> Generator[None]:
    """Make errors of the disk (full, read-only, no folder) fatal: no source is at fault."""
    try:
        yield
    except OSError as error:
        if error.errno not in _BROKEN_STORE:
            raise
        raise Fatal(f"the content store does not work: {error}", code="storage") from error


_FRAME_MAGIC = bytes.fromhex("28b52ffd")  # RFC 8878, 3.1.1
_LARGEST = 1 << 30  # nothing larger is ever stored; a damaged header may claim it
# A file of several bodies starts with the hash and length of each, in a frame that zstd skips
# (RFC 8878, 3.1.2). The bodies are one frame, since the forms of a page share most words.
_INDEX = struct.Struct("<II")
_INDEX_MAGIC = 0x184D2A50
_ENTRY = struct.Struct("<32sQ")

Named = tuple[str, bytes]  # a body, after its hash


def packed_index(group: Sequence[Named]) -> bytes:
    """Return the index that precedes the frame of these bodies."""
    entries = [_ENTRY.pack(bytes.fromhex(name), len(body)) for name, body in group]
    return _INDEX.pack(_INDEX_MAGIC, len(entries) * _ENTRY.size) + b"".join(entries)


def bodies_in(stored: bytes, names: Collection[str]) -> Iterator[bytes]:
    """Yield the bodies of a file that may be among `names`, up to where it is damaged."""
    try:
        if stored.startswith(_FRAME_MAGIC):
            yield from _frames(stored)
        elif stored.startswith(_INDEX_MAGIC.to_bytes(4, "little")):
            yield from _indexed(stored, names)
        else:  # written by the first releases
            yield zlib.decompress(stored)
    except (zlib.error, zstd.ZstdError, struct.error):
        return


def _frames(stored: bytes) -> Iterator[bytes]:
    while stored and _frame_bytes(stored) <= _LARGEST:
        frame = zstd.ZstdDecompressor()
        yield frame.decompress(stored)
        stored = frame.unused_data


def _frame_bytes(frame: bytes) -> float:
    size = cast("int | None", zstd.get_frame_info(frame).decompressed_size)  # the stub omits None
    return math.inf if size is None else size


def _indexed(stored: bytes, names: Collection[str]) -> Iterator[bytes]:
    """Yield the requested bodies, unpacking no further than the last of them."""
    _, size = _INDEX.unpack_from(stored)
    first = _INDEX.size + size
    places: list[slice] = []
    start = 0
    for digest, length in _ENTRY.iter_unpack(stored[_INDEX.size : first]):
        if digest.hex() in names:
            places.append(slice(start, start + length))
        start += length
    frame = stored[first:]
    if places and start <= _LARGEST and start == _frame_bytes(frame):
        unpacked = zstd.ZstdDecompressor().decompress(frame, places[-1].stop)
        yield from (unpacked[place] for place in places)


# From this number on, one call for the file system is cheaper than one for each file: with 250
# files on ext4 a tenth of CPU and waiting time, since the journal is written once.
MANY = 16
_REPORTS_ERRORS = (5, 8)  # before this Linux `syncfs` did not report failed writes

Sync = Callable[[Iterable[str]], None]
"""Returns when these files or folders are on disk; raises `OSError` if they cannot be."""


def sync_each(paths: Iterable[str]) -> None:
    """Sync one after the other, files and folders alike."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_file_system(root: Path, _: Iterable[str]) -> None:
    """Sync the whole file system of `root`, and so everything below it."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc().syncfs(handle) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(root))
    finally:
        os.close(handle)


@cache
def can_sync_file_system() -> bool:
    """Return whether this system has a `syncfs` that reports failures."""
    if sys.platform != "linux" or not hasattr(_libc(), "syncfs"):
        return False
    release = re.match(r"([0-9]+)\.([0-9]+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= _REPORTS_ERRORS


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


_NAME = re.compile(r"[0-9a-f]{64}")
_LEVEL = 1  # of zstd: real pages shrink to 23 %; level 3 takes half again as long for one more
# The folder where objects are written first. On ext4 creating a file takes ten times as long in a
# folder not just used; moving it there costs nothing. `prune` covers this folder, too.
_NEW = "in"
_NO_HARD_LINK = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Written = tuple[str, list[str]]  # where objects were written, and the places where they belong


class ContentStore:
    """A folder of compressed bodies, for its owner alone; many processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A prefix unique to this instance: no other process opens its temporary files.
        self._mark = uuid4().hex
        self._numbers = count()
        self._threads = local()

    def put(self, body: bytes, *, fsync: bool = True) -> str:
        """Write the body to disk; return the SHA-256 of the raw body.

        What can be made again may be written without `fsync`: after a power cut `get` may miss it.
        """
        return self.put_many([body], fsync=fsync)[0]

    def put_many(self, bodies: Iterable[bytes], *, fsync: bool = True) -> list[str]:
        """Write the bodies as `put` does and return their hashes: all of them, or raise.

        The disk is synced once for all files and once for their names: a tenth of the time of as
        many `put`. A call that raises leaves no partial object, and may leave whole ones.
        """
        groups = self.put_together(([body] for body in bodies), fsync=fsync)
        return [name for (name,) in groups]

    def put_together(self, groups: Iterable[Sequence[bytes | Named]], *, fsync: bool = True) -> list[list[str]]:
        """Write groups of bodies, where a group holds the forms of one page, in one file.

        The file has a name for each of them: creating a file is expensive, a further name is not. It takes space until
        the last name is deleted. A caller that has hashed a body already passes the hash with it.
        """
        names: list[list[str]] = []
        written: list[Written] = []
        taken: set[str] = set()
        try:
            for group in groups:
                named = [_named(body) for body in group]
                names.append([name for name, _ in named])
                if new := self._new_ones(named, taken):
                    written.append(self._write(new))
            is_many = len(written) >= MANY and can_sync_file_system()
            sync = partial(sync_file_system, self._root) if is_many else sync_each
            _move_into_place(written, sync if fsync else None)
        except BaseException:
            for temporary, _ in written:
                with suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108 - Path objects were a fifth of a put
            raise
        return names

    def get(self, content_hash: str) -> bytes:
        """Return the body; a damaged object is moved aside, so that a `put` can replace it."""
        return self.get_together([content_hash])[0]

    def get_together(self, names: Sequence[str]) -> list[bytes]:
        """Return the bodies in this order; those that share a file are read at once."""
        bodies: dict[str, bytes] = {}
        for name in names:
            if name not in bodies:
                self._look_for(name, names, bodies)
        return [bodies[name] for name in names]

    def _look_for(self, name: str, others: Sequence[str], bodies: dict[str, bytes]) -> None:
        """Add the body to `bodies`, and the others of its file, of which no more is unpacked than needed for them."""
        path = self._path(name)
        try:
            stored = _read(path)
        except FileNotFoundError as error:
            raise Transient(
                f"no content {name} under {self._root}; fetch the page again", code="content_missing"
            ) from error
        for body in bodies_in(stored, others):
            digest = hashlib.sha256(body).hexdigest()
            if digest in others:
                bodies[digest] = body
            if all(other in bodies for other in others):
                return
        if name not in bodies:
            Path(path).replace(f"{path}.damaged")
            raise Transient(
                f"content {path} was damaged and is moved aside; fetch the page again", code="content_damaged"
            )

    def find(self, content_hash: str) -> bytes | None:
        """Return the body, None where it is missing or damaged; nothing is moved aside."""
        try:
            stored = _read(self._path(content_hash))
        except OSError:
            return None
        bodies = bodies_in(stored, [content_hash])
        return next((body for body in bodies if _named(body)[0] == content_hash), None)

    def damaged(self, *, at_most: int) -> tuple[list[str], int]:
        """Return the objects damaged or moved aside among the newest `at_most`, and how many those were."""
        newest: list[tuple[float, str]] = []
        for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(FileNotFoundError):  # a sweep was quicker
                newest.append((path.lstat().st_mtime, path.parent.name + path.name))
        names = [name for _, name in heapq.nlargest(at_most, newest)]
        return [name for name in names if not _NAME.fullmatch(name) or self.find(name) is None], len(names)

    def has(self, content_hash: str) -> bool:
        """Return whether the object exists, damaged or not: nothing is read."""
        named = _NAME.fullmatch(content_hash) is not None
        return named and os.path.isfile(self._path(content_hash))  # noqa: PTH113

    def prune(self, referenced: Collection[str | None], *, older_than_seconds: float, dry_run: bool = False) -> int:
        """Delete objects that are not `referenced` and older; return how many files there were.

        The age protects what a run has just stored and not yet written to the database; storing the
        same body again renews it.
        """
        before = time.time() - older_than_seconds
        deleted = 0
        for path in self._root.glob("??/*"):
            name = path.parent.name + path.name
            with suppress(FileNotFoundError):  # another sweep was quicker
                if name not in referenced and path.lstat().st_mtime < before:
                    if not dry_run:
                        path.unlink()
                    deleted += 1
        return deleted

    def _new_ones(self, group: Sequence[Named], taken: set[str]) -> list[Named]:
        """Return the bodies that are neither on disk nor in `taken`, and add them to it."""
        new: list[Named] = []
        for name, body in group:
            if name not in taken and not _touch(self._path(name)):
                new.append((name, body))
            taken.add(name)
        return new

    def _write(self, group: Sequence[Named]) -> Written:
        """Write one temporary file, not yet synced or moved into place.

        Joined and compressed one by one: reusing memory just freed is cheap, and new memory costs
        half as much as the compression.
        """
        frame = self._compressor().compress(b"".join([body for _, body in group]), zstd.ZstdCompressor.FLUSH_FRAME)
        data = frame if len(group) == 1 else packed_index(group) + frame
        temporary = f"{self._root}/{_NEW}/.{self._mark}-{next(self._numbers)}.tmp"
        try:
            _write_new(temporary, data)
        except FileNotFoundError:  # the first object of all
            _private_folder(self._root / _NEW)
            _write_new(temporary, data)
        return temporary, [self._path(name) for name, _ in group]

    def _compressor(self) -> zstd.ZstdCompressor:
        """Return this thread's compressor: one call at a time, and as costly to make as half a page."""
        compressor: zstd.ZstdCompressor | None = getattr(self._threads, "compressor", None)
        if compressor is None:
            compressor = self._threads.compressor = zstd.ZstdCompressor(level=_LEVEL)
        return compressor

    def _path(self, content_hash: str) -> str:
        if not _NAME.fullmatch(content_hash):
            raise Permanent(f"{content_hash[:80]!r} is not a content hash (64 hexadecimal digits)", code="content_name")
        return f"{self._root}/{content_hash[:2]}/{content_hash[2:]}"


def _named(body: bytes | Named) -> Named:
    return body if isinstance(body, tuple) else (hashlib.sha256(body).hexdigest(), body)


def _touch(path: str) -> bool:
    """Return whether the object exists; renew its age, so that `prune` keeps it for a while."""
    if not os.access(path, os.F_OK):  # most do not exist: a check costs less than an error
        return False
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    file = Path(path)
    return file.is_file() and not file.is_symlink()


def _write_new(temporary: str, data: bytes) -> None:
    handle = os.open(temporary, _NEW_FILE, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
    finally:
        os.close(handle)


def _move_into_place(written: Sequence[Written], sync: Sync | None) -> None:
    """Sync the files, give them their names and sync those; without `sync` do not wait."""
    if sync is not None:
        sync([temporary for temporary, _ in written])
    for temporary, (*others, path) in written:
        for other in others:
            _in_its_folder(_link, temporary, other)
        _in_its_folder(os.replace, temporary, path)
    if sync is not None:
        sync({os.path.dirname(path) for _, paths in written for path in paths})  # noqa: PTH120


def _in_its_folder(put: Callable[[str, str], None], temporary: str, path: str) -> None:
    try:
        put(temporary, path)
    except FileNotFoundError:  # the first object of its folder
        _private_folder(Path(path).parent)
        put(temporary, path)


def _link(temporary: str, path: str) -> None:
    """Give the file one more name, or a copy where that is impossible; replace what has it."""
    try:
        os.link(temporary, path)
    except FileNotFoundError:
        raise
    except OSError as error:  # the name is taken, or the file system has no hard links
        if not isinstance(error, FileExistsError) and error.errno not in _NO_HARD_LINK:
            raise
        second = f"{temporary}.2"
        _write_new(second, _read(temporary))
        try:
            sync_each([second])
            os.replace(second, path)  # noqa: PTH105
        except BaseException:
            os.unlink(second)  # noqa: PTH108
            raise


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return b""  # a symbolic link is not ours: treat it as damaged
        raise
    with os.fdopen(handle, "rb") as file:
        return file.read()


def _private_folder(path: Path) -> None:
    if not path.is_dir():
        _private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
