"""What a demo run saw of its catalogues, told by the tables: pages, and why some were not got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say, say_table, shortened

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select, Subquery

    from ingestion_pipeline.pages import ContentStore
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source


NUMBERS = ("pages", "new", "changed", "unchanged", "failed")
LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPage:
    """A page that this run visited: got, for the first time or not, or the reason why not.

    `needs_browser` if what is kept of it came from one; `is_rendered` if that was now.
    """

    source_id: str
    url: str
    came_to: str
    failure: Mapping[str, str] | None = None
    needs_browser: bool = False
    is_rendered: bool = False


def is_waiting(connection: Connection, source_ids: Collection[str]) -> bool:
    """Whether a page of these catalogues has still to be visited."""
    from sqlalchemy import exists, select

    from ingestion_pipeline.catalogs.states import OPEN_PAGES
    from ingestion_pipeline.store.tables import extractions, pages

    last = last_extractions(source_ids)
    is_open = exists().where(pages.c.extraction_id.in_(last), pages.c.status.in_(OPEN_PAGES))
    is_going_on = extractions.c.finished_at.is_(None)
    query = select(exists().where(extractions.c.id.in_(last), is_going_on, is_open))
    return bool(connection.execute(query).scalar_one())


def say_catalogs(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """One line per catalogue, one for each page that was not got, and one on the browser."""
    from ingestion_pipeline.sources import SourceStatus
    from ingestion_pipeline.sources.lookup import sources_by_id

    found = sources_by_id(connection, source_ids)
    seen = seen_pages(connection, source_ids, since=since)
    columns = [
        Column("catalogue"),
        *(Column(name, is_number=True) for name in NUMBERS),
        Column("crawl"),
    ]
    sources = [found[one] for one in source_ids if one in found]
    unread = _waiting_to_be_read(connection, source_ids)
    say_table(columns, [_row(one, seen, unread) for one in sources])
    for one in sources:
        if one.status is SourceStatus.DISABLED:
            say("\n" + why_disabled(one))
    if failed := [(one.url, one.failure) for one in seen if one.failure is not None]:
        say("")
        columns = [Column("not got, or not read"), Column("because", is_flexible=True)]
        rows = [[_in_words(failure["code"]), _reason(url, failure)] for url, failure in failed]
        say_table(columns, rows)
    if said := browser_word(seen):
        say("\n" + said)


def _row(source: Source, seen: Sequence[DemoPage], unread: Collection[str]) -> list[object]:
    words = Counter(one.came_to for one in seen if one.source_id == source.id)
    counts = (words[name] for name in NUMBERS[1:])
    return [source.id, words.total(), *counts, state(source, is_unread=source.id in unread)]


def _waiting_to_be_read(connection: Connection, source_ids: Collection[str]) -> set[str]:
    """The sources with a page that was got and could not be read so far."""
    from sqlalchemy import select

    from ingestion_pipeline.catalogs.states import PageStatus
    from ingestion_pipeline.store.tables import extractions, pages

    query = (
        select(extractions.c.source_id)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .where(
            extractions.c.id.in_(last_extractions(source_ids)),
            pages.c.status == PageStatus.DOWNLOADED.value,
        )
    )
    return set(connection.execute(query).scalars())


def state(source: Source, *, is_unread: bool = False) -> str:
    """One word for how its last crawl ended, or that there will be none."""
    if source.status.value in {"disabled", "open"}:
        return source.status.value
    if is_unread:
        return "unread"
    return "failed" if source.last_error_class else "complete"


def why_disabled(source: Source) -> str:
    """The short reason, and where the long one is."""
    first = (source.status_reason or "").partition(": ")[0].partition(";")[0]
    reason = first.removeprefix("disabled").lstrip(", ") or "by hand"
    return f"{source.id} is disabled ({reason}); `ingest sources show {source.id}` says more"


def _in_words(code: str) -> str:
    return code.replace("_", " ")


def _reason(url: str, failure: Mapping[str, str]) -> str:
    """The message; with the page's address, if it does not name it itself."""
    message = failure["message"]
    return shortened(message if url in message else f"{url}: {message}", LONGEST_REASON)


