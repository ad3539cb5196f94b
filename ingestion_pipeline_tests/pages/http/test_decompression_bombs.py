"""T24: bombs in every encoding, one in another too, are stopped before they take memory or time."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import brotli
import pytest
import zstandard

from ingestion_pipeline.pages import FetchLimits
from ingestion_pipeline.pages.http.body import LimitedBody
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pages.page_fetches import page
from ingestion_pipeline_tests.processes import Child

MEGABYTE = 1_000_000
INFLATED = 40 * MEGABYTE


def zeros_by(feed: Callable[[bytes], bytes], finish: Callable[[], bytes]) -> bytes:
    """Many zeros through a packer, which never has them all in memory at once."""
    return b"".join(feed(bytes(MEGABYTE)) for _ in range(INFLATED // MEGABYTE)) + finish()


def deflated(wrapping: int) -> bytes:
    packer = zlib.compressobj(wbits=wrapping)
    return zeros_by(packer.compress, packer.flush)


def brotlied() -> bytes:
    packer = brotli.Compressor(quality=1, lgwin=24)
    return zeros_by(packer.process, packer.finish)


def zstandard_packed() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return zeros_by(packer.compress, packer.flush)


def zstd_of_repeats() -> bytes:
    """Blocks of four bytes that each stand for 128 KiB: the steepest frame there is."""
    block = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
    return bytes.fromhex("28b52ffd 0038") + block * 2000


PACKED: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: deflated(31),
    "deflate": lambda: deflated(15),
    "raw": lambda: deflated(-15),
    "br": brotlied,
    "zstd": zstandard_packed,
    "repeats": zstd_of_repeats,
}
AROUND: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
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
    """Each with its Content-Encoding; all are packed here, so that the child only inflates."""
    packed = {inner: pack() for inner, pack in PACKED.items()}
    made: dict[str, tuple[bytes, str]] = {}
    for inner, outer in BOMBS:
        names = [ENCODING.get(inner, inner), *([outer] if outer else [])]
        made[f"{inner} in {outer or 'nothing'}"] = (AROUND[outer](packed[inner]), ", ".join(names))
    return made


def inflate_all(
    made: dict[str, tuple[bytes, str]], max_bytes: int, max_ratio: int
) -> dict[str, tuple[str, float, float]]:
    """For each bomb how it ended, the seconds it took, and by how many megabytes we had grown."""
    LimitedBody("gzip, br, zstd", max_bytes=1, max_ratio=1, shown_url="")  # the libraries are loaded
    measured: dict[str, tuple[str, float, float]] = {}
    for name, (data, encoding) in made.items():
        body = LimitedBody(encoding, max_bytes=max_bytes, max_ratio=max_ratio, shown_url="http://a.test/")
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before, began = megabytes("VmRSS"), time.monotonic()
        end = fed(body, data)
        took = time.monotonic() - began
        measured[name] = (end, took, megabytes("VmHWM") - before)
    return measured


def fed(body: LimitedBody, data: bytes) -> str:
    try:
        for start in range(0, len(data), 65_536):
            body.feed(data[start : start + 65_536])
    except WorkError as error:
        return f"{type(error).__name__} {error.code}"
    return "nothing"


def megabytes(what: str) -> float:
    """What this process holds now (VmRSS) or held at its highest (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith(f"{what}:")]
    return int(kilobytes) / 1000


@pytest.mark.parametrize("limits", LIMITS)
def test_a_bomb_is_stopped_at_the_cap_in_little_memory_and_time(limits: str) -> None:
    measured = Child(inflate_all, bombs(), *LIMITS[limits]).result()

    assert {kind for kind, _, _ in measured.values()} == {"Permanent decompression_bomb"}
    assert max(seconds for _, seconds, _ in measured.values()) < 2
    assert max(grown for _, _, grown in measured.values()) < 30


def fetch_all(made: dict[str, tuple[bytes, str]]) -> dict[str, tuple[str, float, float]]:
    """The same from a server on loopback, by the fetcher as it is configured."""
    measured: dict[str, tuple[str, float, float]] = {}
    with FakeWeb() as web:
        for encoding, pack in AROUND.items():  # the libraries are loaded
            web.routes["/"] = Reply(pack(b"page"), headers={"Content-Encoding": encoding})
            page(web)
        for name, (data, encoding) in made.items():
            web.routes["/bomb"] = Reply(data, headers={"Content-Encoding": encoding})
            Path("/proc/self/clear_refs").write_text("5")
            before, began = megabytes("VmRSS"), time.monotonic()
            try:
                page(web, "/bomb")
                end = "nothing"
            except WorkError as error:
                end = f"{type(error).__name__} {error.code}"
            took = time.monotonic() - began
            measured[name] = (end, took, megabytes("VmHWM") - before)
    return measured


def test_a_bomb_that_a_server_sends_is_stopped_in_little_memory_and_time() -> None:
    # One in another is above: a second window of brotli's would be counted with the first.
    single = {name: bomb for name, bomb in bombs().items() if name.endswith("nothing")}

    measured = Child(fetch_all, single).result()

    assert {kind for kind, _, _ in measured.values()} == {"Permanent decompression_bomb"}
    assert max(seconds for _, seconds, _ in measured.values()) < 2
    assert max(grown for _, _, grown in measured.values()) < 30


def test_what_the_outer_layer_blows_up_and_the_inner_one_swallows_is_a_bomb() -> None:
    data = gzip.compress(gzip.compress(b"x") + bytes(30 * MEGABYTE))
    body = LimitedBody("gzip, gzip", max_bytes=10**9, max_ratio=100, shown_url="http://a.test/")

    with pytest.raises(Permanent) as caught:
        body.feed(data)

    assert caught.value.code == "decompression_bomb"
