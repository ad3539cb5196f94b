"""`ingest listings`, `matches` and `profile`: show job listings, how each was evaluated, and by what profile."""

from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.output import (
    CommandRefused,
    distance,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_listing,
    print_table,
)
from ingestion_pipeline.cli.rows import explain_row
from ingestion_pipeline.cli.session import known_source, opened, reading

if TYPE_CHECKING:
    from ingestion_pipeline.settings import Settings


STATES = ("open", "closed")
DECISIONS = ("matched", "filtered", "skipped", "waiting")
MOST_SHOWN = 1_000  # characters of a description; --json has all of it
_FACTS = (
    *("title", "company_name", "url", "location", "places", "remote", "department", "employment_type"),
    *("salary", "posted_at", "valid_until", "status", "closed_at", "closed_reason", "decision"),
    *("first_listed_at", "last_listed_at", "times_reopened", "repost_of"),
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
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Show at most these.")
@json_option
def list_(*, limit: int, **filters: str | None) -> None:
    """Show listings, newest first."""
    from ingestion_pipeline.companies.reports import ListingFilter, list_listings

    with reading() as (_, connection, now):
        known_source(connection, filters["source_id"])
        rows = list_listings(connection, ListingFilter(**filters), limit=limit)
    print_listing(
        rows,
        lambda row: {
            "id": row["id"],
            "title": row["title"],
            "company": row["company"],
            "location": row["location"] or row["remote"],
            "status": row["status"],
            "decision": row["decision"] or "waiting",
            "first seen": distance(row["first_seen_at"], now),
        },
        empty="no listings; `ingest sources list --kind job_board` shows the boards",
        numbers={"id"},
        flexible={"title"},
    )


@listings.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def show(*, listing_id: int) -> None:
    """Show listing ID: its fields, the boards that list it, its match."""
    from ingestion_pipeline.companies.reports import listing_details

    with reading() as (_, connection, _):
        row = dict(listing_details(connection, listing_id))
    if is_json():
        print_json(row)
        return
    print_facts({name.replace("_", " "): row[name] for name in _FACTS if row[name] is not None})
    links = [[link[name] for name in ("source_id", "external_id", "available", "url")] for link in row["links"]]
    echo("")
    print_table(("board", "external id", "listed", "url"), links, flexible={"url"})
    if row["match"] is not None:
        echo(f"\nmatch ({row['match']['status']}): {row['match']['reason']}")
    if row["description"]:
        echo(f"\n{row['description'][:MOST_SHOWN]}")
    echo(f"\n`ingest explain job_listings:{listing_id}` shows its evaluation and lineage")


@click.group()
def matches() -> None:
    """Show the listings that match your profile."""


@matches.command("list")
@click.option("--source", "source_id", metavar="ID", help="Only those of a board.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="Show at most these.")
@json_option
def matches_list(*, source_id: str | None, limit: int) -> None:
    """Show matching listings, best first, each with its reason."""
    from ingestion_pipeline.companies.reports import list_matches

    with reading() as (settings, connection, _):
        rows = list_matches(connection, source_id=known_source(connection, source_id), limit=limit)
    columns = {"rank": "rank_score", "listing": "listing_id"}
    names = ("score", "rank", "priority", "title", "company", "reason", "listing")
    print_listing(
        rows,
        lambda match: {name: match[columns.get(name, name)] for name in names},
        empty="" if rows else f"no matches; {_advice(settings)}",
        numbers={"score", "rank", "listing"},
        flexible={"title", "reason"},
    )


def _advice(settings: "Settings") -> str:
    from ingestion_pipeline.companies.matching.listing_runs import settings_profile
    from ingestion_pipeline.companies.matching.profile import Profile

    profile = settings_profile(settings)
    if not isinstance(profile, Profile):
        return str(profile)
    return "`dagster job execute -m ingestion_pipeline -j process_listings` evaluates pending listings"


@matches.command()
@click.argument("listing_id", metavar="ID", type=int)
@json_option
def explain(*, listing_id: int) -> None:
    """Show how listing ID was evaluated.

    The same as `ingest explain job_listings:ID`.
    """
    explain_row(f"job_listings:{listing_id}")


@click.group()
def profile() -> None:
    """Check the profile that listings are matched with."""


@profile.command()
@json_option
def check() -> None:
    """List every mistake of the profile, each with its line; exit 2 if there is one."""
    from ingestion_pipeline.companies.matching.listing_runs import profile_path, settings_profile
    from ingestion_pipeline.companies.matching.profile import BadProfile, NoProfile

    with opened() as (settings, _):
        profile_found, path = settings_profile(settings), profile_path(settings)
    if is_json():
        is_good = not isinstance(profile_found, BadProfile | NoProfile)
        problems = [] if is_good else str(profile_found).splitlines()
        print_json({"path": str(path), "is_usable": is_good, "problems": problems})
        if not is_good:
            raise click.exceptions.Exit(2)
        return
    if isinstance(profile_found, BadProfile | NoProfile):
        raise CommandRefused(str(profile_found), code="bad_profile")
    echo(f"{path} is valid: {len(profile_found.skills)} skills")


@profile.command()
def example() -> None:
    """Print an example profile."""
    from ingestion_pipeline.companies.matching.profile import example_profile

    echo(example_profile().rstrip())
