"""What a file of the content store looks like inside: one body, or several behind an index."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import heapq
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
from uuid import uuid4

import zstandard

from ingestion_pipeline.tasks.errors import FATAL_ERRNOS, Fatal, Permanent, Transient

# A file where a folder should be, a limit on the size of files: it would be so for any object. One
# that alone cannot be read (EACCES, EISDIR, EIO) is its poll's trouble, not the run's.
_BROKEN_STORE = FATAL_ERRNOS | {errno.EEXIST, errno.ENOTDIR, errno.EFBIG}


@contextmanager
def storage_errors_fatal() -> Generator[None]:
    """A disk of ours that is full, read-only or no folder is fatal, never a source's fault."""
    try:
        yield
    except OSError as error:
        if error.errno not in _BROKEN_STORE:
            raise
        raise Fatal(f"the content store does not work: {error}", code="storage") from error


_LARGEST = 1 << 30  # nothing larger was ever put; a damaged header may claim it
# What a file of several bodies begins with, in a frame that zstd skips (RFC 8878, 3.1.2): the hash
# and the length of each. They are one frame, since the forms of a page have most words in common.
_INDEX = struct.Struct("<II")
_INDEX_MAGIC = 0x184D2A50
_ENTRY = struct.Struct("<32sQ")

Named = tuple[str, bytes]  # a body, after its hash


def packed_index(group: Sequence[Named]) -> bytes:
    """What stands before the frame of these bodies."""
    entries = [_ENTRY.pack(bytes.fromhex(name), len(body)) for name, body in group]
    return _INDEX.pack(_INDEX_MAGIC, len(entries) * _ENTRY.size) + b"".join(entries)


def bodies_in(stored: bytes, wanted: Collection[str]) -> Iterator[bytes]:
    """What a file holds that may be wanted, up to where it is damaged."""
    try:
        if stored.startswith(zstandard.FRAME_HEADER):
            yield from _frames(stored)
        elif stored.startswith(_INDEX_MAGIC.to_bytes(4, "little")):
            yield from _indexed(stored, wanted)
        else:  # written by the first releases
            yield zlib.decompress(stored)
    except (zlib.error, zstandard.ZstdError, struct.error):
        return


def _frames(stored: bytes) -> Iterator[bytes]:
    unpacker = zstandard.ZstdDecompressor()
    while stored and 0 <= zstandard.frame_content_size(stored) <= _LARGEST:
        frame = unpacker.decompressobj()
        yield frame.decompress(stored)
        stored = frame.unused_data


def _indexed(stored: bytes, wanted: Collection[str]) -> Iterator[bytes]:
    """Unpacked as far as the last one that is wanted."""
    _, size = _INDEX.unpack_from(stored)
    first = _INDEX.size + size
    places: list[slice] = []
    start = 0
    for digest, length in _ENTRY.iter_unpack(stored[_INDEX.size : first]):
        if digest.hex() in wanted:
            places.append(slice(start, start + length))
        start += length
    frame = stored[first:]
    if places and start <= _LARGEST and start == zstandard.frame_content_size(frame):
        with zstandard.ZstdDecompressor().stream_reader(frame) as reader:
            unpacked = reader.read(places[-1].stop)
        yield from (unpacked[place] for place in places)


# From here on one call for the whole file system takes less than one for each file: with 250 files
# on ext4 a tenth of the CPU time and of the time waited, since the journal is written once.
MANY = 16
_REPORTS_ERRORS = (5, 8)  # before this Linux `syncfs` said nothing of a write that failed

Sync = Callable[[Iterable[str]], None]
"""Returns when these files or folders are durable; an `OSError` if they cannot be."""


def sync_each(paths: Iterable[str]) -> None:
    """One after the other: files and folders alike."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sync_all_at_once(root: Path, _: Iterable[str]) -> None:
    """Everything on the file system of `root`, and so all that was written below it."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc().syncfs(handle) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(root))
    finally:
        os.close(handle)


@cache
def can_sync_all_at_once() -> bool:
    """Whether this system has such a call that tells of failures."""
    if sys.platform != "linux" or not hasattr(_libc(), "syncfs"):
        return False
    release = re.match(r"([0-9]+)\.([0-9]+)", os.uname().release)
    return release is not None and (int(release[1]), int(release[2])) >= _REPORTS_ERRORS


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


