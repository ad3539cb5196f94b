"""How well the demo's sources are after a run, and that what changed is told."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import Column, say, say_table, shortened

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store

SHOWN_REASON = 150  # characters


def tell_changes(store: Store, settings: Settings) -> None:
    """Who changed for the worse or the better is written down and told, as `maintain` does it."""
    from ingestion_pipeline.upkeep.telling import note_health

    with store.begin() as connection:
        note_health(connection, settings, store.clock.now(connection))


def say_health(
    connection: Connection, settings: Settings, source_ids: Collection[str], *, now: datetime
) -> None:
    """Those that are unwell, with since when it was told, and how many of each word there are."""
    from ingestion_pipeline.cli.output import distance
    from ingestion_pipeline.sources.health import UNWELL
    from ingestion_pipeline.upkeep.standing import standings

    found = standings(connection, settings, now=now, ids=source_ids)
    unwell = [one for one in found if one.health in UNWELL]
    if unwell:
        columns = [
            Column("source"),
            Column("health"),
            Column("told"),
            Column("why", is_flexible=True),
        ]
        say_table(
            columns,
            [
                [
                    one.facts.id,
                    one.health.value,
                    distance(one.told.since, now),
                    shortened(one.verdict.reason, SHOWN_REASON),
                ]
                for one in unwell
            ],
        )
    counts = Counter(one.health.value for one in found)
    say("health: " + ", ".join(f"{count} {word}" for word, count in counts.items()))
