"""Every source's facts and word by one query: no configuration is read, and no history walked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    and_,
    case,
    distinct,
    func,
    or_,
    select,
    true,
)

from ingestion_pipeline.catalogs.operations.held_back import (
    held_back,
    held_reason,
    last_shown_at,
    missing_reason,
    with_missing_pages,
)
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.health import (
    NEVER,
    PLACES,
    Facts,
    Health,
    HealthState,
    HealthStatus,
    ReportedHealth,
    health_of,
)
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.scheduling.budget import PollingBudget, market
from ingestion_pipeline.sources.scheduling.explanation import expectation
from ingestion_pipeline.sources.scheduling.tiers import ADAPTIVE, interval
from ingestion_pipeline.sources.source import QUARANTINED, Kind, Source, SourceStatus, Tier
from ingestion_pipeline.sources.status import Watched, reason, watched_by_id
from ingestion_pipeline.store.bulk import making_rows, row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import (
    OPEN,
    chapter_sources,
    chapters,
    dead_letters,
    extractions,
    listing_sources,
    model_calls,
    pages,
    source_health,
    source_words,
    sources,
    tasks,
    website_analyses,
    website_answers,
)
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

ROWS_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source, what was told of it, and how well it is now."""

    facts: Facts
    told: ReportedHealth
    verdict: HealthStatus

    @property
    def health(self) -> Health:
        """The word."""
        return self.verdict.health


def standings(
    connection: Connection, settings: Settings, *, now: datetime, ids: Collection[str] | None = None
) -> list[SourceFacts]:
    """Every source, or these, the worst first."""
    those = [] if ids is None else [sources.c.id.in_(list(ids))]
    with making_rows():
        return sorted(_standings(connection, settings, now, those), key=badness)


def notable(connection: Connection, settings: Settings, *, now: datetime) -> list[SourceFacts]:
    """Those whose state may have to change: who fails, is left alone, held back, or was unwell."""
    is_notable = or_(
        sources.c.failure_count > 0,
        sources.c.last_outcome.startswith(QUARANTINED),
        sources.c.id.in_(held_back("source_id")),
        sources.c.id.in_(select(with_missing_pages().subquery("incomplete").c.source_id)),
        sources.c.status != SourceStatus.ACTIVE.value,
        tasks.c.error_class == ErrorClass.RESOURCE.value,
        source_health.c.state != HealthState.WELL.value,
    )
    return list(_standings(connection, settings, now, [is_notable]))


def badness(one: SourceFacts) -> tuple[int, int, datetime, str]:
    """The order of those who are looked at: by word, by failures, then who waits longest."""
    facts = one.facts
    since = facts.last_success_at or facts.created_at
    return PLACES[one.health], -facts.failure_count, since, facts.id


def _standings(
    connection: Connection, settings: Settings, now: datetime, those: Sequence[ColumnElement[bool]]
) -> Iterator[SourceFacts]:
    waits = {
        (kind.value, tier.value): interval(kind, tier, settings) for kind in Kind for tier in Tier
    }
    factor = settings.ingest.stale_factor
    query = _query(those).execution_options(yield_per=ROWS_AT_ONCE)
    for row in connection.execute(query):
        facts = _facts(row, waits[row.kind, row.tier], factor)
        told = NEVER if row.state is None else _reported_health(row)
        verdict = health_of(facts, told=told, now=now, limits=settings.health)
        yield SourceFacts(facts=facts, told=told, verdict=verdict)


_OF_A_SOURCE = (
    *("id", "kind", "tier", "status", "status_reason", "failure_count", "last_outcome"),
    *("last_error_class", "last_success_at", "created_at"),
)


def _query(those: Sequence[ColumnElement[bool]]) -> Select[Any]:
    poll, told = tasks.c, source_health.c
    held = held_back("source_id", "version", "extraction_id", "findings").subquery("held")
    incomplete = with_missing_pages().subquery("incomplete")
    shown_at = case((told.state != HealthState.WELL.value, last_shown_at(sources.c.id)))
    return (
        select(
            *(sources.c[name] for name in _OF_A_SOURCE),
            poll.status.label("poll"),
            poll.not_before,
            poll.lease_until,
            poll.error_class,
            poll.error_code,
            told.state,
            told.since,
            told.changes,
            told.success_before,
            held.c.version.label("held"),
            held.c.extraction_id.label("of"),
            held.c.findings,
            shown_at.label("shown_at"),
            incomplete.c.extraction_id.label("incomplete"),
            incomplete.c.missing,
        )
        .outerjoin(tasks, and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL))
        .outerjoin(source_health, source_health.c.source_id == sources.c.id)
        .outerjoin(held, held.c.source_id == sources.c.id)
        .outerjoin(incomplete, incomplete.c.source_id == sources.c.id)
        .where(*those)
    )


