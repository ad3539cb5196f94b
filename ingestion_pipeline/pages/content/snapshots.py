"""Snapshots: a row per URL and content, whose objects are in the content store.

There are two kinds of rows. A *page* (`write_page_snapshots`) is hashed by its cleaned text, and
has objects for body, text, Markdown and screenshot. A page of a *feed* (`write_feed_snapshots`) is
hashed by its body, its only object; its source recognises the feed by a hash of its own. Both are
one row per URL and content hash, however often that content returns: `fetched_at` is the last time.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from hashlib import sha256
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, RowMapping, select, update

from ingestion_pipeline.pages.content.store import ContentStore, Named, storage_errors_fatal
from ingestion_pipeline.pages.politeness.rights import Rights
from ingestion_pipeline.pages.visits.page import CrawledPage, KnownPage, NewPage, SamePage
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.markdown import MARKDOWN_VERSION
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.statements import columns_of, insert_rows, lock_rows, row_source
from ingestion_pipeline.store.tables import snapshots
from ingestion_pipeline.urls import without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRef:
    """A page in the content store; `final_url` is where its redirects led."""

    url: str
    final_url: str
    content_hash: str
    content_type: str | None
    size_bytes: int
    status_code: int
    etag: str | None
    last_modified: str | None
    rights: Rights | None = None


_IDENTITY = ("url", "url_key", "content_hash")
_FORMS = ("body_hash", "text_hash", "markdown_hash", "screenshot_hash")
_OBJECTS = ("content_hash", *_FORMS)
# Columns that are attributes of a `NewPage`.
_AS_FETCHED = (
    *("canonical_url", "content_hash", "served_hash", "content_type", "status_code", "etag", "last_modified"),
    *("links_hash", "rendering_hash", "rights"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow(PageRef):
    """A page whose objects are in the content store, ready to become a row."""

    served_hash: str | None
    body_hash: str
    canonical_url: str | None = None
    rendered_at: datetime | None = None
    text_hash: str | None = None
    markdown_hash: str | None = None
    markdown_version: str | None = None
    screenshot_hash: str | None = None
    links_hash: str | None = None
    rendering_hash: str | None = None
    discovered: Sequence[str] | None = None
    source_id: str | None = None
    failure: str | None = None
    run_id: str | None = None


_COLUMNS = columns_of(snapshots, [*(field.name for field in fields(SnapshotRow)), "url_key"])


def _forms(page: NewPage) -> tuple[bytes | Named | None, ...]:
    """Return body, text, Markdown and screenshot; the last two only if there are any."""
    # The served body was hashed on arrival; a rendered one was not.
    body = page.body if page.is_rendered else (page.served_hash, page.body)
    return body, page.text, page.markdown or None, page.screenshot or None


def _stored(
    page: NewPage, names: Sequence[str | None], *, now: datetime, source_id: str | None, run_id: str | None
) -> SnapshotRow:
    body_hash, text_hash, markdown_hash, screenshot_hash = names
    return SnapshotRow(
        source_id=source_id,
        run_id=run_id,
        url=without_secrets(page.url),
        final_url=without_secrets(page.final_url),
        size_bytes=len(page.body),
        rendered_at=now if page.is_rendered else None,
        body_hash=body_hash or "",
        text_hash=text_hash,
        markdown_hash=markdown_hash,
        markdown_version=MARKDOWN_VERSION if markdown_hash else None,
        screenshot_hash=screenshot_hash,
        discovered=list(page.discovered) or None,
        **{name: getattr(page, name) for name in _AS_FETCHED},
    )


def write_page_snapshots(connection: Connection, pages: Sequence[SnapshotRow], *, now: datetime) -> list[int]:
    """Write the snapshots of the pages in one statement; return the ids in the same order.

    Content that a URL had before updates its row, which becomes the newest again.
    """
    rows = {_key(page): page for page in pages}
    if not rows:
        return []
    values = [(*_values(page), key[0]) for key, page in rows.items()]
    order = ("url_key", "content_hash")
    statement = insert_rows(connection, snapshots, _COLUMNS, values, order=order, fetched_at=now)
    renewed = [name for name in (*_COLUMNS, "fetched_at") if name not in _IDENTITY]
    upsert = statement.on_conflict_do_update(
        index_elements=order, set_={name: statement.excluded[name] for name in renewed}
    ).returning(snapshots.c.url_key, snapshots.c.content_hash, snapshots.c.id)
    ids = {(key, content): id_ for key, content, id_ in connection.execute(upsert)}
    return [ids[_key(page)] for page in pages]


def write_feed_snapshots(
    connection: Connection,
    pages: Collection[tuple[str, PageRef]],
    *,
    now: datetime,
    failure: str | None = None,
    run_id: str | None = None,
) -> list[int]:
    """Write the snapshots of feed pages; return the ids. `failure` marks pages not parsed."""
    listed = [
        SnapshotRow(
            source_id=source_id,
            served_hash=page.content_hash,
            body_hash=page.content_hash,
            failure=failure,
            run_id=run_id,
            **asdict(page),
        )
        for source_id, page in pages
    ]
    return write_page_snapshots(connection, listed, now=now)


def objects_of_snapshots(connection: Connection) -> set[str | None]:
    """Return the hash of every object that a snapshot refers to."""
    queries = [select(snapshots.c[name]).distinct() for name in _OBJECTS]
    return {content_hash for query in queries for content_hash in connection.execute(query).scalars()}


_values: Callable[[SnapshotRow], tuple[Any, ...]] = attrgetter(*[field.name for field in fields(SnapshotRow)])


def _key(page: SnapshotRow) -> tuple[str, str]:
    return url_key(page.url), page.content_hash


def url_key(url: str) -> str:
    """Return the key by which snapshots of the URL are found."""
    return sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class SnapshotArchive:
    """Rows of `snapshots` and their objects in the content store."""

    database: Store
    content: ContentStore
    run_id: str | None = None

    def known_pages(self, connection: Connection, urls: Collection[str]) -> dict[str, KnownPage]:
        """Return the newest snapshots of these URLs; without all objects on disk, a page must be fetched whole."""
        names = [field.name for field in fields(KnownPage) if field.name != "snapshot_id"]
        columns = [snapshots.c[name] for name in (*names, *_FORMS)]
        query = (
            select(snapshots.c.url, snapshots.c.id.label("snapshot_id"), *columns)
            .where(snapshots.c.url_key.in_([url_key(url) for url in urls]))
            .where(snapshots.c.text_hash.is_not(None))
            .order_by(snapshots.c.fetched_at, snapshots.c.id)
        )
        newest = {row["url"]: row for row in connection.execute(query).mappings()}
        return {
            url: KnownPage(snapshot_id=row["snapshot_id"], **{name: row[name] for name in names})
            for url, row in newest.items()
            if all(self.content.has(row[name]) for name in _FORMS if row[name] is not None)
        }

    def store(self, pages: Sequence[tuple[str | None, NewPage]], *, now: datetime) -> list[SnapshotRow]:
        """Write every form of every (source, page) to disk; a full disk is `Fatal`. `keep` takes the result."""
        forms = [_forms(page) for _, page in pages]
        with storage_errors_fatal():
            groups = ([form for form in of_page if form is not None] for of_page in forms)
            put = [iter(group) for group in self.content.put_together(groups)]
        names = [
            [None if form is None else next(group) for form in of_page]
            for of_page, group in zip(forms, put, strict=True)
        ]
        return [
            _stored(page, of_page, now=now, source_id=source_id, run_id=self.run_id)
            for (source_id, page), of_page in zip(pages, names, strict=True)
        ]

    def keep(self, connection: Connection, stored_pages: Sequence[SnapshotRow], *, now: datetime) -> Sequence[int]:
        """Write a snapshot of each stored page; return the ids in the same order."""
        return write_page_snapshots(connection, stored_pages, now=now)

    def renew(self, connection: Connection, pages: Collection[SamePage]) -> int:
        """Store the new validators of unchanged pages; return how many differed."""
        names = ("etag", "last_modified", "served_hash", "rendered_at", "rights")
        rows = [
            (page.known_page.snapshot_id, *(getattr(page, name) for name in names))
            for page in pages
            if any(getattr(page, name) != getattr(page.known_page, name) for name in names)
        ]
        if rows:
            lock_rows(connection, snapshots.c.id, [row[0] for row in rows])
            input_rows = row_source(connection, columns_of(snapshots, ("id", *names)), rows, "given")
            connection.execute(
                update(snapshots)
                .where(snapshots.c.id == input_rows.c.id)
                .values({name: input_rows.c[name] for name in names})
            )
        return len(rows)

    def stored(self, known_page: KnownPage) -> CrawledPage:
        """Return the page as stored, with links that clicks discovered if there are any."""
        with self.database.read() as connection:
            query = select(snapshots).where(snapshots.c.id == known_page.snapshot_id)
            row = connection.execute(query).one()
        page = CrawledPage(
            url=row.final_url or row.url,
            body=self.content.get(row.body_hash),
            content_type=row.content_type,
            is_rendered=row.rendered_at is not None,
            rights=row.rights,
        )
        if not row.discovered:
            return page
        document = Document.of(page.body, page.content_type, url=page.url)
        return replace(page, links=(*document.links, *row.discovered))


def dead_letter_snapshots(connection: Connection, dead_letter: RowMapping) -> list[RowMapping]:
    """Return the snapshots that the dead letter names, else the newest of its URL.

    That one may be older than the failure. None where nothing was stored, or retention deleted it.
    """
    payload = dead_letter["payload"]
    names = ("id", "url", "fetched_at", "status_code", "content_type", "size_bytes", "failure", "body_hash")
    query = select(*(snapshots.c[name] for name in names)).order_by(
        snapshots.c.fetched_at.desc(), snapshots.c.id.desc()
    )
    if named := payload.get("snapshots"):
        return list(connection.execute(query.where(snapshots.c.id.in_(named))).mappings())
    query = query.where(snapshots.c.source_id == dead_letter["source_id"])
    query = query.where(snapshots.c.url == payload.get("url")).limit(1)
    return list(connection.execute(query).mappings())
