"""`ingest companies`: what is known of companies, and what led to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, distance, say, say_facts, say_json, say_table
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from ingestion_pipeline.companies.reporting import CompanyReport

STATES = ("pending", "analyzing", "active", "failed")
TIERS = ("S", "A", "B", "C", "D")
MOST_SHOWN = 300  # characters of a text; --json has all of it


@click.group()
def companies() -> None:
    """Show companies: facts, technologies, boards, score."""


@companies.command("list")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--tier", type=click.Choice(TIERS), help="Only those of this tier.")
@json_option
def list_(*, status: str | None, tier: str | None, as_json: bool) -> None:
    """Show the companies, the best first."""
    from ingestion_pipeline.companies.reporting import list_companies

    with opened() as (_, store), store.read() as connection:
        now = store.clock.now(connection)
        found = list_companies(connection, status=status, tier=tier)
    if as_json:
        say_json(found)
    elif not found:
        say("no companies; `ingest sources add URL --id company:NAME --kind company` adds one")
    else:
        columns = [
            Column("id"),
            Column("name"),
            Column("status"),
            Column("data"),
            Column("tier"),
            Column("score", is_number=True),
            Column("analysed"),
        ]
        say_table(columns, [_row(one, now) for one in found])


def _row(one: Mapping[str, Any], now: datetime) -> list[object]:
    quality: dict[str, Any] = one["quality"]
    return [
        one["id"],
        one["name"] or "-",
        one["status"],
        quality.get("level", "-"),
        one["tier"] or "-",
        "-" if one["score"] is None else one["score"],
        distance(one["analyzed_at"], now) if one["analyzed_at"] else "never",
    ]


@companies.command()
@click.argument("company_id", metavar="ID")
@json_option
def show(*, company_id: str, as_json: bool) -> None:
    """Show one company, the tasks of its last analysis, and what they were kept from spawning."""
    from ingestion_pipeline.companies.reporting import company_report

    with opened() as (_, store), store.read() as connection:
        report = company_report(connection, company_id)
    if as_json:
        refused = [{**one, "at": one["at"].isoformat()} for one in report.refusals]
        more = {"refusals": refused, "tasks": list(report.tasks), "cost_usd": report.cost_usd}
        say_json({**report.row, **more})
        return
    say_facts(_facts(report))
    _say_boards(report.row["boards"] or [])
    _say_refusals(report.refusals)


def _facts(report: CompanyReport) -> dict[str, object]:
    row = report.row
    quality: dict[str, Any] = row["quality"]
    named = ("name", "website", "status", "about", "culture", "mission", "size", "size_category")
    named += ("headquarters", "industry", "founded", "is_remote_first", "tier", "failure")
    facts = {name: _short(row[name]) for name in named if row[name] is not None}
    stack: dict[str, list[str]] = row["tech_stack"] or {}
    parts: dict[str, int] = row["score_parts"] or {}
    facts |= {group: ", ".join(names) for group, names in stack.items()}
    if row["score"] is not None:
        made_of = ", ".join(f"{name} {points}" for name, points in parts.items())
        facts["score"] = f"{row['score']} ({made_of})"
    facts["data"] = f"{quality.get('level', 'not analysed yet')}; missing: " + (
        ", ".join(quality.get("missing", ())) or "nothing"
    )
    facts["tasks"] = "; ".join(f"{one['kind']} {one['id']} {one['status']}" for one in report.tasks)
    return facts


def _short(value: object) -> object:
    if not isinstance(value, str) or len(value) <= MOST_SHOWN:
        return value
    return value[: MOST_SHOWN - 1] + "\u2026"


def _say_boards(boards: Sequence[Mapping[str, Any]]) -> None:
    for one in boards:
        where = one.get("source_id") or one.get("note") or "waits for its discovery"
        say(f"board: {one['platform']} {one['url']} ({one['confidence']}): {where}")


def _say_refusals(refusals: Sequence[Mapping[str, Any]]) -> None:
    for one in refusals:
        say(f"refused: {one['kind']} {one['url']} by task {one['parent']}: {one['reason']}")
