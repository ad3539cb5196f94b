"""State changes are told, states are not: each in one transaction with its outbox row, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Integer, String, Text, select, true

from ingestion_pipeline.notices.subjects import write_notices
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Alert, HealthState, next_state
from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import source_health
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.upkeep.standing import SourceFacts, notable


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A source whose state is another one from now on, and what is told of it, if anything."""

    standing: SourceFacts
    state: HealthState
    alert: Alert | None

    @property
    def name(self) -> str:
        """What no other change is called, whoever sees it: the source and its how manieth."""
        return f"{self.standing.facts.id}#{self.standing.told.changes + 1}"


def note_health(connection: Connection, settings: Settings, now: datetime) -> int:
    """What changed since the last look is stored and told; how many sources that was."""
    changes = [
        change
        for one in notable(connection, settings, now=now)
        if (change := change_of(one)) is not None
    ]
    written = write_changes(connection, changes, now=now)
    _tell(connection, [one for one in changes if one.standing.facts.id in written], now=now)
    return len(written)


def change_of(one: SourceFacts) -> Change | None:
    """What becomes of the state, if anything."""
    state, alert = next_state(one.told.state, one.health)
    if state is one.told.state:
        return None
    return Change(standing=one, state=state, alert=alert)


_GIVEN = {
    "source_id": String(120),
    "state": String(12),
    "since": UtcDateTime(),
    "reason": Text(),
    "changes": Integer(),
    "success_before": UtcDateTime(),
}


def write_changes(connection: Connection, changes: Sequence[Change], *, now: datetime) -> set[str]:
    """Those that are ours: who comes second finds another count of changes, and writes nothing."""
    if not changes:
        return set()
    rows = [
        (
            one.standing.facts.id,
            one.state.value,
            now,
            one.standing.verdict.reason,
            one.standing.told.changes + 1,
            one.standing.facts.last_success_at,
        )
        for one in sorted(changes, key=lambda one: one.standing.facts.id)
    ]
    given = row_source(connection, _GIVEN, rows, "given")
    # SQLite takes an ON of the conflict for one of a join, unless a condition stands before it.
    insert = insert_into(connection, source_health).from_select(
        list(_GIVEN), select(*given.c).where(true()).order_by(given.c.source_id)
    )
    new = insert.excluded
    statement = insert.on_conflict_do_update(
        index_elements=["source_id"],
        set_={name: new[name] for name in _GIVEN if name != "source_id"},
        where=source_health.c.changes == new.changes - 1,
    ).returning(source_health.c.source_id)
    return set(connection.execute(statement).scalars())


def _tell(connection: Connection, changes: Sequence[Change], *, now: datetime) -> None:
    by_alert: dict[Alert, dict[str, dict[str, Any]]] = {}
    for one in changes:
        if one.alert is not None:
            by_alert.setdefault(one.alert, {})[one.name] = _payload(one, one.alert)
    for alert, payloads in by_alert.items():
        write_notices(connection, alert.value, payloads, now=now)


_TITLES = {
    Alert.DEGRADED: "{id} is degraded",
    Alert.RECOVERED: "{id} has recovered",
    Alert.OPENED: "{id} is left alone: its breaker is open",
    Alert.DISABLED: "{id} is disabled until somebody enables it",
}


def _payload(one: Change, alert: Alert) -> dict[str, Any]:
    facts = one.standing.facts
    return {
        "source_id": facts.id,
        "title": _TITLES[alert].format(id=facts.id),
        "text": one.standing.verdict.reason,
        "health": one.standing.health.value,
        "before": one.standing.told.state.value,
        "failures": facts.failure_count,
        "error_class": facts.error_class,
    }
