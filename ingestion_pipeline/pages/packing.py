"""What a file of the content store looks like inside: one body, or several behind an index."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Sequence

import zstandard

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
