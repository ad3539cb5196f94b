"""The archive of crawled pages: storing them, and finding them as snapshots."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, RowMapping, select

from ingestion_pipeline.pages.content.snapshots import (
    SnapshotRow,
    known_pages,
    renew_pages,
    store_pages,
    write_page_snapshots,
)
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.visits.page import CrawledPage, KnownPage, NewPage, SamePage
from ingestion_pipeline.reading.html.links import page_links
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import snapshots


class SnapshotArchive:
    """Rows of `snapshots` and their objects in the content store."""

    def __init__(self, store: Store, content: ContentStore, run_id: str | None = None) -> None:
        self._store = store
        self._content = content
        self._run_id = run_id

    def known_pages(self, connection: Connection, urls: Collection[str]) -> Mapping[str, KnownPage]:
        """Return the newest snapshot of each URL that has one whose objects are all on disk."""
        return known_pages(connection, urls, self._content)

    def store(self, pages: Sequence[tuple[str, NewPage]], *, now: datetime) -> Sequence[SnapshotRow]:
        """Write every form of every (source, page) to disk; return what `keep` takes."""
        return store_pages(self._content, pages, now=now, run_id=self._run_id)

    def keep(self, connection: Connection, stored_pages: Sequence[SnapshotRow], *, now: datetime) -> Sequence[int]:
        """Write a snapshot of each stored page; return the ids in the same order."""
        return write_page_snapshots(connection, stored_pages, now=now)

    def renew(self, connection: Connection, pages: Collection[SamePage]) -> None:
        """Store the new validators of unchanged pages."""
        renew_pages(connection, pages)

    def stored(self, known_page: KnownPage) -> CrawledPage:
        """Return the page as stored, with links that clicks discovered if there are any."""
        with self._store.read() as connection:
            query = select(snapshots).where(snapshots.c.id == known_page.snapshot_id)
            row = connection.execute(query).one()
        page = CrawledPage(
            url=row.final_url or row.url,
            body=self._content.get(row.body_hash),
            content_type=row.content_type,
            is_rendered=row.rendered_at is not None,
        )
        return _with_discovered(page, row.discovered) if row.discovered else page


def _with_discovered(page: CrawledPage, discovered: Sequence[str]) -> CrawledPage:
    tree = parse_html(decode(page.body, page.content_type))
    return replace(page, links=(*page_links(tree, page.url), *discovered))


_SHOWN = (
    snapshots.c.id,
    snapshots.c.url,
    snapshots.c.fetched_at,
    snapshots.c.status_code,
    snapshots.c.content_type,
    snapshots.c.size_bytes,
    snapshots.c.failure,
    snapshots.c.body_hash,
)


def dead_letter_snapshots(connection: Connection, dead_letter: RowMapping) -> list[RowMapping]:
    """Return the snapshots that the dead letter names, else the newest of its URL.

    That one may be older than the failure. None where nothing was stored, or retention deleted it.
    """
    payload = dead_letter["payload"]
    query = select(*_SHOWN).order_by(snapshots.c.fetched_at.desc(), snapshots.c.id.desc())
    if named := payload.get("snapshots"):
        return list(connection.execute(query.where(snapshots.c.id.in_(named))).mappings())
    query = query.where(snapshots.c.source_id == dead_letter["source_id"])
    query = query.where(snapshots.c.url == payload.get("url")).limit(1)
    return list(connection.execute(query).mappings())
