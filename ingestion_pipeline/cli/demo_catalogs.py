"""What a demo run saw of its catalogues, told by the tables: pages, and why some were not got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say, say_table, shortened

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

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
