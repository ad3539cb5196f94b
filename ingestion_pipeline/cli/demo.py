"""`ingest demo`: the bundled site, and the whole pipeline on it. No key, no browser, no server."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingestion_pipeline.cli.demo_catalogs import (
    is_waiting,
    say_catalogs,
    say_datasets,
    say_oddities,
)
from ingestion_pipeline.cli.demo_summary import (
    approve,
    boards_of,
    explain_no_notices,
    hint,
    received,
    say_businesses,
    say_followers,
    say_health,
    say_jobs,
    say_matches,
    say_providers,
    say_summary,
    tell_changes,
)
from ingestion_pipeline.cli.output import CommandRefused, say
from ingestion_pipeline.cli.session import environment, opened

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from ingestion_pipeline.demo.hooks import SecretOf
    from ingestion_pipeline.demo.model_server import ScriptedModel
    from ingestion_pipeline.demo.site import DemoSite
    from ingestion_pipeline.sources import Kind
    from ingestion_pipeline.sources.files import SourceFile
    from ingestion_pipeline.store import Store


# The demo is quick because its host is ours: no delay between requests, short retries. Its polls
# are over before anybody is told, so nothing is left to group; every run may name a series again.
DEMO_SETTINGS = {
    "INGESTION_HOSTS__DELAY_SECONDS": "0",
    "INGESTION_CRAWL__DELAY_SECONDS": "0",
    "INGESTION_WORK__BACKOFF_BASE_SECONDS": "0.2",
    "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.1",  # a provider of its own often fails
    "INGESTION_EXTRACTION__QUIET_SECONDS": "0",  # nothing pending is enough: nobody else crawls
    "INGESTION_NOTICES__GROUPING_SECONDS": "0",
    "INGESTION_NOTICES__SERIES_SECONDS": "0",
    "INGESTION_HEALTH__DEGRADED_FAILURES": "1",  # a bad day is told by its first run, all at once
    "INGESTION_MATCH__COMPANY_WAIT_SECONDS": "0",  # its companies are analysed before its jobs
}
PROFILE = "INGESTION_MATCH__PROFILE"


@contextmanager
def demo_settings(model: Mapping[str, str]) -> Generator[None]:
    """The models' settings hold in this process, the demo's where the environment has no others."""
    before = environment()
    ours = DEMO_SETTINGS | ({} if has_profile() else {PROFILE: str(demo_profile())})
    missing = {key: text for key, text in ours.items() if not before.get(key)}
    held = {key: before.get(key) for key in (*missing, *model)}
    os.environ.update({**missing, **model})  # noqa: TID251 - Dagster's run reads the environment
    try:
        yield
    finally:
        for key, text in held.items():
            os.environ.pop(key, None)  # noqa: TID251 - as above
            if text is not None:
                os.environ[key] = text  # noqa: TID251 - as above


def demo_profile() -> Path:
    """Who looks for work in the demo."""
    from importlib.resources import files

    return Path(str(files("ingestion_pipeline.demo") / "profile.yaml"))


def has_profile() -> bool:
    """Whether somebody has a profile of his own: his listings are not judged by the demo's."""
    from ingestion_pipeline.companies.matching.runs import profile_path
    from ingestion_pipeline.settings import load_settings

    return profile_path(load_settings(environment())).exists()


DECLARED = ("sources.yaml", "catalogs.yaml", "companies.yaml", "websites.yaml")


def demo_file() -> SourceFile:
    """The declarations of the demo's sources, as one."""
    from dataclasses import replace

    first, *others = demo_files()
    return replace(
        first,
        definitions=(*first.definitions, *(one for file in others for one in file.definitions)),
        problems=(*first.problems, *(one for file in others for one in file.problems)),
    )


def demo_files() -> list[SourceFile]:
    """Each file with its own declarations, as sources name their origin."""
    return [_read_declared(name) for name in DECLARED]


def _read_declared(name: str) -> SourceFile:
    from importlib.resources import as_file, files

    from ingestion_pipeline.registry import check_definition
    from ingestion_pipeline.sources.files import read_file

    with as_file(files("ingestion_pipeline.demo") / name) as path:
        return read_file(path, check=check_definition)


