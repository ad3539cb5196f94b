"""`ingest status`: every source with its health, worst first, and the pending work."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    CommandFailed,
    distance,
    echo,
    is_json,
    json_option,
    print_folded,
    print_json,
    print_records,
    print_table,
    shortened,
    span,
)
from ingestion_pipeline.cli.session import reading

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources.status import Watched

SHOWN = 50  # sources; `--all` and `--json` have every one
SHOWN_REASON = 90  # characters in the table; `--json` and `sources show` have all of it


@click.command()
@json_option
@click.option("--workers", is_flag=True, help="Show the workers that hold leases: idle, busy or lost.")
@click.option("--all", "everything", is_flag=True, help="Show every source, not only the worst 50.")
@click.option(
    "--fail-on",
    type=click.Choice(["daemon", "sources"]),
    multiple=True,
    help="Exit 1 if the daemon does not tick, or if a source is degraded or worse.",
)
def status(*, workers: bool, everything: bool, fail_on: Sequence[str]) -> None:
    """Show every source, worst first, and the pending work.

    Each source has its health and the reason for its last or next poll. Health is one of open,
    disabled, degraded, late, unsteady, waiting, healthy, off. A running extraction has the time at
    which its dataset is expected.
    """
    if workers:
        _print_workers()
        return
    report = _collect(limit=None if everything or is_json() else SHOWN)
    if is_json():
        print_json(report)
    else:
        _print(report)
    _fail(report, fail_on)


def _collect(*, limit: int | None) -> dict[str, Any]:
    """Return everything that is shown, under stable keys; at most `limit` sources, the worst."""
    from ingestion_pipeline.operations.alerts import is_heartbeat_overdue, last_heartbeat, month_budget
    from ingestion_pipeline.operations.metrics import backlog as behind
    from ingestion_pipeline.operations.source_health import as_row, reported, source_statuses
    from ingestion_pipeline.registry import ingesting_kinds
    from ingestion_pipeline.sources.poll_tasks import backlog
    from ingestion_pipeline.sources.status import totals, waiting_hosts
    from ingestion_pipeline.tasks.queue import queues
    from ingestion_pipeline.websites.analysis_reports import phase_metrics

    with reading() as (settings, connection, now):
        statuses = source_statuses(connection, settings, now=now)
        shown_sources = reported(connection, statuses[:limit], settings, now=now)
        last_tick = last_heartbeat(connection)
        budget = month_budget(connection, settings, now=now)
        facts = [status.facts for status in statuses]
        waiting = queues(connection, now=now)
        ingesting = ingesting_kinds() if waiting else ()  # loads the systems
        held_up = backlog(connection, now=now, limit=settings.polling.backlog_limit, kinds=ingesting)
        left = behind(connection, facts, waiting, now=now, limits=settings.health)
        return {
            "now": now,
            "backlog": asdict(left),
            "sources": [as_row(status) for status in shown_sources],
            "health": Counter(status.health.value for status in statuses),
            "totals": asdict(totals(connection, now=now)),
            "waiting_hosts": [
                {"host": host, "wanted_since": since} for host, since in waiting_hosts(connection, now=now)
            ],
            "extractions": _running_extractions(connection, settings, now) if waiting else [],  # loads the systems
            "website_phases": [asdict(phase) for phase in phase_metrics(connection, now=now)],
            "daemon": {"last_tick_at": last_tick, "is_silent": is_heartbeat_overdue(last_tick, settings, now=now)},
            "budget": asdict(budget) | {"percent": budget.percent},
            "polling_paused": str(held_up) if held_up else None,
        }


def _running_extractions(connection: "Connection", settings: "Settings", now: datetime) -> list[dict[str, Any]]:
    from ingestion_pipeline.catalogs.extraction_reports import expected_publications

    return [asdict(expected) for expected in expected_publications(connection, settings=settings, now=now)]


def _print(report: dict[str, Any]) -> None:
    now = report["now"]
    _print_sources(report["sources"], now)
    left = sum(report["health"].values()) - len(report["sources"])
    if left:
        echo(f"{left} more sources, none worse; `ingest status --all` shows them\n")
    echo(_summary(report))
    if report["polling_paused"]:
        echo(report["polling_paused"])
    for expected in report["extractions"]:
        print_folded(_expected_publication(expected, now))
    for host in report["waiting_hosts"]:
        echo(f"host {host['host']} is in use by another run")
    if report["daemon"]["is_silent"]:
        age = distance(report["daemon"]["last_tick_at"], now)
        echo(f"daemon not ticking: last tick {age}; start it (`ingest dev`)")
    _print_phases(report["website_phases"])


def _expected_publication(expected: dict[str, Any], now: datetime) -> str:
    extraction = f"extraction {expected['extraction_id']} of {expected['source_id']}"
    if not expected["pages_left"]:
        return f"{extraction}: no page left, published within a minute"
    left = f"{expected['pages_left']} of {expected['pages']} pages left"
    wait = expected["last_page_at"] - now
    last = f"in {span(wait.total_seconds())} at the host's pace" if wait else "at once"
    return f"{extraction}: {left}, the last one {last}; published within a minute of it"


UNWELL = ("open", "disabled", "degraded")


def _fail(report: dict[str, Any], fail_on: Sequence[str]) -> None:
    """Raise for the conditions of --fail-on, for cron jobs and probes."""
    if "daemon" in fail_on and report["daemon"]["is_silent"]:
        raise CommandFailed("daemon not ticking: no polling, delivery or maintenance", code="daemon_silent")
    unwell = {word: report["health"][word] for word in UNWELL if report["health"][word]}
    if "sources" in fail_on and unwell:
        raise CommandFailed(", ".join(f"{count} {word}" for word, count in unwell.items()), code="sources_unwell")


def _print_phases(phases: list[dict[str, Any]]) -> None:
    """Print the phases of website analyses; nothing if there never was one."""
    numbers = ("waiting", "running", "lost", "succeeded", "failed", "retries")
    if not any(phase[name] for phase in phases for name in numbers):
        return
    names = (*numbers, "success_rate", "waiting_seconds", "processing_seconds")
    headings = {"success_rate": "success", "waiting_seconds": "wait s", "processing_seconds": "work s"}
    columns = [headings.get(name, name) for name in names]
    rows = [[phase["queue"], *(phase[name] for name in names)] for phase in phases]
    echo("")
    print_table(["phase", *columns], rows, numbers=columns)


def _print_workers() -> None:
    from ingestion_pipeline.tasks.claims import lease_owners

    with reading() as (_, connection, now):
        workers = lease_owners(connection, now=now)
    if is_json():
        print_json({"now": now, "workers": workers})
        return
    if not workers:
        echo("no workers and no leases")
        return
    records = [
        {
            "worker": worker.owner,
            "state": worker.state,
            "job": worker.job,
            "claims": worker.claims,
            "kinds": ", ".join(worker.kinds),
            "alive until": distance(worker.alive_until, now),
        }
        for worker in workers
    ]
    print_records(records, numbers={"claims"})


def status_row(watched: "Watched", *, now: datetime, max_attempts: int) -> dict[str, Any]:
    """Return a source's status under stable keys."""
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


