"""`ingest sources`: what is watched. Declared by file or by hand, switched on and off."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import (
    Column,
    CommandRefused,
    distance,
    say,
    say_facts,
    say_json,
    say_table,
)
from ingestion_pipeline.cli.session import actor, config_option, json_option, opened
from ingestion_pipeline.cli.status import status_row
from ingestion_pipeline.sources.source import Kind

if TYPE_CHECKING:
    from datetime import datetime

    from ingestion_pipeline.sources import Definition
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.sources.status import Watched
    from ingestion_pipeline.store import Store


@click.group()
def sources() -> None:
    """Add, show, change and switch what is watched."""


@sources.command()
@click.argument("url")
@click.option("--id", help="kind:name, of a-z 0-9 : . _ - (needed but for a website).")
@click.option("--kind", help="catalog, series, company, job_board or website (needed).")
@click.option("--platform", help="Whose reader; recognised by the URL if it can be.")
@click.option("--tier", help="hot, warm, cold or auto (the default: it finds its own).")
@config_option
@click.option("--series", metavar="ID", help="The series it tells of; its own name by default.")
@click.option("--company", metavar="ID", help="The company it belongs to.")
@click.option("--name", help="What people call it.")
def add(**given: Any) -> None:  # noqa: ANN401 - one option per key of a declaration
    """Watch the source at URL from now on."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.registry import add as add_source

    definition = checked(_named({key: value for key, value in given.items() if value is not None}))
    with opened() as (_, store), store.begin() as connection:
        now = store.clock.now(connection)
        add_source(connection, definition, actor=actor(), now=now)
        looked_for = declared(connection, [definition.id], now=now)
    said = f"added {definition.id} ({definition.platform}, {definition.tier or 'auto'})"
    if looked_for:
        say(f"{said}; its recipe is detected by `make dev`, or by the job detect_recipes")
        return
    say(f"{said}; it is due now, and `make dev` or a poll job polls it")


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """A website without an id is called after its address."""
    if raw.get("kind") != Kind.WEBSITE.value or "id" in raw:
        return raw
    address = raw["url"].partition("://")[2] or raw["url"]
    name = re.sub(r"[^a-z0-9._]+", "-", address.lower().removeprefix("www.")).strip("-")
    return raw | {"id": f"{Kind.WEBSITE.value}:{name}"[:120]}


def checked(raw: dict[str, Any]) -> Definition:
    """The definition; every problem of it in one refusal."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.sources.definition import definition_of

    definition, bad = definition_of(raw)
    if definition is not None:
        bad = [*bad, *definition_check(load_settings().sources)(definition)]
    if definition is None or bad:
        raise CommandRefused("\n".join(f"{one.field}: {one.message}" for one in bad))
    return definition


@sources.command("list")
@click.option("--kind", type=click.Choice([kind.value for kind in Kind]), help="Only this kind.")
@json_option
def list_(*, kind: str | None, as_json: bool) -> None:
    """Show every source."""
    wanted = Kind(kind) if kind else None
    if as_json:
        _say_facts(wanted)
    else:
        _say_sources(wanted)


def _say_facts(kind: Kind | None) -> None:
    from ingestion_pipeline.sources.status import watched_sources
    from ingestion_pipeline.store.bulk import making_rows

    with opened() as (settings, store), store.read() as connection, making_rows():
        now = store.clock.now(connection)
        attempts = settings.work.max_attempts
        found = watched_sources(connection, kind=kind)
        facts = [source_facts(one, now=now, max_attempts=attempts) for one in found]
    say_json(facts)


def source_facts(watched: Watched, *, now: datetime, max_attempts: int) -> dict[str, Any]:
    """A source's declaration and standing under stable keys."""
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


