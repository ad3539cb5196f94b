"""Health of every source in a few queries, the details that reports add to it, and a heat map of how fresh sources are.

On the map a few sources have a row each; many are grouped by kind and tier, so that the picture stays small.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from io import BytesIO
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, func, or_, select

from ingestion_pipeline.extras import is_installed
from ingestion_pipeline.operations.freshness import MONTH, Attainment, attainments
from ingestion_pipeline.registry import kind_specs, systems
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.scheduling import tiers
from ingestion_pipeline.sources.source import QUARANTINED, Kind, Source, SourceStatus, Tier
from ingestion_pipeline.sources.status import (
    HEALTH_ORDER,
    NEVER_REPORTED,
    UNHEALTHY,
    Facts,
    Health,
    HealthState,
    HealthStatus,
    ReportedHealth,
    health_of,
    reason,
    watched_by_id,
)
from ingestion_pipeline.store.statements import columns_of, insert_rows
from ingestion_pipeline.store.tables import (
    OPEN,
    dead_letters,
    model_calls,
    observed_health,
    source_health,
    sources,
    tasks,
)
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus

ROWS_AT_ONCE = 5_000  # a statement of SQLite takes 32,766 parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source's facts, the health last reported, and its health now."""

    facts: Facts
    reported: ReportedHealth
    assessment: HealthStatus

    @property
    def health(self) -> Health:
        """Return the health."""
        return self.assessment.health


def source_statuses(
    connection: Connection, settings: Settings, *, now: datetime, ids: Collection[str] | None = None
) -> list[SourceFacts]:
    """Return the status of every source, or of these, the worst first."""
    those = [] if ids is None else [sources.c.id.in_(list(ids))]
    return sorted(_read_statuses(connection, settings, now, those), key=severity_order)


def sources_to_review(connection: Connection, settings: Settings, *, now: datetime) -> list[SourceFacts]:
    """Return the sources whose state may change: failing, open, held back or unhealthy before."""
    is_notable = or_(
        sources.c.failure_count > 0,
        sources.c.last_outcome.startswith(QUARANTINED),
        sources.c.id.in_(list(_held_back(connection))),
        sources.c.status != SourceStatus.ACTIVE.value,
        tasks.c.error_class == ErrorClass.RESOURCE.value,
        source_health.c.state != HealthState.WELL.value,
    )
    return list(_read_statuses(connection, settings, now, [is_notable]))


def severity_order(status: SourceFacts) -> tuple[int, int, datetime, str]:
    """Return the sort key: by health, by failures, then the longest without success."""
    facts = status.facts
    since = facts.last_success_at or facts.created_at
    return HEALTH_ORDER[status.health], -facts.failure_count, since, facts.id


def _read_statuses(
    connection: Connection, settings: Settings, now: datetime, those: Sequence[ColumnElement[bool]]
) -> Iterator[SourceFacts]:
    @cache
    def wait(kind: str, tier: str) -> timedelta:
        return tiers.interval(Kind(kind), Tier(tier), settings)

    @cache
    def held_back() -> Mapping[str, str]:  # by no command that has no source: it loads the systems
        return _held_back(connection)

    @cache
    def accepted_at() -> Mapping[str, datetime]:
        return _accepted_at(connection)

    query = _query(those).execution_options(yield_per=ROWS_AT_ONCE)
    for row in connection.execute(query):
        facts = _facts(row, wait(row.kind, row.tier), held_back().get(row.id), accepted_at().get(row.id))
        reported = NEVER_REPORTED
        if row.state is not None:
            reported = ReportedHealth(
                state=HealthState(row.state), since=row.since, changes=row.changes, success_before=row.success_before
            )
        assessment = health_of(facts, reported=reported, now=now, limits=settings.health)
        yield SourceFacts(facts=facts, reported=reported, assessment=assessment)


_OF_A_SOURCE = (
    *("id", "kind", "tier", "status", "status_reason", "failure_count", "last_outcome"),
    *("last_error_class", "last_success_at", "created_at"),
)


def _query(those: Sequence[ColumnElement[bool]]) -> Select[Any]:
    poll, reported = tasks.c, source_health.c
    return (
        select(
            *(sources.c[name] for name in _OF_A_SOURCE),
            poll.status.label("poll"),
            poll.not_before,
            poll.lease_until,
            poll.error_class,
            poll.error_code,
            reported.state,
            reported.since,
            reported.changes,
            reported.success_before,
        )
        .outerjoin(tasks, and_(tasks.c.source_id == sources.c.id, tasks.c.kind == POLL))
        .outerjoin(source_health, source_health.c.source_id == sources.c.id)
        .where(*those)
    )


