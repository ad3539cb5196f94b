"""`ingest doctor`: collect the facts for each check and print the results; it changes nothing."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Generator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli import doctor_checks as checks
from ingestion_pipeline.cli.doctor_checks import DoctorCheck
from ingestion_pipeline.cli.output import Column, echo, print_json, print_table
from ingestion_pipeline.cli.session import cannot_open, environment, json_option, shown_database

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.store import Store


CHECKED_OBJECTS = 2_000  # the newest of the content store, which a crash may have truncated


@click.command()
@click.option("--offline", is_flag=True, help="Contact no server but the database.")
@json_option
def doctor(*, offline: bool, as_json: bool) -> None:
    """Check the installation and its data.

    Exit 1 if a check failed; warnings are for people.
    """
    results = list(examine(environment(), offline=offline))
    counts = {state: sum(result.state == state for result in results) for state in checks.STATES}
    if as_json:
        print_json({"checks": [checks.as_dict(result) for result in results], **counts})
    else:
        columns = [
            Column("check"),
            Column("state"),
            Column("details", is_flexible=True),
            Column("cure", is_flexible=True),
        ]
        print_table(columns, [[result.name, result.state, result.found, result.cure] for result in results])
        echo("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if counts["failed"]:
        raise click.exceptions.Exit(1)


def examine(variables: Mapping[str, str], *, offline: bool) -> Generator[DoctorCheck]:
    """Run every check, in the order in which they depend on each other."""
    from ingestion_pipeline.cli import doctor_checks as reach
    from ingestion_pipeline.settings import BadSetting, load_settings, unknown_variables

    yield reach.versions()
    yield checks.variables(unknown_variables(variables))
    try:
        settings = load_settings(variables)
    except BadSetting as error:
        yield checks.failed("settings", str(error), "correct the variable, or unset it")
        return
    yield checks.ok("settings", "readable")
    yield _home(settings.home)
    files = _files(settings.sources)
    yield checks.folder(settings.sources, can_read=files is not None)
    yield checks.files(files or [])
    yield _browser(settings)
    yield _content(settings.home)
    if settings.has_model and not offline:
        yield reach.model_server(settings)
    yield from _database(settings, variables, files or [])


def _home(home: Path) -> DoctorCheck:
    ground = next(path for path in (home.absolute(), *home.absolute().parents) if path.exists())
    is_writable = ground.is_dir() and os.access(ground, os.W_OK | os.X_OK)
    return checks.home(home, is_writable=is_writable, free_bytes=shutil.disk_usage(ground).free)


def _files(folder: Path) -> list[SourceFile] | None:
    """Return the parsed source files; None if the folder cannot be read."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_folder

    if not folder.is_dir() or not os.access(folder, os.R_OK | os.X_OK):
        return None
    return read_folder(folder, check=definition_check(folder))


def _browser(settings: Settings) -> DoctorCheck:
    from ingestion_pipeline.pages.browser.chromium import CURE, NoBrowser, browser_version, find_browser

    try:
        program = find_browser(settings)
        return checks.browser(f"{browser_version(program)}, {program}")
    except NoBrowser as error:
        return checks.browser(str(error).removesuffix(f": {CURE}"), cure=CURE)


def _content(home: Path) -> DoctorCheck:
    from ingestion_pipeline.pages.content.store import ContentStore

    damaged, checked = ContentStore(home / "content").damaged(at_most=CHECKED_OBJECTS)
    return checks.content(damaged, checked)


def _rendered(settings: Settings, sources: Sequence[Source]) -> DoctorCheck:
    from ingestion_pipeline.catalogs.recipes.recipe import needs_a_browser
    from ingestion_pipeline.pages.browser.chromium import CURE, NoBrowser, find_browser
    from ingestion_pipeline.sources import Kind

    catalogues = (source for source in sources if source.kind is Kind.CATALOG)
    wanting = [
        source.id for source in catalogues if source.status.value != "disabled" and needs_a_browser(source.config)
    ]
    try:
        find_browser(settings)
    except NoBrowser:
        return checks.rendered(wanting, has_browser=False, cure=CURE)
    return checks.rendered(wanting, has_browser=True, cure=CURE)


