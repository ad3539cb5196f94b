"""`ingest sources update` and `scrape`: change a source, detect its recipe, scrape boards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import CommandRefused, echo
from ingestion_pipeline.cli.session import actor, changing, config_option
from ingestion_pipeline.cli.sources import checked, sources

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.sources import Source


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--url")
@click.option("--platform")
@click.option("--tier", help="hot, warm, cold; auto adapts it.")
@config_option
@click.option("--name")
@click.option("--series", metavar="ID")
@click.option("--accept-drop", is_flag=True, help="Accept its next feed, however much is missing.")
@click.option("--detect", is_flag=True, help="Detect a catalogue's recipe again.")
def update(*, source_id: str, accept_drop: bool, detect: bool, **options: Any) -> None:  # noqa: ANN401
    """Change a source that was added by hand.

    Sources declared in a file are changed in the file.
    """
    from ingestion_pipeline.sources import operator_changes
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    changes = {key: value for key, value in options.items() if value is not None}
    if not changes and not accept_drop and not detect:
        raise CommandRefused("nothing to change; `ingest sources update --help` shows the options")
    with changing() as (settings, connection, now):
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        refuse_changes_owned_by_file(source, changes, folder=settings.sources)
        messages: list[str] = []
        if changes:
            messages.append(_redeclare(connection, source, changes, now))
        if accept_drop:
            operator_changes.accept_drop(connection, source_id, actor=actor(), now=now)
            messages.append("its next feed is accepted, whatever is missing")
        if changes or detect:
            messages += _detect_recipe(connection, source_id, now, again=detect)
    echo(f"{source_id}: {'; '.join(messages)}")


def _detect_recipe(connection: Connection, source_id: str, now: datetime, *, again: bool) -> list[str]:
    """Queue recipe detection and return the message about it, if any."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.store.audit import audit

    if declared(connection, [source_id], now=now, again=again):
        audit(connection, actor=actor(), action="recipe.detect", subject=source_id, now=now)
        return ["its recipe will be detected again"]
    if again:
        why = "it is not a catalogue, it is disabled, or its config has a recipe: remove that"
        raise CommandRefused(f"no recipe of {source_id} can be detected: {why}")
    return []


def _redeclare(connection: Connection, source: Source, changes: dict[str, Any], now: datetime) -> str:
    from ingestion_pipeline.sources.definition import declaration
    from ingestion_pipeline.sources.operator_changes import redeclare

    raw = declaration(source) | {key: value or None for key, value in changes.items()}
    is_changed = redeclare(connection, source, checked(raw), actor=actor(), now=now)
    return "updated" if is_changed else "unchanged"


def refuse_changes_owned_by_file(source: Source, changes: dict[str, Any], *, folder: Path) -> None:
    """Refuse changes to a file's source: the next import would undo them."""
    from ingestion_pipeline.sources.source import BY_HAND

    if source.origin == BY_HAND:
        return
    owned = [key for key in changes if key != "tier" or _is_tier_pinned_by_file(source, folder)]
    if owned:
        cure = f"change it there, then run `ingest sources import {source.origin}`"
        raise CommandRefused(f"{', '.join(owned)} of {source.id}: owned by {source.origin}; {cure}")


def _is_tier_pinned_by_file(source: Source, folder: Path) -> bool:
    """Return whether the file sets a tier; if it cannot be read, what the row says."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_file

    file = read_file(folder / source.origin, check=definition_check(folder))
    tiers = [definition.tier for definition in file.definitions if definition.id == source.id]
    return tiers[0] is not None if tiers else source.tier_pinned


@sources.command()
@click.argument("source_ids", metavar="[ID]...", nargs=-1)
@click.option("--target-matches", type=click.IntRange(min=1), help="End the rotation after this many matches.")
@click.option("--max-sources", type=click.IntRange(min=1), help="Maximum number of boards.")
def scrape(*, source_ids: tuple[str, ...], target_matches: int | None, max_sources: int | None) -> None:
    """Scrape job boards now: these, or in rotation.

    Without an ID those scraped longest ago come first, a few at a time, until enough jobs match.
    """
    from ingestion_pipeline.companies.boards.rotation import NotPolled, ScrapeRequest, request_scrape
    from ingestion_pipeline.store.audit import audit
    from ingestion_pipeline.tasks.queue import Refusal

    if source_ids and (target_matches or max_sources):
        raise CommandRefused("--target-matches and --max-sources belong to a rotation; name no board")
    request = ScrapeRequest(source_ids=source_ids, target_matches=target_matches, max_sources=max_sources)
    with changing() as (settings, connection, now):
        try:
            made = request_scrape(connection, request, now=now, settings=settings)
        except NotPolled as error:
            raise CommandRefused(str(error)) from error
        if isinstance(made, Refusal):
            raise CommandRefused(f"not queued again ({made.value}): the same request still waits")
        audit(
            connection, actor=actor(), action="boards.scrape", subject=f"task:{made}", now=now, detail=request.payload()
        )
    what = f"{len(source_ids)} boards" if source_ids else "a rotation of boards"
    echo(f"queued {what}; `make dev` or the job process_companies runs it")
