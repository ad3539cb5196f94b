"""`ingest status`: a line per source, the worst first, why it was or was not polled, what waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    Column,
    CommandFailed,
    distance,
    say,
    say_json,
    say_table,
    shortened,
)
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from ingestion_pipeline.sources.status import Watched

SHOWN = 50  # sources; `--all` and `--json` have every one
SHOWN_REASON = 90  # characters in the table; `--json` and `sources show` have all of it


@click.command()
@json_option
@click.option("--workers", is_flag=True, help="Who holds leases: idle, busy or lost.")
@click.option("--all", "everything", is_flag=True, help="Every source, not only the worst 50.")
@click.option(
    "--fail-on",
    type=click.Choice(["daemon", "sources"]),
    multiple=True,
    help="Exit 1 if the daemon is silent, or if a source is degraded or worse.",
)
def status(*, as_json: bool, workers: bool, everything: bool, fail_on: Sequence[str]) -> None:
    """Show every source, the worst first, and what waits.

    With how well it is and why it was or was not polled. The words: open, disabled, degraded, late,
    unsteady, waiting, healthy, off.
    """
    if workers:
        _say_workers(as_json=as_json)
        return
    found = _found(limit=None if everything or as_json else SHOWN)
    if as_json:
        say_json(found)
    else:
        _say(found)
    _fail(found, fail_on)


def _found(*, limit: int | None) -> dict[str, Any]:
    """All that is shown, by stable keys; at most so many sources, the worst."""
    from ingestion_pipeline.operations.alerts import is_missing, last_pulse, month_budget
    from ingestion_pipeline.operations.health import as_row, reported, standings
    from ingestion_pipeline.operations.queues import backlog as behind
    from ingestion_pipeline.operations.queues import queues
    from ingestion_pipeline.sources.scheduling.due import backlog
    from ingestion_pipeline.sources.status import totals, waiting_hosts
    from ingestion_pipeline.websites.metrics import phase_metrics

    with opened() as (settings, store), store.read() as connection:
        now = store.clock.now(connection)
        standing = standings(connection, settings, now=now)
        shown = reported(connection, standing[:limit], settings, now=now)
        pulse = last_pulse(connection)
        budget = month_budget(connection, settings, now=now)
        held_up = backlog(connection, now=now, limit=settings.polling.backlog_limit)
        facts = [one.facts for one in standing]
        waiting = queues(connection, now=now)
        left = behind(connection, facts, waiting, now=now, limits=settings.health)
        return {
            "now": now,
            "backlog": asdict(left),
            "sources": [as_row(one) for one in shown],
            "health": Counter(one.health.value for one in standing),
            "totals": asdict(totals(connection, now=now)),
            "waiting_hosts": [
                {"host": host, "wanted_since": since}
                for host, since in waiting_hosts(connection, now=now)
            ],
            "website_phases": [asdict(one) for one in phase_metrics(connection, now=now)],
            "daemon": {"last_tick_at": pulse, "is_silent": is_missing(pulse, settings, now=now)},
            "budget": asdict(budget) | {"percent": budget.percent},
            "polling_paused": str(held_up) if held_up else None,
        }


def _say(found: dict[str, Any]) -> None:
    now = found["now"]
    _say_sources(found["sources"], now)
    left = sum(found["health"].values()) - len(found["sources"])
    if left:
        say(f"and {left} that do no worse; `ingest status --all` shows them\n")
    say(_summary(found))
    if found["polling_paused"]:
        say(found["polling_paused"])
    for one in found["waiting_hosts"]:
        say(f"host {one['host']} is waited for: another run has it")
    if found["daemon"]["is_silent"]:
        said = distance(found["daemon"]["last_tick_at"], now)
        say(f"the daemon is silent: its last tick was {said}; start it (`make dev`)")
    _say_phases(found["website_phases"])


UNWELL = ("open", "disabled", "degraded")


def _fail(found: dict[str, Any], fail_on: Sequence[str]) -> None:
    """Exit 1 for whoever asked: a line of cron, a probe."""
    if "daemon" in fail_on and found["daemon"]["is_silent"]:
        raise CommandFailed("the daemon is silent: nothing is polled, delivered or kept")
    unwell = {word: found["health"][word] for word in UNWELL if found["health"][word]}
    if "sources" in fail_on and unwell:
        raise CommandFailed(", ".join(f"{count} {word}" for word, count in unwell.items()))


def _say_phases(phases: list[dict[str, Any]]) -> None:
    """How the phases of analyses do; nothing, if there never was one."""
    numbers = ("waiting", "running", "lost", "succeeded", "failed", "retries")
    if not any(one[name] for one in phases for name in numbers):
        return
    names = (*numbers, "success_rate", "waiting_seconds", "processing_seconds")
    shown = {"success_rate": "success", "waiting_seconds": "wait s", "processing_seconds": "work s"}
    columns = [Column("phase"), *(Column(shown.get(one, one), is_number=True) for one in names)]
    say("")
    say_table(columns, [[one["queue"], *(one[name] for name in names)] for one in phases])


def _say_workers(*, as_json: bool) -> None:
    from ingestion_pipeline.tasks.heartbeats import lease_owners

    with opened() as (_, store), store.read() as connection:
        now = store.clock.now(connection)
        found = [asdict(one) for one in lease_owners(connection, now=now)]
    if as_json:
        say_json({"now": now, "workers": found})
        return
    if not found:
        say("nobody works, and nobody holds anything")
        return
    columns = [
        Column("worker"),
        Column("state"),
        Column("job"),
        Column("claims", is_number=True),
        Column("kinds"),
        Column("alive until"),
    ]
    rows = [
        [
            one["owner"],
            one["state"],
            one["job"] or "",
            one["claims"],
            ", ".join(one["kinds"]),
            distance(one["alive_until"], now),
        ]
        for one in found
    ]
    say_table(columns, rows)


def status_row(watched: Watched, *, now: datetime, max_attempts: int) -> dict[str, Any]:
    """A source's standing under stable keys."""
    from ingestion_pipeline.sources.status import reason

    source = watched.source
    return {
        "id": source.id,
        "kind": source.kind,
        "tier": source.tier,
        "status": source.status,
        "why": reason(source, watched.poll, now=now, max_attempts=max_attempts),
        "last_outcome": source.last_outcome,
        "last_checked_at": source.last_checked_at,
        "last_success_at": source.last_success_at,
        "next_check_at": watched.next_check_at,
        "failure_count": source.failure_count,
        "record_count": source.record_count,
    }


