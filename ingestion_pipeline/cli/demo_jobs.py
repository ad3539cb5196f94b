"""What a demo run made of its companies, told by the tables: boards, listings, matches, reasons."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.cli.output import Column, say, say_table, shortened

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.sources import Source

NUMBERS = ("jobs", "filtered", "skipped", "matched")
LONGEST_SAID = 200


def boards_of(connection: Connection, company_sources: Sequence[str]) -> list[Source]:
    """The job boards that the companies of these sources led to, by id."""
    from ingestion_pipeline.sources import Kind
    from ingestion_pipeline.sources.lookup import list_sources
    from ingestion_pipeline.store.tables import sources

    named = sources.c.company_id.in_([one.partition(":")[2] for one in company_sources])
    return sorted(list_sources(connection, named, kind=Kind.JOB_BOARD), key=lambda one: one.id)


def approve(connection: Connection, company_sources: Sequence[str], *, now: datetime) -> list[str]:
    """What waits for approval among the companies' boards has it; the ids of those."""
    from ingestion_pipeline.sources import SourceStatus, registry

    waiting = [
        one
        for one in boards_of(connection, company_sources)
        if one.status is SourceStatus.PENDING_VALIDATION
    ]
    for one in waiting:
        registry.enable(connection, one.id, actor="demo", reason="the demo approves it", now=now)
        say(f"{one.id} waited for approval ({_why(one)});")
        say(f"  the demo approves it, as `ingest sources enable {one.id}` does")
    return [one.id for one in waiting]


def _why(source: Source) -> str:
    return (source.status_reason or "").partition(";")[0]


def say_jobs(
    connection: Connection, company_sources: Sequence[str], *, since: datetime, now: datetime
) -> None:
    """Companies, boards, what did not fit, what was refused."""
    _say_companies(connection, company_sources)
    boards = boards_of(connection, company_sources)
    say("")
    _say_boards(connection, boards, since=since)
    rows = unfit_rows(connection, [one.id for one in boards])
    if rows:
        say("")
        say_table([Column("no match"), Column("by"), Column("because", is_flexible=True)], rows)
    for line in refusals(connection, since=since, now=now):
        say("\n" + line)


def _say_companies(connection: Connection, company_sources: Sequence[str]) -> None:
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import companies

    names = ("source_id", "quality", "tier", "score", "boards")
    query = select(*(companies.c[name] for name in names)).where(
        companies.c.source_id.in_(list(company_sources))
    )
    found = connection.execute(query.order_by(companies.c.source_id)).mappings()
    rows = [
        [
            row["source_id"],
            row["quality"].get("level"),
            row["tier"],
            row["score"],
            _led_to(row["boards"]),
        ]
        for row in found
    ]
    columns = [
        Column("company"),
        Column("data"),
        Column("tier"),
        Column("score", is_number=True),
        Column("boards, and how sure they are", is_flexible=True),
    ]
    say_table(columns, rows)


def _led_to(boards: list[dict[str, Any]] | None) -> str:
    return ", ".join(f"{one['platform']} ({one['confidence']})" for one in boards or [])


def _say_boards(connection: Connection, boards: Sequence[Source], *, since: datetime) -> None:
    from ingestion_pipeline.cli.demo_summary import came_to
    from ingestion_pipeline.companies.matching.reporting import match_report

    rows: list[list[object]] = []
    for one in boards:
        found = match_report(connection, one.id)
        counts = (found.listings, found.filtered, found.skipped, found.matched)
        said = shortened(one.last_outcome or "", LONGEST_SAID)
        rows.append([one.id, came_to(one, since=since), *counts, said])
    columns = [
        Column("board"),
        Column("came to"),
        *(Column(name, is_number=True) for name in NUMBERS),
        Column("said", is_flexible=True),
    ]
    say_table(columns, rows)


def unfit_rows(connection: Connection, source_ids: Sequence[str]) -> list[list[object]]:
    """The open listings of the boards that are no match: title, what speaks against it, why."""
    from sqlalchemy import select

    from ingestion_pipeline.companies.states import ListingDecision, ListingStatus
    from ingestion_pipeline.store.tables import job_listings

    jobs = job_listings.c
    query = select(jobs.title, jobs.filter_result, jobs.match_result).where(
        jobs.source_id.in_(list(source_ids)),
        jobs.status == ListingStatus.OPEN.value,
        jobs.verdict != ListingDecision.MATCHED.value,
    )
    return [
        [row.title, *against(row.filter_result or {}, row.match_result or {})]
        for row in connection.execute(query.order_by(jobs.id))
    ]


def against(filtered: dict[str, Any], matched: dict[str, Any]) -> tuple[str, str]:
    """What kept a listing from being a match: the filter's reason, or its score."""
    if matched:
        strikes = filtered.get("strikes", 0)
        passed = f"; {strikes} strikes, {filtered['threshold']} would filter" if strikes else ""
        return "score", f"below {matched['threshold']}: {matched['reason']}{passed}"
    reasons = "; ".join(one["reason"] for one in filtered.get("items", ()))
    return filtered.get("rejected_by") or "-", reasons


def refusals(connection: Connection, *, since: datetime, now: datetime) -> list[str]:
    """A line for each edge that the spawn guard refused since then."""
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import audit_log, tasks
    from ingestion_pipeline.work.spawn_guard import REFUSED

    query = select(audit_log.c.detail).where(
        audit_log.c.action == REFUSED, audit_log.c.at >= since, audit_log.c.at <= now
    )
    told = list(connection.execute(query.order_by(audit_log.c.id)).scalars())
    parents = [one["parent"] for one in told]
    query = select(tasks.c.id, tasks.c.kind).where(tasks.c.id.in_(parents))
    kinds = {row.id: row.kind for row in connection.execute(query)}
    return [
        f"refused, so that nothing runs in circles: {kinds.get(one['parent'], 'task')}"
        f" {one['parent']} -> {one['kind']} {one['url']} ({one['reason'].replace('_', ' ')})"
        for one in told
    ]


def say_matches(connection: Connection, company_sources: Sequence[str]) -> None:
    """The matches of the companies' boards, best first, each with the reason."""
    from ingestion_pipeline.companies.matching.reporting import list_matches

    boards = [one.id for one in boards_of(connection, company_sources)]
    found = [one for board in boards for one in list_matches(connection, source_id=board)]
    shown = ("score", "priority", "title", "company", "reason")
    columns = [
        Column("score", is_number=True),
        Column("priority"),
        Column("title"),
        Column("company"),
        Column("reason", is_flexible=True),
    ]
    if not found:
        say("no matches; `ingest explain job_listings:ID` says why one is none")
        return
    best = sorted(found, key=lambda one: (-one["score"], one["listing_id"]))
    say_table(columns, [[one[name] for name in shown] for one in best])
