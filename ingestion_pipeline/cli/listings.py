"""`ingest listings`: the jobs that boards list, and what became of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, distance, say, say_facts, say_json, say_table
from ingestion_pipeline.cli.session import json_option, opened

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

STATES = ("open", "closed")
VERDICTS = ("matched", "filtered", "skipped", "waiting")
MOST_SHOWN = 1_000  # characters of a description; --json has all of it
_FACTS = (
    *("title", "company_name", "url", "location", "remote", "department", "employment_type"),
    *("salary", "posted_at", "valid_until", "status", "closed_at", "closed_reason", "verdict"),
    *(
        "judged_at",
        "snapshot_id",
        "detail_snapshot_id",
        "tracking_id",
        "first_seen_at",
        "changed_at",
    ),
)


@click.group()
def listings() -> None:
    """Show the jobs that boards list, and what became of each."""


@listings.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a board.")
@click.option("--company", metavar="NAME", help="Only those of a company: its id, or its name.")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--verdict", type=click.Choice(VERDICTS), help="Only those with this verdict.")
@click.option("--title", "words", metavar="WORDS", help="Only those with these words in the title.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000))
@json_option
def list_(*, limit: int, as_json: bool, **wanted: str | None) -> None:
    """Show listings, the newest first."""
    from ingestion_pipeline.companies.boards.reporting import ListingFilter, list_listings
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    with opened() as (_, store), store.read() as connection:
        source_id = wanted["source_id"]
        if source_id is not None and not sources_by_id(connection, [source_id]):
            raise UnknownSource(source_id)
        now = store.clock.now(connection)
        found = list_listings(connection, ListingFilter(**wanted), limit=limit)
    if as_json:
        say_json(found)
    elif not found:
        say("no listings; `ingest sources list --kind job_board` shows the boards")
    else:
        columns = [
            Column("id", is_number=True),
            Column("title", is_flexible=True),
            Column("company"),
            Column("location"),
            Column("status"),
            Column("verdict"),
            Column("seen"),
        ]
        say_table(columns, [_row(one, now) for one in found])


def _row(one: Mapping[str, Any], now: datetime) -> list[object]:
    return [
        one["id"],
        one["title"],
        one["company"] or "-",
        one["location"] or one["remote"] or "-",
        one["status"],
        one["verdict"] or "waiting",
        distance(one["first_seen_at"], now),
    ]


@listings.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def show(*, listing_id: int, as_json: bool) -> None:
    """Show listing ID: what it states, which boards list it, what became of it."""
    from ingestion_pipeline.companies.boards.reporting import shown_listing

    with opened() as (_, store), store.read() as connection:
        row = dict(shown_listing(connection, listing_id))
    if as_json:
        say_json(row)
        return
    say_facts({name.replace("_", " "): row[name] for name in _FACTS if row[name] is not None})
    columns = [
        Column("board"),
        Column("its id"),
        Column("lists it"),
        Column("url", is_flexible=True),
    ]
    say("")
    say_table(columns, [_link(one) for one in row["links"]])
    if row["match"] is not None:
        say(f"\nmatch ({row['match']['status']}): {row['match']['reason']}")
    if row["description"]:
        say(f"\n{row['description'][:MOST_SHOWN]}")
    say(f"\n`ingest explain job_listings:{listing_id}` says how it was judged, and by which text")


def _link(one: Mapping[str, Any]) -> list[object]:
    listed = "yes" if one["available"] else "no more"
    return [one["source_id"], one["external_id"] or "-", listed, one["url"] or "-"]