def _say_sources(kind: Kind | None) -> None:
    from ingestion_pipeline.sources.lookup import listed_sources
    from ingestion_pipeline.store.bulk import making_rows

    columns = [
        Column("source"),
        Column("platform"),
        Column("tier"),
        Column("status"),
        Column("records", is_number=True),
        Column("next"),
        Column("url", is_flexible=True),
    ]
    with opened() as (_, store), store.read() as connection, making_rows():
        now = store.clock.now(connection)
        rows = [
            [
                one.id,
                one.platform,
                f"{one.tier} (pinned)" if one.tier_pinned else one.tier,
                one.status,
                one.record_count,
                distance(one.next_check_at, now),
                one.url,
            ]
            for one in listed_sources(connection, kind=kind)
        ]
    if rows:
        say_table(columns, rows)
    else:
        say("no sources; `ingest sources add` adds one, `ingest sources import` reads files")


@sources.command()
@click.argument("source_id", metavar="ID")
@json_option
def show(*, source_id: str, as_json: bool) -> None:
    """Show all that is known of one source."""
    from ingestion_pipeline.catalogs.extraction.cost import catalog_facts
    from ingestion_pipeline.catalogs.recipes.registry import recipe_facts
    from ingestion_pipeline.operations.health import standings
    from ingestion_pipeline.sources.canonical_series import homes
    from ingestion_pipeline.sources.lookup import UnknownSource
    from ingestion_pipeline.sources.scheduling.budget import market
    from ingestion_pipeline.sources.scheduling.explanation import expectation
    from ingestion_pipeline.sources.status import watched_source
    from ingestion_pipeline.tasks.dead_letters import Chosen, list_dead_letters, state_of

    with opened() as (settings, store), store.read() as connection:
        now, watched = store.clock.now(connection), watched_source(connection, source_id)
        if watched is None:
            raise UnknownSource(source_id)
        letters = list_dead_letters(connection, Chosen(source_id=source_id), decided=True, limit=3)
        home = homes(connection, [source_id])[source_id]
        expected = expectation(watched.source, market(connection, settings), now=now)
        crawl = expected | recipe_facts(connection, watched.source)
        crawl |= catalog_facts(connection, watched.source, settings)
        [standing] = standings(connection, settings, now=now, ids=[source_id])
    well = {"health": standing.health, "health_reason": standing.verdict.reason}
    facts = source_facts(watched, now=now, max_attempts=settings.work.max_attempts) | well | crawl
    if watched.source.kind is Kind.SERIES:
        facts |= {"effective_series": home.series_id, "series_why": home.why}
    poll = asdict(watched.poll) if watched.poll else None
    keys = ("id", "failed_at", "error_class", "error_code", "error", "attempts")
    keys += ("replayed_at", "discarded_at", "discard_reason")
    dead = [{key: letter[key] for key in keys} for letter in letters]
    if as_json:
        say_json(facts | {"poll": poll, "dead_letters": dead})
        return
    say_facts(facts | {f"poll {key}": value for key, value in (poll or {}).items()})
    for letter in dead:
        state = f"{state_of(letter)}, {letter['failed_at']:%Y-%m-%d %H:%M}"
        say(f"\ndead letter {letter['id']} ({state})\n  {letter['error_code']}: {letter['error']}")


@sources.command("import")
@click.argument("path", required=False, type=click.Path(path_type=Path))
def import_(*, path: Path | None) -> None:
    """Register what YAML files declare.

    PATH is a file or a folder; the sources folder by default. A file with a mistake gives nothing;
    every mistake of every file is told.
    """
    with opened() as (settings, store):
        files = _read(path if path is not None else settings.sources, settings.sources)
        for file in files:
            if not file.problems:
                say(f"{file.path}: {_register(store, file)}")
    problems = [problem for file in files for problem in file.problems]
    for problem in problems:
        say(str(problem), is_error=True)
    if problems:
        bad = sum(bool(file.problems) for file in files)
        raise CommandRefused(
            f"{bad} of {len(files)} files have mistakes; nothing of them was imported"
        )


