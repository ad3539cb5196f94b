"""A trial of a source: a temporary store that keeps the real one's settings, host lease, spacing and model budgets."""

import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ingestion_pipeline.cli.output import CommandFailed
from ingestion_pipeline.cli.session import environment, opened, variables_set

if TYPE_CHECKING:
    from sqlalchemy import Table

    from ingestion_pipeline.pages import Fetched
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store

LEASE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The temporary store, and the settings that apply to it."""

    settings: "Settings"
    store: "Store"


@contextmanager
def trial(url: str, *, pages: int) -> Generator[Trial]:
    """Yield a temporary store while the URL's host is leased in the real one.

    The real store's overrides and counters of model budgets apply. At the end the model calls are booked in its
    ledger, and the host's spacing and its robots.txt rules in its row.
    """
    from ingestion_pipeline.reading.llm.ledger import book_calls
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.store.stored_settings import overrides
    from ingestion_pipeline.store.tables import hosts, model_spending, settings
    from ingestion_pipeline.urls import host_of

    host = host_of(url)
    with (
        opened() as (real_settings, real),
        tempfile.TemporaryDirectory(prefix="ingest-try-") as folder,
        _leased(real, host),
        variables_set(_variables(real_settings.home, Path(folder), pages)),
        opened() as (_, store),
    ):
        _copy_rows(real, store, settings, hosts, model_spending)
        with store.read() as connection:
            before = {row.scope: row.held_usd for row in connection.execute(model_spending.select())}
            own_settings = load_settings(environment(), overrides(connection))
        try:
            yield Trial(settings=own_settings, store=store)
        finally:
            with store.read() as source, real.begin() as target:
                book_calls(source, target, before=before)
            _return_host(store, real, host)


def _variables(home: Path, folder: Path, pages: int) -> dict[str, str | None]:
    """Return the variables of a trial: a home of its own, few pages."""
    server = home / "local_server.json"  # the demo's site, if it runs
    if server.exists():
        copy(server, folder / server.name)
    (folder / "sources").mkdir()
    return {
        "INGESTION_HOME": str(folder),
        "INGESTION_DATABASE_URL": None,
        "INGESTION_SOURCES": str(folder / "sources"),
        "DAGSTER_HOME": None,
        "INGESTION_CRAWL__MAX_PAGES": str(pages),
    }


def _copy_rows(real: "Store", store: "Store", *tables: "Table") -> None:
    """Copy the rows of these tables; hosts without the leases of runs."""
    free = {"lease_owner": None, "lease_until": None}
    with real.read() as source, store.begin() as target:
        for table in tables:
            rows = [dict(row) for row in source.execute(table.select()).mappings()]
            if rows:
                target.execute(table.insert(), [row | free if "lease_owner" in row else row for row in rows])


@contextmanager
def _leased(store: "Store", host: str) -> Generator[None]:
    """Hold the lease of the host, renewed by a thread; refuse while a run holds it."""
    from ingestion_pipeline.pages.politeness import hosts

    owner, stop = str(uuid4()), threading.Event()

    def lease() -> None:
        with store.begin() as connection:
            now = store.clock.now(connection)
            leased = hosts.lease_hosts(connection, [host], owner=owner, now=now, lease=LEASE)[host]
        if isinstance(leased, hosts.HostBusy):
            message = f"{host} is in use by another run; try again in a minute, or `ingest status` shows the runs"
            raise CommandFailed(message, code="host_busy")

    def renew() -> None:
        while not stop.wait(LEASE.total_seconds() / 3):
            lease()

    lease()
    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with store.begin() as connection:
            hosts.release_owner(connection, owner=owner, now=store.clock.now(connection))


def _return_host(store: "Store", real: "Store", host: str) -> None:
    """Write the host's spacing and its robots.txt rules to the real store, whose row this command has leased."""
    from ingestion_pipeline.store.tables import hosts

    names = ("next_allowed_at", "robots", "robots_fetched_at", "crawl_delay_seconds")
    with store.read() as connection:
        row = connection.execute(hosts.select().where(hosts.c.host == host)).mappings().one_or_none()
    if row is not None:
        with real.begin() as connection:
            values = {name: row[name] for name in names}
            connection.execute(hosts.update().where(hosts.c.host == host).values(**values))


async def fetch_first_page(url: str, raw: Mapping[str, Any]) -> "Fetched":
    """Return the page as a run would fetch it: in the host's turn, if its robots.txt allows it.

    `raw` declares a website at the URL: a host is leased for a source.
    """
    import asyncio

    from ingestion_pipeline.bootstrap import open_fetcher, open_run_context
    from ingestion_pipeline.cli.sources import checked
    from ingestion_pipeline.pages import Request
    from ingestion_pipeline.pages.http.request import Fetched
    from ingestion_pipeline.pages.politeness.host_leases import HostLease, LeasedHosts, PacedFetch
    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.sources.registry import add
    from ingestion_pipeline.store.database import SteadyClock
    from ingestion_pipeline.tasks.claims import Worker
    from ingestion_pipeline.tasks.errors import WorkError
    from ingestion_pipeline.urls import host_of

    with open_run_context(environment()) as ctx:
        with ctx.store.begin() as connection:
            add(connection, checked(dict(raw)), actor="trial", now=ctx.store.clock.now(connection))
            source = sources_by_id(connection, [raw["id"]])[raw["id"]]
        clock, host = SteadyClock(ctx.store.now()), host_of(url)
        async with open_fetcher(ctx.settings) as fetcher:
            leases = LeasedHosts(ctx, Worker(ctx.store, lease_seconds=ctx.settings.work.lease_seconds), fetcher, clock)
            lease = leases.lease({host: source})[host]
            if not isinstance(lease, HostLease):
                raise CommandFailed(f"{host} is in use by another run; try again in a minute", code="host_busy")
            leases.active[host] = lease
            try:
                fetch = PacedFetch(fetcher=fetcher, own=host, host=lease, robots=lease.robots, clock=clock)
                answer = await fetch(Request(url=url))
            except WorkError as error:
                message = f"{url} cannot be fetched: {error}; open it in a browser to check the address"
                raise CommandFailed(message, code=error.code) from error
            finally:
                await asyncio.to_thread(leases.release_in_own_transaction, {**leases.idle, host: lease})
    if not isinstance(answer, Fetched):
        raise TypeError(f"an unconditional request of {url} gave {type(answer).__name__}")
    return answer
