"""The asset `source_health`: how every source does, refreshed by `maintain` and by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.operations.alerts import note_health
from ingestion_pipeline.operations.freshness import Grid, freshness, freshness_picture
from ingestion_pipeline.operations.health import (
    Reported,
    keep_words,
    new_words,
    reported,
    standings,
)
from ingestion_pipeline.operations.metrics import Numbers, numbers
from ingestion_pipeline.orchestration.contracts import broken_health, changed, column_schema
from ingestion_pipeline.orchestration.events import moment, picture, plain
from ingestion_pipeline.orchestration.heartbeat import whole_run
from ingestion_pipeline.orchestration.partitioned import OWNERS
from ingestion_pipeline.orchestration.resources import RunContextResource
from ingestion_pipeline.sources.health import Health

NAME = "source_health"
REASON_CHARS = 160


@dg.asset(
    name=NAME,
    group_name="sources",
    kinds={"sql"},
    owners=OWNERS,
    deps=["sources"],
    description=(
        "How every source does, the worst first: its word and why, freshness as a picture, and the"
        " numbers of queues, polls, money and phases as plots. Refreshed by maintain every five"
        " minutes; what changed is told."
    ),
    metadata={"dagster/column_schema": column_schema("source_health")},
)
def source_health(
    context: dg.AssetExecutionContext, workshop: RunContextResource
) -> dg.MaterializeResult:
    """Look at every source, store and tell what changed, show the worst."""
    run = context.run
    with workshop.open() as shop, whole_run(shop, run_id=run.run_id, job=run.job_name):
        with shop.store.begin() as connection:
            note_health(connection, shop.settings, shop.store.clock.now(connection))
        return dg.MaterializeResult(metadata=health_metadata(look(shop)))


def refreshed(
    instance: dg.DagsterInstance, shop: RunContext
) -> Iterator[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """The asset as it stands now, and whether it keeps its contract; `maintain` logs both."""
    seen = look(shop)
    yield dg.AssetMaterialization(NAME, metadata=health_metadata(seen))
    yield from changed(instance, NAME, broken_health(seen.shown))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckRun:
    """How all sources do at one moment: the worst with all that is known, the rest in numbers."""

    sources: int
    shown: Sequence[Reported]
    numbers: Numbers
    grid: Grid


def look(shop: RunContext) -> HealthCheckRun:
    """All of it by a few statements, however many sources; each one's word is kept for SQL."""
    with shop.store.read() as connection:
        now = shop.store.clock.now(connection)
        found = standings(connection, shop.settings, now=now)
        words = new_words(connection, found, now=now)
        worst = found[: shop.settings.health.shown]
        seen = HealthCheckRun(
            sources=len(found),
            shown=reported(connection, worst, shop.settings, now=now),
            numbers=numbers(connection, shop.settings, found, now=now),
            grid=freshness(found, now=now),
        )
    if words:
        with shop.store.begin() as connection:
            keep_words(connection, words)
    return seen


def health_metadata(seen: HealthCheckRun) -> dict[str, Any]:
    """Numbers, table and picture of this moment."""
    metadata: dict[str, Any] = {"dagster/row_count": seen.sources}
    metadata["worst"] = dg.MetadataValue.md(health_table(seen.shown, of=seen.sources))
    if seen.grid.names and (drawn := _picture(seen.grid)) is not None:
        metadata["freshness"] = dg.MetadataValue.md(drawn)
    return metadata | _numbers(seen.numbers)


def _picture(grid: Grid) -> str | None:
    return picture(freshness_picture(grid), name="freshness")


def _numbers(found: Numbers) -> dict[str, int | float]:
    """What Dagster draws as plots; what is not known is left out."""
    use, polls = found.models, found.polls
    plots: dict[str, int | float] = {
        **{f"sources_{word.value}": found.health[word] for word in Health},
        **{f"queue_{one.kind}": one.depth for one in found.queues},
        "due": sum(one.due for one in found.queues),
        "oldest_due_seconds": max((one.oldest_due_seconds for one in found.queues), default=0.0),
        "lost": sum(one.lost for one in found.queues),
        "retries": sum(one.retries for one in found.queues),
        "dead_letters_open": sum(found.letters.values()),
        "polls": polls.ended,
        "polls_failed": polls.failed,
        "saved_polls": polls.unchanged,
        "saved_by_cache": use.saved_by_cache,
        "saved_by_unchanged": use.saved_by_unchanged,
        "saved_by_rules": use.saved_by_rules,
        "cost_30d_usd": float(use.cost_usd),
        "cost_month_usd": float(found.budget.held_usd),
        "notices_pending": found.notices_pending,
        **{f"backlog_{name}": value for name, value in asdict(found.backlog).items()},
    }
    if (percent := found.budget.percent) is not None:
        plots["budget_percent"] = round(percent, 1)
    if found.pulse is not None:
        plots["daemon_silent_seconds"] = round((found.now - found.pulse).total_seconds(), 1)
    return plots | _phases(found)


def _phases(found: Numbers) -> dict[str, int | float]:
    fields = ("waiting", "running", "success_rate", "waiting_seconds", "processing_seconds")
    return {
        f"{one.queue}_{name}": value
        for one in found.phases
        if one.succeeded or one.failed or one.waiting or one.running
        for name in fields
        if (value := getattr(one, name)) is not None
    }


_HEADINGS = (
    *("source", "tier", "health", "why", "last success (UTC)", "next check (UTC)"),
    *("changes a day (sure)", "coverage", "failures", "30 days, $"),
)


def health_table(shown: Sequence[Reported], *, of: int) -> str:
    """The worst as a Markdown table; what strangers said in it does nothing."""
    if not shown:
        return "no sources"
    lines = [f"| {' | '.join(_HEADINGS)} |", "|" + "---|" * len(_HEADINGS)]
    lines += [f"| {' | '.join(_cells(one))} |" for one in shown]
    if of > len(shown):
        lines.append(f"\nand {of - len(shown)} that do no worse")
    return "\n".join(lines)


def _cells(one: Reported) -> tuple[str, ...]:
    rate = one.change_rate
    by_class = ", ".join(f"{name} {count}" for name, count in sorted(one.failures.items()))
    return (
        plain(one.id, limit=120),
        one.tier,
        f"**{one.health.value}**",
        breakable(plain(one.why, limit=REASON_CHARS)),
        _whole(moment(one.last_success_at)),
        _whole(moment(one.next_check_at)),
        "" if rate is None else str(rate),
        "" if one.coverage is None else str(one.coverage),
        by_class,
        f"{one.cost_30d_usd:.2f}" if one.cost_30d_usd else "",
    )


def _whole(text: str) -> str:
    """The text as one word, which a narrow column does not break."""
    return text.replace(" ", "\N{NO-BREAK SPACE}").replace("-", "\N{NON-BREAKING HYPHEN}")


def breakable(text: str) -> str:
    """Markdown whose addresses may be broken at each slash.

    One long word would widen its column, and push the last ones off the page.
    """
    return text.replace("/", "/\N{ZERO WIDTH SPACE}")
