"""What an operator changes by hand, each change with its line in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, false, func, select, update

from ingestion_pipeline.sources.canonical_series import homes
from ingestion_pipeline.sources.declared_rows import BY_FILE
from ingestion_pipeline.sources.definition import definition_of
from ingestion_pipeline.sources.files import Check, FileProblem, read_file, read_folder
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.recipients import Recipient
from ingestion_pipeline.sources.registry import REMOVED, Registered, register
from ingestion_pipeline.sources.source import BY_HAND, Definition, Kind, Source
from ingestion_pipeline.store import Store
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The source as it stands, and what is wrong with its declaration."""

    source: Source
    problems: Sequence[str]


def refresh_source(store: Store, source_id: str, *, folder: Path, check: Check) -> Refreshed:
    """The row says what the declaration says; a declaration with a problem changes nothing."""
    with store.begin() as connection:
        found = sources_by_id(connection, [source_id]).get(source_id)
        if found is None:
            raise UnknownSource(source_id)
        path = folder / found.origin
        problems: list[str] = []
        if found.origin != BY_HAND and path.is_file():
            file = read_file(path, check=check)
            problems = [str(problem) for problem in file.problems]
            mine = [one for one in file.definitions if one.id == source_id]
            register(connection, mine, now=store.clock.now(connection))
        else:
            problems = _problems(found, check)
        current = sources_by_id(connection, [source_id])[source_id]
    return Refreshed(source=current, problems=problems)


def _problems(source: Source, check: Check) -> list[str]:
    definition, bad = definition_of(declaration(source))
    found = [*bad, *check(definition)] if definition is not None else bad
    return [f"{one.field}: {one.message}" for one in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What a folder of source files came to."""

    registered: Registered
    problems: Sequence[FileProblem]
    recipients: Sequence[Recipient] = ()
    """Who the good files say is to be told; `notices` registers them."""


def import_files(store: Store, folder: Path, *, check: Check) -> Imported:
    """The good files of the folder are registered; every problem of the others is told."""
    files = read_folder(folder, check=check)
    definitions = [one for file in files for one in file.definitions]
    with store.begin() as connection:
        registered = register(connection, definitions, now=store.clock.now(connection))
    return Imported(
        registered=registered,
        problems=[one for file in files for one in file.problems],
        recipients=[one for file in files for one in file.recipients],
    )


def partition_keys(connection: Connection, *, limit: int) -> dict[Kind, list[str]]:
    """The ids of each kind's sources, oldest first; beyond the limit a source has no partition.

    Nor has one that was removed, or that its file declares but has never enabled.
    """
    was_never_on = and_(sources.c.status_reason == BY_FILE, sources.c.last_checked_at.is_(None))
    query = (
        select(sources.c.kind, sources.c.id)
        .where(
            sources.c.status_reason.is_distinct_from(REMOVED),
            ~func.coalesce(was_never_on, false()),
        )
        .order_by(sources.c.created_at, sources.c.id)
    )
    found: dict[Kind, list[str]] = {}
    for kind, source_id in connection.execute(query):
        keys = found.setdefault(Kind(kind), [])
        if len(keys) < limit:
            keys.append(source_id)
    return found
