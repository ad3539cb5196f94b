"""`ingest matches`: list the listings that match the profile, and explain a decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.explain import explain_row
from ingestion_pipeline.cli.output import Column, echo, print_json, print_table
from ingestion_pipeline.cli.session import json_option, opened

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
    from ingestion_pipeline.companies.reports import list_matches
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    with opened() as (settings, store), store.read() as connection:
        if source_id is not None and not sources_by_id(connection, [source_id]):
            raise UnknownSource(source_id)
        matches_found = list_matches(connection, source_id=source_id, limit=limit)
    if as_json:
        print_json(matches_found)
    elif not matches_found:
        echo(f"no matches; {_advice(settings)}")
    else:
        columns = [
            Column("score", is_number=True),
            Column("rank", is_number=True),
            Column("priority"),
            Column("title", is_flexible=True),
            Column("company"),
            Column("reason", is_flexible=True),
            Column("listing", is_number=True),
        ]
        names = ("score", "rank_score", "priority", "title", "company", "reason", "listing_id")
        print_table(columns, [[match[name] for name in names] for match in matches_found])


def _advice(settings: Settings) -> str:
    from ingestion_pipeline.companies.matching.listing_runs import settings_profile
    from ingestion_pipeline.companies.matching.profile import Profile

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
