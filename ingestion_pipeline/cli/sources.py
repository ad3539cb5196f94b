"""`ingest sources`: add, list, show, update, import, enable, disable, remove and scrape sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    CommandRefused,
    counting,
    distance,
    echo,
    is_json,
    json_option,
    print_facts,
    print_json,
    print_records,
    print_result,
)
from ingestion_pipeline.cli.session import KindType, actor, changing, config_option, opened, reading
from ingestion_pipeline.cli.status import status_row
from ingestion_pipeline.sources.source import Kind

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.sources import Definition, Source
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.sources.status import Watched
    from ingestion_pipeline.store import Store


@click.group()
def sources() -> None:
    """Add, show, change, enable and disable sources."""


@sources.command()
@click.argument("url")
@click.option("--id", help="kind:name, of a-z 0-9 : . _ - (required except for websites).")
@click.option("--kind", help="catalog, series, company, job_board or website (required).")
@click.option("--platform", help="Its platform; recognised by the URL if possible.")
@click.option("--tier", help="hot, warm, cold or auto (the default).")
@config_option
@click.option("--series", metavar="ID", help="The series it belongs to; its own name by default.")
@click.option("--company", metavar="ID", help="The company it belongs to.")
@click.option("--max-delay", metavar="TIME", help="Its freshness objective: 30m, 2h, 1d.")
@click.option("--name", help="Display name.")
@json_option
def add(**options: Any) -> None:  # noqa: ANN401 - one option per key of a declaration
    """Add the source at URL."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.registry import add as add_source

    definition = checked(_named({key: value for key, value in options.items() if value is not None}))
    with changing() as (_, connection, now):
        add_source(connection, definition, actor=actor(), now=now)
        needs_detection = declared(connection, [definition.id], now=now)
    summary = f"added {definition.id} ({definition.platform}, {definition.tier or 'auto'})"
    cure = "it is due now, and `ingest dev` or a poll job polls it"
    if needs_detection:
        cure = "its recipe is detected by `ingest dev`, or by the job detect_recipes"
    facts = {"source": definition.id, "platform": definition.platform, "needs_detection": bool(needs_detection)}
    print_result(facts, f"{summary}; {cure}")


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the declaration with an id made from the URL for a website without one."""
    if raw.get("kind") != Kind.WEBSITE.value or "id" in raw:
        return raw
    address = raw["url"].partition("://")[2] or raw["url"]
    name = re.sub(r"[^a-z0-9._]+", "-", address.lower().removeprefix("www.")).strip("-")
    return raw | {"id": f"{Kind.WEBSITE.value}:{name}"[:120]}


def checked(raw: dict[str, Any]) -> Definition:
    """Return the definition; refuse it with all its problems at once."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.sources.declarations import definition_of

    definition, bad = definition_of(raw, check=definition_check(load_settings().sources))
    if definition is None:
        raise CommandRefused("\n".join(f"{problem.field}: {problem.message}" for problem in bad), code="bad_source")
    return definition


@sources.command("list")
@click.option("--kind", type=KindType(), help="Only this kind.")
@json_option
def list_(*, kind: str | None) -> None:
    """Show every source."""
    selected = Kind(kind) if kind else None
    if not is_json():
        _print_sources(selected)
        return
    from ingestion_pipeline.sources.status import watched_sources  # the table does without

    with reading() as (settings, connection, now):
        attempts = settings.work.max_attempts
        watched_list = watched_sources(connection, kind=selected)
        facts = [source_facts(watched, now=now, max_attempts=attempts) for watched in watched_list]
    print_json(facts)


def source_facts(watched: Watched, *, now: datetime, max_attempts: int) -> dict[str, Any]:
    """Return a source's declaration and status under stable keys."""
    source = watched.source
    declared = {
        "id": source.id,
        "kind": source.kind,
        "url": source.url,
        "name": source.name,
        "platform": source.platform,
        "config": dict(source.config),
        "ignores_robots": source.ignores_robots,
        "series": source.series_id,
        "company": source.company_id,
        "max_delay_seconds": source.max_delay_seconds,
        "origin": source.origin,
        "host": source.host,
        "tier_pinned": source.tier_pinned,
        "status_reason": source.status_reason,
        "last_changed_at": source.last_changed_at,
        "accepts_drop": source.accepts_drop,
        "created_at": source.created_at,
        "tracking_id": source.tracking_id,
    }
    return declared | status_row(watched, now=now, max_attempts=max_attempts)