def _held_back(connection: Connection) -> dict[str, str]:
    """Return why systems show older data of some sources, by source."""
    each = [system.held_back(connection) for system in systems() if system.held_back is not None]
    return {source_id: why for held_back in each for source_id, why in held_back.items()}


def _accepted_at(connection: Connection) -> dict[str, datetime]:
    """Return when systems last showed new data of the sources that were reported as unhealthy."""
    unhealthy = select(source_health.c.source_id).where(source_health.c.state != HealthState.WELL.value)
    each = [system.accepted_at(connection, unhealthy) for system in systems() if system.accepted_at is not None]
    return {source_id: at for accepted_at in each for source_id, at in accepted_at.items()}


def _facts(row: Any, wait: timedelta, held_back: str | None, accepted_at: datetime | None) -> Facts:  # noqa: ANN401 - a row
    taken = ("id", "status_reason", "failure_count", "last_outcome", "last_success_at", "created_at")
    return Facts(
        **{name: getattr(row, name) for name in taken},
        kind=Kind(row.kind),
        tier=Tier(row.tier),
        status=SourceStatus(row.status),
        error_class=row.last_error_class,
        interval=wait,
        patience=wait * tiers.STALE_FACTOR,
        poll=None if row.poll is None else TaskStatus(row.poll),
        due_at=row.not_before,
        lease_until=row.lease_until,
        held_by=row.error_code if row.error_class == ErrorClass.RESOURCE.value else None,
        held_back=held_back,
        accepted_at=accepted_at,
    )


_OBSERVED_COLUMNS = columns_of(observed_health, ("source_id", "state", "since"))

ObservedState = tuple[str, str, datetime]  # source, state, since


def changed_states(connection: Connection, statuses: Iterable[SourceFacts], *, now: datetime) -> list[ObservedState]:
    """Return the health states that differ from the stored ones."""
    query = select(observed_health.c.source_id, observed_health.c.state)
    stored: dict[str, str] = {id_: state for id_, state in connection.execute(query)}  # noqa: C416
    return sorted(
        (status.facts.id, status.health.value, now)
        for status in statuses
        if stored.get(status.facts.id) != status.health.value
    )


def store_states(connection: Connection, states: Sequence[ObservedState]) -> None:
    """Store the states for the view `v_source_health`; the last writer wins."""
    for start in range(0, len(states), ROWS_AT_ONCE):
        rows = states[start : start + ROWS_AT_ONCE]
        insert = insert_rows(connection, observed_health, _OBSERVED_COLUMNS, rows, order=["source_id"])
        set_ = {name: insert.excluded[name] for name in ("state", "since")}
        connection.execute(insert.on_conflict_do_update(index_elements=["source_id"], set_=set_))


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of what exists was obtained; `of` names what is counted."""

    obtained: int
    expected: int
    of: str

    @property
    def share(self) -> float | None:
        """Return the share between 0 and 1; None if nothing is expected."""
        return self.obtained / self.expected if self.expected else None

    def __str__(self) -> str:
        return f"{self.obtained} of {self.expected} {self.of}"


@dataclass(frozen=True, slots=True)
class ChangeRate:
    """The expected changes a day, and how sure that is, between 0 and 1."""

    per_day: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.per_day:.3g} ({100 * self.confidence:.0f} %)"


def coverage(connection: Connection, ids: Sequence[str]) -> dict[str, Coverage]:
    """Return the coverage of each source whose kind can be counted; companies cannot."""
    covered: dict[str, Coverage] = {}
    for kind, spec in kind_specs().items():
        own = [source_id for source_id in ids if source_id.startswith(f"{kind}:")]
        if spec.coverage is not None and own:
            rows = connection.execute(spec.coverage.select(own)).all()
            covered |= {row[0]: Coverage(int(row[1]), int(row[2]), spec.coverage.of) for row in rows}
    return covered


def change_rate(source: Source, prices: tiers.PollingBudget, *, now: datetime) -> ChangeRate | None:
    """Return the rate that the next check depends on; None for kinds without an estimate.

    For a source without history it is what is usual for its platform, with a confidence of 0.
    """
    if source.kind in tiers.REPEATED:
        return None
    expected = tiers.expectation(source, prices, now=now)
    return ChangeRate(expected["expected_changes_per_day"], expected["change_confidence"])


def costs(connection: Connection, ids: Sequence[str], *, now: datetime) -> dict[str, Decimal]:
    """Return what models cost for each source in 30 days."""
    query = (
        select(model_calls.c.source_id, func.sum(model_calls.c.cost_usd))
        .where(model_calls.c.source_id.in_(ids), model_calls.c.created_at > now - MONTH)
        .group_by(model_calls.c.source_id)
    )
    return {id_: Decimal(str(cost)) for id_, cost in connection.execute(query) if cost is not None}


def failures(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return the open dead letters of each source by error class, with their occurrences."""
    query = (
        select(dead_letters.c.source_id, dead_letters.c.error_class, func.sum(dead_letters.c.occurrences))
        .where(OPEN, dead_letters.c.source_id.in_(ids))
        .group_by(dead_letters.c.source_id, dead_letters.c.error_class)
    )
    counts: dict[str, dict[str, int]] = {}
    for id_, error_class, count in connection.execute(query):
        counts.setdefault(id_, {})[error_class] = int(count)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealthRow:
    """A source with everything a report shows; `why` says why it was or was not polled."""

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
    objective: Attainment | None = None


