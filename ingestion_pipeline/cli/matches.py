"""`ingest matches`: which listings fit, and why one does or does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.opening import opened
from ingestion_pipeline.cli.options import json_option
from ingestion_pipeline.cli.output import Column, say, say_facts, say_json, say_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ingestion_pipeline.settings import Settings


@click.group()
def matches() -> None:
    """Show which listings fit your profile."""


@matches.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a board.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@json_option
def list_(*, source_id: str | None, limit: int, as_json: bool) -> None:
    """Show the listings that fit, best first, each with the reason."""
    from ingestion_pipeline.companies.matching.reporting import list_matches
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    with opened() as (settings, store), store.read() as connection:
        if source_id is not None and not sources_by_id(connection, [source_id]):
            raise UnknownSource(source_id)
        found = list_matches(connection, source_id=source_id, limit=limit)
    if as_json:
        say_json(found)
    elif not found:
        say(f"no matches; {_advice(settings)}")
    else:
        columns = [
            Column("score", is_number=True),
            Column("priority"),
            Column("title", is_flexible=True),
            Column("company"),
            Column("reason", is_flexible=True),
            Column("listing", is_number=True),
        ]
        shown = ("score", "priority", "title", "company", "reason", "listing_id")
        say_table(columns, [[one[name] for name in shown] for one in found])


def _advice(settings: Settings) -> str:
    from ingestion_pipeline.companies.matching.profile import Profile
    from ingestion_pipeline.companies.matching.slices import found_profile

    found = found_profile(settings)
    if not isinstance(found, Profile):
        return str(found)
    return "`dagster job execute -m ingestion_pipeline -j process_listings` judges what waits"


@matches.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def explain(*, listing_id: int, as_json: bool) -> None:
    """Show how listing ID was judged, point by point."""
    from ingestion_pipeline.companies.matching.reporting import explained

    with opened() as (_, store), store.read() as connection:
        row = dict(explained(connection, listing_id))
    if as_json:
        say_json(row)
        return
    names = ("title", "company_name", "url", "source_id", "status", "verdict", "judged_at")
    say_facts({name.replace("_", " "): row[name] for name in names if row[name] is not None})
    if row["verdict"] is None:
        say("\nnot judged yet; `ingest dead-letters list` shows whether it failed")
    _say_filter(row["filter_result"] or {})
    _say_match(row["match_result"] or {})
    say(f"\n`ingest explain job_listings:{listing_id}` shows where it comes from")


def _say_filter(result: Mapping[str, Any]) -> None:
    if not result:
        return
    passed = "passed" if result["passed"] else f"rejected by {result['rejected_by']}"
    say(f"\nfilter: {passed}, {result.get('strikes', 0)} strikes")
    items: list[dict[str, Any]] = result["items"]
    if items:
        columns = [
            Column("category"),
            Column("name"),
            Column("points", is_number=True),
            Column("reason", is_flexible=True),
            Column("detail", is_flexible=True),
        ]
        shown = ("category", "name", "points", "reason", "detail")
        say_table(columns, [[item.get(name, "") for name in shown] for item in items])


def _say_match(result: Mapping[str, Any]) -> None:
    if not result:
        return
    verdict = "a match" if result["is_match"] else "no match"
    say(f"\nscore: {result['score']} of 100, {verdict} (from {result['threshold']} on)")
    say(result["reason"])
    for one in result["adjustments"]:
        say(f"  {one['points']:+d} {one['name']}: {one['reason']}")
