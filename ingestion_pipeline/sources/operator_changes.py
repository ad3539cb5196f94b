"""Changes of sources by operators, file imports and refreshes, and the partition keys."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, and_, false, func, select, update

from ingestion_pipeline.sources.canonical_series import series_assignments
from ingestion_pipeline.sources.definition import Check, declaration, definition_of
from ingestion_pipeline.sources.files import FileProblem, read_file, read_folder
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.recipients import Recipient
from ingestion_pipeline.sources.registry import BY_FILE, REMOVED, Registered, register
from ingestion_pipeline.sources.source import BY_HAND, Definition, Kind, Source
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import sources


class SeriesAssigned(ValueError):
    """An operator has assigned the series, and a declaration would not change it."""

    def __init__(self, source_id: str, series_id: str) -> None:
        cure = f"`ingest series split {series_id} --source {source_id} --into NEW` moves it"
        super().__init__(f"series: {source_id} is assigned to {series_id!r} by an operator; {cure}")


def redeclare(connection: Connection, source: Source, definition: Definition, *, actor: str, now: datetime) -> bool:
    """Update the source to the definition, with an audit line; return False if nothing changed."""
    declared = replace(definition, origin=source.origin)
    home = series_assignments(connection, [source.id])[source.id]
    if declared.series != source.series_id and home.is_assigned:
        raise SeriesAssigned(source.id, home.series_id)
    if not register(connection, [declared], now=now, actor=actor).updated:
        return False
    detail = _difference(source, declared)
    audit(connection, actor=actor, action="source.update", subject=source.id, now=now, detail=detail)
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
    return {key: {"from": before.get(key), "to": value} for key, value in after.items() if before.get(key) != value}


def accept_drop(connection: Connection, source_id: str, *, actor: str, now: datetime) -> None:
    """Accept the source's next feed however many records it has lost; once."""
    statement = update(sources).where(sources.c.id == source_id)
    if not connection.execute(statement.values(accepts_drop=True, updated_at=now)).rowcount:
        raise UnknownSource(source_id)
    audit(connection, actor=actor, action="source.accept_drop", subject=source_id, now=now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The source as stored, and what is wrong with its declaration."""

    source: Source
    problems: Sequence[str]


def refresh_source(store: Store, source_id: str, *, folder: Path, check: Check) -> Refreshed:
    """Update the row from its declaration; a declaration with a problem changes nothing."""
    with store.begin() as connection:
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        path = folder / source.origin
        if source.origin != BY_HAND and path.is_file():
            file = read_file(path, check=check)
            problems = [str(problem) for problem in file.problems]
            mine = [definition for definition in file.definitions if definition.id == source_id]
            register(connection, mine, now=store.clock.now(connection))
        else:
            _, bad = definition_of(declaration(source), check=check)
            problems = [f"{problem.field}: {problem.message}" for problem in bad]
        current = sources_by_id(connection, [source_id])[source_id]
    return Refreshed(source=current, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of importing a folder of source files."""

    registered: Registered
    problems: Sequence[FileProblem]
    recipients: Sequence[Recipient] = ()
    """Who the good files say is to be told; `notices` registers them."""


def import_files(store: Store, folder: Path, *, check: Check) -> Imported:
    """Register the good files of the folder, and return every problem of the others."""
    files = read_folder(folder, check=check)
    definitions = [entry for file in files for entry in file.definitions]
    with store.begin() as connection:
        registered = register(connection, definitions, now=store.clock.now(connection))
    return Imported(
        registered=registered,
        problems=[entry for file in files for entry in file.problems],
        recipients=[entry for file in files for entry in file.recipients],
    )


def partition_keys(connection: Connection, *, limit: int) -> dict[Kind, list[str]]:
    """Return each kind's source ids, oldest first, at most `limit` each; none that was removed or never enabled."""
    was_never_on = and_(sources.c.status_reason == BY_FILE, sources.c.last_checked_at.is_(None))
    query = (
        select(sources.c.kind, sources.c.id)
        .where(sources.c.status_reason.is_distinct_from(REMOVED), ~func.coalesce(was_never_on, false()))
        .order_by(sources.c.created_at, sources.c.id)
    )
    keys_by_kind: dict[Kind, list[str]] = {}
    for kind, source_id in connection.execute(query):
        keys = keys_by_kind.setdefault(Kind(kind), [])
        if len(keys) < limit:
            keys.append(source_id)
    return keys_by_kind