def reported(
    connection: Connection, statuses: Sequence[SourceFacts], settings: Settings, *, now: datetime
) -> list[SourceHealthRow]:
    """Return these sources with all details, in order, using a few statements for thousands."""
    batches = (statuses[start : start + ROWS_AT_ONCE] for start in range(0, len(statuses), ROWS_AT_ONCE))
    return [row for batch in batches for row in _reported(connection, batch, settings, now)]


def _reported(
    connection: Connection, statuses: Sequence[SourceFacts], settings: Settings, now: datetime
) -> Iterator[SourceHealthRow]:
    ids = [status.facts.id for status in statuses]
    watched_sources = watched_by_id(connection, ids)
    covered = coverage(connection, ids)
    prices = tiers.current_budget(connection, settings)
    cost = costs(connection, ids, now=now)
    dead_letter_counts = failures(connection, ids)
    objectives: dict[str, Attainment] = {}
    if any(watched.source.max_delay_seconds for watched in watched_sources.values()):
        objectives = {attained.source_id: attained for attained in attainments(connection, settings, now=now)}
    for status in statuses:
        watched = watched_sources[status.facts.id]
        source = watched.source
        yield SourceHealthRow(
            id=source.id,
            kind=source.kind.value,
            tier=source.tier.value,
            status=source.status.value,
            health=status.health,
            health_reason=status.assessment.reason,
            why=reason(source, watched.poll, now=now, max_attempts=settings.work.max_attempts),
            last_outcome=source.last_outcome,
            last_checked_at=source.last_checked_at,
            last_success_at=source.last_success_at,
            next_check_at=watched.next_check_at,
            failure_count=source.failure_count,
            record_count=source.record_count,
            error_class=source.last_error_class,
            breaker="open" if source.status is SourceStatus.OPEN else "closed",
            failures=dead_letter_counts.get(source.id, {}),
            coverage=covered.get(source.id),
            change_rate=change_rate(source, prices, now=now),
            cost_30d_usd=cost.get(source.id, Decimal(0)),
            objective=objectives.get(source.id),
        )


def as_row(row: SourceHealthRow) -> dict[str, Any]:
    """Return the row under stable keys, for programs."""
    covered, rate, objective = row.coverage, row.change_rate, row.objective
    plain = {name: getattr(row, name) for name in SourceHealthRow.__dataclass_fields__}
    plain.pop("change_rate")
    plain.pop("objective")
    return plain | {
        "coverage": None
        if covered is None
        else {"got": covered.obtained, "expected": covered.expected, "of": covered.of},
        "changes_per_day": None if rate is None else rate.per_day,
        "change_confidence": None if rate is None else rate.confidence,
        "max_delay_seconds": None if objective is None else int(objective.max_delay.total_seconds()),
        "freshness_30d": None if objective is None else objective.share,
        "freshness_budget_left": None if objective is None else objective.budget_left,
    }


MOST_ROWS = 25  # more sources than this are grouped
LIMITS = (1.0, 2.0, 3.0, 5.0, 10.0)  # intervals since the last success; the fourth is stale
COLUMNS = ("≤ 1", "≤ 2", "≤ 3", "≤ 5", "≤ 10", "> 10", "never", "not yet")
NEVER, NOT_YET = len(COLUMNS) - 2, len(COLUMNS) - 1  # failed so far, and not tried yet
GREY = (0.6, 0.6, 0.6)
LEGEND = (("fresh", 0), ("stale", 4), ("tried, never read", NEVER), ("not read yet", NOT_YET))
NAME_CHARS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The number of sources per cell; `names` label the rows, `COLUMNS` the columns."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    is_gathered: bool


