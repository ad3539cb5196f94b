"""`ingest demo`: run the whole pipeline on the bundled site, without key, browser or server."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ingestion_pipeline.cli.installation import with_dagster_home
from ingestion_pipeline.cli.jobs import running_jobs
from ingestion_pipeline.cli.output import (
    CommandRefused,
    Interrupted,
    echo,
    is_json,
    json_option,
    print_json,
    print_result,
)
from ingestion_pipeline.cli.session import environment, opened, reading, variables_set
from ingestion_pipeline.sources.source import BUNDLED, Kind, SourceStatus

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.demo.model_server import ScriptedModel
    from ingestion_pipeline.demo.site import DemoSite, SecretOf
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.store import Store


# The demo is quick because its host is ours: no delay between requests, short retries. Its polls
# end before notices are delivered, so no grouping; every run may notify about a series again.
DEMO_SETTINGS = {
    "INGESTION_HOSTS__DELAY_SECONDS": "0",
    "INGESTION_CRAWL__DELAY_SECONDS": "0",
    "INGESTION_WORK__BACKOFF_BASE_SECONDS": "0.2",
    "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.1",  # one of its providers often fails
    "INGESTION_EXTRACTION__QUIET_SECONDS": "0",  # no other process crawls
    "INGESTION_NOTICES__GROUPING_SECONDS": "0",
    "INGESTION_NOTICES__SERIES_SECONDS": "0",
    "INGESTION_HEALTH__DEGRADED_FAILURES": "1",  # failures are reported by the first run
    "INGESTION_MATCH__COMPANY_WAITS": "0",  # its companies are analysed before its jobs
}


def demo_settings(model: Mapping[str, str]) -> AbstractContextManager[None]:
    """Apply the model settings, and the demo's own where the environment sets none."""
    before = environment()
    return variables_set({key: text for key, text in DEMO_SETTINGS.items() if not before.get(key)} | dict(model))


DECLARED = ("sources.yaml", "catalogs.yaml", "companies.yaml", "websites.yaml")


def demo_file() -> SourceFile:
    """Return the definitions of all demo source files as one file."""
    first, *others = demo_files()
    return replace(
        first,
        definitions=(*first.definitions, *(definition for file in others for definition in file.definitions)),
        problems=(*first.problems, *(problem for file in others for problem in file.problems)),
    )


def demo_files() -> list[SourceFile]:
    """Return each demo source file with its own definitions."""
    from importlib.resources import as_file, files

    from ingestion_pipeline.registry import check_definition
    from ingestion_pipeline.sources.files import read_file

    with as_file(files("ingestion_pipeline.demo")) as folder:
        parsed = {name: read_file(folder / name, check=check_definition) for name in DECLARED}
    return [
        replace(file, definitions=[replace(entry, origin=BUNDLED + name) for entry in file.definitions])
        for name, file in parsed.items()
    ]


# Names of its own, so that the ledger keeps its calls apart from real ones.
NAMES = {"INGESTION_MODEL_CHEAP": "demo-cheap", "INGESTION_MODEL_STRONG": "demo-strong"}
PRICES = "INGESTION_MODELS__PRICES"


def bundled_model(port: int = 0) -> ScriptedModel:
    """Return a loopback model server that knows the demo's outcome pages; it needs no key."""
    from ingestion_pipeline.demo.model_server import ScriptedModel, demo_model

    return ScriptedModel(demo_model, port=port)


def model_settings(model: ScriptedModel) -> dict[str, str]:
    """Return the settings that point a run at the model; a real key is never sent to it."""
    return {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "demo", **NAMES}


def demo_prices() -> dict[str, str]:
    """Return the price setting: the demo's own models besides those already configured."""
    from ingestion_pipeline.demo.model_server import DEMO_PRICES
    from ingestion_pipeline.settings import load_settings

    return {PRICES: f"{load_settings(environment()).models.prices}, {DEMO_PRICES}"}


