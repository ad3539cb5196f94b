"""A body is complete and within every limit, or it is refused while it is small in memory."""

import gzip
import zlib
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.pages.http.fetcher import LimitedBody
from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

TEXT = b"".join(b"row %d\n" % n for n in range(5000))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


SKIPPED = bytes.fromhex("502a4d18 03000000") + b"abc"  # a frame that carries no content


def decompress(
    data: bytes, encoding: str, *, step: int = 65_536, max_bytes: int = 10_000_000, ratio: int = 100
) -> bytes:
    body = LimitedBody(encoding, max_bytes=max_bytes, max_ratio=ratio, shown_url="http://a.test/")
    for start in range(0, len(data), step):
        body.feed(data[start : start + step])
    return body.whole()


def decompression_error(data: bytes, encoding: str, **limits: int) -> WorkError:
    with pytest.raises(WorkError) as caught:
        decompress(data, encoding, **limits)
    assert "http://a.test/" in str(caught.value)
    return caught.value


ENCODED = [
    (TEXT, "", "plain"),
    (TEXT, "identity", "identity"),
    (gzip.compress(TEXT), "gzip", "gzip"),
    (gzip.compress(TEXT), "X-GZip", "x-gzip"),
    (zlib.compress(TEXT), "deflate", "deflate"),
    (raw_deflate(TEXT), "deflate", "raw deflate"),
    (gzip.compress(gzip.compress(TEXT)), "gzip, gzip", "nested"),
    (gzip.compress(zlib.compress(TEXT)), "deflate, gzip", "mixed"),
    (gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:]), "gzip", "two members"),
    (brotli.compress(TEXT), "br", "brotli"),
    (zstd.compress(TEXT), "zstd", "zstd"),
    (zstd.compress(TEXT[:99]) + SKIPPED + zstd.compress(TEXT[99:]), "zstd", "two frames"),
    (zstd.compress(brotli.compress(TEXT)), "br, zstd", "both"),
    (gzip.compress(TEXT) + b"\0" * 50, "gzip", "padded"),
]


@pytest.mark.parametrize("step", [1, 7, 65_536])
@pytest.mark.parametrize(("data", "encoding"), [e[:2] for e in ENCODED], ids=[e[2] for e in ENCODED])
def test_a_body_is_complete_however_it_is_chunked(data: bytes, encoding: str, step: int) -> None:
    assert decompress(data, encoding, step=step) == TEXT


@pytest.mark.parametrize(
    ("pack", "encoding"), [(gzip.compress, "gzip"), (brotli.compress, "br"), (zstd.compress, "zstd")]
)
@given(data=st.binary(max_size=3000), step=st.integers(1, 500))
def test_any_bytes_survive_a_round_trip(pack: Callable[[bytes], bytes], encoding: str, data: bytes, step: int) -> None:
    assert decompress(pack(data * 40), encoding, step=step, ratio=10_000) == data * 40


@pytest.mark.parametrize("size", [*range(65_530, 66_000, 7), 131_327])
def test_a_body_that_ends_near_a_chunk_boundary_is_complete(size: int) -> None:
    """Zlib had consumed all input and still held output: such bodies once seemed truncated."""
    data = (b"abc" * size)[:size]

    assert decompress(raw_deflate(data), "deflate") == data


@pytest.mark.parametrize("encoding", ["compress", "gzip, lz4", "gzip,br,gzip,zstd", "x" * 999])
def test_an_encoding_that_was_not_offered_is_refused(encoding: str) -> None:
    error = decompression_error(b"", encoding)

    assert isinstance(error, Permanent)
    assert error.code == "content_encoding"
    assert len(str(error)) < 400


@pytest.mark.parametrize(("data", "encoding"), [e[:2] for e in ENCODED[2:] if "pad" not in e[2]])
def test_a_truncated_compressed_body_is_retried(data: bytes, encoding: str) -> None:
    error = decompression_error(data[:-5], encoding)

    assert isinstance(error, Transient)
    assert error.code == "truncated"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_a_body_with_a_wrong_content_encoding_is_retried(encoding: str) -> None:
    error = decompression_error(b"<html>plain</html>", encoding)

    assert isinstance(error, Transient)
    assert error.code == "corrupt_body"


def test_a_body_may_be_as_large_as_the_cap_and_no_larger() -> None:
    assert len(decompress(b"x" * 1000, "", max_bytes=1000)) == 1000
    assert decompression_error(b"x" * 1001, "", max_bytes=1000).code == "too_large"


def test_an_inflated_body_has_the_same_cap() -> None:
    data = gzip.compress(TEXT)

    assert decompress(data, "gzip", max_bytes=len(TEXT)) == TEXT
    assert decompression_error(data, "gzip", max_bytes=len(TEXT) - 1).code == "decompression_bomb"


def test_a_small_page_may_compress_well() -> None:
    page = b"<td></td>" * 20_000

    assert decompress(gzip.compress(page), "gzip") == page


def test_a_body_of_empty_members_is_refused() -> None:
    assert decompression_error(gzip.compress(b"") * 5000, "gzip").code == "corrupt_body"
    assert decompression_error(zstd.compress(b"") * 5000, "zstd").code == "corrupt_body"


def test_a_window_that_would_fill_memory_is_refused() -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})

    assert decompression_error(packer.compress(TEXT) + packer.flush(), "zstd").code == "corrupt_body"