def _facts(row: Any, wait: timedelta, factor: float) -> Facts:  # noqa: ANN401 - a row
    return Facts(
        id=row.id,
        kind=Kind(row.kind),
        tier=Tier(row.tier),
        status=SourceStatus(row.status),
        status_reason=row.status_reason,
        failure_count=row.failure_count,
        error_class=row.last_error_class,
        last_outcome=row.last_outcome,
        last_success_at=row.last_success_at,
        created_at=row.created_at,
        interval=wait,
        patience=wait * factor,
        poll=None if row.poll is None else TaskStatus(row.poll),
        due_at=row.not_before,
        lease_until=row.lease_until,
        held_by=row.error_code if row.error_class == ErrorClass.RESOURCE.value else None,
        held_back=None if row.held is None else held_reason(row.held, row.of, row.findings),
        missing=None if row.missing is None else missing_reason(row.incomplete, row.missing),
        shown_at=row.shown_at,
    )


def _reported_health(row: Any) -> ReportedHealth:  # noqa: ANN401 - a row
    return ReportedHealth(
        state=HealthState(row.state),
        since=row.since,
        changes=row.changes,
        success_before=row.success_before,
    )


AT_ONCE = 5_000  # a statement of SQLite takes 32,766 parameters
_GIVEN = {"source_id": String(120), "word": String(12), "since": UtcDateTime()}


Word = tuple[str, str, datetime]  # source, word, since


def new_words(connection: Connection, found: Iterable[SourceFacts], *, now: datetime) -> list[Word]:
    """The words that are others than those that are kept."""
    query = select(source_words.c.source_id, source_words.c.word)
    known: dict[str, str] = {id_: word for id_, word in connection.execute(query)}  # noqa: C416
    return sorted(
        (one.facts.id, one.health.value, now)
        for one in found
        if known.get(one.facts.id) != one.health.value
    )


def keep_words(connection: Connection, words: Sequence[Word]) -> None:
    """`v_source_health` says these of their sources; the last who looked is right."""
    for start in range(0, len(words), AT_ONCE):
        _write(connection, words[start : start + AT_ONCE])


def _write(connection: Connection, rows: Sequence[Word]) -> None:
    given = row_source(connection, _GIVEN, rows, "given")
    # SQLite takes an ON of the conflict for one of a join, unless a condition stands before it.
    insert = insert_into(connection, source_words).from_select(
        list(_GIVEN), select(*given.c).where(true()).order_by(given.c.source_id)
    )
    new = insert.excluded
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["source_id"], set_={"word": new.word, "since": new.since}
        )
    )


MONTH = timedelta(days=30)
IDS_AT_ONCE = 5_000  # a statement of SQLite takes 32,766 parameters
_GOT = ("SUCCESS", "EXTRACTED_NO_DATA", "DOWNLOADED")


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what there is was got; `of` says what is counted."""

    got: int
    expected: int
    of: str

    @property
    def share(self) -> float | None:
        """Between 0 and 1; None if nothing is expected."""
        return self.got / self.expected if self.expected else None

    def __str__(self) -> str:
        return f"{self.got} of {self.expected} {self.of}"


@dataclass(frozen=True, slots=True)
class ChangeRate:
    """Changes a day that are expected, and how sure that is, between 0 and 1."""

    per_day: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.per_day:.3g} ({100 * self.confidence:.0f} %)"


def coverage(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Of each of these sources, as far as its kind allows; a company has nothing to count."""
    return {
        **_chapters(connection, ids),
        **_listings(connection, ids),
        **_pages(connection, ids),
        **_answers(connection, ids),
    }


