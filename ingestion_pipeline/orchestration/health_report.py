"""The asset `source_health`: health of every source, refreshed by `maintain` and on demand."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.system_spec import moment, picture, plain
from ingestion_pipeline.operations.alerts import record_health_changes
from ingestion_pipeline.operations.metrics import Numbers, numbers
from ingestion_pipeline.operations.source_health import (
    Grid,
    SourceHealthRow,
    changed_states,
    freshness,
    freshness_picture,
    reported,
    source_statuses,
    store_states,
)
from ingestion_pipeline.orchestration.assets import OWNERS
from ingestion_pipeline.orchestration.checks import SHOWN_SOURCES, changed_contract, column_schema, health_findings
from ingestion_pipeline.orchestration.runs import RunContextParam, whole_run
from ingestion_pipeline.sources.status import Health

NAME = "source_health"
REASON_CHARS = 160


@dg.asset(
    name=NAME,
    group_name="sources",
    kinds={"sql"},
    owners=OWNERS,
    deps=["sources"],
    description=(
        "The health of every source, the worst first, with the reason, freshness as a picture, and"
        " numbers of queues, polls, costs and phases as plots. Refreshed by maintain every five"
        " minutes; changes are notified."
    ),
    metadata={"dagster/column_schema": column_schema("source_health")},
)
def source_health(context: dg.AssetExecutionContext, run_context: RunContextParam) -> dg.MaterializeResult:
    """Measure every source, store and report changes, show the worst."""
    run = context.run
    with whole_run(run_context, run_id=run.run_id, job=run.job_name):
        with run_context.store.begin() as connection:
            record_health_changes(connection, run_context.settings, run_context.store.clock.now(connection))
        return dg.MaterializeResult(metadata=health_metadata(measure_health(run_context)))


def refreshed(
    instance: dg.DagsterInstance, ctx: RunContext
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Yield the current state of the asset and the evaluation of its contract."""
    measured = measure_health(ctx)
    yield dg.AssetMaterialization(NAME, metadata=health_metadata(measured))
    yield from changed_contract(instance, NAME, health_findings(measured.worst))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMeasurement:
    """The health of all sources at one moment: the worst in detail, the rest as numbers."""

    sources: int
    worst: Sequence[SourceHealthRow]
    numbers: Numbers
    grid: Grid


def measure_health(ctx: RunContext) -> HealthMeasurement:
    """Measure all sources with a few statements and store each one's health for SQL."""
    with ctx.store.read() as connection:
        now = ctx.store.clock.now(connection)
        statuses = source_statuses(connection, ctx.settings, now=now)
        states = changed_states(connection, statuses, now=now)
        worst = statuses[:SHOWN_SOURCES]
        measured = HealthMeasurement(
            sources=len(statuses),
            worst=reported(connection, worst, ctx.settings, now=now),
            numbers=numbers(connection, ctx.settings, statuses, now=now),
            grid=freshness(statuses, now=now),
        )
    if states:
        with ctx.store.begin() as connection:
            store_states(connection, states)
    return measured


def health_metadata(measured: HealthMeasurement) -> dict[str, Any]:
    """Return numbers, table and picture of this moment."""
    metadata: dict[str, Any] = {"dagster/row_count": measured.sources}
    metadata["worst"] = dg.MetadataValue.md(health_table(measured.worst, of=measured.sources))
    if measured.grid.names and (drawn := picture(freshness_picture(measured.grid), name="freshness")) is not None:
        metadata["freshness"] = dg.MetadataValue.md(drawn)
    return metadata | _numbers(measured.numbers)


def _numbers(numbers: Numbers) -> dict[str, int | float]:
    """Return the numbers that Dagster plots; unknown ones, and metrics whose values are all 0, are left out."""
    use, polls = numbers.models, numbers.polls
    plots: dict[str, int | float] = {
        **{f"sources_{word.value}": numbers.health[word] for word in Health},
        **{f"queue_{queue.kind}": queue.depth for queue in numbers.queues},
        "due": sum(queue.due for queue in numbers.queues),
        "oldest_due_seconds": max((queue.oldest_due_seconds for queue in numbers.queues), default=0.0),
        "lost": sum(queue.lost for queue in numbers.queues),
        "retries": sum(queue.retries for queue in numbers.queues),
        "dead_letters_open": sum(numbers.dead_letters.values()),
        "polls": polls.ended,
        "polls_failed": polls.failed,
        "saved_polls": polls.unchanged,
        "saved_by_cache": use.saved_by_cache,
        "saved_by_unchanged": use.saved_by_unchanged,
        "saved_by_rules": use.saved_by_rules,
        "cost_30d_usd": float(use.cost_usd),
        "cost_month_usd": float(numbers.budget.held_usd),
        "notices_pending": numbers.notices_pending,
        **{f"backlog_{name}": value for name, value in asdict(numbers.backlog).items()},
    }
    system_plots = {
        "_".join((metric.name, *labels.values())): value
        for metric in numbers.systems
        if any(value for _, value in metric.samples)
        for labels, value in metric.samples
    }
    if (percent := numbers.budget.percent) is not None:
        plots["budget_percent"] = round(percent, 1)
    if numbers.last_tick is not None:
        plots["daemon_silent_seconds"] = round((numbers.now - numbers.last_tick).total_seconds(), 1)
    return plots | system_plots


_HEADINGS = (
    *("source", "tier", "health", "why", "last success (UTC)", "next check (UTC)"),
    *("changes a day (sure)", "coverage", "failures", "30 days, $"),
)


def health_table(rows: Sequence[SourceHealthRow], *, of: int) -> str:
    """Return the worst as a Markdown table; text of other sites in it is escaped."""
    if not rows:
        return "no sources"
    lines = [f"| {' | '.join(_HEADINGS)} |", "|" + "---|" * len(_HEADINGS)]
    lines += [f"| {' | '.join(_cells(row))} |" for row in rows]
    if of > len(rows):
        lines.append(f"\nand {of - len(rows)} more that are no worse")
    return "\n".join(lines)


def _cells(row: SourceHealthRow) -> tuple[str, ...]:
    rate = row.change_rate
    by_class = ", ".join(f"{name} {count}" for name, count in sorted(row.failures.items()))
    return (
        plain(row.id, limit=120),
        row.tier,
        f"**{row.health.value}**",
        breakable(plain(row.why, limit=REASON_CHARS)),
        _whole(moment(row.last_success_at)),
        _whole(moment(row.next_check_at)),
        "" if rate is None else str(rate),
        "" if row.coverage is None else str(row.coverage),
        by_class,
        f"{row.cost_30d_usd:.2f}" if row.cost_30d_usd else "",
    )


def _whole(text: str) -> str:
    """Return the text without break opportunities, for narrow columns."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def breakable(text: str) -> str:
    """Return Markdown whose URLs may be broken at each slash: one long word would push columns off the page."""
    return text.replace("/", "/\N{ZERO WIDTH SPACE}")