_NAME = re.compile(r"[0-9a-f]{64}")
_LEVEL = 1  # of zstd: real pages shrink to 23 %; level 3 takes half again as long for one more
# Where objects are written first. ext4 takes ten times as long to make a file in a folder of which
# it has made no other just now; to move one there takes nothing. `prune` looks into it, too.
_NEW = "in"
_ONE_NAME_ALONE = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Written = tuple[str, list[str]]  # where objects were written, and the places where they belong


class ContentStore:
    """A folder of compressed bodies, for its owner alone; many processes may share it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        # A name that no other store writes to, whatever its process: files are opened by it alone.
        self._mark = uuid4().hex
        self._numbers = count()
        self._threads = local()

    def put(self, body: bytes, *, durably: bool = True) -> str:
        """The body is on disk when this returns; the answer is the SHA-256 of the raw body.

        What can be made again need not be written durably: after a power cut `get` may miss it.
        """
        return self.put_many([body], durably=durably)[0]

    def put_many(self, bodies: Iterable[bytes], *, durably: bool = True) -> list[str]:
        """As `put` for each of them, in that order: all of them are there, or the call raises.

        The disk is waited for once all are written, and once more for their names: a tenth of the
        time of so many `put`. A call that raises leaves no half object, and may leave whole ones.
        """
        groups = self.put_together(([body] for body in bodies), durably=durably)
        return [name for (name,) in groups]

    def put_together(
        self, groups: Iterable[Sequence[bytes | Named]], *, durably: bool = True
    ) -> list[list[str]]:
        """As `put_many`, where the bodies of a group are the forms of one page.

        They share a file that has the names of all of them: to make a file is what costs, to name
        it once more is not. It takes its room until the last of them goes. Whoever has hashed a
        body already gives its hash with it.
        """
        names: list[list[str]] = []
        written: list[Written] = []
        taken: set[str] = set()
        try:
            for group in groups:
                named = [_named(one) for one in group]
                names.append([name for name, _ in named])
                if new := self._new_ones(named, taken):
                    written.append(self._write(new))
            _put_in_place(written, self._disk(len(written)) if durably else None)
        except BaseException:
            for temporary, _ in written:
                with suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108 - Path objects were a fifth of a put
            raise
        return names

    def get(self, content_hash: str) -> bytes:
        """The body as it was put; a damaged object is moved aside, so that a `put` can heal it."""
        return self.get_together([content_hash])[0]

    def get_together(self, names: Sequence[str]) -> list[bytes]:
        """As `get` for each of them, in that order; what shares a file is read by one look."""
        found: dict[str, bytes] = {}
        for name in names:
            if name not in found:
                self._look_for(name, names, found)
        return [found[name] for name in names]

    def _look_for(self, name: str, others: Sequence[str], found: dict[str, bytes]) -> None:
        """The body is among `found`, and each of the others that its file holds before it or after.

        No more of the file is unpacked than it takes for all that are wanted.
        """
        path = self._path(name)
        try:
            stored = _read(path)
        except FileNotFoundError as error:
            raise Transient(
                f"no content {name} under {self._root}; fetch the page again",
                code="content_missing",
            ) from error
        for body in bodies_in(stored, others):
            held = hashlib.sha256(body).hexdigest()
            if held in others:
                found[held] = body
            if all(one in found for one in others):
                return
        if name not in found:
            raise _moved_aside(Path(path))

    def find(self, content_hash: str) -> bytes | None:
        """Return the body, None where it is missing or damaged; nothing is moved aside."""
        try:
            stored = _read(self._path(content_hash))
        except OSError:
            return None
        bodies = bodies_in(stored, [content_hash])
        return next((body for body in bodies if _named(body)[0] == content_hash), None)

    def damaged(self, *, at_most: int) -> tuple[list[str], int]:
        """Return the damaged objects among the newest `at_most`, and how many those were.

        Those that were read before, and moved aside, count as well.
        """
        newest: list[tuple[float, str]] = []
        for path in self._root.glob("[0-9a-f][0-9a-f]/*"):
            with suppress(FileNotFoundError):  # a sweep was quicker
                newest.append((path.lstat().st_mtime, path.parent.name + path.name))
        names = [name for _, name in heapq.nlargest(at_most, newest)]
        return [name for name in names if not self._is_whole(name)], len(names)

    def _is_whole(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and self.find(name) is not None

    def has(self, content_hash: str) -> bool:
        """Whether there is such an object, damaged or not: nothing is read."""
        named = _NAME.fullmatch(content_hash) is not None
        return named and os.path.isfile(self._path(content_hash))  # noqa: PTH113

    def prune(
        self, kept: Collection[str | None], *, older_than_seconds: float, dry_run: bool = False
    ) -> int:
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
                    if not dry_run:
                        path.unlink()
                    gone += 1
        return gone

    def _new_ones(self, group: Sequence[Named], taken: set[str]) -> list[Named]:
        """What is not on disk, nor among those that this call has taken; now they are."""
        new: list[Named] = []
        for name, body in group:
            if name not in taken and not _is_made_young(self._path(name)):
                new.append((name, body))
            taken.add(name)
        return new

    def _write(self, group: Sequence[Named]) -> Written:
        """One file, not yet synced nor in its places.

        Put together and compressed one by one: memory that was just let go is at hand, and new
        memory costs half as much as the compression.
        """
        frame = self._compressor().compress(b"".join([body for _, body in group]))
        data = frame if len(group) == 1 else packed_index(group) + frame
        temporary = f"{self._root}/{_NEW}/.{self._mark}-{next(self._numbers)}.tmp"
        try:
            _write_new(temporary, data)
        except FileNotFoundError:  # the first object of all
            _private_folder(self._root / _NEW)
            _write_new(temporary, data)
        return temporary, [self._path(name) for name, _ in group]

    def _disk(self, count: int) -> Sync:
        is_worth_it = count >= MANY and can_sync_all_at_once()
        return partial(sync_all_at_once, self._root) if is_worth_it else sync_each

    def _compressor(self) -> zstandard.ZstdCompressor:
        """This thread's own: one cannot be shared, and to make one takes half as long as a page."""
        found: zstandard.ZstdCompressor | None = getattr(self._threads, "compressor", None)
        if found is None:
            found = self._threads.compressor = zstandard.ZstdCompressor(level=_LEVEL)
        return found

    def _path(self, content_hash: str) -> str:
        if not _NAME.fullmatch(content_hash):
            raise Permanent(
                f"{content_hash[:80]!r} is no content hash: 64 hexadecimal digits are",
                code="content_name",
            )
        return f"{self._root}/{content_hash[:2]}/{content_hash[2:]}"


