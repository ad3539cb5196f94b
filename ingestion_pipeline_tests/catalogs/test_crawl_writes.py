"""No page is fetched while fetched pages are written: the two would only slow each other down."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline.catalogs.crawl_handler import CrawlHandler
from ingestion_pipeline.engine import worker_loop
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages import ContentStore
from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.catalog_extractions import LiveCatalog, a_catalog, crawl_all, crawled_pages, link_page
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import add_sources

LINKS = [f"/c/{number}" for number in range(12)]


class SlowDisk(ContentStore):
    """A content store that sleeps on each write and records when it was busy."""

    def __init__(self, root: Path, seconds: float) -> None:
        super().__init__(root)
        self._seconds = seconds
        self.busy: list[tuple[float, float]] = []

    def put_together(self, groups: Iterable[Sequence[Any]], **how: bool) -> list[list[str]]:
        started = time.monotonic()
        time.sleep(self._seconds)
        self.busy.append((started, time.monotonic()))
        return super().put_together(groups, **how)


def requests_during_writes(ctx: RunContext, store: Store, web: FakeWeb, disk: SlowDisk) -> list[float]:
    """Crawl; return how long after the start of a write each request came that came during one."""
    web.routes |= {"/": link_page(*LINKS), **dict.fromkeys(LINKS, link_page())}
    add_sources(store, a_catalog())
    crawl_all(replace(ctx, content=disk), web.port)
    assert len(crawled_pages(store)) == len(LINKS) + 1
    request_times = [request.at for request in web.requests]
    return [at - started for started, ended in disk.busy for at in request_times if started < at < ended]


@pytest.fixture(autouse=True)
def small_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrawlHandler, "flush_after", 3)


@pytest.mark.slow
def test_no_page_is_fetched_while_others_are_written(live: LiveCatalog, tmp_path: Path) -> None:
    disk = SlowDisk(tmp_path / "slow", seconds=0.25)

    during = requests_during_writes(live.ctx, live.store, live.web, disk)

    assert len(disk.busy) >= 4
    assert [delay for delay in during if delay > 0.1] == [], "except the one already in flight"


@pytest.mark.slow
def test_a_slow_disk_does_not_delay_every_fetch(
    live: LiveCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_loop, "PAUSE_SECONDS", 0.05)

    during = requests_during_writes(live.ctx, live.store, live.web, SlowDisk(tmp_path / "slow", seconds=0.4))

    assert any(delay > 0.05 for delay in during)