def _print_sources(rows: list[dict[str, Any]], now: datetime) -> None:
    if not rows:
        echo("no sources yet: `ingest sources add` adds one, `ingest demo run` adds its own\n")
        return
    records = [
        {
            "source": row["id"],
            "tier": row["tier"],
            "health": row["health"].value,
            "success": distance(row["last_success_at"], now),
            "next": distance(row["next_check_at"], now),
            "failures": row["failure_count"],
            "records": row["record_count"],
            "reason": shortened(_shown_reason(row), SHOWN_REASON),
        }
        for row in rows
    ]
    print_records(records, numbers={"failures", "records"}, flexible={"reason"})
    echo("")


def _shown_reason(row: dict[str, Any]) -> str:
    """Return the problem of the data if no poll failed, else why it was or was not polled."""
    is_wrong = row["health"].value == "degraded" and not row["failure_count"]
    return row["health_reason"] if is_wrong else row["why"]


def _summary(report: dict[str, Any]) -> str:
    counts = report["totals"]
    words = ", ".join(f"{count} {word}" for word, count in report["health"].items())
    budget, money = report["budget"], ""
    if budget["percent"] is not None:
        spent = f"{budget['held_usd']:.2f} of {budget['limit_usd']:.2f} dollars ({budget['percent']:.0f} %)"
        money = f"\nmodels in {budget['month']}: {spent}"
    return (
        f"sources: {words or 'none'}\n"
        f"tasks: {counts['due']} due now, {counts['in_progress']} in progress,"
        f" {counts['abandoned']} with a lost worker, {counts['retrying']} waiting for a retry\n"
        f"dead letters open: {counts['dead_letters']}; outbox rows unhandled: {counts['outbox']}"
        f"{money}"
    )
