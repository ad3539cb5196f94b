"""`ingest matches`: list the listings that match the profile, and explain a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.explain import explain_row
from ingestion_pipeline.cli.output import print_listing
from ingestion_pipeline.cli.session import json_option, known_source, reading

if TYPE_CHECKING:
    from ingestion_pipeline.settings import Settings


@click.group()
def matches() -> None:
    """Show the listings that match your profile."""


@matches.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a board.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@json_option
def list_(*, source_id: str | None, limit: int, as_json: bool) -> None:
    """Show matching listings, best first, each with its reason."""
    from ingestion_pipeline.companies.matching.reporting import list_matches

    with reading() as (settings, connection, _):
        rows = list_matches(connection, source_id=known_source(connection, source_id), limit=limit)
    columns = {"rank": "rank_score", "listing": "listing_id"}
    names = ("score", "rank", "priority", "title", "company", "reason", "listing")
    print_listing(
        rows,
        lambda match: {name: match[columns.get(name, name)] for name in names},
        as_json=as_json,
        empty="" if rows else f"no matches; {_advice(settings)}",
        numbers={"score", "rank", "listing"},
        flexible={"title", "reason"},
    )


def _advice(settings: Settings) -> str:
    from ingestion_pipeline.companies.matching.profile import Profile
    from ingestion_pipeline.companies.matching.runs import settings_profile

    profile = settings_profile(settings)
    if not isinstance(profile, Profile):
        return str(profile)
    return "`dagster job execute -m ingestion_pipeline -j process_listings` evaluates pending listings"


@matches.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def explain(*, listing_id: int, as_json: bool) -> None:
    """Show how listing ID was evaluated.

    The same as `ingest explain job_listings:ID`.
    """
    explain_row(f"job_listings:{listing_id}", as_json=as_json)
