"""`ingest try`: see what a URL gives before it is a source: rows with their proof, schedule, cost, declaration.

The temporary store of a trial keeps the real one's settings, host lease, spacing and model budgets.
"""

import re
import tempfile
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from shutil import copy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import click

from ingestion_pipeline.cli.output import (
    CommandFailed,
    CommandRefused,
    cell,
    echo,
    is_json,
    json_option,
    page_width,
    print_folded,
    print_json,
    shortened,
    span,
)
from ingestion_pipeline.cli.run import processed, running_jobs
from ingestion_pipeline.cli.session import (
    KindType,
    actor,
    changing,
    config_option,
    environment,
    opened,
    variables_set,
    verbose_option,
)
from ingestion_pipeline.cli.sources import checked
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.terminal import counted

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from ingestion_pipeline.pages import ContentStore, Fetched
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Definition, Source
    from ingestion_pipeline.store import Store

ROWS = 5
TRIED_PAGES = 12
TRIAL_SECONDS = 600.0
MONTH_SECONDS = 30 * 86_400
LEASE = timedelta(seconds=60)


@click.command("try")
@click.argument("url")
@click.option("--kind", type=KindType(), help="What the URL is; by default recognised by the URL, then by the page.")
@click.option("--platform", help="Its platform; recognised by the URL if possible.")
@config_option
@click.option("--id", "source_id", help="kind:name of the source; made from the URL by default.")
@click.option(
    "--pages", default=TRIED_PAGES, show_default=True, type=click.IntRange(min=1), help="Maximum number of pages."
)
@click.option("--add", is_flag=True, help="Add the source if rows were found.")
@verbose_option
@json_option
def try_(
    *,
    url: str,
    kind: str | None,
    platform: str | None,
    config: dict[str, Any] | None,
    source_id: str | None,
    pages: int,
    add: bool,
    verbose: bool,
) -> None:
    """Show what a source at URL would give, before it is added.

    Recognises kind and platform, fetches politely into a temporary database, detects the recipe,
    reads a few pages, and prints rows with the text that proves them, when the source would be
    polled, what models would cost, and the declaration to paste into a source file.
    """
    from ingestion_pipeline.sources.registry import add as add_source

    with trial(url, pages=pages) as (settings, store):
        raw, reason = _declaration(url, kind, platform, config, source_id)
        definition = checked(raw)
        facts = {"source": raw, "recognised": reason, **_tried(settings, store, definition, is_verbose=verbose)}
    if is_json():
        print_json(facts)
    else:
        _print_trial(facts)
    if not facts["rows"]:
        raise click.exceptions.Exit(1)
    if add:
        from ingestion_pipeline.registry import declared

        with changing() as (_, connection, now):
            add_source(connection, definition, actor=actor(), now=now)
            declared(connection, [definition.id], now=now)
        echo(f"\nadded {definition.id}; `ingest run {definition.id}` reads all of it now", is_error=is_json())
    elif not is_json():
        echo("\npaste it into a file of your sources folder, or repeat the command with --add")


def _tried(settings: "Settings", store: "Store", definition: "Definition", *, is_verbose: bool) -> dict[str, Any]:
    """Process the source in the trial's store; return what came of it under stable keys."""
    from ingestion_pipeline.pages import ContentStore
    from ingestion_pipeline.sources.registry import add as add_source

    with store.begin() as connection:
        add_source(connection, definition, actor=actor(), now=store.clock.now(connection))
    with running_jobs(is_verbose=is_verbose, lists_jobs=True) as run_job:
        result = processed(store, settings, run_job, definition.id, seconds=TRIAL_SECONDS)
    with store.read() as connection:
        rows = sample_rows(connection, ContentStore(settings.home / "content"), definition.kind, definition.id)
        schedule = _schedule(connection, settings, result.source, store.clock.now(connection))
        return {
            "records": max(result.source.record_count, len(rows)),
            "result": result.outcome(),
            "rows": rows,
            "schedule": schedule,
            "cost": _cost(connection, settings, result.source, schedule["interval_seconds"]),
        }


