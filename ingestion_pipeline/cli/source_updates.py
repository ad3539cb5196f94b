"""`ingest sources update`: what was declared by hand is changed, or looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import CommandRefused, say
from ingestion_pipeline.cli.session import actor, config_option, opened
from ingestion_pipeline.cli.sources import checked, sources

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.sources import Source


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--url")
@click.option("--platform")
@click.option("--tier", help="hot, warm, cold; auto lets it find its own again.")
@config_option
@click.option("--name")
@click.option("--series", metavar="ID")
@click.option(
    "--accept-drop", is_flag=True, help="Believe its next listing, however much it has lost."
)
@click.option("--detect", is_flag=True, help="Look for a catalogue's recipe again.")
def update(*, source_id: str, accept_drop: bool, detect: bool, **given: Any) -> None:  # noqa: ANN401
    """Change what was declared by hand.

    What a file declares is changed in the file.
    """
    from ingestion_pipeline.sources import operator_changes
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    wanted = {key: value for key, value in given.items() if value is not None}
    if not wanted and not accept_drop and not detect:
        raise CommandRefused("nothing to change; `ingest sources update --help` shows what can be")
    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        refuse_what_a_file_owns(source, wanted, folder=settings.sources)
        said: list[str] = []
        if wanted:
            said.append(_redeclare(connection, source, wanted, now))
        if accept_drop:
            operator_changes.accept_drop(connection, source_id, actor=actor(), now=now)
            said.append("its next listing is believed, whatever it has lost")
        if wanted or detect:
            said += _look_again(connection, source_id, now, again=detect)
    say(f"{source_id}: {'; '.join(said)}")


def _look_again(connection: Connection, source_id: str, now: datetime, *, again: bool) -> list[str]:
    """What is said of the recipe, if it is looked for now."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.store.audit import audit

    if declared(connection, [source_id], now=now, again=again):
        audit(connection, actor=actor(), action="recipe.detect", subject=source_id, now=now)
        return ["its recipe is detected anew"]
    if again:
        why = "it is no catalogue, or is disabled, or its config has a recipe by hand: remove that"
        raise CommandRefused(f"no recipe of {source_id} can be detected: {why}")
    return []


def _redeclare(
    connection: Connection, source: Source, wanted: dict[str, Any], now: datetime
) -> str:
    from ingestion_pipeline.sources.operator_changes import declaration, redeclare

    raw = declaration(source) | {key: value or None for key, value in wanted.items()}
    is_changed = redeclare(connection, source, checked(raw), actor=actor(), now=now)
    return "updated" if is_changed else "already so"


def refuse_what_a_file_owns(source: Source, wanted: dict[str, Any], *, folder: Path) -> None:
    """A file's source is declared there: a change by hand would be undone by the next import."""
    from ingestion_pipeline.sources.source import BY_HAND

    if source.origin == BY_HAND:
        return
    owned = [key for key in wanted if key != "tier" or _file_pins(source, folder)]
    if owned:
        cure = f"change it there, then run `ingest sources import {source.origin}`"
        raise CommandRefused(f"{', '.join(owned)} of {source.id}: owned by {source.origin}; {cure}")


def _file_pins(source: Source, folder: Path) -> bool:
    """Whether the file says a tier; one that cannot be read is taken to say what the row does."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_file

    file = read_file(folder / source.origin, check=definition_check(folder))
    tiers = [one.tier for one in file.definitions if one.id == source.id]
    return tiers[0] is not None if tiers else source.tier_pinned


@sources.command()
@click.argument("source_ids", metavar="[ID]...", nargs=-1)
@click.option("--target-matches", type=click.IntRange(min=1), help="A rotation ends after so many.")
@click.option("--max-sources", type=click.IntRange(min=1), help="Boards it takes at most.")
def scrape(
    *, source_ids: tuple[str, ...], target_matches: int | None, max_sources: int | None
) -> None:
    """Scrape job boards now: these, or by turns.

    Without an ID those scraped longest ago come first, a few at a time, until enough jobs match.
    """
    from ingestion_pipeline.companies.boards.rotation import NotPolled, Wish, ask_scrape
    from ingestion_pipeline.store.audit import audit
    from ingestion_pipeline.tasks.queue import Refusal

    if source_ids and (target_matches or max_sources):
        raise CommandRefused(
            "--target-matches and --max-sources belong to a rotation; name no board"
        )
    wish = Wish(source_ids=source_ids, target_matches=target_matches, max_sources=max_sources)
    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        try:
            made = ask_scrape(connection, wish, now=now, settings=settings)
        except NotPolled as error:
            raise CommandRefused(str(error)) from error
        if isinstance(made, Refusal):
            raise CommandRefused(f"not asked for again ({made.value}): the same wish still waits")
        audit(
            connection,
            actor=actor(),
            action="boards.scrape",
            subject=f"task:{made}",
            now=now,
            detail=wish.payload(),
        )
    what = f"{len(source_ids)} boards" if source_ids else "a rotation of boards"
    say(f"asked for {what}; `make dev`, or the job process_companies, takes it from here")
