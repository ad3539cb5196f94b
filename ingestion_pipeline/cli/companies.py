"""`ingest companies`: list companies and show what an analysis found."""

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import distance, echo, is_json, json_option, print_facts, print_json, print_listing
from ingestion_pipeline.cli.session import reading

if TYPE_CHECKING:
    from ingestion_pipeline.companies.reports import CompanyReport

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
def list_(*, status: str | None, tier: str | None) -> None:
    """Show companies, best first."""
    from ingestion_pipeline.companies.reports import list_companies

    with reading() as (_, connection, now):
        rows = list_companies(connection, status=status, tier=tier)
    print_listing(
        rows,
        lambda company: {
            "id": company["id"],
            "name": company["name"],
            "status": company["status"],
            "data": company["quality"].get("level"),
            "tier": company["tier"],
            "score": company["score"],
            "analysed": distance(company["analyzed_at"], now) if company["analyzed_at"] else "never",
        },
        empty="no companies; `ingest sources add URL --id company:NAME --kind company` adds one",
        numbers={"score"},
    )


@companies.command()
@click.argument("company_id", metavar="ID")
@json_option
def show(*, company_id: str) -> None:
    """Show one company.

    With the tasks of its last analysis, and the tasks the spawn guard refused.
    """
    from ingestion_pipeline.companies.reports import company_report

    with reading() as (_, connection, _):
        report = company_report(connection, company_id.removeprefix("company:"))
    if is_json():
        refused = [{**refusal, "at": refusal["at"].isoformat()} for refusal in report.refusals]
        more = {"refusals": refused, "tasks": list(report.tasks), "cost_usd": report.cost_usd}
        print_json({**report.row, **more})
        return
    print_facts(_facts(report))
    for board in report.row["boards"] or ():
        where = board.get("source_id") or board.get("note") or "discovery pending"
        echo(f"board: {board['platform']} {board['url']} ({board['confidence']}): {where}")
    for refusal in report.refusals:
        echo(f"refused: {refusal['kind']} {refusal['url']} by task {refusal['parent']}: {refusal['reason']}")


def _facts(report: "CompanyReport") -> dict[str, object]:
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
    facts["tasks"] = "; ".join(f"{task['kind']} {task['id']} {task['status']}" for task in report.tasks)
    return facts


def _short(value: object) -> object:
    if not isinstance(value, str) or len(value) <= MOST_SHOWN:
        return value
    return value[: MOST_SHOWN - 1] + "\u2026"
