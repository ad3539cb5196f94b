"""`ingest status`: one line per source, why it was or was not polled, and how much waits."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.opening import opened
from ingestion_pipeline.cli.options import json_option
from ingestion_pipeline.cli.output import (
    Column,
    distance,
    say,
    say_json,
    say_table,
    shortened,
)

if TYPE_CHECKING:
    from ingestion_pipeline.sources.status import Totals, Watched

SHOWN_REASON = 90  # characters in the table; `--json` and `sources show` have all of it


@click.command()
@json_option
@click.option("--workers", is_flag=True, help="Who holds leases: idle, busy or lost.")
def status(*, as_json: bool, workers: bool) -> None:
    """Show every source, and what waits.

    With why it was or was not polled.
    """
    from ingestion_pipeline.pages.hosts import waiting_hosts
    from ingestion_pipeline.sources.status import totals, watched_sources
    from ingestion_pipeline.websites.metrics import phase_metrics

    if workers:
        _say_workers(as_json=as_json)
        return
    with opened() as (settings, store), store.read() as connection:
        now = store.clock.now(connection)
        rows = [
            status_row(one, now=now, max_attempts=settings.work.max_attempts)
            for one in watched_sources(connection)
        ]
        counts = totals(connection, now=now)
        hosts = [
            {"host": host, "wanted_since": since}
            for host, since in waiting_hosts(connection, now=now)
        ]
        phases = [asdict(one) for one in phase_metrics(connection, now=now)]
    if as_json:
        found = {"now": now, "sources": rows, "totals": asdict(counts), "waiting_hosts": hosts}
        say_json(found | {"website_phases": phases})
        return
    _say_sources(rows, now)
    say(_summary(counts))
    for one in hosts:
        say(f"host {one['host']} is waited for: another run has it")
    _say_phases(phases)


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
    from ingestion_pipeline.work.owners import lease_owners

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
        Column("status"),
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
                row["status"],
                distance(row["last_success_at"], now),
                distance(row["next_check_at"], now),
                row["failure_count"],
                row["record_count"],
                shortened(row["why"], SHOWN_REASON),
            ]
            for row in rows
        ],
    )
    say("")


def _summary(counts: Totals) -> str:
    by_status = ", ".join(f"{count} {name}" for name, count in sorted(counts.sources.items()))
    return (
        f"sources: {by_status or 'none'}\n"
        f"tasks: {counts.due} due now, {counts.in_progress} in progress,"
        f" {counts.abandoned} with a silent worker, {counts.retrying} waiting for a retry\n"
        f"dead letters open: {counts.dead_letters}; outbox rows unhandled: {counts.outbox}"
    )
