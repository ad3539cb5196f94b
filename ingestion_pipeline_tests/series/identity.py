"""Series that are merged and split while people follow them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select

from ingestion_pipeline.series.operator_changes import Merged, Split, merge, split
from ingestion_pipeline.sources.canonical_series import series_assignments
from ingestion_pipeline.store.tables import (
    audit_log,
    chapter_sources,
    chapters,
    follows,
    notices,
    outbox,
    recipients,
    series,
    sources,
)
from ingestion_pipeline_tests.series.syncing import Syncing

Link = tuple[str, str, str, Any, Any, bool]


def merge_now(syncing: Syncing, old: str, new: str) -> Merged:
    with syncing.store.begin() as connection:
        return merge(connection, old, new, actor="test", now=syncing.clock.at)


def split_now(syncing: Syncing, old: str, new: str, *source_ids: str, title: str | None = None) -> Split:
    with syncing.store.begin() as connection:
        return split(connection, old, new, source_ids, title=title, actor="test", now=syncing.clock.at)


def follow(syncing: Syncing, recipient: str, *series_ids: str) -> None:
    with syncing.store.begin() as connection:
        known = connection.execute(select(recipients.c.id)).scalars()
        now = {"created_at": syncing.clock.at}
        if recipient not in set(known):
            row = {"address_url": "json://a.test", "kinds": ["chapter"], "mode": "immediate"}
            connection.execute(
                insert(recipients).values(id=recipient, origin="row", updated_at=syncing.clock.at, **row, **now)
            )
        for one in series_ids:
            connection.execute(insert(follows).values(recipient_id=recipient, series_id=one, origin="row", **now))


def notice(syncing: Syncing, recipient: str, chapter_id: int, status: str, **row: Any) -> None:
    values = {
        "recipient": recipient,
        "subject_kind": "chapter",
        "subject_id": str(chapter_id),
        "status": status,
        "mode": "immediate",
        "payload": {"chapter_id": chapter_id},
        "created_at": syncing.clock.at,
    }
    with syncing.store.begin() as connection:
        connection.execute(insert(notices).values(values | row))


def told_notices(syncing: Syncing) -> list[tuple[str, str, str, str]]:
    """Recipient, status, series and number of the chapter of every notice."""
    with syncing.store.read() as connection:
        rows = connection.execute(select(notices).order_by(notices.c.id)).mappings().all()
        known = {
            str(row.id): (row.series_id, row.key)
            for row in connection.execute(select(chapters.c.id, chapters.c.series_id, chapters.c.key))
        }
    return [(row["recipient"], row["status"], *known[row["subject_id"]]) for row in rows]


def chapter_id(syncing: Syncing, series_id: str, key: str) -> int:
    return next(row["id"] for row in syncing.chapters() if (row["series_id"], row["key"]) == (series_id, key))


def all_links(syncing: Syncing) -> set[Link]:
    """Source, series, key, detection, releases and availability of every chapter source."""
    query = select(chapter_sources, chapters.c.series_id, chapters.c.key, chapters.c.first_detected_at).join(
        chapters, chapters.c.id == chapter_sources.c.chapter_id
    )
    with syncing.store.read() as connection:
        return {
            (
                row["source_id"],
                row["series_id"],
                row["key"],
                row["detected_at"],
                tuple(sorted(str(one["source_chapter_id"]) for one in row["releases"])),
                row["available"],
            )
            for row in connection.execute(query).mappings()
        }


def audited(syncing: Syncing) -> list[tuple[str, str, dict[str, Any]]]:
    with syncing.store.read() as connection:
        query = select(audit_log.c.action, audit_log.c.subject, audit_log.c.detail)
        return [tuple(row) for row in connection.execute(query.order_by(audit_log.c.id))]


def check_invariants(syncing: Syncing, *, moved_by_file: Sequence[str] = ()) -> None:
    """What must hold whatever was merged, split and ingested."""
    with syncing.store.read() as connection:
        ids = list(connection.execute(select(sources.c.id)).scalars())
        home = {one: found.series_id for one, found in series_assignments(connection, ids).items()}
        rows = connection.execute(select(series)).mappings().all()
        told = connection.execute(select(outbox.c.subject_id)).scalars().all()
        query = select(sources.c.id, sources.c.record_count)
        counts = {row.id: row.record_count for row in connection.execute(query)}
    links = [link for link in all_links(syncing) if link[0] not in moved_by_file]
    assert {(one, series_id) for one, series_id, *_ in links} <= set(home.items())
    keys = [(row["series_id"], row["key"]) for row in syncing.chapters()]
    assert len(keys) == len(set(keys))
    merged = {row["id"]: row["merged_into"] for row in rows if row["merged_into"]}
    assert not set(merged.values()) & merged.keys()  # one step, hence no chain and no circle
    assert {one.partition(":")[0] for one in told} <= {str(row["id"]) for row in syncing.chapters()}
    assert counts == dict.fromkeys(ids, 0) | dict(Counter(link[0] for link in links if link[-1]))
    for row in rows:
        there = {key for _, series_id, key, *_, is_there in links if is_there and series_id == row["id"]}
        numbers = [
            one["number"]
            for one in syncing.chapters()
            if one["series_id"] == row["id"]
            and one["key"] in there
            and one["number"] is not None
            and one["rejected_at"] is None
        ]
        assert row["latest_chapter"] == max(numbers, default=None), row["id"]
