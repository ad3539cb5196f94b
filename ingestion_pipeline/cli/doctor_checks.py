"""The checks of `ingest doctor`: each turns facts into a result with a cure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from ingestion_pipeline.settings import Price, Settings
    from ingestion_pipeline.sources import Source
    from ingestion_pipeline.sources.files import SourceFile


STATES = ("ok", "warning", "failed")
LEAST_FREE_BYTES = 500_000_000
LARGEST_CLOCK_DIFFERENCE = timedelta(seconds=5)  # leases are 90 seconds and more
MAX_DAEMON_GAP = timedelta(minutes=15)  # the hot schedule ticks every five
CREATES = "`ingest init` creates it"
NAMED = 5  # names listed at most


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """The result of one check: its state, what was found, and the cure."""

    name: str
    state: str
    found: str
    cure: str = ""


def ok(name: str, details: str) -> DoctorCheck:
    """Return a passed check."""
    return DoctorCheck(name, "ok", details)


def warning(name: str, details: str, cure: str) -> DoctorCheck:
    """Return a check that works but needs attention."""
    return DoctorCheck(name, "warning", details, cure)


def failed(name: str, details: str, cure: str) -> DoctorCheck:
    """Return a check that must be fixed."""
    return DoctorCheck(name, "failed", details, cure)


def as_dict(check: DoctorCheck) -> dict[str, Any]:
    """Return the check under stable keys."""
    return asdict(check)


def variables(unknown: Sequence[str]) -> DoctorCheck:
    """Report INGESTION_ variables that nothing reads."""
    if not unknown:
        return ok("variables", "every INGESTION_ variable is known")
    cure = "a typo? `ingest settings list --json` shows every variable"
    return warning("variables", f"nothing reads {', '.join(unknown)}", cure)


def settings_table(unknown: Sequence[str]) -> DoctorCheck:
    """Report rows of the settings table that nothing reads, as left by older versions."""
    if not unknown:
        return ok("settings table", "readable")
    details = f"nothing reads {', '.join(unknown)}"
    return warning("settings table", details, "`ingest settings unset KEY`")


def model(base_url: str, models: Sequence[str], prices: Mapping[str, Price]) -> DoctorCheck:
    """Report which models are configured (`base_url`), and at what price."""
    from ingestion_pipeline.reading.llm.budgets import known_price

    if not base_url:
        return ok("model", "none configured: work that needs one waits for OPENAI_API_KEY")
    price_of = {name: known_price(name, prices) for name in models}
    summary = ", ".join(f"{name} ({_price(price)})" for name, price in price_of.items())
    unpriced = [name for name, price in price_of.items() if price is None]
    if not unpriced:
        return ok("model", f"{summary} at {base_url}")
    cure = f"`ingest settings set models.prices` with {unpriced[0]}=input/cached input/output"
    return warning("model", f"{summary} at {base_url}: calls without a price are not limited by a budget", cure)


def _price(price: Price | None) -> str:
    if price is None:
        return "no price known"
    return f"{price.input_usd}/{price.cached_input_usd}/{price.output_usd} USD per million tokens"


def home(path: Path, *, is_writable: bool, free_bytes: int) -> DoctorCheck:
    """Check the folder of database, snapshots and exports."""
    if not is_writable:
        return failed("home", f"{path} cannot be written", "set INGESTION_HOME, or change its owner")
    free = f"{path}, {free_bytes / 1e9:.1f} GB free"
    if free_bytes < LEAST_FREE_BYTES:
        return failed("home", free, f"free some space: below {LEAST_FREE_BYTES // 10**6} MB work stops")
    return ok("home", free)


def folder(path: Path, *, can_read: bool) -> DoctorCheck:
    """Check the folder of source files."""
    if can_read:
        return ok("sources folder", f"{path} is readable")
    if path.exists():
        return failed("sources folder", f"{path} cannot be read", "change its mode or owner")
    cure = "create it, or set INGESTION_SOURCES; sources added by command need none"
    return warning("sources folder", f"there is no folder {path}", cure)


def files(source_files: Sequence[SourceFile]) -> DoctorCheck:
    """Check that the source files are valid."""
    problems = [str(problem) for file in source_files for problem in file.problems]
    if not problems:
        return ok("source files", f"{len(source_files)} files, all valid")
    return failed("source files", "\n".join(problems), "correct them, then `ingest sources import`")


def browser(details: str, *, cure: str = "") -> DoctorCheck:
    """Report the Chromium for pages that need one; most sources need none."""
    return warning("browser", details, cure) if cure else ok("browser", details)


def rendered(source_ids: Sequence[str], *, has_browser: bool, cure: str) -> DoctorCheck:
    """Check sources whose config has `render: true`."""
    if has_browser or not source_ids:
        return ok("rendered sources", f"{len(source_ids)} need a browser")
    return failed("rendered sources", f"no browser for {_named(source_ids)}", cure)


def bad_profile(problems: str) -> DoctorCheck:
    """Report a profile that cannot be used: no listing is evaluated."""
    cure = "correct each; `ingest profile check` lists them again"
    return failed("profile", problems, cure)


def no_profile(path: str, boards: Sequence[str]) -> DoctorCheck:
    """Report a missing profile: listings are filtered and wait to be scored."""
    if not boards:
        return ok("profile", "none, and no job board that would need one")
    cure = "`ingest profile example` prints an example; or set match.profile"
    return warning("profile", f"none at {path}; listings of {_named(boards)} wait", cure)


def undeclared(sources: Iterable[Source], source_files: Sequence[SourceFile]) -> DoctorCheck:
    """Report sources whose file, or entry in it, is gone; files with mistakes are skipped."""
    from ingestion_pipeline.sources.source import BY_HAND

    declared = {(file.path, entry.id) for file in source_files for entry in file.definitions}
    unclear = {file.path for file in source_files if file.problems}
    gone = [
        f"{source.id} ({source.origin})"
        for source in sources
        if source.origin not in {BY_HAND, *unclear}
        and source.status.value != "disabled"
        and not is_bundled(source)
        and (source.origin, source.id) not in declared
    ]
    if not gone:
        return ok("declarations", "every source from a file is still declared")
    cure = "`ingest sources remove ID`, or put the entry back"
    return warning("declarations", f"no longer declared, still polled: {_named(gone)}", cure)


def is_bundled(source: Source) -> bool:
    """Return whether a file of this package declares the source."""
    from ingestion_pipeline.sources.source import BUNDLED

    return source.origin.startswith(BUNDLED)


def user_agent(sources: Iterable[Source], *, is_default: bool) -> DoctorCheck:
    """Check that polled sites can contact us; bundled sources are on a site of ours."""
    polled = [source.id for source in sources if source.status.value != "disabled" and not is_bundled(source)]
    if not is_default or not polled:
        return ok("user agent", "the default" if is_default else "set")
    cure = "set INGESTION_USER_AGENT with a way to reach you"
    return warning("user agent", f"the default, sent to the hosts of {_named(polled)}", cure)


def secrets_in_urls(sources: Iterable[Source]) -> DoctorCheck:
    """Report sources whose address holds a secret, as older versions accepted them."""
    from ingestion_pipeline.urls import secret_parameter

    ids = [source.id for source in sources if secret_parameter(source.url)]
    if not ids:
        return ok("secrets", "no address of a source holds one")
    cure = "take it out of the address and use `auth` of its config, which names a variable"
    return warning("secrets", f"in the addresses of {_named(ids)}", cure)


def stale(ids: Sequence[str]) -> DoctorCheck:
    """Report sources that should have succeeded several times by now."""
    if not ids:
        return ok("freshness", "no source is stale")
    cure = "`ingest sources show ID` shows why; is the daemon running (`ingest dev`)?"
    return warning("freshness", f"{len(ids)} stale: {_named(ids)}", cure)


def abandoned(count: int) -> DoctorCheck:
    """Report claims whose lease expired."""
    if not count:
        return ok("claims", "no expired lease")
    return warning("claims", f"{count} tasks of lost workers", "the next run takes them over")


def lost_runs(run_ids: Sequence[str]) -> DoctorCheck:
    """Report runs that neither ended nor sent a heartbeat."""
    if not run_ids:
        return ok("runs", "no lost run")
    cure = "the sensor `stale_runs` ends them; is the daemon running?"
    return warning("runs", f"{len(run_ids)} lost: {_named(run_ids)}", cure)


def daemon(newest: datetime | None, *, due: int, now: datetime, max_gap: timedelta = MAX_DAEMON_GAP) -> DoctorCheck:
    """Check that the daemon ticks, or at least that runs start, while work is due."""
    last = "no run yet" if newest is None else f"last heartbeat {newest:%Y-%m-%d %H:%M:%S} UTC"
    is_stale = newest is None or now - newest > max_gap
    if is_stale and due:
        cure = "start the daemon: `ingest dev`, or `dagster-daemon run`"
        return warning("daemon", f"{last}, and {due} tasks are due", cure)
    return ok("daemon", f"{last}, {due} tasks are due")


def dead_letters(count: int) -> DoctorCheck:
    """Report open dead letters."""
    if not count:
        return ok("dead letters", "none open")
    cure = "`ingest dead-letters list`, fix the cause, then `replay`"
    return warning("dead letters", f"{count} open", cure)


def content(damaged: Sequence[str], checked: int) -> DoctorCheck:
    """Report objects of the content store that cannot be read."""
    if not damaged:
        return ok("content store", f"the newest {checked} objects are readable")
    cure = (
        "check the disk; pages are fetched again when they are next read, older content"
        " can only be restored from a backup"
    )
    return warning("content store", f"{len(damaged)} of {checked} objects are damaged: {_named(damaged)}", cure)


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


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


PACKAGE = "ingestion_pipeline"
NAME = "model server"
TIMEOUT_SECONDS = 5.0


def model_server(settings: Settings) -> DoctorCheck:
    """Request the server's list of models; no model is called and nothing is paid.

    Its answer is not shown: a server may repeat the key it refuses.
    """
    import openai

    from ingestion_pipeline.reading.llm.server import shown_base_url

    base_url, began = shown_base_url(settings), time.monotonic()
    try:
        available = asyncio.run(_models(settings))
    except openai.NotFoundError:
        available = set[str]()  # your own server may have no such list
    except openai.APIStatusError as error:
        return _answered(base_url, error.status_code)
    except (openai.APIError, ValueError, OSError) as error:
        cure = "is OPENAI_BASE_URL right, and does the server run?"
        return failed(NAME, f"{base_url}: {_reason(error)}", cure)
    configured = dict.fromkeys((settings.model_cheap, settings.model_strong))
    if missing := [name for name in configured if available and name not in available]:
        cure = "INGESTION_MODEL_CHEAP and INGESTION_MODEL_STRONG name models that it has"
        return warning(NAME, f"{base_url} does not list {', '.join(missing)}", cure)
    return ok(NAME, f"{base_url} answers in {time.monotonic() - began:.1f} s")


def _answered(base_url: str, status: int) -> DoctorCheck:
    if status in {401, 403}:
        cure = "correct OPENAI_API_KEY, or the rights it has"
        return failed(NAME, f"{base_url} refuses the key ({status})", cure)
    cure = "try again later; if it persists, contact the operator of the server"
    return warning(NAME, f"{base_url} answers {status}", cure)


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


def versions(needed: Sequence[str] | None = None) -> DoctorCheck:
    """Check that the installed packages are those this release requires."""
    requirements = requires(PACKAGE) if needed is None else needed
    wrong = list(_mismatches(requirements or ()))
    if not wrong:
        return ok("versions", f"{PACKAGE} {version(PACKAGE)}, every package as required")
    cure = "`make install`, or `pip install -c constraints.txt -e .`, in this environment"
    return failed("versions", "; ".join(wrong), cure)


def _mismatches(needed: Iterable[str]) -> Iterable[str]:
    from packaging.requirements import Requirement

    no_extra: Mapping[str, str] = {"extra": ""}
    for requirement in map(Requirement, needed):
        if requirement.marker is not None and not requirement.marker.evaluate(dict(no_extra)):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield f"{requirement} is not installed"
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            yield f"{requirement.name} is {installed}, not {requirement.specifier}"