# Names of its own, so that the ledger tells its calls from those of a real one.
NAMES = {"INGESTION_MODEL_CHEAP": "demo-cheap", "INGESTION_MODEL_STRONG": "demo-strong"}
PRICES = "INGESTION_MODELS__PRICES"


def bundled_model(port: int = 0) -> ScriptedModel:
    """A server on loopback that knows the demo's pages of outcomes; it needs no key."""
    from ingestion_pipeline.demo.model_script import demo_model
    from ingestion_pipeline.demo.model_server import ScriptedModel

    return ScriptedModel(demo_model, port=port)


def model_settings(model: ScriptedModel) -> dict[str, str]:
    """What a run is told of the model; a real key never goes to it."""
    return {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "demo", **NAMES}


def demo_prices() -> dict[str, str]:
    """What every model costs: the demo's own beside those that are known anyway."""
    from ingestion_pipeline.cli.session import environment
    from ingestion_pipeline.demo.providers import DEMO_PRICES
    from ingestion_pipeline.settings import load_settings

    return {PRICES: f"{load_settings(environment()).models.prices}, {DEMO_PRICES}"}


def say_address(model: ScriptedModel) -> None:
    """How a command in another terminal finds the model."""
    say(f"the demo's model listens on {model.base_url}; to ask it, set")
    say(f"  OPENAI_BASE_URL={model.base_url} OPENAI_API_KEY=demo")


def say_asked(model: ScriptedModel) -> None:
    """How often it was asked, by model."""
    names = [one.model for one in model.asked]
    counts = ", ".join(f"{name} {names.count(name)} times" for name in sorted(set(names)))
    say(f"\nthe demo's model was asked: {counts or 'nothing'}")


MOST_CRAWLS = 3  # one gets through, unless another process has a host meanwhile


@click.group()
def demo() -> None:
    """Run the pipeline on the bundled site.

    Change the site, run again, and see what happens.
    """


@demo.command()
@click.option("--port", default=0, type=click.IntRange(0, 65_535), help="0: any free one.")
@click.option("--if-registered", is_flag=True, help="Only if the demo's sources are watched.")
@click.option("--model", is_flag=True, help="Its language models, too; they need no key.")
@click.option("--model-port", default=0, type=click.IntRange(0, 65_535), help="0: any free one.")
def serve(*, port: int, if_registered: bool, model: bool, model_port: int) -> None:
    """Run the bundled site until Ctrl-C.

    Every command and run that shares its home finds it.
    """
    from ingestion_pipeline.demo.host_names import published_port
    from ingestion_pipeline.demo.site import DemoSite

    home = _home()
    if if_registered and not _is_registered():
        return
    if (running := published_port(home)) is not None:
        raise CommandRefused(f"the demo site of {home} runs already, on port {running}")
    with opened() as (_, store):
        site = DemoSite(home, port, secret_of=follower_secrets(store))
        _serve(site, bundled_model(model_port) if model or model_port else None)


def _serve(demo_site: DemoSite, model: ScriptedModel | None) -> None:
    from ingestion_pipeline.demo.providers import addresses, demo_providers

    stop = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # its threads inherit the mask
    try:
        with ExitStack() as stack:
            providers = stack.enter_context(demo_providers(demo_site.home))
            demo_site.providers = addresses(providers)
            site = stack.enter_context(demo_site)
            say(f"the demo site listens on 127.0.0.1:{site.port} for the runs of {site.home}:")
            for name in _names():
                say(f"  http://{name}")
            say_providers(providers)
            if model is not None:
                say_address(stack.enter_context(model))
            say("Ctrl-C stops it")
            signal.sigwait(stop)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    say("stopped")


def follower_secrets(store: Store) -> SecretOf:
    """The receiver's copy of each follower's key: the one that is in the database now."""
    from ingestion_pipeline.notices.rows import addressee

    def secret_of(follower: str) -> str | None:
        with store.read() as connection:
            found = addressee(connection, follower)
        return None if found is None else found.secret

    return secret_of


def _is_registered() -> bool:
    """Whether a source of the demo is watched and not disabled."""
    from ingestion_pipeline.sources import SourceStatus
    from ingestion_pipeline.sources.lookup import sources_by_id

    with opened() as (_, store), store.read() as connection:
        found = sources_by_id(connection, [one.id for one in demo_file().definitions])
    return any(one.status is not SourceStatus.DISABLED for one in found.values())