def _print_sources(kind: Kind | None) -> None:
    from ingestion_pipeline.sources.lookup import listed_sources

    with reading() as (_, connection, now):
        records = [
            {
                "source": source.id,
                "platform": source.platform,
                "tier": source.tier,
                "status": source.status,
                "records": source.record_count,
                "next": distance(source.next_check_at, now),
                "url": source.url,
            }
            for source in listed_sources(connection, kind=kind)
        ]
    if records:
        print_records(records, numbers={"records"}, flexible={"url"})
    else:
        echo("no sources; `ingest sources add` adds one, `ingest sources import` reads files")


@sources.command()
@click.argument("source_id", metavar="ID")
@json_option
def show(*, source_id: str) -> None:
    """Show everything about one source."""
    from ingestion_pipeline.operations.freshness import attainments
    from ingestion_pipeline.operations.source_health import source_statuses
    from ingestion_pipeline.registry import kind_specs
    from ingestion_pipeline.sources.lookup import UnknownSource
    from ingestion_pipeline.sources.scheduling.tiers import current_budget, expectation
    from ingestion_pipeline.sources.status import watched_source
    from ingestion_pipeline.tasks.ended_tasks import DeadLetterFilter, list_dead_letters, state_of

    with reading() as (settings, connection, now):
        watched = watched_source(connection, source_id)
        if watched is None:
            raise UnknownSource(source_id)
        dead_letters = list_dead_letters(connection, DeadLetterFilter(source_id=source_id), decided=True, limit=3)
        expected = expectation(watched.source, current_budget(connection, settings), now=now)
        facts_of = kind_specs()[watched.source.kind].facts
        own: dict[str, object] = {} if facts_of is None else facts_of(connection, watched.source, settings)
        [status] = source_statuses(connection, settings, now=now, ids=[source_id])
        attained = {row.source_id: str(row) for row in attainments(connection, settings, now=now)}
    well = {"health": status.health, "health_reason": status.assessment.reason, "freshness": attained.get(source_id)}
    facts = source_facts(watched, now=now, max_attempts=settings.work.max_attempts) | well | expected | own
    poll = asdict(watched.poll) if watched.poll else None
    keys = ("id", "failed_at", "error_class", "error_code", "error", "attempts")
    keys += ("replayed_at", "discarded_at", "discard_reason")
    dead = [{key: dead_letter[key] for key in keys} for dead_letter in dead_letters]
    if is_json():
        print_json(facts | {"poll": poll, "dead_letters": dead})
        return
    print_facts(facts | {f"poll {key}": value for key, value in (poll or {}).items()})
    for dead_letter in dead:
        state = f"{state_of(dead_letter)}, {dead_letter['failed_at']:%Y-%m-%d %H:%M}"
        echo(f"\ndead letter {dead_letter['id']} ({state})\n  {dead_letter['error_code']}: {dead_letter['error']}")


@sources.command("import")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@json_option
def import_(*, path: Path | None) -> None:
    """Register what YAML files declare.

    PATH is a file or a folder; the sources folder by default. Nothing of a file with a mistake is
    imported; every mistake of every file is listed.
    """
    with opened() as (settings, store):
        files = _read(path if path is not None else settings.sources, settings.sources)
        good = [file for file in files if not file.problems]
        done = {str(file.path): _register(store, file) for file in counting(good, total=len(good), noun="file")}
    if done or is_json():
        print_result({"files": done}, "\n".join(f"{name}: {counts}" for name, counts in done.items()))
    problems = [problem for file in files for problem in file.problems]
    for problem in problems:
        echo(str(problem), is_error=True)
    if problems:
        bad = sum(bool(file.problems) for file in files)
        raise CommandRefused(
            f"{bad} of {len(files)} files have mistakes; none of these was imported", code="bad_source_files"
        )


