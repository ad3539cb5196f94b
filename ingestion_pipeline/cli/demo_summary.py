"""What a demo run came to, told by the tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say, say_table, shortened

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """A source after the run: what its poll came to, and how many new records it brought."""

    source: Source
    came_to: str
    new: int


def say_summary(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> None:
    """One line per source, then the sums."""
    polled = _polled(connection, source_ids, since=since)
    columns = [
        Column("source"),
        Column("tier"),
        Column("came to"),
        Column("new", is_number=True),
        Column("said", is_flexible=True),
    ]
    rows = [
        [
            one.source.id,
            one.source.tier,
            one.came_to,
            one.new,
            shortened(one.source.last_outcome or "", 200),
        ]
        for one in polled
    ]
    say_table(columns, rows)
    say("\n" + sums(polled))
    say(_totals(connection, since=since))


def sums(polled: Sequence[Polled]) -> str:
    """How many sources came to what, and all new records."""
    words = [one.came_to for one in polled]
    parts = [
        f"{sum(word != 'not polled' for word in words)} polled",
        f"{words.count('changed')} changed",
        f"{sum(one.new for one in polled)} new",
        f"{words.count('unchanged')} unchanged",
        f"{words.count('failed')} failed",
    ]
    if "quarantined" in words:
        parts.append(f"{words.count('quarantined')} quarantined")
    return ", ".join(parts)


def came_to(source: Source, *, since: datetime) -> str:
    """One word for what became of the source since the run began."""
    if source.last_checked_at is None or source.last_checked_at < since:
        return "not polled"
    if source.last_error_class is not None:
        return "failed"
    if source.last_changed_at is not None and source.last_changed_at >= since:
        return "changed"
    return "unchanged" if source.last_outcome == "unchanged" else "quarantined"


def _polled(connection: Connection, source_ids: Sequence[str], *, since: datetime) -> list[Polled]:
    from sqlalchemy import func, select

    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.store.tables import chapter_sources

    query = (
        select(chapter_sources.c.source_id, func.count().label("records"))
        .where(chapter_sources.c.detected_at >= since)
        .group_by(chapter_sources.c.source_id)
    )
    new = {row.source_id: row.records for row in connection.execute(query)}
    found = sources_by_id(connection, source_ids)
    return [
        Polled(source=one, came_to=came_to(one, since=since), new=new.get(one.id, 0))
        for one in (found[source_id] for source_id in source_ids if source_id in found)
    ]


def _totals(connection: Connection, *, since: datetime) -> str:
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import chapters, outbox

    fresh = func.count().filter(chapters.c.first_detected_at >= since)
    total, new = connection.execute(select(func.count(), fresh).select_from(chapters)).one()
    told = outbox.c.subject_kind.like("chapter%")
    rows = connection.execute(select(func.count()).where(told)).scalar_one()
    return f"chapters in all: {total}, new among them: {new}; outbox rows: {rows}"


def hint(ingest: str) -> str:
    """What to try after a run."""
    return (
        f"Try next: `{ingest} demo mutate && {ingest} demo run` (everything changes a little),\n"
        f"`{ingest} export course --to csv` (the datasets), `{ingest} extractions list`,\n"
        f"`{ingest} matches list`, `{ingest} companies list`, `{ingest} websites list`,\n"
        f"`{ingest} status`, `{ingest} notices list`, `make dev` (the UI),\n"
        f"`{ingest} dead-letters list` (what is broken here is meant to be)."
    )
