"""A body is read raw and inflated by us: every cap holds while it grows, not afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingestion_pipeline.pages.inflate import INFLATERS, BadStream, Inflater
from ingestion_pipeline.work.errors import Permanent, Transient

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