@sources.command()
def schema() -> None:
    """Print the JSON schema of source files.

    Editors that know it complete and check the files as they are written.
    """
    from ingestion_pipeline.sources.files import file_schema

    print_json(file_schema())


def _read(path: Path, folder: Path) -> list[SourceFile]:
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_file, read_folder

    if not path.exists() and len(path.parts) == 1 and (folder / path).exists():
        path = folder / path  # a file of the sources folder, by its name
    if path.is_dir():
        files = read_folder(path, check=definition_check(folder))
        if not files:
            echo(f"{path} holds no .yaml file; nothing to import")
        return files
    if path.exists():
        return [read_file(path, check=definition_check(folder))]
    raise CommandRefused(
        f"{path}: no such file or folder; INGESTION_SOURCES names the sources folder", code="no_source_files"
    )


def _register(store: Store, file: SourceFile) -> str:
    from ingestion_pipeline.notices.subscriptions import as_counts, declare
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.registry import register
    from ingestion_pipeline.store.statements import audit

    with store.begin() as connection:
        now = store.clock.now(connection)
        counts = asdict(register(connection, file.definitions, now=now, actor=actor()))
        declared(connection, [definition.id for definition in file.definitions], now=now)
        recipients = declare(connection, file.recipients, now=now)
        audit(connection, actor=actor(), action="sources.import", subject=file.path, now=now, detail=counts)
    summary = ", ".join(f"{count} {word}" for word, count in counts.items())
    return summary + (f"; recipients: {as_counts(recipients)}" if file.recipients else "")


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--reason", help="For the audit log.")
@json_option
def enable(*, source_id: str, reason: str | None) -> None:
    """Poll a source again and reset its failures."""
    from ingestion_pipeline.registry import approval_problems
    from ingestion_pipeline.sources import registry
    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.sources.registry import BY_FILE

    with changing() as (settings, connection, now):
        before = sources_by_id(connection, [source_id]).get(source_id)
        if before is not None and (bad := approval_problems(before, settings.sources)):
            raise CommandRefused("\n".join(bad), code="bad_source")
        registry.enable(connection, source_id, actor=actor(), reason=reason, now=now)
    print_result({"source": source_id, "status": "enabled"}, f"{source_id} is enabled and due now")
    if before is not None and before.status_reason == BY_FILE:
        undone = "the next import disables it again unless that line goes"
        echo(f"warning: {before.origin} says `enabled: false`; {undone}", is_error=True)


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--reason", default="no reason given", help="Reason, shown with the source.")
@json_option
def disable(*, source_id: str, reason: str) -> None:
    """Stop polling a source until it is enabled.

    Whatever its file says. Jobs that only this board lists are closed.
    """
    from ingestion_pipeline.sources import registry

    closed = _stop(source_id, partial(registry.disable, reason=reason))
    message = f"{source_id} is disabled; `ingest sources enable {source_id}` enables it again"
    _print_stopped(source_id, "disabled", closed, message)


@sources.command()
@click.argument("source_id", metavar="ID")
@json_option
def remove(*, source_id: str) -> None:
    """Remove a source; its rows stay."""
    from ingestion_pipeline.sources import registry

    closed = _stop(source_id, registry.remove)
    message = f"{source_id} is removed: never polled again, though a file may still declare it\n"
    message += "its rows stay; the sensor `new_sources` drops its partition; `enable` brings it back"
    _print_stopped(source_id, "removed", closed, message)


def _stop(source_id: str, stop: Callable[..., None]) -> int:
    """Stop polling the source; return how many listings that only it had are closed."""
    from ingestion_pipeline.companies.boards.listing_rows import close_inactive_boards, lock_board

    with changing() as (_, connection, now):
        lock_board(connection, source_id)
        stop(connection, source_id, actor=actor(), now=now)
        return close_inactive_boards(connection, now=now, actor=actor(), only=source_id)


