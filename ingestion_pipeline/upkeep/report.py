"""A row for each source that is shown: its word, why, and all that is known of how it does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import Health
from ingestion_pipeline.sources.price import market
from ingestion_pipeline.sources.source import SourceStatus
from ingestion_pipeline.sources.status import Watched, reason, watched_by_id
from ingestion_pipeline.upkeep import coverage as known
from ingestion_pipeline.upkeep.coverage import IDS_AT_ONCE, ChangeRate, Coverage
from ingestion_pipeline.upkeep.standing import SourceFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A source as it is shown; `why` says why it was or was not polled."""

    id: str
    kind: str
    tier: str
    status: str
    health: Health
    health_reason: str
    why: str
    last_outcome: str | None
    last_checked_at: datetime | None
    last_success_at: datetime | None
    next_check_at: datetime | None
    failure_count: int
    record_count: int
    error_class: str | None
    breaker: str
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    coverage: Coverage | None = None
    change_rate: ChangeRate | None = None
    cost_30d_usd: Decimal = Decimal(0)


def reported(
    connection: Connection, shown: Sequence[SourceFacts], settings: Settings, *, now: datetime
) -> list[Reported]:
    """These sources with all that is known, in their order; a few statements for thousands."""
    return [row for some in _batches(shown) for row in _reported(connection, some, settings, now)]


def _batches(shown: Sequence[SourceFacts]) -> Iterator[Sequence[SourceFacts]]:
    for start in range(0, len(shown), IDS_AT_ONCE):
        yield shown[start : start + IDS_AT_ONCE]


def _reported(
    connection: Connection, shown: Sequence[SourceFacts], settings: Settings, now: datetime
) -> Iterator[Reported]:
    ids = [one.facts.id for one in shown]
    watched = watched_by_id(connection, ids)
    covered = known.coverage(connection, ids)
    prices = market(connection, settings)
    cost = known.costs(connection, ids, now=now)
    letters = known.failures(connection, ids)
    attempts = settings.work.max_attempts
    for one in shown:
        id_ = one.facts.id
        yield Reported(
            **_of_row(watched[id_], now=now, max_attempts=attempts),
            health=one.health,
            health_reason=one.verdict.reason,
            failures=letters.get(id_, {}),
            coverage=covered.get(id_),
            change_rate=known.change_rate(watched[id_].source, prices, now=now),
            cost_30d_usd=cost.get(id_, Decimal(0)),
        )


def _of_row(watched: Watched, *, now: datetime, max_attempts: int) -> dict[str, Any]:
    source = watched.source
    return {
        "id": source.id,
        "kind": source.kind.value,
        "tier": source.tier.value,
        "status": source.status.value,
        "why": reason(source, watched.poll, now=now, max_attempts=max_attempts),
        "last_outcome": source.last_outcome,
        "last_checked_at": source.last_checked_at,
        "last_success_at": source.last_success_at,
        "next_check_at": watched.next_check_at,
        "failure_count": source.failure_count,
        "record_count": source.record_count,
        "error_class": source.last_error_class,
        "breaker": "open" if source.status is SourceStatus.OPEN else "closed",
    }


def as_row(one: Reported) -> dict[str, Any]:
    """The row under stable keys, for programs."""
    covered, rate = one.coverage, one.change_rate
    plain = {name: getattr(one, name) for name in Reported.__dataclass_fields__}
    plain.pop("change_rate")
    return plain | {
        "coverage": None
        if covered is None
        else {"got": covered.got, "expected": covered.expected, "of": covered.of},
        "changes_per_day": None if rate is None else rate.per_day,
        "change_confidence": None if rate is None else rate.confidence,
    }
