"""What an operator changes by hand, each change with its line in the audit log."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.sources.belonging import homes
from ingestion_pipeline.sources.declared_rows import BY_FILE
from ingestion_pipeline.sources.lookup import UnknownSource
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Source
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import sources


class SeriesAssigned(ValueError):
    """An operator's word on the series stands, and a declaration would not change it."""

    def __init__(self, source_id: str, series_id: str) -> None:
        cure = f"`ingest series split {series_id} --source {source_id} --into NEW` moves it"
        super().__init__(f"series: {source_id} is assigned to {series_id!r} by an operator; {cure}")


def declaration(source: Source) -> dict[str, Any]:
    """What was declared of the source, as `definition_of` takes it; only what is set."""
    said = {
        "id": source.id,
        "kind": source.kind.value,
        "url": source.url,
        "name": source.name,
        "platform": source.platform,
        "tier": source.tier.value if source.tier_pinned else "auto",
        "config": dict(source.config),
        "enabled": source.status_reason != BY_FILE,
        "series": source.series_id,
        "company": source.company_id,
    }
    return {key: value for key, value in said.items() if value is not None}


def redeclare(
    connection: Connection, source: Source, definition: Definition, *, actor: str, now: datetime
) -> bool:
    """The source is declared so afterwards; False if it already was."""
    kept = replace(definition, origin=source.origin)
    home = homes(connection, [source.id])[source.id]
    if kept.series != source.series_id and home.is_assigned:
        raise SeriesAssigned(source.id, home.series_id)
    if not register(connection, [kept], now=now, actor=actor).updated:
        return False
    audit(
        connection,
        actor=actor,
        action="source.update",
        subject=source.id,
        now=now,
        detail=_difference(source, kept),
    )
    return True


def _difference(source: Source, definition: Definition) -> dict[str, object]:
    before = declaration(source)
    after: dict[str, object] = {
        "url": definition.url,
        "name": definition.name,
        "platform": definition.platform,
        "tier": definition.tier.value if definition.tier else "auto",
        "config": dict(definition.config),
        "series": definition.series,
    }
    return {
        key: {"from": before.get(key), "to": value}
        for key, value in after.items()
        if before.get(key) != value
    }


def accept_drop(connection: Connection, source_id: str, *, actor: str, now: datetime) -> None:
    """The source's next listing is believed, however much it has lost; once."""
    statement = update(sources).where(sources.c.id == source_id)
    if not connection.execute(statement.values(accepts_drop=True, updated_at=now)).rowcount:
        raise UnknownSource(source_id)
    audit(connection, actor=actor, action="source.accept_drop", subject=source_id, now=now)