def _names() -> list[str]:
    from urllib.parse import urlsplit

    found = demo_file()
    urls = [*(one.url for one in found.definitions), *(one.address for one in found.recipients)]
    return sorted({urlsplit(url).netloc for url in urls})


@demo.command()
@click.option("--model", is_flag=True, help="Ask the demo's language model what rules cannot read.")
def run(*, model: bool) -> None:
    """Poll, crawl, judge, ask, tell the followers, show what came of it.

    The demo's sources are registered if need be, and served through Dagster even if they are not
    due; its catalogues are crawled until no page waits. Jobs are judged by your profile, if you
    have one, else by the demo's. About its websites only the demo's own providers are asked.
    """
    from ingestion_pipeline.demo.providers import demo_providers, provider_settings

    with ExitStack() as stack:
        asked = stack.enter_context(bundled_model()) if model else None
        told = provider_settings(stack.enter_context(demo_providers(_home())))
        told |= {} if asked is None else model_settings(asked)
        stack.enter_context(demo_settings(told | demo_prices()))
        has_succeeded = _run()
        if asked is not None:
            say_asked(asked)
    say(f"\n{hint(program())}")
    if not has_succeeded:
        raise click.exceptions.Exit(1)


def _run() -> bool:
    """Everything once; whether every job succeeded."""
    from ingestion_pipeline.demo.hooks import read_inboxes
    from ingestion_pipeline.sources import Kind

    home = _home()
    before = read_inboxes(home)
    with ExitStack() as stack:
        settings, store = stack.enter_context(opened())
        started = _prepare(stack, store, home)
        succeeded = [_run_job("detect_recipes")]
        succeeded += _poll(store)
        succeeded.append(_run_job("analyze_websites"))
        succeeded += _crawl(store)
        succeeded.append(_run_job("complete_extractions"))
        succeeded.append(_run_job("process_listings"))
        tell_changes(store, settings)
        _make_followers_due(store)
        succeeded.append(_run_job("deliver_notices"))
        say("")
        found = demo_file()
        with store.read() as connection:
            say_summary(connection, _ids(Kind.SERIES), since=started)
            say("")
            say_catalogs(connection, _ids(Kind.CATALOG), since=started)
            say_oddities(connection, settings, _ids(Kind.CATALOG), since=started)
            say_datasets(connection, _ids(Kind.CATALOG))
            say("")
            now = store.clock.now(connection)
            say_jobs(connection, _ids(Kind.COMPANY), since=started, now=now)
            say("")
            watched = [*(one.id for one in found.definitions), *_boards(connection)]
            say_health(connection, settings, watched, now=now)
            say("")
            say_followers(connection, found.recipients, since=started, now=now)
            quiet = explain_no_notices(connection, since=started)
            after = read_inboxes(home)
            say("\n" + received(before, after, otherwise=quiet, besides=["ops"]) + "\n")
            say_matches(connection, _ids(Kind.COMPANY))
            say("")
            say_businesses(connection, _ids(Kind.WEBSITE))
    return all(succeeded)


def _poll(store: Store) -> list[bool]:
    """The hot polls begin the companies, whose boards are found and polled with the warm ones.

    What had to be approved is polled after them: the first to list a job is whose it is.
    """
    from ingestion_pipeline.sources import Kind

    jobs = ("poll_hot", "process_companies", "poll_warm", "poll_cold")
    succeeded = [_run_job(name) for name in jobs]
    with store.begin() as connection:
        now = store.clock.now(connection)
        has_more = approve(connection, _ids(Kind.COMPANY), now=now)
    return [*succeeded, _run_job("poll_warm")] if has_more else succeeded


def program() -> str:
    """How this command is typed here: by its name if that leads to it, else by the way to it."""
    installed = Path(sys.executable).parent / "ingest"
    if shutil.which("ingest") == str(installed):
        return "ingest"
    here = Path.cwd()
    return str(installed.relative_to(here) if installed.is_relative_to(here) else installed)


