"""Crawl reports: numbers of a source's last extraction, for people and for plots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select

from ingestion_pipeline.catalogs.states import OPEN_PAGES
from ingestion_pipeline.store.tables import extractions, pages, snapshots

TIMED_PAGES = 10_000  # the newest; enough for a percentile, whatever the size of the catalogue


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimes:
    """Response times of a host's pages, in milliseconds."""

    host: str
    pages: int
    p50_ms: int
    p95_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReport:
    """A source's last extraction; fetched pages count from the requested moment on."""

    source_id: str
    extraction_id: int
    status: str
    new: int
    unchanged: int
    failed: Mapping[str, int]
    size_bytes: int
    waiting: int
    total: int
    too_deep: int
    over_budget: int
    hosts: Sequence[HostTimes]  # the slowest first

    @property
    def fetched(self) -> int:
        """How many pages were fetched."""
        return self.new + self.unchanged


def crawl_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """Return the source's last extraction, its state and pages by state; empty if it has none."""
    query = select(extractions.c.id, extractions.c.status).where(extractions.c.source_id == source_id)
    row = connection.execute(query.order_by(extractions.c.id.desc()).limit(1)).one_or_none()
    if row is None:
        return {}
    counts = (
        select(pages.c.status, func.count().label("pages"))
        .where(pages.c.extraction_id == row.id)
        .group_by(pages.c.status)
        .order_by(pages.c.status)
    )
    by_status = {group.status: group.pages for group in connection.execute(counts)}
    return {"extraction": row.id, "extraction_status": row.status, "pages": by_status}


def crawled_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None, limit: int
) -> list[str]:
    """Return the sources with pages fetched since then, least recently updated first."""
    query = select(extractions.c.source_id).where(extractions.c.updated_at >= since)
    if source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(source_ids)))
    ids = connection.execute(query.order_by(extractions.c.updated_at)).scalars()
    return list(dict.fromkeys(ids))[:limit]


def crawl_report(connection: Connection, source_id: str, *, since: datetime) -> CrawlReport | None:
    """Return the numbers of the source's last extraction; None if it never had one."""
    query = select(extractions).where(extractions.c.source_id == source_id)
    row = connection.execute(query.order_by(extractions.c.id.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    of_it = pages.c.extraction_id == row.id
    visited = (
        select(
            pages.c.outcome,
            pages.c.failure["class"].as_string().label("failure"),
            func.count().label("pages"),
            func.coalesce(func.sum(pages.c.size_bytes), 0).label("bytes"),
        )
        .where(of_it, pages.c.visited_at >= since)
        .group_by(pages.c.outcome, pages.c.failure["class"].as_string())
    )
    ends = connection.execute(visited).all()
    waiting = select(func.count()).where(of_it, pages.c.status.in_(OPEN_PAGES))
    return CrawlReport(
        source_id=source_id,
        extraction_id=row.id,
        status=row.status,
        new=sum(group.pages for group in ends if group.outcome == "new"),
        unchanged=sum(group.pages for group in ends if group.outcome == "same"),
        failed={group.failure: group.pages for group in ends if group.outcome is None and group.failure},
        size_bytes=int(sum(group.bytes for group in ends)),
        waiting=connection.execute(waiting).scalar_one(),
        total=row.page_count,
        too_deep=row.too_deep,
        over_budget=row.over_budget,
        hosts=_host_times(connection, row.id, since),
    )


def _host_times(connection: Connection, extraction_id: int, since: datetime) -> list[HostTimes]:
    query = (
        select(pages.c.host, pages.c.elapsed_ms)
        .where(pages.c.extraction_id == extraction_id, pages.c.visited_at >= since, pages.c.elapsed_ms.is_not(None))
        .order_by(pages.c.id.desc())
        .limit(TIMED_PAGES)
    )
    by_host: dict[str, list[int]] = {}
    for host, elapsed_ms in connection.execute(query):
        by_host.setdefault(host, []).append(elapsed_ms)
    times = (
        HostTimes(host=host, pages=len(durations), p50_ms=percentile(durations, 50), p95_ms=percentile(durations, 95))
        for host, durations in by_host.items()
    )
    return sorted(times, key=lambda timing: (-timing.p95_ms, timing.host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A screenshot of a page; `screenshot_hash` names the object in the content store."""

    url: str
    screenshot_hash: str


def newest_picture(connection: Connection, source_id: str, *, since: datetime | None = None) -> Picture | None:
    """Return the screenshot of the source's newest rendered snapshot since then."""
    query = select(snapshots.c.url, snapshots.c.screenshot_hash).where(
        snapshots.c.source_id == source_id, snapshots.c.screenshot_hash.is_not(None)
    )
    if since is not None:
        query = query.where(snapshots.c.fetched_at >= since)
    newest = query.order_by(snapshots.c.fetched_at.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else Picture(url=row.url, screenshot_hash=row.screenshot_hash)


def percentile(values: Sequence[int], percent: int) -> int:
    """Return the smallest value that `percent` per cent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(-(-len(ranked) * percent // 100) - 1, 0)]
