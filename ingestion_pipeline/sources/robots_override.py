"""The override of robots.txt by a source's config: whoever sets or takes it leaves a line of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.sources.source import IGNORE_ROBOTS, Definition
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import sources


def audit_overrides(
    connection: Connection,
    definitions: Sequence[Definition],
    *,
    before: Mapping[str, Mapping[str, Any]],
    actor: str,
    now: datetime,
) -> None:
    """An audit line for each source that ignores robots.txt from now on, or no longer.

    `before` holds the configs of the rows that are about to change.
    """
    overriding = {one.id for one in definitions if _ignores(one.config)}
    standing = _standing(connection, overriding - before.keys())
    for one in definitions:
        if one.id in standing:
            continue
        did, does = _ignores(before.get(one.id, {})), one.id in overriding
        if did is not does:
            audit(
                connection,
                actor=actor,
                action="source.ignore_robots" if does else "source.honour_robots",
                subject=one.id,
                now=now,
                detail={"url": one.url, "origin": one.origin},
            )


def _ignores(config: Mapping[str, Any]) -> bool:
    return config.get(IGNORE_ROBOTS) is True


def _standing(connection: Connection, ids: set[str]) -> set[str]:
    """Of these sources the ones that have a row: those are declared as before."""
    if not ids:
        return set()
    query = select(sources.c.id).where(sources.c.id.in_(ids))
    return set(connection.execute(query).scalars())