def _declaration(
    url: str, kind: str | None, platform: str | None, config: dict[str, Any] | None, source_id: str | None
) -> tuple[dict[str, Any], str]:
    """Return the declaration of a source at the URL, and by what its kind was recognised."""
    reason = "as given"
    if kind is None or platform is None:
        by_url = recognised_by_url(url)
        if by_url is not None and kind in (None, by_url[0].value):
            kind, platform, reason = by_url[0].value, platform or by_url[1], f"by its URL: {by_url[1]}"
        elif kind is None:
            kind, platform, reason = _recognised_by_page(url, platform)
    raw: dict[str, Any] = {"id": source_id or f"{kind}:{_name(url)}"[:120], "kind": kind, "url": url}
    if platform is not None:
        raw["platform"] = platform
    if config:
        raw["config"] = config
    return raw, reason


def _name(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    address = f"{parts.netloc}{parts.path}".lower().removeprefix("www.")
    return re.sub(r"[^a-z0-9._]+", "-", address).strip("-.") or "source"


def recognised_by_url(url: str) -> tuple[Kind, str] | None:
    """Return kind and platform of a URL whose shape alone names its platform."""
    from ingestion_pipeline.sources import recognize_platform
    from ingestion_pipeline.sources.platforms import READERS

    platform = recognize_platform(url)
    if platform is None:
        return None
    kinds = [kind for kind, names in READERS.items() if platform.name in names]
    return (kinds[0], platform.name) if kinds else None


def _recognised_by_page(url: str, platform: str | None) -> tuple[str, str | None, str]:
    import asyncio

    probe = {"id": f"website:first-page-of-{_name(url)}"[:120], "kind": "website", "url": url}
    page = asyncio.run(fetch_first_page(url, probe))
    kind, recognised, reason = recognised_by_body(page.body, page.content_type or "", url)
    return kind.value, platform or recognised, reason


def recognised_by_body(body: bytes, content_type: str, url: str) -> tuple[Kind, str | None, str]:
    """Return kind, platform and reason by what the page holds: a feed, jobs, courses, or else a website."""
    from ingestion_pipeline.companies.platforms.job_lists import recognised_jobs
    from ingestion_pipeline.reading import decode
    from ingestion_pipeline.reading.html.document import Document

    start = body[:500].lstrip().lower()
    if start.startswith((b"{", b"[")) or "json" in content_type:
        cure = "add --kind, --platform json and --config with the names of its fields"
        raise CommandRefused(f"{url} is JSON, which states no kind; {cure}", code="unknown_kind")
    if start.startswith((b"<?xml", b"<rss", b"<feed")) and (b"<rss" in body or b"<feed" in body or b"<rdf" in body):
        return Kind.SERIES, "rss", "by its body: a feed"
    html = decode(body, content_type)
    if "JobPosting" in html or recognised_jobs(Document(html), url=url):
        return Kind.JOB_BOARD, "jsonld", "by its page: it lists jobs"
    courses = _course_count(body, url)
    if courses:
        return Kind.CATALOG, None, f"by its page: {counted(courses, 'course')}"
    if urlsplit(url).path.strip("/"):
        return Kind.CATALOG, None, "by its address: a page below the root; --kind chooses another"
    return Kind.WEBSITE, None, "by its address: the root of a site; --kind chooses another"


def _course_count(body: bytes, url: str) -> int:
    from ingestion_pipeline.catalogs.extraction.pipeline import read_saved
    from ingestion_pipeline.reading.structured.items import SavedBody
    from ingestion_pipeline.store.database import system_clock

    saved = SavedBody(body=body, url=url, fetched_at=system_clock())
    return len(read_saved("catalog", Kind.CATALOG, saved, {}).records)


def sample_rows(connection: "Connection", content: "ContentStore", kind: Kind, source_id: str) -> list[dict[str, Any]]:
    """Return a few rows of the source: the values, and as `evidence` the text that proves each."""
    from ingestion_pipeline.exports.explaining import explain_row

    if kind in _RECORDED:
        return _recorded_rows(connection, content, kind, source_id)
    rows: list[dict[str, Any]] = []
    for name in _row_names(connection, kind, source_id):
        fields = explain_row(connection, content, name).fields
        evidence = {field.name: {"missing": field.why} if field.place is None else field.place for field in fields}
        rows.append({**{field.name: field.value for field in fields}, "evidence": evidence})
    return rows


def _row_names(connection: "Connection", kind: Kind, source_id: str) -> list[str]:
    """Return the names of the first rows, as `ingest explain` takes them."""
    from sqlalchemy import select

    from ingestion_pipeline.store import tables as t

    match kind:
        case Kind.SERIES:
            table, id_, own = "chapter_sources", t.chapter_sources.c.id, t.chapter_sources.c.source_id
        case Kind.JOB_BOARD:
            table, id_, own = "job_listings", t.listing_sources.c.listing_id, t.listing_sources.c.source_id
        case Kind.CATALOG:
            table, id_, own = "data_items", t.data_items.c.id, t.datasets.c.source_id
        case _:  # a kind of another package
            return []
    query = select(id_).where(own == source_id).order_by(id_).limit(ROWS)
    if kind is Kind.CATALOG:
        query = query.join(t.datasets, t.datasets.c.id == t.data_items.c.dataset_id)
    return [f"{table}:{row_id}" for row_id in connection.execute(query).scalars()]


# Kinds whose single row has the evidence of each field beside it, and the columns that are shown.
_RECORDED: Mapping[Kind, tuple[str, ...]] = {
    Kind.WEBSITE: ("name", "industry", "location", "description"),
    Kind.COMPANY: ("name", "about", "industry", "headquarters", "size", "founded", "score", "tier"),
}


def _recorded_rows(
    connection: "Connection", content: "ContentStore", kind: Kind, source_id: str
) -> list[dict[str, Any]]:
    from sqlalchemy import select

    from ingestion_pipeline.store import tables as t

    query = select(t.companies).where(t.companies.c.source_id == source_id)
    if kind is Kind.WEBSITE:
        analyses = t.website_analyses.c
        joined = t.businesses.join(t.website_analyses, analyses.business_id == t.businesses.c.id)
        query = select(t.businesses).select_from(joined).where(analyses.source_id == source_id)
    rows: list[dict[str, Any]] = []
    for row in connection.execute(query.limit(ROWS)).mappings():
        values = {name: row[name] for name in _RECORDED[kind] if row[name] not in (None, "")}
        proofs: dict[str, dict[str, Any]] = row["evidence"] or {}
        evidence = {
            name: _proof(connection, content, source_id, proofs[name], value)
            for name, value in values.items()
            if name in proofs
        }
        if evidence:
            rows.append({**values, "evidence": evidence})
    return rows


def _proof(
    connection: "Connection", content: "ContentStore", source_id: str, proof: Mapping[str, Any], value: object
) -> dict[str, Any]:
    """Return the evidence with the quote: the span of the stored page, or the value if the page has it literally."""
    from sqlalchemy import select

    from ingestion_pipeline.engine.lineage import text_of_snapshot
    from ingestion_pipeline.store.tables import snapshots

    query = select(snapshots).where(snapshots.c.source_id == source_id, snapshots.c.url == proof.get("page"))
    row = connection.execute(query.order_by(snapshots.c.id.desc()).limit(1)).mappings().first()
    text, start = text_of_snapshot(content, row), proof.get("start")
    if text is not None and start is not None:
        return {**proof, "quote": text[start : proof["end"]]}
    return {**proof, "quote": str(value)} if proof.get("status") == "exact" else dict(proof)


def _schedule(connection: "Connection", settings: "Settings", source: "Source", now: datetime) -> dict[str, Any]:
    """Return the tier of the source, the time until its next poll, and why then."""
    from ingestion_pipeline.sources.scheduling.tiers import current_budget, expectation

    seconds = settings.interval_seconds(source.kind.value, source.tier.value)
    if source.next_check_at is not None and source.next_check_at > now:
        seconds = (source.next_check_at - now).total_seconds()
    budget = current_budget(connection, settings)
    why = expectation(source, budget, now=now)["checked_when"]
    return {"tier": source.tier.value, "interval_seconds": round(seconds), "why": why}


def _cost(connection: "Connection", settings: "Settings", source: "Source", interval_seconds: float) -> dict[str, Any]:
    """Return what the trial's model calls cost, and at most what a month of polls would.

    Unchanged pages and repeated questions cost nothing, so that a month is usually far cheaper.
    """
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import extractions, model_calls, snapshots

    calls, usd = connection.execute(
        select(func.count(), func.coalesce(func.sum(model_calls.c.cost_usd), 0)).where(model_calls.c.status != "cached")
    ).one()
    own = extractions.c.source_id == source.id
    counts = select(func.max(extractions.c.page_count), func.max(extractions.c.over_budget)).where(own)
    crawled, left = connection.execute(counts).one()
    fetched = connection.scalar(select(func.count()).where(snapshots.c.source_id == source.id)) or 1
    pages = crawled or fetched
    share = Decimal(pages + (left or 0)) / pages * Decimal(MONTH_SECONDS) / Decimal(max(interval_seconds, 1))
    return {
        "has_model": settings.has_model,
        "pages": pages,
        "pages_left": left or 0,
        "calls": calls,
        "usd": Decimal(usd),
        "month_calls": round(calls * share),
        "month_usd": round(Decimal(usd) * share, 2),
    }


def _print_trial(facts: Mapping[str, Any]) -> None:
    import yaml

    raw = facts["source"]
    echo(f"kind: {raw['kind']}, platform: {raw.get('platform', 'by kind')} (recognised {facts['recognised']})")
    echo(f"result: {facts['result']}")
    for row in facts["rows"]:
        echo("")
        for name, value in row.items():
            if name != "evidence":
                _print_field(name, value, row["evidence"].get(name))
    if not facts["rows"]:
        echo("no rows were found; `ingest read` shows what a reader makes of a saved page", is_error=True)
        return
    schedule = facts["schedule"]
    echo("")
    wait = span(schedule["interval_seconds"])
    print_folded(f"schedule: tier {schedule['tier'].upper()}, next poll in {wait}: {schedule['why']}")
    print_folded(f"cost: {_cost_text(facts['cost'])}")
    echo("\n" + yaml.safe_dump({"sources": [raw]}, sort_keys=False).rstrip())


def _print_field(name: str, value: object, proof: Mapping[str, Any] | None) -> None:
    """Print a value and the text that proves it, on one line if both fit."""
    line = f"  {name}: {shortened(cell(value), page_width() - len(name) - 4)}"
    proof_text = "" if proof is None else f"<- {_proof_text(proof)}"
    if len(line) + len(proof_text) + 1 <= page_width():
        echo(f"{line} {proof_text}".rstrip())
        return
    echo(line)
    print_folded(f"    {proof_text}")


def _proof_text(proof: Mapping[str, Any]) -> str:
    if "missing" in proof:
        return f"not located: {proof['missing']}"
    span_in_text = f"{proof['start']}-{proof['end']}" if proof.get("start") is not None else None
    place = proof.get("path") or proof.get("page") or span_in_text
    quote = f'"{shortened(proof["quote"], page_width() // 2)}"' if proof.get("quote") else proof.get("method", "")
    return f"{quote} at {place}" if place else str(quote)


def _cost_text(cost: Mapping[str, Any]) -> str:
    if not cost["has_model"]:
        return "0 USD, no model is configured"
    if not cost["calls"]:
        return f"0 USD, rules read all {counted(cost['pages'], 'page')}"
    trial_cost = f"{counted(cost['calls'], 'model call')} for {counted(cost['pages'], 'page')}, {cost['usd']:.4f} USD"
    left = f" and {cost['pages_left']} pages not read" if cost["pages_left"] else ""
    month = f"at most {cost['month_calls']} calls and {cost['month_usd']} USD a month"
    return f"{trial_cost}{left}; {month} if every poll finds all pages changed"


@contextmanager
def trial(url: str, *, pages: int) -> "Generator[tuple[Settings, Store]]":
    """Yield the settings and the store of a trial, which are temporary, while the URL's host is leased in the real one.

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
            yield own_settings, store
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
