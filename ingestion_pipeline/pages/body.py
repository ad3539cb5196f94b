"""A body is read raw and inflated by us: every cap holds while it grows, not afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

from ingestion_pipeline.work.errors import Permanent, Transient

ACCEPT_ENCODING = "gzip, deflate"

_PIECE_BYTES = 65_536
# Small pages of one repeated row compress better than 1:100; below this size a bomb harms nobody.
_RATIO_FLOOR_BYTES = 262_144
_MAX_LAYERS = 3  # two were seen (a proxy that compresses twice); more is an attack
_MAX_MEMBERS = 1000  # block gzip has one per 64 kB; each costs a copy of the chunk
_ZLIB, _RAW, _GZIP = 15, -15, 31  # zlib's own numbers for the three wrappings


class Body:
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
        except zlib.error as error:
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
    """One Content-Encoding, undone piece by piece."""

    def __init__(self, name: str) -> None:
        self._is_gzip = name == "gzip"
        self._inflate = zlib.decompressobj(_GZIP) if self._is_gzip else None
        self._head = b""
        self._members = 1
        self.size = 0

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
            piece = self._inflate.decompress(data, _PIECE_BYTES)
            data = self._inflate.unused_data or self._inflate.unconsumed_tail
            if piece:
                self.size += len(piece)
                yield piece
            # A full piece may leave output inside zlib though all input is consumed.
            if not data and len(piece) < _PIECE_BYTES:
                return

    def _next_member(self) -> None:
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise zlib.error(f"more than {_MAX_MEMBERS} gzip members")
        self._inflate = zlib.decompressobj(_GZIP)


def _deflate_kind(head: bytes) -> int:
    """Servers send `deflate` with and without the zlib header; the header has a checksum."""
    is_wrapped = head[0] & 0x0F == 8 and (head[0] * 256 + head[1]) % 31 == 0  # noqa: PLR2004
    return _ZLIB if is_wrapped else _RAW


def _layers(content_encoding: str, shown_url: str) -> list[_Layer]:
    """Outermost first: the header lists encodings in the order in which they were applied."""
    named = [part.strip().lower().removeprefix("x-") for part in content_encoding.split(",")]
    names = [name for name in named if name not in {"", "identity"}]
    if len(names) > _MAX_LAYERS or not {"gzip", "deflate"}.issuperset(names):
        raise Permanent(
            f"{shown_url} answered with Content-Encoding {content_encoding[:100]!r},"
            f" though only {ACCEPT_ENCODING} was offered",
            code="content_encoding",
        )
    return [_Layer(name) for name in reversed(names)]
