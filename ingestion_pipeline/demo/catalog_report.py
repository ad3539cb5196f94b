"""The catalogue tables that `ingest demo run` prints: pages, failures, datasets, unusual pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, echo, print_table, shortened

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select, Subquery

    from ingestion_pipeline.pages import ContentStore
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source


NUMBERS = ("pages", "new", "changed", "unchanged", "failed")
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """A page that this run visited: new, changed, unchanged or failed.

    `needs_browser` if the stored page came from a browser; `is_rendered` if that was in this run.
    """

    source_id: str
    url: str
    result: str
    failure: Mapping[str, str] | None = None
    needs_browser: bool = False
    is_rendered: bool = False


def is_waiting(connection: Connection, source_ids: Collection[str]) -> bool:
    """Return whether a page of these catalogues has still to be visited."""
    from sqlalchemy import exists, select

    from ingestion_pipeline.catalogs.states import OPEN_PAGES
    from ingestion_pipeline.store.tables import extractions, pages

    last = last_extractions(source_ids)
    is_open = exists().where(pages.c.extraction_id.in_(last), pages.c.status.in_(OPEN_PAGES))
    is_unfinished = extractions.c.finished_at.is_(None)
    query = select(exists().where(extractions.c.id.in_(last), is_unfinished, is_open))
    return bool(connection.execute(query).scalar_one())


def print_catalogs(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """Print one line per catalogue, one per failed page, and one about the browser."""
    from ingestion_pipeline.sources import SourceStatus
    from ingestion_pipeline.sources.lookup import sources_by_id

    by_id = sources_by_id(connection, source_ids)
    seen = visited_pages(connection, source_ids, since=since)
    columns = [Column("catalogue"), *(Column(name, is_number=True) for name in NUMBERS), Column("crawl")]
    sources = [by_id[source_id] for source_id in source_ids if source_id in by_id]
    unread = _sources_with_unread_pages(connection, source_ids)
    print_table(columns, [_row(source, seen, unread) for source in sources])
    for source in sources:
        if source.status is SourceStatus.DISABLED:
            echo("\n" + why_disabled(source))
    if failed := [(page.url, page.failure) for page in seen if page.failure is not None]:
        echo("")
        columns = [Column("failed page"), Column("reason", is_flexible=True)]
        rows = [[_in_words(failure["code"]), _reason(url, failure)] for url, failure in failed]
        print_table(columns, rows)
    if note := browser_note(seen):
        echo("\n" + note)


def _row(source: Source, seen: Sequence[DemoPage], unread: Collection[str]) -> list[object]:
    words = Counter(page.result for page in seen if page.source_id == source.id)
    counts = (words[name] for name in NUMBERS[1:])
    return [source.id, words.total(), *counts, crawl_state(source, is_unread=source.id in unread)]


def _sources_with_unread_pages(connection: Connection, source_ids: Collection[str]) -> set[str]:
    """Return the sources with a downloaded page that was not extracted yet."""
    from sqlalchemy import select

    from ingestion_pipeline.catalogs.states import PageStatus
    from ingestion_pipeline.store.tables import extractions, pages

    query = (
        select(extractions.c.source_id)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(extractions.c.id.in_(last_extractions(source_ids)), pages.c.status == PageStatus.DOWNLOADED.value)
    )
    return set(connection.execute(query).scalars())


def crawl_state(source: Source, *, is_unread: bool = False) -> str:
    """Return in one word how the last crawl ended, or that the source is not crawled."""
    if source.status.value in {"disabled", "open"}:
        return source.status.value
    if is_unread:
        return "unread"
    return "failed" if source.last_error_class else "complete"


def why_disabled(source: Source) -> str:
    """Return the short reason and the command that shows the long one."""
    first = (source.status_reason or "").partition(": ")[0].partition(";")[0]
    reason = first.removeprefix("disabled").lstrip(", ") or "by hand"
    return f"{source.id} is disabled ({reason}); `ingest sources show {source.id}` shows more"


def _in_words(code: str) -> str:
    return code.replace("_", " ")


def _reason(url: str, failure: Mapping[str, str]) -> str:
    """Return the message, with the page's URL unless it contains it."""
    message = failure["message"]
    return shortened(message if url in message else f"{url}: {message}", LONGEST_REASON)


