"""Pages of the demo that were got although they are odd: what they did, and what was done."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.demo_catalogs import last_extractions
from ingestion_pipeline.cli.output import Column, say, say_table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.pages import ContentStore
    from ingestion_pipeline.settings import Settings

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

    from ingestion_pipeline.reading.decode import encoding_of
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