MOST_CRAWLS = 3  # one is enough, unless another process holds a host


@click.group()
def demo() -> None:
    """Run the pipeline on the bundled site.

    Change the site, run again, and see what happens.
    """


@demo.command()
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="Port of the site; 0 chooses a free one.")
@click.option("--if-registered", is_flag=True, help="Do nothing unless sources of the demo are registered.")
@click.option("--model", is_flag=True, help="Also run its language models; they need no key.")
@click.option(
    "--model-port", default=0, type=click.IntRange(0, 65_535), help="Port of its language models; 0 chooses a free one."
)
def serve(*, port: int, if_registered: bool, model: bool, model_port: int) -> None:
    """Run the bundled site until Ctrl-C.

    Every command and run that shares its home finds it.
    """
    from ingestion_pipeline.demo.site import DemoSite
    from ingestion_pipeline.pages.http.guard import running_server

    home = _home()
    if if_registered and not _is_registered():
        return
    if (server := running_server(home)) is not None:
        raise CommandRefused(
            f"the demo site of {home} is already running, on port {server.port}", code="already_running"
        )
    with opened() as (_, store):
        site = DemoSite(home, port, secret_of=follower_secrets(store))
        _serve(site, bundled_model(model_port) if model or model_port else None)


def _serve(demo_site: DemoSite, model: ScriptedModel | None) -> None:
    from ingestion_pipeline.demo.model_server import addresses, demo_providers

    stop = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # its threads inherit the mask
    try:
        with ExitStack() as stack:
            providers = stack.enter_context(demo_providers(demo_site.home))
            demo_site.providers = addresses(providers)
            site = stack.enter_context(demo_site)
            echo(f"the demo site listens on 127.0.0.1:{site.port} for the runs of {site.home}:")
            declared = demo_file()
            urls = [*(entry.url for entry in declared.definitions), *(entry.address for entry in declared.recipients)]
            for name in sorted({urlsplit(url).netloc for url in urls}):
                echo(f"  http://{name}")
            echo(f"its providers {' and '.join(providers)} answer about its websites, in runs without another provider")
            if model is not None:
                stack.enter_context(model)
                echo(f"the demo's model listens on {model.base_url}; to use it, set")
                echo(f"  OPENAI_BASE_URL={model.base_url} OPENAI_API_KEY=demo")
            echo("Ctrl-C stops it")
            received = signal.sigwait(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if received == signal.SIGINT:
        raise Interrupted("stopped by Ctrl-C: `ingest demo serve` starts it again")
    echo("stopped")


def follower_secrets(store: Store) -> SecretOf:
    """Return a lookup of each follower's current signing key in the database."""
    from ingestion_pipeline.notices.queries import addressee

    def secret_of(follower: str) -> str | None:
        with store.read() as connection:
            recipient = addressee(connection, follower)
        return None if recipient is None else recipient.secret

    return secret_of


def _is_registered() -> bool:
    """Return whether a source of the demo is registered and not disabled."""
    from ingestion_pipeline.sources.lookup import sources_by_id

    with reading() as (_, connection, _):
        sources = sources_by_id(connection, [source.id for source in demo_file().definitions])
    return any(source.status is not SourceStatus.DISABLED for source in sources.values())


@demo.command()
@click.option("--model", is_flag=True, help="Use the demo's language model where rules cannot extract.")
@click.option("--verbose", is_flag=True, help="Print the log, and every page, job and answer.")
@json_option
def run(*, model: bool, verbose: bool) -> None:
    """Run every job once and print the results.

    The demo's sources are registered if needed, and processed through Dagster even if they are not
    due; its catalogues are crawled until no page waits. Listings are evaluated by your profile, if
    you have one, else by the demo's. Its websites are analysed with the demo's own providers only.
    """
    from ingestion_pipeline.demo.model_server import demo_providers, provider_settings
    from ingestion_pipeline.demo.report import print_details, summary

    with ExitStack() as stack:
        bundled = stack.enter_context(bundled_model()) if model else None
        variables = provider_settings(stack.enter_context(demo_providers(_home())))
        variables |= {} if bundled is None else model_settings(bundled)
        variables["DAGSTER_HOME"] = with_dagster_home(environment(), _home())["DAGSTER_HOME"]
        stack.enter_context(demo_settings(variables | demo_prices()))
        facts, has_succeeded = _run(is_verbose=verbose)
        if bundled is not None:
            facts["model_requests"] = dict(Counter(request.model for request in bundled.requests))
    if is_json():
        print_json(facts)
    else:
        if verbose:
            print_details(facts)
        echo("\n".join(summary(facts, program())))
    if not has_succeeded:
        raise click.exceptions.Exit(1)


def _run(*, is_verbose: bool) -> tuple[dict[str, Any], bool]:
    """Run every job once; return the facts of the run, and whether all jobs succeeded."""
    from ingestion_pipeline.demo import report
    from ingestion_pipeline.demo.site import read_inboxes
    from ingestion_pipeline.notices.queries import make_due
    from ingestion_pipeline.operations.alerts import record_health_changes

    home = _home()
    before = read_inboxes(home)
    with ExitStack() as stack:
        run_job = stack.enter_context(running_jobs(is_verbose=is_verbose))
        settings, store = stack.enter_context(opened())
        started = _prepare(stack, store, home)
        succeeded = [run_job("detect_recipes")]
        approved = _poll(store, run_job, succeeded)
        succeeded.append(run_job("analyze_websites"))
        _crawl(store, run_job, succeeded)
        succeeded += [run_job("complete_extractions"), run_job("process_listings")]
        with store.begin() as connection:  # as `maintain` does
            record_health_changes(connection, settings, store.clock.now(connection))
        with store.begin() as connection:
            now = store.clock.now(connection)
            for recipient in demo_file().recipients:  # even if a daemon has just run them with other limits
                make_due(connection, recipient.id, now=now)
        succeeded.append(run_job("deliver_notices"))
        with store.read() as connection:
            facts = _facts(connection, settings, since=started, now=store.clock.now(connection))
    facts |= {"approved": approved, **report.received(before, read_inboxes(home))}
    return facts | {"is_changed": report.is_changed(facts, since=started)}, all(succeeded)


def _facts(connection: Connection, settings: Settings, *, since: datetime, now: datetime) -> dict[str, Any]:
    """Return what the run has done, read from the database."""
    from ingestion_pipeline.demo import report

    declared, catalogs = demo_file(), _ids(Kind.CATALOG)
    boards = report.boards_of(connection, _ids(Kind.COMPANY))
    ids = [*(definition.id for definition in declared.definitions), *(board.id for board in boards)]
    unhealthy, health_counts = report.health(connection, settings, ids, now=now)
    return {
        "polled": report.polled(connection, _ids(Kind.SERIES), since=since),
        "chapters": report.chapter_counts(connection, since=since),
        **report.crawled(connection, settings, catalogs, since=since),
        "companies": report.analysed_companies(connection, _ids(Kind.COMPANY)),
        "refused": report.refusals(connection, since=since, now=now),
        "boards": report.board_counts(connection, boards, since=since),
        "not_matched": report.not_matched(connection, [board.id for board in boards]),
        "matches": report.matches(connection, boards),
        **report.analyses(connection, _ids(Kind.WEBSITE)),
        "followers": report.follower_counts(connection, declared.recipients, since=since),
        "quiet": report.explain_no_notices(connection, since=since),
        "unhealthy": unhealthy,
        "health_counts": health_counts,
    }


def _poll(store: Store, run_job: Callable[[str], bool], succeeded: list[bool]) -> list[dict[str, Any]]:
    """Run the poll jobs; approved boards go last, since a job belongs to the board that lists it first."""
    from ingestion_pipeline.demo.report import approve

    succeeded += map(run_job, ("poll_hot", "process_companies", "poll_warm", "poll_cold"))
    with store.begin() as connection:
        approved = approve(connection, _ids(Kind.COMPANY), now=store.clock.now(connection))
    if approved:
        succeeded.append(run_job("poll_warm"))
    return approved


def program() -> str:
    """Return how to type this command here: its name if it is on the path, else its file."""
    installed = Path(sys.executable).parent / "ingest"
    if shutil.which("ingest") == str(installed):
        return "ingest"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


def _prepare(stack: ExitStack, store: Store, home: Path) -> datetime:
    """Register the demo's sources and followers, start its site, and return the start time."""
    from ingestion_pipeline.demo.report import boards_of
    from ingestion_pipeline.demo.site import DemoSite
    from ingestion_pipeline.notices.subscriptions import declare
    from ingestion_pipeline.pages.http.guard import running_server
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.poll_tasks import make_due
    from ingestion_pipeline.sources.registry import register

    file = demo_file()
    with store.begin() as connection:
        now = store.clock.now(connection)
        register(connection, file.definitions, now=now)
        declare(connection, file.recipients, now=now)
        ids = [definition.id for definition in file.definitions]
        declared(connection, ids, now=now)
        make_due(connection, [*ids, *(board.id for board in boards_of(connection, _ids(Kind.COMPANY)))], now=now)
    if running_server(home) is None:
        stack.enter_context(DemoSite(home, secret_of=follower_secrets(store)))
    return now


def _crawl(store: Store, run_job: Callable[[str], bool], succeeded: list[bool]) -> None:
    """Run the crawl job until no page of the demo's catalogues waits."""
    from ingestion_pipeline.demo.report import is_waiting

    for nth in range(MOST_CRAWLS):
        with store.read() as connection:
            if nth and not is_waiting(connection, _ids(Kind.CATALOG)):
                return
        succeeded.append(run_job("crawl_catalogs"))


def _ids(kind: Kind) -> list[str]:
    return [definition.id for definition in demo_file().definitions if definition.kind is kind]


@demo.command()
@json_option
def mutate() -> None:
    """Publish chapters, courses and jobs, and change some.

    A chapter of two series and a course of each catalogue are new; another course changes. On a job
    board one job is new, one pays better, one is gone. A business changes its description, and the
    providers answer differently about both.
    """
    from ingestion_pipeline.demo import content

    home = _home()
    changed = content.mutate(content.read_state(home))
    content.write_state(home, changed)
    message = f"""\
new chapters of The Lighthouse Keeper and The Clockmaker's Map, and new courses so far: {changed.new_chapters} each;
a course of each catalogue has other credits; Driftwood Systems has a new job, pays better
for another and has filled a third; a provider names competitors before the businesses;
`{program()} demo run` shows all of it"""
    print_result(asdict(changed), message)


@demo.command("break")
@click.option("--repair", is_flag=True, help="Repair the site.")
@json_option
def break_(*, repair: bool) -> None:
    """Make parts of the site fail.

    One feed becomes an error page, one listing is empty, one server is overloaded, two catalogues
    lose a page, and a job board renames its fields.
    """
    from ingestion_pipeline.demo import content

    home, ingest = _home(), program()
    before = content.read_state(home)
    after = content.repair(before) if repair else content.break_site(before)
    content.write_state(home, after)
    message = f"""\
the orchard's feed is an error page, Salt and Iron's listing is empty, the list of
The Clockmaker's Map is overloaded;
a course of Harbour College and a page of the Tidewater Institute are errors;
the API of Driftwood's job board calls its fields something else;
`{ingest} demo run` shows that nothing is lost,
`{ingest} demo break --repair` ends it"""
    print_result(asdict(after), f"the site is repaired; `{ingest} demo run` shows it" if repair else message)


def _home() -> Path:
    from ingestion_pipeline.settings import load_settings

    return load_settings(environment()).home
