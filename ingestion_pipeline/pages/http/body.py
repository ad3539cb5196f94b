"""A body is read raw and inflated by us: every cap holds while it grows, not afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ingestion_pipeline.tasks.errors import Permanent, Transient

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


ACCEPT_ENCODING = ", ".join(INFLATERS)

# Small pages of one repeated row compress better than 1:100; below this size a bomb harms nobody.
_RATIO_FLOOR_BYTES = 262_144
# What servers write where they mean that there is none.
_NO_ENCODING = frozenset({"", "identity", "none", "utf-8", "utf8"})
_MAX_LAYERS = 3  # two were seen (a proxy that compresses twice); more is an attack


class LimitedBody:
    """Gathers the chunks of one answer; `shown_url` is only for the messages."""

    def __init__(
        self, content_encoding: str, *, max_bytes: int, max_ratio: int, shown_url: str
    ) -> None:
        self._layers = _layers(content_encoding, shown_url)
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._shown_url = shown_url
        self._wire_bytes = 0
        self.inflated_bytes = 0
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Take one chunk from the wire; raises at the first byte beyond a cap."""
        self._wire_bytes += len(chunk)
        self.expect(self._wire_bytes)
        try:
            self._unwrap(chunk, self._layers)
        except BadStream as error:
            raise Transient(
                f"{self._shown_url} sent a body that its Content-Encoding does not fit: {error}",
                code="corrupt_body",
            ) from error

    def expect(self, wire_bytes: int) -> None:
        """Refuse at once a body that is announced as too large."""
        if wire_bytes > self._max_bytes:
            raise Permanent(
                f"{self._shown_url} sends more than {self._max_bytes} bytes", code="too_large"
            )

    def whole(self) -> bytes:
        """The inflated body; raises when a compressed stream stopped before its end."""
        if self._wire_bytes and not all(layer.is_complete for layer in self._layers):
            raise Transient(
                f"{self._shown_url} sent a compressed body that stops early", code="truncated"
            )
        return self.so_far()

    def so_far(self) -> bytes:
        """What has been inflated, though more may follow."""
        return b"".join(self._pieces)

    def _unwrap(self, data: bytes, layers: Sequence[_Layer]) -> None:
        if not layers:
            self._pieces.append(data)
            self.inflated_bytes += len(data)
            return
        for piece in layers[0].pieces(data):
            self._check_size(layers[0].size)
            self._unwrap(piece, layers[1:])

    def _check_size(self, size: int) -> None:
        # Asked of every layer: an inner one may swallow what an outer one blows up.
        is_steep = size > max(_RATIO_FLOOR_BYTES, self._max_ratio * self._wire_bytes)
        if is_steep or size > self._max_bytes:
            raise Permanent(
                f"{self._shown_url} inflates {self._wire_bytes} bytes to {size} or more",
                code="decompression_bomb",
            )


class _Layer:
    """One Content-Encoding, and how much it has inflated to."""

    def __init__(self, inflater: Inflater) -> None:
        self._inflater = inflater
        self.size = 0

    @property
    def is_complete(self) -> bool:
        return self._inflater.is_complete

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for piece in self._inflater.pieces(data):
            self.size += len(piece)
            yield piece


def _layers(content_encoding: str, shown_url: str) -> list[_Layer]:
    """Outermost first: the header lists encodings in the order in which they were applied."""
    named = [part.strip().lower().removeprefix("x-") for part in content_encoding.split(",")]
    names = [name for name in named if name not in _NO_ENCODING]
    if len(names) > _MAX_LAYERS or not INFLATERS.keys() >= set(names):
        raise Permanent(
            f"{shown_url} answered with Content-Encoding {content_encoding[:100]!r},"
            f" though only {ACCEPT_ENCODING} was offered",
            code="content_encoding",
        )
    return [_Layer(INFLATERS[name]()) for name in reversed(names)]
