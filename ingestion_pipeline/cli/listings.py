"""`ingest listings`: list job listings and show how each was evaluated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, distance, echo, print_facts, print_json, print_table
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

STATES = ("open", "closed")
DECISIONS = ("matched", "filtered", "skipped", "waiting")
MOST_SHOWN = 1_000  # characters of a description; --json has all of it
_FACTS = (
    *("title", "company_name", "url", "location", "remote", "department", "employment_type"),
    *("salary", "posted_at", "valid_until", "status", "closed_at", "closed_reason", "decision"),
    *("evaluated_at", "snapshot_id", "detail_snapshot_id", "tracking_id", "first_seen_at", "changed_at"),
)


@click.group()
def listings() -> None:
    """Show job listings and their decisions."""


@listings.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a board.")
@click.option("--company", metavar="NAME", help="Only those of a company: its id, or its name.")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--decision", type=click.Choice(DECISIONS), help="Only those with this decision.")
@click.option("--title", "words", metavar="WORDS", help="Only those with these words in the title.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@json_option
def list_(*, limit: int, as_json: bool, **filters: str | None) -> None:
    """Show listings, newest first."""
    from ingestion_pipeline.companies.reports import ListingFilter, list_listings
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    with opened() as (_, store), store.read() as connection:
        source_id = filters["source_id"]
        if source_id is not None and not sources_by_id(connection, [source_id]):
            raise UnknownSource(source_id)
        now = store.clock.now(connection)
        rows = list_listings(connection, ListingFilter(**filters), limit=limit)
    if as_json:
        print_json(rows)
    elif not rows:
        echo("no listings; `ingest sources list --kind job_board` shows the boards")
    else:
        columns = [
            Column("id", is_number=True),
            Column("title", is_flexible=True),
            Column("company"),
            Column("location"),
            Column("status"),
            Column("decision"),
            Column("first seen"),
        ]
        print_table(columns, [_row(row, now) for row in rows])


def _row(row: Mapping[str, Any], now: datetime) -> list[object]:
    return [
        row["id"],
        row["title"],
        row["company"] or "-",
        row["location"] or row["remote"] or "-",
        row["status"],
        row["decision"] or "waiting",
        distance(row["first_seen_at"], now),
    ]


@listings.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def show(*, listing_id: int, as_json: bool) -> None:
    """Show listing ID: its fields, the boards that list it, its match."""
    from ingestion_pipeline.companies.reports import listing_details

    with opened() as (_, store), store.read() as connection:
        row = dict(listing_details(connection, listing_id))
    if as_json:
        print_json(row)
        return
    print_facts({name.replace("_", " "): row[name] for name in _FACTS if row[name] is not None})
    columns = [Column("board"), Column("external id"), Column("listed"), Column("url", is_flexible=True)]
    echo("")
    print_table(columns, [_link(link) for link in row["links"]])
    if row["match"] is not None:
        echo(f"\nmatch ({row['match']['status']}): {row['match']['reason']}")
    if row["description"]:
        echo(f"\n{row['description'][:MOST_SHOWN]}")
    echo(f"\n`ingest explain job_listings:{listing_id}` shows its evaluation and lineage")


def _link(link: Mapping[str, Any]) -> list[object]:
    listed = "yes" if link["available"] else "no"
    return [link["source_id"], link["external_id"] or "-", listed, link["url"] or "-"]