def _database(settings: Settings, variables: Mapping[str, str], files: list[SourceFile]) -> Generator[DoctorCheck]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    from ingestion_pipeline.store import SchemaMismatch, open_store

    try:
        url = make_url(settings.store_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            problem = f"{url.database} does not exist yet"
            yield checks.warning("database", problem, checks.CREATES)
            return
        if (behind := _behind(settings.store_url)) is not None:
            yield behind
            return
        store = open_store(settings.store_url)
    except SchemaMismatch as error:
        yield checks.failed("database", str(error), "upgrade ingestion_pipeline")
        return
    except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
        reason, cure = cannot_open(settings.store_url, error).rsplit("\n", 1)
        yield checks.failed("database", reason, cure)
        return
    yield checks.ok("database", f"{shown_database(settings.store_url)}, schema at head")
    try:
        yield from _state(settings, store, variables, files)
    finally:
        store.close()


def _behind(url: str) -> DoctorCheck | None:
    """Return the check result for a database that needs creating or migrating; else None."""
    from ingestion_pipeline.store import schema
    from ingestion_pipeline.store.engine import schema_revision

    current = schema_revision(url)
    if current is None:
        return checks.warning("database", f"{shown_database(url)} is empty", checks.CREATES)
    if current == schema.HEAD or current not in schema.known_revisions():
        return None
    problem = f"{shown_database(url)} is at schema {current}, this program needs {schema.HEAD}"
    return checks.failed("database", problem, "back it up; `ingest init` migrates it")


def _state(
    settings: Settings, store: Store, variables: Mapping[str, str], files: list[SourceFile]
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.pages.politeness.hosts import clock_set_back
    from ingestion_pipeline.settings import BadSetting, load_settings, setting_fields
    from ingestion_pipeline.store.stored_settings import overrides

    with store.read() as connection:
        now = store.clock.now(connection)
        process = datetime.fromtimestamp(time.time(), UTC)
        yield checks.clock(now, process, clock_set_back(connection, now=now))
        changed = overrides(connection)
        try:
            settings = load_settings(variables, changed)
        except BadSetting as error:
            yield checks.failed("settings table", str(error), "`ingest settings unset KEY`")
        else:
            yield checks.settings_table([key for key in changed if key not in setting_fields()])
        yield _model(settings)
        yield _profile(connection, settings)
        yield from _sources(connection, settings, files, now)
        yield from _work(connection, settings, variables, now)


def _model(settings: Settings) -> DoctorCheck:
    from ingestion_pipeline.reading.llm.server import shown_base_url
    from ingestion_pipeline.settings import price_table

    models = list(dict.fromkeys((settings.model_cheap, settings.model_strong)))
    base_url = shown_base_url(settings) if settings.has_model else ""
    return checks.model(base_url, models, price_table(settings.models.prices))


def _profile(connection: Connection, settings: Settings) -> DoctorCheck:
    from ingestion_pipeline.companies.matching.listing_runs import profile_path, settings_profile
    from ingestion_pipeline.companies.matching.profile import BadProfile, NoProfile
    from ingestion_pipeline.sources import Kind
    from ingestion_pipeline.sources.lookup import list_sources

    profile = settings_profile(settings)
    match profile:
        case BadProfile():
            return checks.bad_profile(str(profile))
        case NoProfile():
            boards = [board.id for board in list_sources(connection, kind=Kind.JOB_BOARD)]
            return checks.no_profile(str(profile.path), boards)
        case _:
            summary = f"{profile_path(settings)}, {len(profile.skills)} skills"
            return checks.ok("profile", summary)


def _sources(
    connection: Connection, settings: Settings, files: list[SourceFile], now: datetime
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.cli import doctor_checks as reach
    from ingestion_pipeline.settings import setting_fields
    from ingestion_pipeline.sources.lookup import list_sources
    from ingestion_pipeline.sources.scheduling.tiers import is_stale

    sources = list_sources(connection)
    yield checks.undeclared(sources, files)
    is_default = settings.user_agent == setting_fields()["user_agent"][0]
    yield checks.user_agent(sources, is_default=is_default)
    yield checks.secrets_in_urls(sources)
    yield reach.allow_list(settings.allowed_hosts, sources)
    stale = [source.id for source in sources if is_stale(source, now=now, settings=settings)]
    yield checks.stale(stale)
    yield _rendered(settings, sources)


def _work(
    connection: Connection, settings: Settings, variables: Mapping[str, str], now: datetime
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.operations.alerts import last_heartbeat
    from ingestion_pipeline.sources.status import totals
    from ingestion_pipeline.tasks.run_heartbeats import lost_runs

    counts = totals(connection, now=now)
    yield checks.abandoned(counts.abandoned)
    yield checks.lost_runs([run.run_id for run in lost_runs(connection, now=now)])
    if (tick := last_heartbeat(connection)) is not None:
        max_gap = timedelta(seconds=settings.health.daemon_silent_seconds)
        yield checks.daemon(tick, due=counts.due, now=now, max_gap=max_gap)
    elif variables.get("DAGSTER_HOME"):
        yield checks.daemon(_newest_sign(connection, settings), due=counts.due, now=now)
    yield checks.dead_letters(counts.dead_letters)


def _newest_sign(connection: Connection, settings: Settings) -> datetime | None:
    """Return when a run last started or sent a heartbeat."""
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import runs

    lease = timedelta(seconds=settings.runs.lease_seconds)
    query = select(func.max(runs.c.started_at), func.max(runs.c.lease_until))
    started_at, lease_until = connection.execute(query).one()
    if started_at is None or lease_until is None:
        return None
    return max(started_at, lease_until - lease)