def browser_word(seen: Sequence[DemoPage]) -> str:
    """What the browser was for; nothing, if no page that was got needs one."""
    rendered = [one.url for one in seen if one.is_rendered]
    if rendered:
        return f"shown by a browser, being empty without JavaScript: {', '.join(rendered)}"
    if kept := [one.url for one in seen if one.needs_browser]:
        return f"no browser was opened: {', '.join(kept)} is as it was"
    return ""


def seen_pages(
    connection: Connection, source_ids: Sequence[str], *, since: datetime
) -> list[DemoPage]:
    """The pages of each source's last extraction that were visited since then."""
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
            came_to=_word(row.outcome, was_there=row.was_there),
            failure=row.failure,
            needs_browser=row.rendered_at is not None,
            is_rendered=row.rendered_at is not None and row.rendered_at >= since,
        )
        for row in connection.execute(query)
    ]


def _word(outcome: str | None, *, was_there: bool) -> str:
    match outcome:
        case None:
            return "failed"
        case "same":
            return "unchanged"
        case _:
            return "changed" if was_there else "new"


def last_extractions(source_ids: Collection[str]) -> Select[tuple[int]]:
    """The id of each source's last extraction."""
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


def say_datasets(connection: Connection, source_ids: Sequence[str]) -> None:
    """One line per catalogue that was extracted; nothing before the first dataset there is."""
    rows = dataset_rows(connection, source_ids)
    if any(row[-1] != "-" for row in rows):
        say("")
        say_table(COLUMNS, rows)


def dataset_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """Each source's last extraction, with the dataset that it built or confirmed, if any.

    Pages are those whose records are known: read now, or unchanged since they were.
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
    found = {row.source_id: row for row in connection.execute(query)}
    return [
        ["-" if value is None else value for value in found[one]]
        for one in source_ids
        if one in found
    ]


def _pages_read(source_ids: Sequence[str]) -> Subquery:
    """The last extraction of each source, with how many of its pages have been read."""
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


SLOW_MS = 500  # the others of the demo take a few
PLAIN = frozenset({"utf-8", "ascii"})
NAMES = {"cp932": "Shift_JIS"}  # as pages call it; the codec is what browsers take it for


@dataclass(frozen=True, slots=True, kw_only=True)
class GotPage:
    """A page that this run got: where it was in the end, how long its server took, its charset."""

    url: str
    final_url: str
    elapsed_ms: int
    encoding: str


def say_oddities(
    connection: Connection, settings: Settings, source_ids: Sequence[str], *, since: datetime
) -> None:
    """A line for each; nothing if this run got none of them."""
    from ingestion_pipeline.pages import ContentStore

    content = ContentStore(settings.home / "content")
    pages = got_pages(connection, content, source_ids, since=since)
    rows = [*oddities(pages), *_delays(connection, [one.url for one in pages])]
    if rows:
        say("")
        say_table([Column("got all the same"), Column("how", is_flexible=True)], rows)


def oddities(pages: Sequence[GotPage]) -> Iterator[list[object]]:
    """What is odd about them, and how they were got."""
    for one in pages:
        if one.final_url != one.url:
            said = f"{one.url} leads to {one.final_url}: each hop was checked, and kept its turn"
            yield ["redirect", said]
        if one.elapsed_ms >= SLOW_MS:
            yield ["slow page", f"{one.url} took {one.elapsed_ms / 1_000:.1f} seconds"]
        if one.encoding not in PLAIN:
            name = NAMES.get(one.encoding, one.encoding)
            yield ["charset", f"{one.url} is written in {name}, and kept as UTF-8"]


def got_pages(
    connection: Connection, content: ContentStore, source_ids: Sequence[str], *, since: datetime
) -> list[GotPage]:
    """The pages of each source's last extraction that were new to this run."""
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
        GotPage(
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
        said = f"robots.txt of {host} asks for {seconds:g} seconds between requests: it had them"
        yield ["crawl delay", said]
