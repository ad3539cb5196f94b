"""Which pages said something: a row per page and content, pointing into the content store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from ingestion_pipeline.pages.poll_results import PageRef
from ingestion_pipeline.store.tables import snapshots


def keep_snapshots(
    connection: Connection, pages: Collection[tuple[str, PageRef]], *, now: datetime
) -> None:
    """Each (source, page) has its snapshot; one that was seen before is only seen again."""
    if not pages:
        return
    hashes = {page.content_hash for _, page in pages}
    query = select(
        snapshots.c.id, snapshots.c.source_id, snapshots.c.url, snapshots.c.content_hash
    ).where(
        snapshots.c.source_id.in_({source_id for source_id, _ in pages}),
        snapshots.c.content_hash.in_(hashes),
    )
    rows = connection.execute(query)
    known = {(row.source_id, row.url, row.content_hash): row.id for row in rows}
    seen = [known[key] for source_id, page in pages if (key := _key(source_id, page)) in known]
    new = [
        {"source_id": source_id, "fetched_at": now, **asdict(page)}
        for source_id, page in pages
        if _key(source_id, page) not in known
    ]
    if seen:
        again = update(snapshots).where(snapshots.c.id.in_(seen))
        connection.execute(again.values(fetched_at=now))
    if new:
        connection.execute(insert(snapshots), new)


def _key(source_id: str, page: PageRef) -> tuple[str, str, str]:
    return source_id, page.url, page.content_hash