def freshness(statuses: Sequence[SourceFacts], *, now: datetime) -> Grid:
    """Return the grid of all sources that are polled; those switched off are left out."""
    polled = [status for status in statuses if status.health is not Health.OFF]
    is_gathered = len(polled) > MOST_ROWS
    cells: Counter[tuple[str, int]] = Counter()
    order: dict[str, None] = {}
    for status in polled:
        facts = status.facts
        name = f"{facts.kind.value} {facts.tier.value}" if is_gathered else facts.id
        order[name] = None
        cells[name, column_of(status, now)] += 1
    names = tuple(sorted(order) if is_gathered else order)
    counts = tuple(tuple(cells[name, column] for column in range(len(COLUMNS))) for name in names)
    return Grid(names=names, counts=counts, is_gathered=is_gathered)


def column_of(status: SourceFacts, now: datetime) -> int:
    """Return the column by the number of intervals since the last success."""
    if status.facts.last_success_at is None:
        is_in_vain = status.facts.failure_count > 0 or status.health in UNHEALTHY
        return NEVER if is_in_vain else NOT_YET
    return bisect_left(LIMITS, (now - status.facts.last_success_at) / status.facts.interval)


def freshness_picture(grid: Grid) -> bytes:
    """Return a PNG of the grid, nothing without the extra `plots`; raise ValueError if there is nothing to draw."""
    if not grid.names:
        raise ValueError("there is no source to draw")
    if not is_installed("matplotlib"):
        return b""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(7.5, 1.25 + 0.24 * len(grid.names)), dpi=80, layout="constrained")
    axes: Any = figure.subplots()
    most = max(max(row) for row in grid.counts)
    strength = PowerNorm(0.35, vmin=0, vmax=max(most, 1))  # one among thousands must be visible
    _label(axes, grid)
    _legend(figure)
    for y, row in enumerate(grid.counts):
        for x, count in enumerate(row):
            alpha = 0.4 + 0.6 * float(strength(count)) if count else 0.12
            _cell(axes, x, y, f"{count:,}" if count and grid.is_gathered else "", alpha)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return _small_png(canvas.get_width_height(), bytes(canvas.buffer_rgba()))


def _small_png(size: tuple[int, int], pixels: bytes) -> bytes:
    """Return a PNG of few colours: Dagster stores one every five minutes."""
    from PIL import Image

    out = BytesIO()
    image = Image.frombuffer("RGBA", size, pixels).convert("RGB").quantize(64)
    image.save(out, format="PNG", optimize=True)
    return out.getvalue()


def _cell(axes: Any, x: int, y: int, text: str, alpha: float) -> None:  # noqa: ANN401
    from matplotlib.patches import Rectangle

    place, colour = (x - 0.48, y - 0.45), colour_of(x)
    axes.add_patch(Rectangle(place, 0.96, 0.9, facecolor=colour, alpha=alpha, linewidth=0))
    if text:
        axes.text(x, y, text, ha="center", va="center", fontsize=8)


def colour_of(column: int) -> tuple[float, float, float]:
    """Return the colour: green to red, grey for what was not read yet."""
    from matplotlib import colormaps

    if column == NOT_YET:
        return GREY
    shade = 0.12 + 0.76 * column / NEVER  # the ends of the map are too dark to read on
    red, green, blue, _ = colormaps["RdYlGn_r"](shade)
    return red, green, blue


def _legend(figure: Any) -> None:  # noqa: ANN401
    from matplotlib.patches import Patch

    marks = [Patch(facecolor=colour_of(column), label=label) for label, column in LEGEND]
    place = {"loc": "outside lower center", "ncols": len(marks)}
    figure.legend(handles=marks, fontsize=7, frameon=False, **place)


def _label(axes: Any, grid: Grid) -> None:  # noqa: ANN401
    axes.set_xlim(-0.5, len(COLUMNS) - 0.5)
    axes.set_ylim(len(grid.names) - 0.5, -0.5)
    axes.set_xticks(range(len(COLUMNS)), COLUMNS, fontsize=8)
    names = [name if len(name) <= NAME_CHARS else name[: NAME_CHARS - 1] + "…" for name in grid.names]
    axes.set_yticks(range(len(grid.names)), names, fontsize=8)
    axes.set_xlabel("intervals since the last success", fontsize=8)
    of = "sources by kind and tier" if grid.is_gathered else "sources"
    axes.set_title(f"freshness of {of}", fontsize=9)
    axes.tick_params(length=0)
    for side in ("top", "right", "bottom", "left"):
        axes.spines[side].set_visible(False)