def _named(one: bytes | Named) -> Named:
    return one if isinstance(one, tuple) else (hashlib.sha256(one).hexdigest(), one)


def _is_made_young(path: str) -> bool:
    """Whether the object is there; then `prune` leaves it alone for a while."""
    if not os.access(path, os.F_OK):  # most are not: an answer costs less than an error
        return False
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    found = Path(path)
    return found.is_file() and not found.is_symlink()


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


def _put_in_place(written: Sequence[Written], sync: Sync | None) -> None:
    """Durable before it has its name, and then its name as well; without `sync` when it comes."""
    if sync is not None:
        sync([temporary for temporary, _ in written])
    for temporary, (*others, path) in written:
        for other in others:
            _in_its_folder(_give_name, temporary, other)
        _in_its_folder(os.replace, temporary, path)
    if sync is not None:
        sync({os.path.dirname(path) for _, paths in written for path in paths})  # noqa: PTH120


def _in_its_folder(put: Callable[[str, str], None], temporary: str, path: str) -> None:
    try:
        put(temporary, path)
    except FileNotFoundError:  # the first object of its folder
        _private_folder(Path(path).parent)
        put(temporary, path)


def _give_name(temporary: str, path: str) -> None:
    """One name more for the file, or for a copy; whatever has that name makes room."""
    try:
        os.link(temporary, path)
    except FileNotFoundError:
        raise
    except OSError as error:  # the name is taken, or the file system gives a file but one
        if not isinstance(error, FileExistsError) and error.errno not in _ONE_NAME_ALONE:
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
            return b""  # a link: not ours, and so damaged
        raise
    with os.fdopen(handle, "rb") as file:
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
