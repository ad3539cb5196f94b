"""Pages by plain HTTP alone: the least that a crawl needs of a visitor and an archive."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select

from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.pages.crawled import StoredPage
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.leased_hosts import Visited
from ingestion_pipeline.pages.page import KnownPage, NewPage, PageAnswer, PageVisit, SamePage
from ingestion_pipeline.pages.poll import paced
from ingestion_pipeline.pages.request import Fetched, Request
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.page import read_page
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.store.tables import snapshots
from ingestion_pipeline.work.errors import Permanent

ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1"


class PlainVisitor:
    """Visits by HTTP; a page that needs a browser is refused."""

    def __init__(self, fetcher: HttpFetcher, clock: SteadyClock) -> None:
        self._fetcher = fetcher
        self._clock = clock

    async def visit(self, visit: PageVisit, *, host: Visited, honours_robots: bool) -> PageAnswer:
        """The page, or that it is as it was."""
        if visit.render:
            raise Permanent(f"{visit.url} wants a browser, and there is none", code="no_browser")
        robots = host.robots if honours_robots else None
        fetch = paced(self._fetcher, host.pacer, robots, self._clock)
        known = visit.known
        answer = await fetch(
            Request(
                url=visit.url,
                accept=ACCEPT,
                etag=known.etag if known else None,
                last_modified=known.last_modified if known else None,
            )
        )
        if known is not None and _is_same(answer, known):
            return SamePage(
                url=visit.url,
                known=known,
                etag=answer.etag,
                last_modified=answer.last_modified,
            )
        if not isinstance(answer, Fetched):
            raise Permanent(f"{visit.url} is unchanged, but nothing is known", code="not_modified")
        return _read(answer)


def _is_same(answer: object, known: KnownPage) -> bool:
    if not isinstance(answer, Fetched):
        return True
    return hashlib.sha256(answer.body).hexdigest() == known.served_hash


def _read(page: Fetched) -> NewPage:
    seen = read_page(decode(page.body, page.content_type), url=page.final_url)
    served = hashlib.sha256(page.body).hexdigest()
    return NewPage(
        url=page.url,
        final_url=page.final_url,
        canonical_url=seen.canonical_url,
        status_code=page.status_code,
        content_type=page.content_type,
        etag=page.etag,
        last_modified=page.last_modified,
        body=page.body,
        served_hash=served,
        content_hash=served,
        text=seen.text,
        markdown=seen.markdown,
        links=seen.links,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    row: Mapping[str, Any]


class PlainArchive:
    """Snapshots as rows of `snapshots`, their bodies in the content store."""

    def __init__(self, store: Store, content: ContentStore) -> None:
        self._store = store
        self._content = content

    def known(self, connection: Connection, urls: Collection[str]) -> Mapping[str, KnownPage]:
        """What the newest snapshot of each URL left."""
        newest = (
            select(func.max(snapshots.c.id))
            .where(snapshots.c.url.in_(list(urls)))
            .group_by(snapshots.c.url)
        )
        rows = connection.execute(select(snapshots).where(snapshots.c.id.in_(newest)))
        return {
            row.url: KnownPage(
                snapshot_id=row.id,
                content_hash=row.content_hash,
                served_hash=row.content_hash,
                etag=row.etag,
                last_modified=row.last_modified,
            )
            for row in rows
        }

    def store(self, page: NewPage) -> _Kept:
        """The body is on disk."""
        return _Kept(
            row={
                "url": page.url,
                "content_hash": self._content.put(page.body),
                "content_type": page.content_type,
                "size_bytes": len(page.body),
                "status_code": page.status_code,
                "etag": page.etag,
                "last_modified": page.last_modified,
            }
        )

    def keep(
        self, connection: Connection, kept: Sequence[_Kept], *, now: datetime
    ) -> Sequence[int]:
        """A row each."""
        if not kept:
            return []
        statement = insert(snapshots).returning(snapshots.c.id, sort_by_parameter_order=True)
        rows = [{**one.row, "fetched_at": now} for one in kept]
        return list(connection.execute(statement, rows).scalars())

    def stored(self, known: KnownPage) -> StoredPage:
        """The page as it was kept."""
        with self._store.read() as connection:
            query = select(snapshots).where(snapshots.c.id == known.snapshot_id)
            row = connection.execute(query).one()
        return StoredPage(
            url=row.url, body=self._content.get(row.content_hash), content_type=row.content_type
        )
