"""`ingest series`: what is told of, by which sources, and what an operator corrects of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import Column, distance, say, say_facts, say_json, say_table
from ingestion_pipeline.cli.session import actor, json_option, opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.series.lookup import ChapterFacts, SeriesFacts

SHOWN = 20  # chapters of `show`; --json has all


@click.group()
def series() -> None:
    """Show, merge and split series; correct chapters."""


@series.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """Show every series."""
    from ingestion_pipeline.series.lookup import list_series

    with opened() as (_, store), store.read() as connection:
        now = store.clock.now(connection)
        found = list_series(connection)
    if as_json:
        say_json([asdict(one) for one in found])
    elif not found:
        say("no series; a source makes its own when it is first polled")
    else:
        _say_series(found, now)


def _say_series(found: Sequence[SeriesFacts], now: datetime) -> None:
    columns = [
        Column("series"),
        Column("latest", is_number=True),
        Column("since"),
        Column("chapters", is_number=True),
        Column("sources", is_number=True),
        Column("followers", is_number=True),
        Column("title", is_flexible=True),
    ]
    rows = [
        [
            one.id,
            one.latest_chapter,
            distance(one.last_chapter_at, now),
            one.chapters,
            one.sources,
            one.followers,
            f"merged into {one.merged_into}" if one.merged_into else one.title,
        ]
        for one in found
    ]
    say_table(columns, rows)


@series.command()
@click.argument("series_id", metavar="SERIES")
@json_option
def show(*, series_id: str, as_json: bool) -> None:
    """Show one series: sources, gaps, chapters."""
    from ingestion_pipeline.series.lookup import chapters_of_series, one_series

    with opened() as (_, store), store.read() as connection:
        facts = asdict(one_series(connection, series_id)) | _relations(connection, series_id)
        chapters = chapters_of_series(connection, series_id)
    if as_json:
        say_json(facts | {"all_chapters": [asdict(one) for one in chapters]})
        return
    told_by = facts.pop("told_by")
    say_facts(facts)
    for source_id, why in told_by.items():
        say(f"\nsource {source_id}\n  {why}")
    if chapters:
        say("")
        _say_chapters(chapters)


def _relations(connection: Connection, series_id: str) -> dict[str, Any]:
    from ingestion_pipeline.series.checks import gaps
    from ingestion_pipeline.series.lookup import merged_from
    from ingestion_pipeline.sources.canonical_series import homes, sources_of

    found = homes(connection, sources_of(connection, [series_id]))
    return {
        "merged_from": merged_from(connection, series_id),
        "gaps": [one.message for one in gaps(connection, series_id)],
        "told_by": {source_id: home.why for source_id, home in sorted(found.items())},
    }


def _say_chapters(chapters: Sequence[ChapterFacts]) -> None:
    columns = [
        Column("chapter"),
        Column("detected"),
        Column("sources", is_number=True),
        Column("title", is_flexible=True),
    ]
    rows = [
        [
            one.key,
            f"{one.first_detected_at:%Y-%m-%d %H:%M}",
            len(one.sources),
            "withdrawn by an operator" if one.rejected_at else one.title,
        ]
        for one in chapters[:SHOWN]
    ]
    say_table(columns, rows)
    if len(chapters) > SHOWN:
        say(f"\nthe highest {SHOWN} of {len(chapters)}; --json has all")


@series.command()
@click.argument("old", metavar="FROM")
@click.argument("new", metavar="INTO")
@click.option("--dry-run", is_flag=True, help="Say what would happen, and change nothing.")
def merge(*, old: str, new: str, dry_run: bool) -> None:
    """Make two series one.

    Everything of FROM moves into INTO, and whoever names FROM means INTO from then on. Nobody is
    told of a chapter a second time.
    """
    from ingestion_pipeline.series.operator_changes import merge as merge_series

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        came_to = merge_series(connection, old, new, actor=actor(), now=now)
        if dry_run:
            connection.rollback()
    say(f"{old} {'would be' if dry_run else 'is'} merged into {new}: {_counts(asdict(came_to))}")


@series.command()
@click.argument("old", metavar="SERIES")
@click.option(
    "--source", "source_ids", multiple=True, required=True, metavar="ID", help="Who leaves; again."
)
@click.option("--into", "new", required=True, metavar="NEW", help="What they tell of from now on.")
@click.option("--title", help="What people call it.")
def split(*, old: str, new: str, source_ids: tuple[str, ...], title: str | None) -> None:
    """Let sources tell of another series.

    They take along what they have of SERIES, and stay there whatever their files say. Undoes a
    merge where NEW was merged into SERIES. Follows and notices stay with SERIES.
    """
    from ingestion_pipeline.series.operator_changes import split as split_series

    leaving = list(dict.fromkeys(source_ids))
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        came_to = split_series(connection, old, new, leaving, title=title, actor=actor(), now=now)
    say(f"{', '.join(leaving)}: of {new} now, not of {old}: {_counts(asdict(came_to))}")


def _counts(came_to: dict[str, int]) -> str:
    said = [f"{count} {name.replace('_', ' ')}" for name, count in came_to.items() if count]
    return ", ".join(said) or "there was nothing to move"


@series.command()
@click.argument("series_id", metavar="SERIES")
@click.argument("number")
@click.option("--reason", help="For the audit log.")
def withdraw(*, series_id: str, number: str, reason: str | None) -> None:
    """Say that there is no such chapter.

    It is not the latest, fills no gap, and nobody hears of it, whoever lists it, until it is
    restored. NUMBER is a number, or the key that `show` gives to an unnumbered chapter.
    """
    from ingestion_pipeline.series.operator_changes import withdraw as withdraw_chapter

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        judged = withdraw_chapter(
            connection, series_id, number, reason=reason, actor=actor(), now=now
        )
    if judged.is_changed:
        say(f"chapter {judged.key} of {series_id} is withdrawn; {judged.notices} notices muted")
    else:
        say(f"chapter {judged.key} of {series_id} was withdrawn already")


@series.command()
@click.argument("series_id", metavar="SERIES")
@click.argument("number")
def restore(*, series_id: str, number: str) -> None:
    """Take a withdrawal back."""
    from ingestion_pipeline.series.operator_changes import restore as restore_chapter

    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        judged = restore_chapter(connection, series_id, number, actor=actor(), now=now)
    if judged.is_changed:
        say(f"chapter {judged.key} of {series_id} is back; {judged.notices} notices pending again")
    else:
        say(f"chapter {judged.key} of {series_id} was not withdrawn")