def _prepare(stack: ExitStack, store: Store, home: Path) -> datetime:
    """The demo's sources and followers are registered, its site runs; since when."""
    from ingestion_pipeline.demo.host_names import published_port
    from ingestion_pipeline.demo.site import DemoSite
    from ingestion_pipeline.notices.registry import declare
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.poll_tasks import make_due
    from ingestion_pipeline.sources.registry import register

    found = demo_file()
    with store.begin() as connection:
        now = store.clock.now(connection)
        register(connection, found.definitions, now=now)
        declare(connection, found.recipients, now=now)
        ids = [one.id for one in found.definitions]
        declared(connection, ids, now=now)
        make_due(connection, [*ids, *_boards(connection)], now=now)
    if published_port(home) is None:
        stack.enter_context(DemoSite(home, secret_of=follower_secrets(store)))
    return now


def _crawl(store: Store) -> list[bool]:
    """The polls have begun the extractions; they are walked to their end."""
    from ingestion_pipeline.sources import Kind

    succeeded: list[bool] = []
    while len(succeeded) < MOST_CRAWLS:
        with store.read() as connection:
            if succeeded and not is_waiting(connection, _ids(Kind.CATALOG)):
                break
        succeeded.append(_run_job("crawl_catalogs"))
    return succeeded


def _boards(connection: Connection) -> list[str]:
    """The job boards that the demo's companies led to."""
    from ingestion_pipeline.sources import Kind

    return [one.id for one in boards_of(connection, _ids(Kind.COMPANY))]


def _ids(kind: Kind) -> list[str]:
    return [one.id for one in demo_file().definitions if one.kind is kind]


def _make_followers_due(store: Store) -> None:
    """Even if a daemon has just looked after them, by limits that are not the demo's."""
    from ingestion_pipeline.notices.tasks import make_due

    with store.begin() as connection:
        now = store.clock.now(connection)
        for one in demo_file().recipients:
            make_due(connection, one.id, now=now)


def _run_job(name: str) -> bool:
    from ingestion_pipeline import defs
    from ingestion_pipeline.orchestration.execute import run_job

    has_succeeded, errors = run_job(defs, name)
    for error in errors:
        say(error, is_error=True)
    say(f"{name}: {'succeeded' if has_succeeded else 'FAILED'}", is_error=not has_succeeded)
    return has_succeeded


@demo.command()
def mutate() -> None:
    """Publish chapters, courses and jobs, and change some.

    A chapter of two series and a course of each catalogue are new; another course changes. On a
    job board one job is new, one pays better, one is gone. A business describes itself anew, and
    the providers have changed their minds about both.
    """
    from ingestion_pipeline.demo import state

    home = _home()
    changed = state.mutate(state.read_state(home))
    state.write_state(home, changed)
    said = "new chapters of The Lighthouse Keeper and The Clockmaker's Map, and new courses so far"
    say(f"{said}: {changed.new_chapters} each;")
    say(
        "a course of each catalogue has other credits; Driftwood Systems has a new job, pays better"
    )
    say("for another and has filled a third; a provider names competitors before the businesses;")
    say(f"`{program()} demo run` sees all of it")


@demo.command("break")
@click.option("--repair", is_flag=True, help="End the bad day.")
def break_(*, repair: bool) -> None:
    """Give the site a bad day.

    One feed becomes an error page, one listing is empty, one server is overloaded, two catalogues
    lose a page, and a job board has other names for its fields.
    """
    from ingestion_pipeline.demo import state

    home, ingest = _home(), program()
    before = state.read_state(home)
    state.write_state(home, state.repair(before) if repair else state.break_site(before))
    if repair:
        say(f"the site is whole again; `{ingest} demo run` sees it")
    else:
        say("the orchard's feed is an error page, Salt and Iron's listing is empty, the list of")
        say("The Clockmaker's Map is overloaded;")
        say("a course of Harbour College and a page of the Tidewater Institute are errors;")
        say("the API of Driftwood's job board calls its fields something else;")
        say(f"`{ingest} demo run` shows that nothing is lost,")
        say(f"`{ingest} demo break --repair` ends it")


def _home() -> Path:
    from ingestion_pipeline.settings import load_settings

    return load_settings(environment()).home