def _say_sources(rows: list[dict[str, Any]], now: datetime) -> None:
    if not rows:
        say("no sources yet: `ingest sources add` adds one, `ingest demo run` brings its own\n")
        return
    columns = [
        Column("source"),
        Column("tier"),
        Column("health"),
        Column("success"),
        Column("next"),
        Column("fails", is_number=True),
        Column("records", is_number=True),
        Column("why", is_flexible=True),
    ]
    say_table(
        columns,
        [
            [
                row["id"],
                row["tier"],
                row["health"].value,
                distance(row["last_success_at"], now),
                distance(row["next_check_at"], now),
                row["failure_count"],
                row["record_count"],
                shortened(_shown_reason(row), SHOWN_REASON),
            ]
            for row in rows
        ],
    )
    say("")


def _shown_reason(row: dict[str, Any]) -> str:
    """Say what is wrong with the data where no poll failed; else why it was or was not polled."""
    is_wrong = row["health"].value == "degraded" and not row["failure_count"]
    return row["health_reason"] if is_wrong else row["why"]


def _summary(found: dict[str, Any]) -> str:
    counts = found["totals"]
    words = ", ".join(f"{count} {word}" for word, count in found["health"].items())
    return (
        f"sources: {words or 'none'}\n"
        f"tasks: {counts['due']} due now, {counts['in_progress']} in progress,"
        f" {counts['abandoned']} with a silent worker, {counts['retrying']} waiting for a retry\n"
        f"dead letters open: {counts['dead_letters']}; outbox rows unhandled: {counts['outbox']}"
        f"{_money(found['budget'])}"
    )


def _money(budget: dict[str, Any]) -> str:
    if budget["percent"] is None:
        return ""
    return (
        f"\nmodels in {budget['month']}: {budget['held_usd']:.2f} of"
        f" {budget['limit_usd']:.2f} dollars ({budget['percent']:.0f} %)"
    )
