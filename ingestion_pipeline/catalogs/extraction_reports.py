"""Reports of extractions: events of the assets `pages` and `datasets` with numbers for plots, and lists for people."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, exists, false, func, or_, select

from ingestion_pipeline.catalogs.datasets.dataset_items import UNCHANGED
from ingestion_pipeline.catalogs.datasets.finishing import Ended, progress
from ingestion_pipeline.catalogs.extraction.record import ExtractionMethod
from ingestion_pipeline.catalogs.states import OPEN_PAGES, UNFINISHED_PAGES, DatasetStatus, PageStatus
from ingestion_pipeline.engine.system_spec import (
    AssetEvent,
    DataTable,
    EventValue,
    details_table,
    preview_table,
    rounded_usd,
)
from ingestion_pipeline.reading.evidence.grounding import PROVED
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store.tables import (
    CRAWLING,
    crawl_steps,
    data_items,
    datasets,
    extractions,
    hosts,
    pages,
    snapshots,
    sources,
)
from ingestion_pipeline.urls import host_of

HOSTS_SHOWN = 20
TIMED_PAGES = 10_000  # the newest; enough for a percentile, whatever the size of the catalogue
SHOWN = 10  # rows of the preview
SAMPLED_ITEMS = 20_000  # the newest; enough for a rate, whatever the size of the dataset
_BY_RULES = [ExtractionMethod.API, ExtractionMethod.EMBEDDED, ExtractionMethod.SELECTORS, ExtractionMethod.LAYOUT]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlReport:
    """A source's last extraction, of whose `total` pages these were fetched, or failed, since the requested moment.

    `has_pages` is whether any page of it was ever fetched; `metadata` is what its event shows.
    """

    source_id: str
    total: int
    fetched: int
    new: int
    failed: int
    waiting: int
    has_pages: bool
    metadata: Mapping[str, EventValue]


def _last_extraction(connection: Connection, source_id: str) -> Row[Any] | None:
    query = select(extractions).where(extractions.c.source_id == source_id)
    return connection.execute(query.order_by(extractions.c.id.desc()).limit(1)).one_or_none()


def _pages_by_status(connection: Connection, extraction_id: int) -> dict[str, int]:
    counts = (
        select(pages.c.status, func.count().label("pages"))
        .where(pages.c.extraction_id == extraction_id)
        .group_by(pages.c.status)
        .order_by(pages.c.status)
    )
    return {row.status: row.pages for row in connection.execute(counts)}


def crawl_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """Return the source's last extraction, its state and pages by state; empty if it has none."""
    last = _last_extraction(connection, source_id)
    if last is None:
        return {}
    return {"extraction": last.id, "extraction_status": last.status, "pages": _pages_by_status(connection, last.id)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedPublication:
    """A running extraction: its pages, those left, and when the last one is expected at the pace of its host."""

    extraction_id: int
    source_id: str
    pages: int
    pages_left: int
    last_page_at: datetime


def expected_publications(connection: Connection, *, settings: Settings, now: datetime) -> list[ExpectedPublication]:
    """Return the running extractions with the expected time of their last page; they are published soon after it."""
    to_fetch = func.count().filter(pages.c.status.in_(OPEN_PAGES))
    query = (
        select(extractions.c.id, extractions.c.source_id, extractions.c.page_count, sources.c.url)
        .add_columns(func.count(pages.c.id).label("left"), to_fetch.label("to_fetch"))
        .join(sources, sources.c.id == extractions.c.source_id)
        .outerjoin(pages, and_(pages.c.extraction_id == extractions.c.id, pages.c.status.in_(UNFINISHED_PAGES)))
        .where(extractions.c.id.in_(select(extractions.c.id).where(CRAWLING)))
        .group_by(extractions.c.id, extractions.c.source_id, extractions.c.page_count, sources.c.url)
        .order_by(extractions.c.id)
    )
    rows = connection.execute(query).all()
    delays = _crawl_delays(connection, {host_of(row.url) for row in rows})
    least = settings.crawl.delay_seconds
    return [
        ExpectedPublication(
            extraction_id=row.id,
            source_id=row.source_id,
            pages=row.page_count,
            pages_left=row.left,
            last_page_at=now + timedelta(seconds=row.to_fetch * max(delays.get(host_of(row.url), 0.0), least)),
        )
        for row in rows
    ]


def _crawl_delays(connection: Connection, names: Collection[str]) -> dict[str, float]:
    """Return the crawl delays that robots.txt of these hosts asks for."""
    if not names:
        return {}
    query = select(hosts.c.host, hosts.c.crawl_delay_seconds)
    query = query.where(hosts.c.host.in_(list(names)), hosts.c.crawl_delay_seconds.is_not(None))
    return {row.host: row.crawl_delay_seconds for row in connection.execute(query)}


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
    row = _last_extraction(connection, source_id)
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
    new = sum(group.pages for group in ends if group.outcome == "new")
    unchanged = sum(group.pages for group in ends if group.outcome == "same")
    failed = {group.failure: group.pages for group in ends if group.outcome is None and group.failure}
    left: int = connection.execute(waiting).scalar_one()
    obtained = select(pages.c.id).where(of_it, pages.c.outcome.is_not(None)).limit(1)
    counts = {"fetched": new + unchanged, "new": new, "failed": sum(failed.values()), "waiting": left}
    metadata: dict[str, EventValue] = {
        **counts,
        "unchanged": unchanged,
        "pages": row.page_count,
        "bytes": int(sum(group.bytes for group in ends)),
        "details": details_table(
            {f"pages {state.lower()}": count for state, count in _pages_by_status(connection, row.id).items()}
            | {f"failed: {name}": count for name, count in failed.items()}
            | {"too deep": row.too_deep, "over budget": row.over_budget}
        ),
        "extraction": f"{row.id}, {row.status}",
    }
    if hosts := _host_times(connection, row.id, since):
        slowest = hosts[0]
        metadata |= {"p50_ms": slowest["p50_ms"], "p95_ms": slowest["p95_ms"], "slowest_host": slowest["host"]}
        columns = {"host": "string", "pages": "int", "p50_ms": "int", "p95_ms": "int"}
        metadata["hosts"] = DataTable(columns=columns, rows=hosts[:HOSTS_SHOWN])
    return CrawlReport(
        source_id=source_id,
        total=row.page_count,
        **counts,
        has_pages=connection.execute(obtained).first() is not None,
        metadata=metadata,
    )


def _host_times(
    connection: Connection, extraction_id: int, since: datetime
) -> list[dict[str, str | int | float | None]]:
    """Return the response times of each host, the slowest first."""
    query = (
        select(pages.c.host, pages.c.elapsed_ms)
        .where(pages.c.extraction_id == extraction_id, pages.c.visited_at >= since, pages.c.elapsed_ms.is_not(None))
        .order_by(pages.c.id.desc())
        .limit(TIMED_PAGES)
    )
    by_host: dict[str, list[int]] = {}
    for host, elapsed_ms in connection.execute(query):
        by_host.setdefault(host, []).append(elapsed_ms)
    # Before the names are cut for display.
    slowest = sorted(by_host.items(), key=lambda entry: (-_percentile(entry[1], 95), entry[0]))
    return [
        {"host": host[:200], "pages": len(ms), "p50_ms": _percentile(ms, 50), "p95_ms": _percentile(ms, 95)}
        for host, ms in slowest
    ]


def _percentile(values: Sequence[int], percent: int) -> int:
    """Return the smallest value that `percent` per cent of the values do not exceed."""
    ranked = sorted(values)
    return ranked[max(-(-len(ranked) * percent // 100) - 1, 0)]


def newest_picture(connection: Connection, source_id: str, *, since: datetime | None) -> Row[str, str | None] | None:
    """Return URL and screenshot hash of the source's newest rendered snapshot since then."""
    query = select(snapshots.c.url, snapshots.c.screenshot_hash).where(
        snapshots.c.source_id == source_id, snapshots.c.screenshot_hash.is_not(None)
    )
    if since is not None:
        query = query.where(snapshots.c.fetched_at >= since)
    return connection.execute(query.order_by(snapshots.c.fetched_at.desc()).limit(1)).one_or_none()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetReport:
    """The dataset of a source's last extraction: its own, or the one it has confirmed so far.

    `read` is the number of pages whose records are known; `metadata` is what its event shows. `is_published` is
    whether the source has a published dataset, this one or an earlier.
    """

    source_id: str
    entity_type: str | None
    version: int | None
    read: int
    is_published: bool
    metadata: Mapping[str, EventValue]
    preview: Sequence[Mapping[str, Any]]


def dataset_report(connection: Connection, source_id: str) -> DatasetReport | None:
    """Return the numbers of the source's last extraction; None if it never had one."""
    last = _last_extraction(connection, source_id)
    if last is None:
        return None
    published = select(datasets.c.id).where(
        datasets.c.source_id == source_id, datasets.c.status == DatasetStatus.PUBLISHED.value
    )
    own, by_status = _dataset(connection, last), _pages_by_status(connection, last.id)
    counts, (carried, by_rules) = progress(connection, [last.id])[last.id], _saved_pages(connection, last.id)
    metadata: dict[str, EventValue] = {
        **_item_counts(connection, own, last),
        "cost_usd": rounded_usd(sum(line.cost_usd for line in counts.costs)),
        "saved_by_cache": counts.saved,
        "saved_by_unchanged": carried,
        "saved_by_rules": by_rules,
        "details": details_table(
            {f"pages {state.lower()}": count for state, count in by_status.items()}
            | {
                "items kept of failed pages": counts.kept_items,
                "input tokens": sum(line.input_tokens for line in counts.costs),
                "output tokens": sum(line.output_tokens for line in counts.costs),
            }
        ),
    }
    if own is not None and (share := _grounded_share(connection, own)) is not None:
        metadata["grounding_rate"] = round(share, 4)
    if own is not None:
        metadata["version"] = own.version
    metadata |= {"status": own.status if own else "none", "extraction": f"{last.id}, {last.status}"}
    if no_data := _empty_pages(connection, last.id):
        metadata["no_data"] = "\n".join(no_data)
    return DatasetReport(
        source_id=source_id,
        entity_type=own.entity_type if own else None,
        version=own.version if own else None,
        is_published=connection.execute(published.limit(1)).first() is not None,
        read=sum(by_status.get(status, 0) for status in (PageStatus.SUCCESS, PageStatus.EXTRACTED_NO_DATA)),
        metadata=metadata,
        preview=_preview(connection, own) if own else [],
    )


def _item_counts(connection: Connection, own: Row[Any] | None, last: Row[Any]) -> dict[str, int]:
    """Count the dataset's items, those that the published one before does not have, and the flagged ones."""
    if own is None:
        return {"items": 0, "new_items": 0, "flagged": 0}
    items, new_items = _count(connection, own), 0
    if own.extraction_id == last.id:
        before = data_items.alias("before")
        is_old = exists().where(before.c.dataset_id == last.base_dataset_id, before.c.item_key == data_items.c.item_key)
        new_items = _count(connection, own, ~is_old)
        # While it is being built, also the items of unchanged pages.
        of_page = exists().where(data_items.c.dataset_id == own.id, data_items.c.page_id == pages.c.id)
        brought = select(func.coalesce(func.sum(pages.c.item_count), 0)).where(
            pages.c.extraction_id == last.id, pages.c.carried_from.is_not(None), ~of_page
        )
        items += int(connection.execute(brought).scalar_one())
    return {"items": items, "new_items": new_items, "flagged": _count(connection, own, data_items.c.is_flagged)}


def _empty_pages(connection: Connection, extraction_id: int) -> list[str]:
    """Return the first pages without data, each with the reason."""
    query = (
        select(pages.c.url, pages.c.failure["message"].as_string().label("why"))
        .where(
            pages.c.extraction_id == extraction_id,
            pages.c.status == PageStatus.EXTRACTED_NO_DATA.value,
            pages.c.failure.is_not(None),
        )
        .order_by(pages.c.id)
        .limit(SHOWN)
    )
    return [f"{row.url}: {row.why}" for row in connection.execute(query)]


def _dataset(connection: Connection, last: Row[Any]) -> Row[Any] | None:
    """Return its own dataset; before that exists, and if nothing changed, the base."""
    mine = or_(
        datasets.c.extraction_id == last.id,
        datasets.c.id.in_([dataset_id for dataset_id in (last.dataset_id, last.base_dataset_id) if dataset_id]),
    )
    query = select(datasets).where(mine).order_by(datasets.c.version.desc()).limit(1)
    return connection.execute(query).one_or_none()


def _count(connection: Connection, own: Row[Any], *conditions: ColumnElement[bool]) -> int:
    query = select(func.count()).where(data_items.c.dataset_id == own.id, ~data_items.c.is_repeat, *conditions)
    return connection.execute(query).scalar_one()


def _grounded_share(connection: Connection, own: Row[Any]) -> float | None:
    """Return the share of field values that are proved; None if there are none."""
    query = (
        select(data_items.c.grounding)
        .where(data_items.c.dataset_id == own.id)
        .order_by(data_items.c.id.desc())
        .limit(SAMPLED_ITEMS)
    )
    total = proved = 0
    for grounding in connection.execute(query).scalars():
        total += len(grounding)
        proved += sum(evidence["status"] in PROVED for evidence in grounding.values())
    return proved / total if total else None


def _saved_pages(connection: Connection, extraction_id: int) -> tuple[int, int]:
    """Return how many pages are unchanged, and how many of the others were read by rules."""
    is_carried = func.coalesce(UNCHANGED, false())
    by_rules = and_(~is_carried, pages.c.extraction_method.in_([method.value for method in _BY_RULES]))
    query = select(func.count().filter(is_carried), func.count().filter(by_rules)).where(
        pages.c.extraction_id == extraction_id
    )
    carried, ruled = connection.execute(query).one()
    return carried, ruled


def _preview(connection: Connection, own: Row[Any]) -> list[Mapping[str, Any]]:
    query = (
        select(data_items.c.data)
        .where(data_items.c.dataset_id == own.id, ~data_items.c.is_repeat, ~data_items.c.is_flagged)
        .order_by(data_items.c.item_key, data_items.c.id)
        .limit(SHOWN)
    )
    return list(connection.execute(query).scalars())


def dataset_event(report: DatasetReport, more: Mapping[str, EventValue] | None = None) -> AssetEvent:
    """Return the event of the source's dataset, which has data once one is published."""
    metadata: dict[str, EventValue] = {"preview": preview_table(report.preview)} if report.preview else {}
    metadata |= {**report.metadata, **(more or {})}
    if report.version is not None:  # the command that exports this very version
        name = report.entity_type or "data_items"
        metadata["export"] = f"ingest export {name} --source {report.source_id} --version {report.version} --to csv"
    return AssetEvent(asset="datasets", partition=report.source_id, metadata=metadata, has_data=report.is_published)


def end_metadata(ended: Ended) -> dict[str, EventValue]:
    """Return how an extraction finished, and the state of its dataset."""
    metadata: dict[str, EventValue] = {"extraction": f"{ended.id}, {ended.status.value}", "pages": ended.page_count}
    if ended.failure is not None:
        metadata["why"] = str(ended.failure["message"])[:500]
    if (dataset := ended.dataset) is not None:
        metadata |= {
            "items": dataset.items,
            "flagged": dataset.flagged,
            "version": dataset.version,
            "status": dataset.status.value,
            "is_unchanged": dataset.is_confirmed,
        }
        if dataset.findings:
            metadata["findings"] = "\n".join(finding["message"] for finding in dataset.findings)
    return metadata


LISTED = 200


def list_pages(
    connection: Connection, extraction_id: int, *, status: str | None = None, limit: int = LISTED
) -> list[dict[str, Any]]:
    """Return the extraction's pages in the order of discovery: state, items, and any failure."""
    columns = ("id", "url", "status", "page_type", "item_count", "extraction_method", "failure", "visited_at")
    query = (
        select(*(pages.c[name] for name in columns), crawl_steps.c.key.label("step"))
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(pages.c.extraction_id == extraction_id)
        .order_by(pages.c.id)
        .limit(limit)
    )
    if status is not None:
        query = query.where(pages.c.status == status)
    return [dict(row) for row in connection.execute(query).mappings()]


def list_extractions(
    connection: Connection, *, source_id: str | None = None, status: str | None = None
) -> list[dict[str, Any]]:
    """Return the extractions, newest first, each with its dataset."""
    query = (
        select(
            extractions,
            datasets.c.version.label("dataset_version"),
            datasets.c.status.label("dataset_status"),
            datasets.c.item_count.label("items"),
            datasets.c.flagged_count.label("flagged"),
            datasets.c.findings,
        )
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
        .order_by(extractions.c.id.desc())
        .limit(LISTED)
    )
    if source_id is not None:
        query = query.where(extractions.c.source_id == source_id)
    if status is not None:
        query = query.where(extractions.c.status == status)
    hidden = {"recipe", "tracking_id"}
    rows = [
        {key: value for key, value in row.items() if key not in hidden} for row in connection.execute(query).mappings()
    ]
    waiting = _reasons(connection, [row["id"] for row in rows if row["finished_at"] is None], UNFINISHED_PAGES)
    empty = _reasons(connection, [row["id"] for row in rows], [PageStatus.EXTRACTED_NO_DATA.value])
    return [row | {"waiting": waiting.get(row["id"], []), "no_data": empty.get(row["id"], [])} for row in rows]


def _reasons(connection: Connection, ids: Sequence[int], statuses: Sequence[str]) -> dict[int, list[dict[str, Any]]]:
    """Return why pages of these are in such a state, and how many; one reason for each code."""
    code, message = pages.c.failure["code"].as_string(), pages.c.failure["message"].as_string()
    query = (
        select(pages.c.extraction_id, func.count().label("pages"), func.max(message).label("why"))
        .where(pages.c.extraction_id.in_(ids), pages.c.failure.is_not(None))
        .where(pages.c.status.in_(statuses))
        .group_by(pages.c.extraction_id, code)
        .order_by(pages.c.extraction_id, code)
    )
    reasons: dict[int, list[dict[str, Any]]] = {}
    for row in connection.execute(query):
        reasons.setdefault(row.extraction_id, []).append({"pages": row.pages, "why": row.why})
    return reasons
