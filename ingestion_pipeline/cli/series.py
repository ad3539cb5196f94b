"""`ingest series`: show, merge and split series, and correct chapters."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    distance,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_listing,
    print_records,
    print_result,
)
from ingestion_pipeline.cli.session import actor, changing, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from ingestion_pipeline.series.series_reports import ChapterFacts

SHOWN = 20  # chapters of `show`; --json has all


@click.group()
def series() -> None:
    """Show, merge and split series; correct chapters."""


@series.command("list")
@json_option
def list_() -> None:
    """Show every series."""
    from ingestion_pipeline.series.series_reports import list_series

    with reading() as (_, connection, now):
        rows = list_series(connection)
    print_listing(
        rows,
        lambda row: {
            "series": row.id,
            "latest": row.latest_chapter,
            "since": distance(row.last_chapter_at, now),
            "chapters": row.chapters,
            "sources": row.sources,
            "followers": row.followers,
            "title": f"merged into {row.merged_into}" if row.merged_into else row.title,
        },
        empty="no series; a source creates its own when it is first polled",
        numbers={"latest", "chapters", "sources", "followers"},
        flexible={"title"},
    )


@series.command()
@click.argument("series_id", metavar="SERIES")
@json_option
def show(*, series_id: str) -> None:
    """Show one series: sources, gaps, chapters."""
    from ingestion_pipeline.series.series_reports import chapters_of_series, get_series

    with reading() as (_, connection, _):
        facts = asdict(get_series(connection, series_id)) | _relations(connection, series_id)
        chapters = chapters_of_series(connection, series_id)
    if is_json():
        print_json(facts | {"all_chapters": [asdict(chapter) for chapter in chapters]})
        return
    source_reasons = facts.pop("told_by")
    print_facts(facts)
    for source_id, why in source_reasons.items():
        echo(f"\nsource {source_id}\n  {why}")
    if chapters:
        echo("")
        _print_chapters(chapters)


def _relations(connection: "Connection", series_id: str) -> dict[str, Any]:
    from ingestion_pipeline.series.checks import gaps
    from ingestion_pipeline.series.series_reports import merged_from
    from ingestion_pipeline.sources.lookup import series_assignments, sources_of

    series_of = series_assignments(connection, sources_of(connection, [series_id]))
    return {
        "merged_from": merged_from(connection, series_id),
        "gaps": [gap.message for gap in gaps(connection, series_id)],
        "told_by": {source_id: home.why for source_id, home in sorted(series_of.items())},
    }


def _print_chapters(chapters: "Sequence[ChapterFacts]") -> None:
    records = [
        {
            "chapter": chapter.key,
            "detected": f"{chapter.first_detected_at:%Y-%m-%d %H:%M}",
            "sources": len(chapter.sources),
            "title": "withdrawn by an operator" if chapter.rejected_at else chapter.title,
        }
        for chapter in chapters[:SHOWN]
    ]
    print_records(records, numbers={"sources"}, flexible={"title"})
    if len(chapters) > SHOWN:
        echo(f"\nthe highest {SHOWN} of {len(chapters)}; --json has all")


@series.command()
@click.argument("old", metavar="FROM")
@click.argument("new", metavar="INTO")
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@json_option
def merge(*, old: str, new: str, dry_run: bool) -> None:
    """Merge two series.

    Everything of FROM moves into INTO, and the name FROM means INTO from then on. Nobody is
    notified of a chapter a second time.
    """
    from ingestion_pipeline.series.series_changes import merge as merge_series

    with changing(dry_run=dry_run) as (_, connection, now):
        moved = merge_series(connection, old, new, actor=actor(), now=now)
    message = f"{old} {'would be' if dry_run else 'is'} merged into {new}: {_counts(asdict(moved))}"
    print_result({"from": old, "into": new, "dry_run": dry_run, **asdict(moved)}, message)


@series.command()
@click.argument("old", metavar="SERIES")
@click.option(
    "--source",
    "source_ids",
    multiple=True,
    required=True,
    metavar="ID",
    help="Source to move out of the series; repeatable.",
)
@click.option("--into", "new", required=True, metavar="NEW", help="Series to move them into.")
@click.option("--title", help="Title of the new series.")
@json_option
def split(*, old: str, new: str, source_ids: tuple[str, ...], title: str | None) -> None:
    """Move sources into another series.

    They take along what they have of SERIES, and stay there whatever their files say. Undoes a
    merge where NEW was merged into SERIES. Follows and notices stay with SERIES.
    """
    from ingestion_pipeline.series.series_changes import split as split_series

    leaving = list(dict.fromkeys(source_ids))
    with changing() as (_, connection, now):
        moved = split_series(connection, old, new, leaving, title=title, actor=actor(), now=now)
    message = f"{', '.join(leaving)}: moved from {old} to {new}: {_counts(asdict(moved))}"
    print_result({"from": old, "into": new, "sources": leaving, **asdict(moved)}, message)


def _counts(moved: dict[str, int]) -> str:
    parts = [f"{count} {name.replace('_', ' ')}" for name, count in moved.items() if count]
    return ", ".join(parts) or "nothing to move"


@series.command()
@click.argument("series_id", metavar="SERIES")
@click.argument("number")
@click.option("--reason", help="For the audit log.")
@json_option
def withdraw(*, series_id: str, number: str, reason: str | None) -> None:
    """Mark a chapter as non-existent.

    It is not the latest, fills no gap, and nobody is notified of it, whoever lists it, until it is
    restored. NUMBER is a number, or the key that `show` gives to an unnumbered chapter.
    """
    from ingestion_pipeline.series.series_changes import withdraw as withdraw_chapter

    with changing() as (_, connection, now):
        judged = withdraw_chapter(connection, series_id, number, reason=reason, actor=actor(), now=now)
    done = f"is withdrawn; {judged.notices} notices muted" if judged.is_changed else "was withdrawn already"
    print_result({"series": series_id, **asdict(judged)}, f"chapter {judged.key} of {series_id} {done}")


@series.command()
@click.argument("series_id", metavar="SERIES")
@click.argument("number")
@json_option
def restore(*, series_id: str, number: str) -> None:
    """Undo a withdrawal."""
    from ingestion_pipeline.series.series_changes import restore as restore_chapter

    with changing() as (_, connection, now):
        judged = restore_chapter(connection, series_id, number, actor=actor(), now=now)
    done = f"is restored; {judged.notices} notices pending again" if judged.is_changed else "was not withdrawn"
    print_result({"series": series_id, **asdict(judged)}, f"chapter {judged.key} of {series_id} {done}")
