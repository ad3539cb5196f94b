"""Content encodings undone piece by piece: no step gives more than a few megabytes at once."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import zstandard

PIECE_BYTES = 65_536
_MAX_MEMBERS = 1000  # block gzip has one per 64 kB; each costs a copy of the chunk
_ZLIB, _RAW, _GZIP = 15, -15, 31  # zlib's own numbers for the three wrappings
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024  # what RFC 8878 asks receivers to support, and browsers do
# zstandard cannot be told how much to give; four bytes may stand for a block of 128 KiB at the
# most, so that this much input is never more than 4 MiB of output.
_ZSTD_STEP_BYTES = 128
_ZSTD_BUFFER_BYTES = 8192
_FRAME_STARTS = frozenset({0x28, *range(0x50, 0x60)})  # a zstd frame; frames to be skipped


class BadStream(Exception):
    """The bytes are not what the encoding's name says."""


@contextmanager
def _as_bad_stream(kind: type[Exception]) -> Generator[None]:
    try:
        yield
    except kind as error:
        raise BadStream(str(error)) from error


class Inflater(Protocol):
    """One Content-Encoding."""

    @property
    def is_complete(self) -> bool:
        """Whether the stream has come to its own end."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What the data inflate to, in bounded pieces; `BadStream` if they are something else."""
        ...


class _Zlib:
    """gzip of one or more members, or deflate with and without its header."""

    def __init__(self, *, is_gzip: bool) -> None:
        self._is_gzip = is_gzip
        self._inflate = zlib.decompressobj(_GZIP) if is_gzip else None
        self._head = b""
        self._members = 1

    @property
    def is_complete(self) -> bool:
        return self._inflate is not None and self._inflate.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._head += data
            if len(self._head) < 2:  # noqa: PLR2004 - the length of a zlib header
                return
            data, self._inflate = self._head, zlib.decompressobj(_deflate_kind(self._head))
        while data or not self.is_complete:
            if self._inflate.eof:
                if not (self._is_gzip and data.startswith(b"\x1f")):
                    return  # padding after the end, which browsers ignore too
                self._next_member()
            with _as_bad_stream(zlib.error):
                piece = self._inflate.decompress(data, PIECE_BYTES)
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
            if piece:
                yield piece
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(piece) < PIECE_BYTES:
                return

    def _next_member(self) -> None:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} gzip members")
        self._inflate = zlib.decompressobj(_GZIP)


def _deflate_kind(head: bytes) -> int:
    """Servers send `deflate` with and without the zlib header; the header has a checksum."""
    is_wrapped = head[0] & 0x0F == 8 and (head[0] * 256 + head[1]) % 31 == 0  # noqa: PLR2004
    return _ZLIB if is_wrapped else _RAW


class _BrotliDecompressor(Protocol):
    """What we use of brotli's own."""

    def process(self, data: bytes, *, output_buffer_limit: int) -> bytes: ...
    def can_accept_more_data(self) -> bool: ...
    def is_finished(self) -> bool: ...


class _Brotli:
    """One brotli stream; its window is 16 MB at the most, larger ones are refused."""

    def __init__(self) -> None:
        brotli: Any = import_module("brotli")  # untyped; only who is sent such bodies pays
        self._error: type[Exception] = brotli.error
        self._inflate: _BrotliDecompressor = brotli.Decompressor()
        self.is_complete = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while not self.is_complete:
            piece = self._step(data)
            if piece:
                yield piece
            # Until it takes more data it holds output, and wants to be asked with none.
            if self._inflate.can_accept_more_data():
                return
            data = b""

    def _step(self, data: bytes) -> bytes:
        with _as_bad_stream(self._error):
            piece = self._inflate.process(data, output_buffer_limit=PIECE_BYTES)
            self.is_complete = self._inflate.is_finished()
            return piece


class _Zstd:
    """One zstd frame after another."""

    def __init__(self) -> None:
        import zstandard  # only who is sent such bodies pays

        self._error = zstandard.ZstdError
        self._frames = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._count = 0
        self._inflate = self._next_frame()

    @property
    def is_complete(self) -> bool:
        return self._inflate.eof

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_STEP_BYTES):
            rest = data[start : start + _ZSTD_STEP_BYTES]
            while rest:
                if self.is_complete:
                    if rest[0] not in _FRAME_STARTS:
                        return  # padding after the end
                    self._inflate = self._next_frame()
                piece = self._step(rest)
                rest = self._inflate.unused_data
                if piece:
                    yield piece

    def _step(self, data: bytes) -> bytes:
        with _as_bad_stream(self._error):
            return self._inflate.decompress(data)

    def _next_frame(self) -> zstandard.ZstdDecompressionObj:
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} zstd frames")
        return self._frames.decompressobj(write_size=_ZSTD_BUFFER_BYTES)


INFLATERS: dict[str, Callable[[], Inflater]] = {
    "gzip": lambda: _Zlib(is_gzip=True),
    "deflate": lambda: _Zlib(is_gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}
