"""Sources that came, and sources that went: files imported, partition keys listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, and_, false, func, select

from ingestion_pipeline.sources.declared_rows import BY_FILE
from ingestion_pipeline.sources.files import Check, FileProblem, read_folder
from ingestion_pipeline.sources.recipient import Recipient
from ingestion_pipeline.sources.registry import REMOVED, Registered, register
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources


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
