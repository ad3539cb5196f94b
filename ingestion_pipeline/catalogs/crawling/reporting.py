"""What a crawl came to, for people and for plots: numbers of one source's last extraction."""

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
    """How long a host's pages took, in milliseconds."""

    host: str
    pages: int
    p50_ms: int
    p95_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReport:
    """A source's last extraction; what was visited counts since the moment that was asked for."""

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
        """Pages that were got."""
        return self.new + self.unchanged


def crawl_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """The source's last extraction, its state, and how many pages are in which; none: nothing."""
    query = select(extractions.c.id, extractions.c.status).where(
        extractions.c.source_id == source_id
    )
    row = connection.execute(query.order_by(extractions.c.id.desc()).limit(1)).one_or_none()
    if row is None:
        return {}
    counts = (
        select(pages.c.status, func.count().label("pages"))
        .where(pages.c.extraction_id == row.id)
        .group_by(pages.c.status)
        .order_by(pages.c.status)
    )
    found = {one.status: one.pages for one in connection.execute(counts)}
    return {"extraction": row.id, "extraction_status": row.status, "pages": found}


def crawled_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None, limit: int
) -> list[str]:
    """The sources of which pages were visited since then, the longest untold first."""
    query = select(extractions.c.source_id).where(extractions.c.updated_at >= since)
    if source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(source_ids)))
    found = connection.execute(query.order_by(extractions.c.updated_at)).scalars()
    return list(dict.fromkeys(found))[:limit]


def crawl_report(connection: Connection, source_id: str, *, since: datetime) -> CrawlReport | None:
    """The numbers of the source's last extraction; None if it never had one."""
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
        new=sum(one.pages for one in ends if one.outcome == "new"),
        unchanged=sum(one.pages for one in ends if one.outcome == "same"),
        failed={one.failure: one.pages for one in ends if one.outcome is None and one.failure},
        size_bytes=int(sum(one.bytes for one in ends)),
        waiting=connection.execute(waiting).scalar_one(),
        total=row.page_count,
        too_deep=row.too_deep,
        over_budget=row.over_budget,
        hosts=_host_times(connection, row.id, since),
    )


def _host_times(connection: Connection, extraction_id: int, since: datetime) -> list[HostTimes]:
    query = (
        select(pages.c.host, pages.c.elapsed_ms)
        .where(
            pages.c.extraction_id == extraction_id,
            pages.c.visited_at >= since,
            pages.c.elapsed_ms.is_not(None),
        )
        .order_by(pages.c.id.desc())
        .limit(TIMED_PAGES)
    )
    by_host: dict[str, list[int]] = {}
    for host, elapsed_ms in connection.execute(query):
        by_host.setdefault(host, []).append(elapsed_ms)
    times = (
        HostTimes(
            host=host,
            pages=len(found),
            p50_ms=percentile(found, 50),
            p95_ms=percentile(found, 95),
        )
        for host, found in by_host.items()
    )
    return sorted(times, key=lambda one: (-one.p95_ms, one.host))


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A page as a browser showed it; `screenshot_hash` names the object in the content store."""

    url: str
    screenshot_hash: str


def newest_picture(
    connection: Connection, source_id: str, *, since: datetime | None = None
) -> Picture | None:
    """Of the source's pages that a browser showed, the last that said something new since then."""
    query = select(snapshots.c.url, snapshots.c.screenshot_hash).where(
        snapshots.c.source_id == source_id, snapshots.c.screenshot_hash.is_not(None)
    )
    if since is not None:
        query = query.where(snapshots.c.fetched_at >= since)
    newest = query.order_by(snapshots.c.fetched_at.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else Picture(url=row.url, screenshot_hash=row.screenshot_hash)


def percentile(values: Sequence[int], percent: int) -> int:
    """The smallest value that so many per cent of the others do not exceed."""
    ranked = sorted(values)
    return ranked[max(-(-len(ranked) * percent // 100) - 1, 0)]
