"""Reading a response body: inflated by us, so that every limit holds while it grows."""

import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ingestion_pipeline.tasks.errors import Permanent, Transient

if TYPE_CHECKING:
    from ingestion_pipeline.pages.zstd import zstd


CHUNK_BYTES = 65_536
_MAX_MEMBERS = 1000  # block gzip has one per 64 kB; each costs a copy of the chunk
_ZLIB, _RAW, _GZIP = 15, -15, 31  # zlib's own numbers for the three wrappings
_ZSTD_WINDOW_LOG = 23  # 8 MiB: what RFC 8878 asks receivers to support, and browsers do
_FRAME_STARTS = frozenset({0x28, *range(0x50, 0x60)})  # a zstd frame; frames to be skipped


class BadStream(Exception):
    """The bytes do not match their Content-Encoding."""


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
        """Whether the stream has reached its end."""
        ...

    def inflate(self, data: bytes) -> Iterator[bytes]:
        """Yield the inflated data in bounded chunks; raise `BadStream` if they are invalid."""
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

    def inflate(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._head += data
            if len(self._head) < 2:  # noqa: PLR2004 - the length of a zlib header
                return
            # Servers send `deflate` with and without the zlib header.
            is_wrapped = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0  # noqa: PLR2004
            data, self._inflate = self._head, zlib.decompressobj(_ZLIB if is_wrapped else _RAW)
        while data or not self.is_complete:
            if self._inflate.eof:
                if not (self._is_gzip and data.startswith(b"\x1f")):
                    return  # padding after the end, which browsers ignore too
                self._next_member()
            with _as_bad_stream(zlib.error):
                chunk = self._inflate.decompress(data, CHUNK_BYTES)
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
            if chunk:
                yield chunk
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(chunk) < CHUNK_BYTES:
                return

    def _next_member(self) -> None:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} gzip members")
        self._inflate = zlib.decompressobj(_GZIP)


class _BrotliDecompressor(Protocol):
    """The part of brotli's decompressor that we use."""

    def process(self, data: bytes, *, output_buffer_limit: int) -> bytes: ...
    def can_accept_more_data(self) -> bool: ...
    def is_finished(self) -> bool: ...


class _Brotli:
    """One brotli stream; its window is 16 MB at the most, larger ones are refused."""

    def __init__(self) -> None:
        brotli: Any = import_module("brotli")  # untyped; imported only when needed
        self._error: type[Exception] = brotli.error
        self._inflate: _BrotliDecompressor = brotli.Decompressor()
        self.is_complete = False

    def inflate(self, data: bytes) -> Iterator[bytes]:
        while not self.is_complete:
            with _as_bad_stream(self._error):
                chunk = self._inflate.process(data, output_buffer_limit=CHUNK_BYTES)
                self.is_complete = self._inflate.is_finished()
            if chunk:
                yield chunk
            # Until it accepts more data it holds output, which a call without data returns.
            if self._inflate.can_accept_more_data():
                return
            data = b""


class _Zstd:
    """One zstd frame after another."""

    def __init__(self) -> None:
        from ingestion_pipeline.pages.zstd import zstd  # imported only when needed

        self._zstd = zstd
        self._count = 0
        self._inflate = self._next_frame()

    @property
    def is_complete(self) -> bool:
        return self._inflate.eof

    def inflate(self, data: bytes) -> Iterator[bytes]:
        while data or not self._inflate.needs_input:
            if self.is_complete:
                if not data or data[0] not in _FRAME_STARTS:
                    return  # padding after the end
                self._inflate = self._next_frame()
            with _as_bad_stream(self._zstd.ZstdError):
                chunk = self._inflate.decompress(data, CHUNK_BYTES)
            data = self._inflate.unused_data  # empty until the frame ends
            if chunk:
                yield chunk

    def _next_frame(self) -> "zstd.ZstdDecompressor":
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise BadStream(f"more than {_MAX_MEMBERS} zstd frames")
        return self._zstd.ZstdDecompressor(options={self._zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})


INFLATERS: dict[str, Callable[[], Inflater]] = {
    "gzip": lambda: _Zlib(is_gzip=True),
    "deflate": lambda: _Zlib(is_gzip=False),
    "br": _Brotli,
    "zstd": _Zstd,
}


ACCEPT_ENCODING = ", ".join(INFLATERS)

# Small pages of one repeated row compress better than 1:100; a bomb below this size is harmless.
_RATIO_FLOOR_BYTES = 262_144
# Names that servers send for "no encoding".
_NO_ENCODING = frozenset({"", "identity", "none", "utf-8", "utf8"})
_MAX_LAYERS = 3  # two were seen (a proxy that compresses twice); more is an attack


class LimitedBody:
    """Collects the chunks of one response; `shown_url` is only for the messages."""

    def __init__(self, content_encoding: str, *, max_bytes: int, max_ratio: int, shown_url: str) -> None:
        self._layers = _layers(content_encoding, shown_url)
        self._sizes = [0] * len(self._layers)  # what each of them has inflated
        self._max_bytes = max_bytes
        self._max_ratio = max_ratio
        self._shown_url = shown_url
        self._wire_bytes = 0
        self.inflated_bytes = 0
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        """Add one chunk from the wire; raise at the first byte beyond a limit."""
        self._wire_bytes += len(chunk)
        self.expect(self._wire_bytes)
        try:
            self._unwrap(chunk)
        except BadStream as error:
            raise Transient(
                f"{self._shown_url} sent a body that its Content-Encoding does not fit: {error}", code="corrupt_body"
            ) from error

    def expect(self, wire_bytes: int) -> None:
        """Refuse at once a body that is announced as too large."""
        if wire_bytes > self._max_bytes:
            raise Permanent(f"{self._shown_url} sends more than {self._max_bytes} bytes", code="too_large")

    def whole(self) -> bytes:
        """Return the inflated body; raise if a compressed stream stopped before its end."""
        if self._wire_bytes and not all(layer.is_complete for layer in self._layers):
            raise Transient(f"{self._shown_url} sent a compressed body that stops early", code="truncated")
        return self.so_far()

    def so_far(self) -> bytes:
        """Return what has been inflated so far."""
        return b"".join(self._chunks)

    def _unwrap(self, data: bytes, depth: int = 0) -> None:
        if depth == len(self._layers):
            self._chunks.append(data)
            self.inflated_bytes += len(data)
            return
        for chunk in self._layers[depth].inflate(data):
            self._sizes[depth] += len(chunk)
            # Checked for every layer: an inner one may discard what an outer one inflates.
            size = self._sizes[depth]
            if size > min(self._max_bytes, max(_RATIO_FLOOR_BYTES, self._max_ratio * self._wire_bytes)):
                raise Permanent(
                    f"{self._shown_url} inflates {self._wire_bytes} bytes to {size} or more", code="decompression_bomb"
                )
            self._unwrap(chunk, depth + 1)


def _layers(content_encoding: str, shown_url: str) -> list[Inflater]:
    """Return the layers, outermost first; the header lists encodings in the applied order."""
    named = [part.strip().lower().removeprefix("x-") for part in content_encoding.split(",")]
    names = [name for name in named if name not in _NO_ENCODING]
    if len(names) > _MAX_LAYERS or not INFLATERS.keys() >= set(names):
        raise Permanent(
            f"{shown_url} answered with Content-Encoding {content_encoding[:100]!r},"
            f" though only {ACCEPT_ENCODING} was offered",
            code="content_encoding",
        )
    return [INFLATERS[name]() for name in reversed(names)]