def _read(path: Path, folder: Path) -> list[SourceFile]:
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_file, read_folder

    if not path.exists() and len(path.parts) == 1 and (folder / path).exists():
        path = folder / path  # a file of the sources folder, by its name
    if path.is_dir():
        found = read_folder(path, check=definition_check(folder))
        if not found:
            say(f"{path} holds no .yaml file; nothing to import")
        return found
    if path.exists():
        return [read_file(path, check=definition_check(folder))]
    raise CommandRefused(
        f"{path}: no such file or folder; INGESTION_SOURCES names the sources folder"
    )


def _register(store: Store, file: SourceFile) -> str:
    from ingestion_pipeline.notices.registry import as_counts, declare
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.registry import register
    from ingestion_pipeline.store.audit import audit

    with store.begin() as connection:
        now = store.clock.now(connection)
        came_to = asdict(register(connection, file.definitions, now=now, actor=actor()))
        declared(connection, [one.id for one in file.definitions], now=now)
        told = declare(connection, file.recipients, now=now)
        audit(
            connection,
            actor=actor(),
            action="sources.import",
            subject=file.path,
            now=now,
            detail=came_to,
        )
    said = ", ".join(f"{count} {word}" for word, count in came_to.items())
    return said + (f"; recipients: {as_counts(told)}" if file.recipients else "")


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--reason", help="For the audit log.")
def enable(*, source_id: str, reason: str | None) -> None:
    """Poll a source again, its failures forgotten."""
    from ingestion_pipeline.registry import approval_problems
    from ingestion_pipeline.sources import registry
    from ingestion_pipeline.sources.declared_rows import BY_FILE
    from ingestion_pipeline.sources.lookup import sources_by_id

    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        before = sources_by_id(connection, [source_id]).get(source_id)
        if before is not None and (bad := approval_problems(before, settings.sources)):
            raise CommandRefused("\n".join(bad))
        registry.enable(connection, source_id, actor=actor(), reason=reason, now=now)
    say(f"{source_id} is enabled and due now")
    if before is not None and before.status_reason == BY_FILE:
        undone = "the next import disables it again unless that line goes"
        say(f"warning: {before.origin} says `enabled: false`; {undone}", is_error=True)


@sources.command()
@click.argument("source_id", metavar="ID")
@click.option("--reason", default="no reason given", help="Shown wherever the source is.")
def disable(*, source_id: str, reason: str) -> None:
    """Poll a source no more, until it is enabled.

    Whatever its file says. Jobs that only this board lists are closed.
    """
    from ingestion_pipeline.companies.boards.closing import close_unwatched, lock_board
    from ingestion_pipeline.sources import registry

    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        lock_board(connection, source_id)
        registry.disable(connection, source_id, actor=actor(), reason=reason, now=now)
        closed = close_unwatched(
            connection, now=now, settings=settings, actor=actor(), only=source_id
        )
    say(f"{source_id} is disabled; `ingest sources enable {source_id}` ends it")
    _say_closed(closed)


@sources.command()
@click.argument("source_id", metavar="ID")
def remove(*, source_id: str) -> None:
    """Poll a source never again; its rows stay."""
    from ingestion_pipeline.companies.boards.closing import close_unwatched, lock_board
    from ingestion_pipeline.sources import registry

    with opened() as (settings, store), store.begin() as connection:
        now = store.clock.now(connection)
        lock_board(connection, source_id)
        registry.remove(connection, source_id, actor=actor(), now=now)
        closed = close_unwatched(
            connection, now=now, settings=settings, actor=actor(), only=source_id
        )
    say(f"{source_id} is removed: never polled again, though a file may still declare it")
    say("its rows stay; the sensor `new_sources` drops its partition; `enable` brings it back")
    _say_closed(closed)


def _say_closed(closed: int) -> None:
    if closed:
        say(f"{closed} listings that only it had are closed; enabled again, it brings them back")