def _chapters(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Whole numbers it lists, of those between its lowest and its highest: the rest are gaps."""
    number = chapters.c.number
    query = (
        select(
            chapter_sources.c.source_id,
            func.count(distinct(number)),
            func.max(number) - func.min(number) + 1,
        )
        .join(chapters, chapters.c.id == chapter_sources.c.chapter_id)
        .where(
            chapter_sources.c.source_id.in_(ids),
            chapter_sources.c.available,
            number == func.floor(func.coalesce(number, 0)),  # SQLite's takes no null
        )
        .group_by(chapter_sources.c.source_id)
    )
    return _read(connection, query, "chapters")


def _listings(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Jobs it lists that were read with their description, of all it lists."""
    has_description = func.count().filter(listing_sources.c.stated.contains("d"))
    query = (
        select(listing_sources.c.source_id, has_description, func.count())
        .where(listing_sources.c.source_id.in_(ids), listing_sources.c.available)
        .group_by(listing_sources.c.source_id)
    )
    return _read(connection, query, "jobs described")


def _pages(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Pages of the last extraction that were got, of all it found."""
    last = (
        select(func.max(extractions.c.id).label("id"), extractions.c.source_id)
        .where(extractions.c.source_id.in_(ids))
        .group_by(extractions.c.source_id)
        .subquery()
    )
    query = (
        select(last.c.source_id, func.count().filter(pages.c.status.in_(_GOT)), func.count())
        .join(pages, pages.c.extraction_id == last.c.id)
        .group_by(last.c.source_id)
    )
    return _read(connection, query, "pages")


def _answers(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Answers of the last analysis that were given, of all that were asked for."""
    last = (
        select(func.max(website_analyses.c.id).label("id"), website_analyses.c.source_id)
        .where(website_analyses.c.source_id.in_(ids))
        .group_by(website_analyses.c.source_id)
        .subquery()
    )
    given = func.count().filter(website_answers.c.status == "answered")
    query = (
        select(last.c.source_id, given, func.count())
        .join(website_answers, website_answers.c.analysis_id == last.c.id)
        .group_by(last.c.source_id)
    )
    return _read(connection, query, "answers")


def _read(connection: Connection, query: Any, of: str) -> dict[str, Coverage]:  # noqa: ANN401
    rows: Sequence[Any] = connection.execute(query).all()
    return {source_id: Coverage(int(had), int(all_), of) for source_id, had, all_ in rows}


def change_rate(source: Source, prices: PollingBudget, *, now: datetime) -> ChangeRate | None:
    """What its next check is decided by; None for a kind of which nothing is estimated.

    Of a source nobody knows yet it is what is usual for its platform, with a confidence of 0.
    """
    if source.kind not in ADAPTIVE:
        return None
    found = expectation(source, prices, now=now)
    return ChangeRate(found["expected_changes_per_day"], found["change_confidence"])


def costs(connection: Connection, ids: Sequence[str], *, now: datetime) -> dict[str, Decimal]:
    """What models took for each in 30 days."""
    query = (
        select(model_calls.c.source_id, func.sum(model_calls.c.cost_usd))
        .where(model_calls.c.source_id.in_(ids), model_calls.c.created_at > now - MONTH)
        .group_by(model_calls.c.source_id)
    )
    return {id_: Decimal(str(cost)) for id_, cost in connection.execute(query) if cost is not None}


def failures(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Open dead letters of each, by class: how often each happened."""
    query = (
        select(
            dead_letters.c.source_id,
            dead_letters.c.error_class,
            func.sum(dead_letters.c.occurrences),
        )
        .where(OPEN, dead_letters.c.source_id.in_(ids))
        .group_by(dead_letters.c.source_id, dead_letters.c.error_class)
    )
    found: dict[str, dict[str, int]] = {}
    for id_, error_class, count in connection.execute(query):
        found.setdefault(id_, {})[error_class] = int(count)
    return found


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
    covered = coverage(connection, ids)
    prices = market(connection, settings)
    cost = costs(connection, ids, now=now)
    letters = failures(connection, ids)
    attempts = settings.work.max_attempts
    for one in shown:
        id_ = one.facts.id
        yield Reported(
            **_of_row(watched[id_], now=now, max_attempts=attempts),
            health=one.health,
            health_reason=one.verdict.reason,
            failures=letters.get(id_, {}),
            coverage=covered.get(id_),
            change_rate=change_rate(watched[id_].source, prices, now=now),
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