def browser_note(seen: Sequence[DemoPage]) -> str:
    """Return what the browser was used for; empty if no downloaded page needs one."""
    rendered = [page.url for page in seen if page.is_rendered]
    if rendered:
        return f"rendered by a browser, because empty without JavaScript: {', '.join(rendered)}"
    if unrendered := [page.url for page in seen if page.needs_browser]:
        return f"no browser was needed: {', '.join(unrendered)} is unchanged"
    return ""


def visited_pages(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[DemoPage]:
    """Return the pages of each source's last extraction that were visited since then."""
    from sqlalchemy import exists, select

    from ingestion_pipeline.store.tables import extractions, pages, snapshots

    before, older = pages.alias("before"), extractions.alias("older")
    was_there = exists().where(
        before.c.key == pages.c.key,
        before.c.snapshot_id.is_not(None),
        before.c.extraction_id == older.c.id,
        older.c.source_id == extractions.c.source_id,
        older.c.id < extractions.c.id,
    )
    query = (
        select(
            extractions.c.source_id,
            pages.c.url,
            pages.c.outcome,
            pages.c.failure,
            snapshots.c.rendered_at,
            was_there.label("was_there"),
        )
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .outerjoin(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(extractions.c.id.in_(last_extractions(source_ids)), pages.c.visited_at >= since)
        .order_by(pages.c.id)
    )
    return [
        DemoPage(
            source_id=row.source_id,
            url=row.url,
            result=_page_result(row.outcome, was_there=row.was_there),
            failure=row.failure,
            needs_browser=row.rendered_at is not None,
            is_rendered=row.rendered_at is not None and row.rendered_at >= since,
        )
        for row in connection.execute(query)
    ]


def _page_result(outcome: str | None, *, was_there: bool) -> str:
    match outcome:
        case None:
            return "failed"
        case "same":
            return "unchanged"
        case _:
            return "changed" if was_there else "new"


def last_extractions(source_ids: Collection[str]) -> Select[tuple[int]]:
    """Select the id of each source's last extraction."""
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import extractions

    of_these = extractions.c.source_id.in_(list(source_ids))
    return select(func.max(extractions.c.id)).where(of_these).group_by(extractions.c.source_id)


COLUMNS = (
    Column("dataset"),
    Column("extraction"),
    Column("items", is_number=True),
    Column("flagged", is_number=True),
    Column("pages", is_number=True),
    Column("version", is_number=True),
    Column("state"),
)


def print_datasets(connection: Connection, source_ids: Sequence[str]) -> None:
    """Print one line per extracted catalogue; nothing before the first dataset exists."""
    rows = dataset_rows(connection, source_ids)
    if any(row[-1] != "-" for row in rows):
        echo("")
        print_table(COLUMNS, rows)


def dataset_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Return each source's last extraction with the dataset it built or confirmed, if any.

    Pages are those whose records are known: extracted now, or unchanged since they were.
    """
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import datasets, extractions

    read = _pages_read(source_ids)
    query = (
        select(
            extractions.c.source_id,
            extractions.c.status,
            datasets.c.item_count,
            datasets.c.flagged_count,
            read.c.pages,
            datasets.c.version,
            datasets.c.status.label("state"),
        )
        .join(read, read.c.extraction_id == extractions.c.id)
        .outerjoin(datasets, datasets.c.id == extractions.c.dataset_id)
    )
    by_source = {row.source_id: row for row in connection.execute(query)}
    return [
        ["-" if value is None else value for value in by_source[source_id]]
        for source_id in source_ids
        if source_id in by_source
    ]


def _pages_read(source_ids: Sequence[str]) -> Subquery:
    """Select the last extraction of each source with the number of extracted pages."""
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import extractions, pages

    last = (
        select(func.max(extractions.c.id).label("id"))
        .where(extractions.c.source_id.in_(list(source_ids)))
        .group_by(extractions.c.source_id)
        .subquery()
    )
    return (
        select(last.c.id.label("extraction_id"), func.count(pages.c.item_count).label("pages"))
        .outerjoin(pages, pages.c.extraction_id == last.c.id)
        .group_by(last.c.id)
        .subquery()
    )


SLOW_MS = 500  # other pages of the demo take a few
PLAIN = frozenset({"utf-8", "ascii"})
NAMES = {"cp932": "Shift_JIS"}  # the name that pages use; browsers decode it as this codec


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedPage:
    """A page that this run downloaded: final URL, response time and charset."""

    url: str
    final_url: str
    elapsed_ms: int
    encoding: str


def print_unusual_pages(
    connection: Connection, settings: Settings, source_ids: Sequence[str], *, since: datetime
) -> None:
    """Print a line for each unusual page; nothing if this run downloaded none."""
    from ingestion_pipeline.pages import ContentStore

    content = ContentStore(settings.home / "content")
    pages = downloaded_pages(connection, content, source_ids, since=since)
    rows = [*unusual_pages(pages), *_delays(connection, [page.url for page in pages])]
    if rows:
        echo("")
        print_table([Column("unusual"), Column("details", is_flexible=True)], rows)


def unusual_pages(pages: Sequence[DownloadedPage]) -> Iterator[list[object]]:
    """Return what is unusual about each page and how it was handled."""
    for page in pages:
        if page.final_url != page.url:
            details = f"{page.url} leads to {page.final_url}: each hop was checked and rate limited"
            yield ["redirect", details]
        if page.elapsed_ms >= SLOW_MS:
            yield ["slow page", f"{page.url} took {page.elapsed_ms / 1_000:.1f} seconds"]
        if page.encoding not in PLAIN:
            name = NAMES.get(page.encoding, page.encoding)
            yield ["charset", f"{page.url} is encoded in {name}, and stored as UTF-8"]


def downloaded_pages(
    connection: Connection, content: ContentStore, source_ids: Sequence[str], *, since: datetime
) -> list[DownloadedPage]:
    """Return the pages of each source's last extraction that are new in this run."""
    from sqlalchemy import select

    from ingestion_pipeline.reading.text.decoding import encoding_of
    from ingestion_pipeline.store.tables import pages, snapshots

    query = (
        select(pages.c.url, pages.c.elapsed_ms, snapshots)
        .join(snapshots, snapshots.c.id == pages.c.snapshot_id)
        .where(
            pages.c.extraction_id.in_(last_extractions(source_ids)),
            pages.c.visited_at >= since,
            pages.c.outcome == "new",
        )
        .order_by(pages.c.id)
    )
    return [
        DownloadedPage(
            url=row["url"],
            final_url=row["final_url"] or row["url"],
            elapsed_ms=row["elapsed_ms"] or 0 if row["rendered_at"] is None else 0,
            encoding=encoding_of(content.get(row["body_hash"]), row["content_type"]),
        )
        for row in connection.execute(query).mappings()
    ]


def _delays(connection: Connection, urls: Collection[str]) -> Iterator[list[object]]:
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import hosts
    from ingestion_pipeline.urls import host_of

    query = select(hosts.c.host, hosts.c.crawl_delay_seconds).where(
        hosts.c.host.in_({host_of(url) for url in urls}), hosts.c.crawl_delay_seconds > 0
    )
    for host, seconds in connection.execute(query.order_by(hosts.c.host)):
        details = f"robots.txt of {host} sets a crawl delay of {seconds:g} seconds, which was kept"
        yield ["crawl delay", details]
