"""`ingest doctor`: check the installation and its data, each problem with its cure; it changes nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from ingestion_pipeline.cli.output import counting, echo, is_json, json_option, print_json, print_table
from ingestion_pipeline.cli.session import cannot_open, environment, shown_database
from ingestion_pipeline.sources.source import BUNDLED, BY_HAND, Kind

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.store import Store

STATES = ("ok", "warning", "failed")
LEAST_FREE_BYTES = 500_000_000
LARGEST_CLOCK_DIFFERENCE = timedelta(seconds=5)  # leases are 90 seconds and more
MAX_DAEMON_GAP = timedelta(minutes=15)  # the hot schedule ticks every five
CREATES = "`ingest init` creates it"
NAMED = 5  # names listed at most
CHECKED_OBJECTS = 2_000  # the newest of the content store, which a crash may have truncated
PACKAGE = "ingestion_pipeline"
MODEL_SERVER = "model server"
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check: its state, what was found, and the cure."""

    name: str
    found: str
    cure: str = ""
    state: str = "ok"


ok = partial(DoctorCheck, state="ok")
warning = partial(DoctorCheck, state="warning")  # it works but needs attention
failed = partial(DoctorCheck, state="failed")  # it must be fixed


def _warn_of(name: str, problem: str, cure: str, otherwise: str) -> DoctorCheck:
    """Return a warning if there is a problem, else a passed check."""
    return warning(name, problem, cure) if problem else ok(name, otherwise)


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@click.command()
@click.option("--offline", is_flag=True, help="Contact no server but the database.")
@json_option
def doctor(*, offline: bool) -> None:
    """Check the installation and its data.

    Exit 1 if a check failed; warnings are for people.
    """
    results = list(counting(examine(environment(), offline=offline), total=None, noun="check"))
    counts = {state: sum(result.state == state for result in results) for state in STATES}
    if is_json():
        print_json({"checks": [asdict(result) for result in results], **counts})
    else:
        rows = [[result.name, result.state, result.found, result.cure] for result in results]
        print_table(("check", "state", "details", "cure"), rows, flexible={"details", "cure"})
        echo("\n" + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if counts["failed"]:
        raise click.exceptions.Exit(1)


def examine(variables: Mapping[str, str], *, offline: bool) -> Generator[DoctorCheck]:
    """Run every check, in the order in which they depend on each other."""
    from ingestion_pipeline.settings import BadSetting, load_settings, unknown_variables

    yield versions()
    unknown = unknown_variables(variables)
    yield _warn_of(
        "variables",
        f"nothing reads {', '.join(unknown)}" if unknown else "",
        "a typo? `ingest settings list --json` shows every variable",
        "every INGESTION_ variable is known",
    )
    try:
        settings = load_settings(variables)
    except BadSetting as error:
        yield failed("settings", str(error), "correct the variable, or unset it")
        return
    yield ok("settings", "readable")
    ground = next(path for path in (settings.home.absolute(), *settings.home.absolute().parents) if path.exists())
    is_writable = ground.is_dir() and os.access(ground, os.W_OK | os.X_OK)
    yield home(settings.home, is_writable=is_writable, free_bytes=shutil.disk_usage(ground).free)
    files: list[SourceFile] = []
    yield from _source_files(settings.sources, files)
    yield _browser(settings)
    yield _content(settings.home)
    if settings.has_model and not offline:
        yield model_server(settings)
    yield from _database(settings, variables, files)


def home(path: Path, *, is_writable: bool, free_bytes: int) -> DoctorCheck:
    """Check the folder of database, snapshots and exports."""
    if not is_writable:
        return failed("home", f"{path} cannot be written", "set INGESTION_HOME, or change its owner")
    free = f"{path}, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < LEAST_FREE_BYTES:
        return failed("home", free, f"free some space: below {LEAST_FREE_BYTES // 10**6} MB work stops")
    return ok("home", free)


def _source_files(folder: Path, files: list[SourceFile]) -> Generator[DoctorCheck]:
    """Check the folder of source files and what they hold; add the parsed ones to `files`."""
    from ingestion_pipeline.registry import definition_check
    from ingestion_pipeline.sources.files import read_folder

    if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
        files += read_folder(folder, check=definition_check(folder))
        yield ok("sources folder", f"{folder} is readable")
    elif folder.exists():
        yield failed("sources folder", f"{folder} cannot be read", "change its mode or owner")
    else:
        cure = "create it, or set INGESTION_SOURCES; sources added by command need none"
        yield warning("sources folder", f"there is no folder {folder}", cure)
    if problems := [str(problem) for file in files for problem in file.problems]:
        yield failed("source files", "\n".join(problems), "correct them, then `ingest sources import`")
    else:
        yield ok("source files", f"{len(files)} files, all valid")


def _browser(settings: Settings) -> DoctorCheck:
    """Report the Chromium for pages that need one; most sources need none."""
    from ingestion_pipeline.pages.browser.chromium import CURE, NoBrowser, browser_version, find_browser

    try:
        program = find_browser(settings)
        return ok("browser", f"{browser_version(program)}, {program}")
    except NoBrowser as error:
        return warning("browser", str(error).removesuffix(f": {CURE}"), CURE)


def _content(folder: Path) -> DoctorCheck:
    """Report objects of the content store that cannot be read."""
    from ingestion_pipeline.pages.content.store import ContentStore

    damaged, checked = ContentStore(folder / "content").damaged(at_most=CHECKED_OBJECTS)
    return _warn_of(
        "content store",
        f"{len(damaged)} of {checked} objects are damaged: {_named(damaged)}" if damaged else "",
        (
            "check the disk; pages are fetched again when they are next read, older content"
            " can only be restored from a backup"
        ),
        f"the newest {checked} objects are readable",
    )


def _database(settings: Settings, variables: Mapping[str, str], files: list[SourceFile]) -> Generator[DoctorCheck]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    from ingestion_pipeline.store import SchemaMismatch, open_store

    try:
        url = make_url(settings.store_url)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            yield warning("database", f"{url.database} does not exist yet", CREATES)
            return
        if (behind := _behind(settings.store_url)) is not None:
            yield behind
            return
        store = open_store(settings.store_url)
    except SchemaMismatch as error:
        yield failed("database", str(error), "upgrade ingestion_pipeline")
        return
    except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
        reason, cure = cannot_open(settings.store_url, error).rsplit("\n", 1)
        yield failed("database", reason, cure)
        return
    yield ok("database", f"{shown_database(settings.store_url)}, schema at head")
    try:
        yield from _state(settings, store, variables, files)
    finally:
        store.close()


def _behind(url: str) -> DoctorCheck | None:
    """Return the check result for a database that needs creating or migrating; else None."""
    from ingestion_pipeline.store import database
    from ingestion_pipeline.store.database import schema_revision

    current = schema_revision(url)
    if current is None:
        return warning("database", f"{shown_database(url)} is empty", CREATES)
    if current == database.HEAD or current not in database.known_revisions():
        return None
    problem = f"{shown_database(url)} is at schema {current}, this program needs {database.HEAD}"
    return failed("database", problem, "back it up; `ingest init` migrates it")


def _state(
    settings: Settings, store: Store, variables: Mapping[str, str], files: list[SourceFile]
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.pages.politeness.hosts import clock_set_back
    from ingestion_pipeline.settings import BadSetting, load_settings, setting_fields
    from ingestion_pipeline.store.stored_settings import overrides

    with store.read() as connection:
        now = store.clock.now(connection)
        process = datetime.fromtimestamp(time.time(), UTC)
        yield clock(now, process, clock_set_back(connection, now=now))
        changed = overrides(connection)
        try:
            settings = load_settings(variables, changed)
        except BadSetting as error:
            yield failed("settings table", str(error), "`ingest settings unset KEY`")
        else:
            unknown = [key for key in changed if key not in setting_fields()]  # left by older versions
            problem = f"nothing reads {', '.join(unknown)}" if unknown else ""
            yield _warn_of("settings table", problem, "`ingest settings unset KEY`", "readable")
        yield _model(settings)
        yield _profile(connection, settings)
        yield from _sources(connection, settings, files, now)
        yield from _work(connection, settings, variables, now)


def clock(database: datetime, process: datetime, ahead: timedelta | None) -> DoctorCheck:
    """Check that this machine and the database agree on the time, and no row is dated `ahead`."""
    if ahead is not None:
        return failed(
            "clock",
            f"rows are dated {ahead} ahead: the clock was set back, and leases hold for as long",
            "set it by NTP, then `dagster job execute -m ingestion_pipeline -j maintain`: every run"
            " frees them; Dagster's own schedules and sensors wait until their last tick is past",
        )
    difference = abs(database - process)
    details = f"{difference.total_seconds():.1f} s between process and database"
    if difference <= LARGEST_CLOCK_DIFFERENCE:
        return ok("clock", details)
    return warning("clock", details, "set both clocks by NTP")


def _model(settings: Settings) -> DoctorCheck:
    """Report which models are configured, and at what price."""
    from ingestion_pipeline.reading.llm.ledger import known_price
    from ingestion_pipeline.reading.llm.wire import shown_base_url
    from ingestion_pipeline.settings import price_table

    if not settings.has_model:
        return ok("model", "none configured: work that needs one waits for OPENAI_API_KEY")
    prices = price_table(settings.models.prices)
    described: list[str] = []
    unpriced: list[str] = []
    for name in dict.fromkeys((settings.model_cheap, settings.model_strong)):
        if (price := known_price(name, prices)) is None:
            described.append(f"{name} (no price known)")
            unpriced.append(name)
        else:
            costs = f"{price.input_usd}/{price.cached_input_usd}/{price.output_usd}"
            described.append(f"{name} ({costs} USD per million tokens)")
    summary = f"{', '.join(described)} at {shown_base_url(settings)}"
    if not unpriced:
        return ok("model", summary)
    cure = f"`ingest settings set models.prices` with {unpriced[0]}=input/cached input/output"
    return warning("model", f"{summary}: calls without a price are not limited by a budget", cure)


def _profile(connection: Connection, settings: Settings) -> DoctorCheck:
    """Report a profile that is missing or wrong: listings then wait, or are not evaluated."""
    from ingestion_pipeline.companies.matching.listing_runs import profile_path, settings_profile
    from ingestion_pipeline.companies.matching.profile import BadProfile, NoProfile
    from ingestion_pipeline.sources.lookup import list_sources

    profile = settings_profile(settings)
    match profile:
        case BadProfile():
            return failed("profile", str(profile), "correct each; `ingest profile check` lists them again")
        case NoProfile():
            boards = [board.id for board in list_sources(connection, kind=Kind.JOB_BOARD)]
            return _warn_of(
                "profile",
                f"none at {profile.path}; listings of {_named(boards)} wait" if boards else "",
                "`ingest profile example` prints an example; or set match.profile",
                "none, and no job board that would need one",
            )
        case _:
            return ok("profile", f"{profile_path(settings)}, {len(profile.skills)} skills")


def _sources(
    connection: Connection, settings: Settings, files: list[SourceFile], now: datetime
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.settings import setting_fields
    from ingestion_pipeline.sources.lookup import list_sources
    from ingestion_pipeline.sources.scheduling.tiers import is_stale
    from ingestion_pipeline.urls import secret_parameter

    sources = list_sources(connection)
    yield undeclared(sources, files)
    yield user_agent(sources, is_default=settings.user_agent == setting_fields()["user_agent"][0])
    secret = [source.id for source in sources if secret_parameter(source.url)]  # older versions accepted them
    yield _warn_of(
        "secrets",
        f"in the addresses of {_named(secret)}" if secret else "",
        "take it out of the address and use `auth` of its config, which names a variable",
        "no address of a source holds one",
    )
    yield allow_list(settings.allowed_hosts, sources)
    stale = [source.id for source in sources if is_stale(source, now=now, settings=settings)]
    yield _warn_of(
        "freshness",
        f"{len(stale)} stale: {_named(stale)}" if stale else "",
        "`ingest sources show ID` shows why; is the daemon running (`ingest dev`)?",
        "no source is stale",
    )
    yield _rendered(settings, sources)


def _rendered(settings: Settings, sources: Sequence[Source]) -> DoctorCheck:
    from ingestion_pipeline.catalogs.recipes.recipe import needs_a_browser
    from ingestion_pipeline.pages.browser.chromium import CURE, NoBrowser, find_browser

    catalogues = [source for source in sources if source.kind is Kind.CATALOG and source.status.value != "disabled"]
    needing = [source.id for source in catalogues if needs_a_browser(source.config)]
    try:
        find_browser(settings)
    except NoBrowser:
        return rendered(needing, has_browser=False, cure=CURE)
    return rendered(needing, has_browser=True, cure=CURE)


def rendered(source_ids: Sequence[str], *, has_browser: bool, cure: str) -> DoctorCheck:
    """Check sources whose config has `render: true`."""
    if has_browser or not source_ids:
        return ok("rendered sources", f"{len(source_ids)} need a browser")
    return failed("rendered sources", f"no browser for {_named(source_ids)}", cure)


def undeclared(sources: Iterable[Source], source_files: Sequence[SourceFile]) -> DoctorCheck:
    """Report sources whose file, or entry in it, is gone; files with mistakes are skipped."""
    declared = {(file.path, entry.id) for file in source_files for entry in file.definitions}
    unclear = {file.path for file in source_files if file.problems}
    gone = [
        f"{source.id} ({source.origin})"
        for source in _polled(sources)
        if source.origin not in {BY_HAND, *unclear} and (source.origin, source.id) not in declared
    ]
    return _warn_of(
        "declarations",
        f"no longer declared, still polled: {_named(gone)}" if gone else "",
        "`ingest sources remove ID`, or put the entry back",
        "every source from a file is still declared",
    )


def _polled(sources: Iterable[Source]) -> list[Source]:
    """Return the enabled sources, but those that a file of this package declares."""
    return [source for source in sources if source.status.value != "disabled" and not source.origin.startswith(BUNDLED)]


def user_agent(sources: Iterable[Source], *, is_default: bool) -> DoctorCheck:
    """Check that polled sites can contact us; bundled sources are on a site of ours."""
    polled = [source.id for source in _polled(sources)]
    if not is_default or not polled:
        return ok("user agent", "the default" if is_default else "set")
    cure = "set INGESTION_USER_AGENT with a way to reach you"
    return warning("user agent", f"the default, sent to the hosts of {_named(polled)}", cure)


def allow_list(allowed: Iterable[str], sources: Iterable[Source]) -> DoctorCheck:
    """Report private addresses that the guard lets through."""
    exempt = sorted(allowed)
    if not exempt:
        return ok("allow list", "empty: no private address is fetched")
    polled = {urlsplit(source.url).hostname for source in sources}
    unused = [entry for entry in exempt if entry.rpartition(":")[0].strip("[]").lower() not in polled]
    if unused:
        cure = "take them out of INGESTION_ALLOW_HOSTS: any site that redirects there gets through"
        return warning("allow list", f"no source is at {', '.join(unused)}", cure)
    return ok("allow list", f"exempt from the guard: {', '.join(exempt)}")


def _work(
    connection: Connection, settings: Settings, variables: Mapping[str, str], now: datetime
) -> Generator[DoctorCheck]:
    from ingestion_pipeline.operations.alerts import last_heartbeat
    from ingestion_pipeline.sources.status import totals
    from ingestion_pipeline.tasks.claims import lost_runs

    counts = totals(connection, now=now)
    problem = f"{counts.abandoned} tasks of lost workers" if counts.abandoned else ""
    yield _warn_of("claims", problem, "the next run takes them over", "no expired lease")
    lost = [run.run_id for run in lost_runs(connection, now=now)]
    problem = f"{len(lost)} lost: {_named(lost)}" if lost else ""
    yield _warn_of("runs", problem, "the sensor `stale_runs` ends them; is the daemon running?", "no lost run")
    if (tick := last_heartbeat(connection)) is not None:
        max_gap = timedelta(seconds=settings.health.daemon_silent_seconds)
        yield daemon(tick, due=counts.due, now=now, max_gap=max_gap)
    elif variables.get("DAGSTER_HOME"):
        yield daemon(_newest_sign(connection, settings), due=counts.due, now=now)
    problem = f"{counts.dead_letters} open" if counts.dead_letters else ""
    cure = "`ingest dead-letters list`, fix the cause, then `replay`"
    yield _warn_of("dead letters", problem, cure, "none open")


def daemon(newest: datetime | None, *, due: int, now: datetime, max_gap: timedelta = MAX_DAEMON_GAP) -> DoctorCheck:
    """Check that the daemon ticks, or at least that runs start, while work is due."""
    last = "no run yet" if newest is None else f"last heartbeat {newest:%Y-%m-%d %H:%M:%S} UTC"
    is_stale = newest is None or now - newest > max_gap
    if is_stale and due:
        cure = "start the daemon: `ingest dev`, or `dagster-daemon run`"
        return warning("daemon", f"{last}, and {due} tasks are due", cure)
    return ok("daemon", f"{last}, {due} tasks are due")


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


def model_server(settings: Settings) -> DoctorCheck:
    """List the server's models, at no cost; its answer is not shown, since it may repeat the key it refuses."""
    import openai

    from ingestion_pipeline.reading.llm.wire import shown_base_url

    base_url, began = shown_base_url(settings), time.monotonic()
    try:
        available = asyncio.run(_models(settings))
    except openai.NotFoundError:
        available = set[str]()  # your own server may have no such list
    except openai.APIStatusError as error:
        return _answered(base_url, error.status_code)
    except (openai.APIError, ValueError, OSError) as error:
        cure = "is OPENAI_BASE_URL right, and does the server run?"
        return failed(MODEL_SERVER, f"{base_url}: {_reason(error)}", cure)
    configured = dict.fromkeys((settings.model_cheap, settings.model_strong))
    if missing := [name for name in configured if available and name not in available]:
        cure = "INGESTION_MODEL_CHEAP and INGESTION_MODEL_STRONG name models that it has"
        return warning(MODEL_SERVER, f"{base_url} does not list {', '.join(missing)}", cure)
    return ok(MODEL_SERVER, f"{base_url} answers in {time.monotonic() - began:.1f} s")


def _answered(base_url: str, status: int) -> DoctorCheck:
    if status in {401, 403}:
        cure = "correct OPENAI_API_KEY, or the rights it has"
        return failed(MODEL_SERVER, f"{base_url} refuses the key ({status})", cure)
    cure = "try again later; if it persists, contact the operator of the server"
    return warning(MODEL_SERVER, f"{base_url} answers {status}", cure)


async def _models(settings: Settings) -> set[str]:
    from ingestion_pipeline.reading.llm.wire import open_client

    key = settings.openai_api_key.get_secret_value()
    async with open_client(key, settings.openai_base_url) as client:
        listed = await client.with_options(timeout=TIMEOUT_SECONDS).models.list()
        return {model.id for model in listed.data or ()}


def _reason(error: Exception) -> str:
    """Return the innermost error; the client's own only says that there was one."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error) or type(error).__name__


def versions(needed: Sequence[str] | None = None) -> DoctorCheck:
    """Check that the installed packages are those this release requires."""
    requirements = requires(PACKAGE) if needed is None else needed
    wrong = list(_mismatches(requirements or ()))
    if not wrong:
        return ok("versions", f"{PACKAGE} {version(PACKAGE)}, every package as required")
    cure = f"run `pip install --upgrade '{PACKAGE}[all]'` in this environment"
    return failed("versions", "; ".join(wrong), cure)


def _mismatches(needed: Iterable[str]) -> Iterable[str]:
    from packaging.requirements import Requirement

    for requirement in map(Requirement, needed):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield f"{requirement} is not installed"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name} is {installed}, not {requirement.specifier}"