def _print_stopped(source_id: str, status: str, closed: int, message: str) -> None:
    if closed:
        message += f"\n{closed} listings that only it had are closed; enabling it brings them back"
    print_result({"source": source_id, "status": status, "closed_listings": closed}, message)


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--url", help="New address.")
@click.option("--platform", help="New platform.")
@click.option("--tier", help="hot, warm, cold; auto adapts it.")
@config_option
@click.option("--name", help="Display name.")
@click.option("--series", metavar="ID", help="The series it belongs to.")
@click.option("--accept-drop", is_flag=True, help="Accept its next feed, however much is missing.")
@click.option("--detect", is_flag=True, help="Detect a catalogue's recipe again.")
@json_option
def update(*, source_id: str, accept_drop: bool, detect: bool, **options: Any) -> None:  # noqa: ANN401
    """Change a source that was added by hand.

    Sources declared in a file are changed in the file.
    """
    from ingestion_pipeline.sources import files
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    changes = {key: value for key, value in options.items() if value is not None}
    if not changes and not accept_drop and not detect:
        raise CommandRefused(
            "nothing to change; `ingest sources update --help` shows the options", code="nothing_to_change"
        )
    with changing() as (settings, connection, now):
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        refuse_changes_owned_by_file(source, changes, folder=settings.sources)
        messages: list[str] = []
        if changes:
            messages.append(_redeclare(connection, source, changes, now))
        if accept_drop:
            files.accept_drop(connection, source_id, actor=actor(), now=now)
            messages.append("its next feed is accepted, whatever is missing")
        if changes or detect:
            messages += _detect_recipe(connection, source_id, now, again=detect)
    print_result({"source": source_id, "changes": messages}, f"{source_id}: {'; '.join(messages)}")


def _detect_recipe(connection: Connection, source_id: str, now: datetime, *, again: bool) -> list[str]:
    """Queue recipe detection and return the message about it, if any."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.store.statements import audit

    if declared(connection, [source_id], now=now, again=again):
        audit(connection, actor=actor(), action="recipe.detect", subject=source_id, now=now)
        return ["its recipe will be detected again"]
    if again:
        why = "it is not a catalogue, it is disabled, or its config has a recipe: remove that"
        raise CommandRefused(f"no recipe of {source_id} can be detected: {why}", code="no_recipe")
    return []


def _redeclare(connection: Connection, source: Source, changes: dict[str, Any], now: datetime) -> str:
    from ingestion_pipeline.sources.declarations import declaration
    from ingestion_pipeline.sources.files import redeclare

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
        raise CommandRefused(
            f"{', '.join(owned)} of {source.id}: owned by {source.origin}; {cure}", code="owned_by_file"
        )


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
@json_option
def scrape(*, source_ids: tuple[str, ...], target_matches: int | None, max_sources: int | None) -> None:
    """Scrape job boards now: these, or in rotation.

    Without an ID those scraped longest ago come first, a few at a time, until enough jobs match.
    """
    from ingestion_pipeline.companies.boards.board_polls import NotPolled, ScrapeRequest, request_scrape
    from ingestion_pipeline.store.statements import audit
    from ingestion_pipeline.tasks.queue import Refusal

    if source_ids and (target_matches or max_sources):
        raise CommandRefused(
            "--target-matches and --max-sources belong to a rotation; name no board", code="conflicting_options"
        )
    request = ScrapeRequest(source_ids=source_ids, target_matches=target_matches, max_sources=max_sources)
    with changing() as (_, connection, now):
        try:
            made = request_scrape(connection, request, now=now)
        except NotPolled as error:
            raise CommandRefused(str(error), code="not_polled") from error
        if isinstance(made, Refusal):
            raise CommandRefused(
                f"not queued again ({made.value}): the same request still waits", code="already_queued"
            )
        audit(
            connection, actor=actor(), action="boards.scrape", subject=f"task:{made}", now=now, detail=request.payload()
        )
    what = f"{len(source_ids)} boards" if source_ids else "a rotation of boards"
    facts = {"task": made, **request.payload()}
    print_result(facts, f"queued {what}; `ingest dev` or the job process_companies runs it")
