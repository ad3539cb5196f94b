"""T24: bombs in every encoding, also nested, are stopped before they take memory or time."""

import gzip
import time
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import brotli
import pytest

from ingestion_pipeline.pages import FetchLimits
from ingestion_pipeline.pages.http.fetcher import LimitedBody
from ingestion_pipeline.pages.zstd import zstd
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pages.page_fetches import failing, fetch_page
from ingestion_pipeline_tests.processes import Child

MEGABYTE = 1_000_000
INFLATED = 40 * MEGABYTE


def compressed_zeros(feed: Callable[[bytes], bytes], finish: Callable[[], bytes]) -> bytes:
    """Compress many zeros without holding them all in memory."""
    return b"".join(feed(bytes(MEGABYTE)) for _ in range(INFLATED // MEGABYTE)) + finish()


def deflate_bomb(wrapping: int) -> bytes:
    packer = zlib.compressobj(wbits=wrapping)
    return compressed_zeros(packer.compress, packer.flush)


def brotli_bomb() -> bytes:
    packer = brotli.Compressor(quality=1, lgwin=24)
    return compressed_zeros(packer.process, packer.finish)


def zstd_bomb() -> bytes:
    packer = zstd.ZstdCompressor()
    return compressed_zeros(packer.compress, packer.flush)


def zstd_repeat_bomb() -> bytes:
    """Return blocks of four bytes that each expand to 128 KiB: the highest ratio of any frame."""
    block = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return bytes.fromhex("28b52ffd 0038") + block * 2000


PACKED: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: deflate_bomb(31),
    "deflate": lambda: deflate_bomb(15),
    "raw": lambda: deflate_bomb(-15),
    "br": brotli_bomb,
    "zstd": zstd_bomb,
    "repeats": zstd_repeat_bomb,
}
AROUND: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
}
ENCODING = {"raw": "deflate", "repeats": "zstd"}
BOMBS = [
    *((inner, "") for inner in PACKED),
    *(("gzip", outer) for outer in ("gzip", "br", "zstd")),
    *(("br", "gzip"), ("zstd", "deflate"), ("zstd", "br"), ("repeats", "gzip")),
]
LIMITS = {"as configured": (FetchLimits().max_bytes, FetchLimits().max_ratio), "by size alone": (5 * MEGABYTE, 10**9)}


@cache
def bombs() -> dict[str, tuple[bytes, str]]:
    """Return each bomb with its Content-Encoding, compressed here so that the child only decompresses."""
    packed = {inner: pack() for inner, pack in PACKED.items()}
    bombs_by_name: dict[str, tuple[bytes, str]] = {}
    for inner, outer in BOMBS:
        names = [ENCODING.get(inner, inner), *([outer] if outer else [])]
        bombs_by_name[f"{inner} in {outer or 'nothing'}"] = (AROUND[outer](packed[inner]), ", ".join(names))
    return bombs_by_name


Measured = dict[str, tuple[str, float, float]]


def inflate_all(bombs_by_name: dict[str, tuple[bytes, str]], max_bytes: int, max_ratio: int) -> Measured:
    """Return for each bomb its error, the seconds it took and the megabytes the process grew."""
    LimitedBody("gzip, br, zstd", max_bytes=1, max_ratio=1, shown_url="")  # load the libraries
    measured: Measured = {}
    for name, (data, encoding) in bombs_by_name.items():
        body = LimitedBody(encoding, max_bytes=max_bytes, max_ratio=max_ratio, shown_url="http://a.test/")
        measured[name] = measure(partial(feed_all, body, data))
    return measured


def feed_all(body: LimitedBody, data: bytes) -> None:
    for start in range(0, len(data), 65_536):
        body.feed(data[start : start + 65_536])


def measure(work: Callable[[], object]) -> tuple[str, float, float]:
    """Return the error of the work, the seconds it took and the megabytes the process grew."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before, began = megabytes("VmRSS"), time.monotonic()
    end = "nothing"
    try:
        work()
    except WorkError as error:
        end = f"{type(error).__name__} {error.code}"
    return end, time.monotonic() - began, megabytes("VmHWM") - before


def megabytes(field: str) -> float:
    """Return the memory of this process now (VmRSS) or at its peak (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(kilobytes) / 1000


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
def test_a_bomb_is_stopped_at_the_cap_in_little_memory_and_time(limits: str) -> None:
    # A process each: memory that one bomb freed and another took would count, or not, by their order.
    children = [Child(inflate_all, {name: bomb}, *LIMITS[limits]).result() for name, bomb in bombs().items()]

    assert_stopped({name: figures for child in children for name, figures in child.items()})


def fetch_all(bombs_by_name: dict[str, tuple[bytes, str]]) -> Measured:
    """Measure the same for bombs from a server on loopback, with the configured fetcher."""
    measured: Measured = {}
    with FakeWeb() as web:
        for encoding, pack in AROUND.items():  # load the libraries
            web.routes["/"] = Reply(pack(b"page"), headers={"Content-Encoding": encoding})
            fetch_page(web)
        for name, (data, encoding) in bombs_by_name.items():
            web.routes["/bomb"] = Reply(data, headers={"Content-Encoding": encoding})
            measured[name] = measure(partial(fetch_page, web, "/bomb"))
    return measured


def assert_stopped(measured: Measured) -> None:
    """Assert that every bomb was stopped in little time and memory."""
    assert {kind for kind, _, _ in measured.values()} == {"Permanent decompression_bomb"}
    assert max(seconds for _, seconds, _ in measured.values()) < 2
    assert max(grown for _, _, grown in measured.values()) < 30


@pytest.mark.slow
def test_a_bomb_that_a_server_sends_is_stopped_in_little_memory_and_time() -> None:
    # Nested bombs are tested above: a second brotli window would be counted with the first.
    single = {name: bomb for name, bomb in bombs().items() if name.endswith("nothing")}

    assert_stopped(Child(fetch_all, single).result())


@pytest.mark.slow
def test_outer_output_that_the_inner_layer_discards_counts_as_a_bomb() -> None:
    data = gzip.compress(gzip.compress(b"x") + bytes(30 * MEGABYTE))
    body = LimitedBody("gzip, gzip", max_bytes=10**9, max_ratio=100, shown_url="http://a.test/")

    with failing(Permanent, "decompression_bomb"):
        body.feed(data)
