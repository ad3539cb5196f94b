"""`ingest run` and `ingest try`: process a source now, to the end, and see what a URL gives before it is a source."""

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from ingestion_pipeline.cli.jobs import running_jobs
from ingestion_pipeline.cli.output import (
    CommandRefused,
    cell,
    counted,
    echo,
    is_json,
    json_option,
    print_json,
    print_table,
    shortened,
)
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
from ingestion_pipeline.sources.source import Kind

if TYPE_CHECKING:
    from sqlalchemy import Connection, RowMapping

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Definition, Source
    from ingestion_pipeline.store import Store

LONGEST_WAIT_SECONDS = 60.0  # for a retry or a host's delay; what waits longer is reported instead
EVIDENCE_CHARACTERS = 60
ROWS = 5
TRIED_PAGES = 12
FIRST_PAGE_BYTES = 2_000_000


@click.command()
@click.argument("source_ids", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--minutes", default=30.0, show_default=True, type=click.FloatRange(min=0), help="Stop after this time.")
@verbose_option
@json_option
def run(*, source_ids: tuple[str, ...], minutes: float, verbose: bool) -> None:
    """Poll, crawl, read and publish each SOURCE now, to the end.

    For a first look, and for CI: exits with 0 only if rows of every source are published.
    """
    from ingestion_pipeline.cli.installation import with_dagster_home

    with opened() as (settings, store):
        _import_declared(store, settings)
        home = with_dagster_home(environment(), settings.home)["DAGSTER_HOME"]
        with variables_set({"DAGSTER_HOME": home}), running_jobs(is_verbose=verbose, lists_jobs=True) as run_job:
            work = partial(_processed, store, settings, run_job, seconds=minutes * 60)
            results = [work(source_id) for source_id in dict.fromkeys(source_ids)]
    if is_json():
        print_json([result.facts() for result in results])
    else:
        rows = [[r.source.id, r.source.record_count, "yes" if r.is_published else "no", r.outcome()] for r in results]
        print_table(("source", "records", "published", "result"), rows, flexible={"result"})
    if not all(result.is_published for result in results):
        raise click.exceptions.Exit(1)


def _import_declared(store: "Store", settings: "Settings") -> None:
    """Register what the source files declare; mistakes are printed, and the good files are registered."""
    from ingestion_pipeline.registry import declared, definition_check
    from ingestion_pipeline.sources.files import import_files

    if not settings.sources.is_dir():
        return
    imported = import_files(store, settings.sources, check=definition_check(settings.sources))
    for problem in imported.problems:
        echo(str(problem), is_error=True)
    with store.begin() as connection:
        declared(connection, now=store.clock.now(connection))


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """A source after it was processed; `waiting` are tasks that were left, the first due at `waits_until`."""

    source: "Source"
    since: datetime
    waiting: int
    waits_until: datetime | None

    @property
    def is_published(self) -> bool:
        """Whether the source was read successfully and rows of it are published."""
        at = self.source.last_success_at
        return self.source.record_count > 0 and at is not None and at >= self.since

    def outcome(self) -> str:
        """Return the result in words: the source's last outcome and what is left."""
        left = f"; {counted(self.waiting, 'task')} left, next at {cell(self.waits_until)}" if self.waiting else ""
        return (self.source.status_reason or self.source.last_outcome or "not read yet") + left

    def facts(self) -> dict[str, object]:
        """Return the result under stable keys."""
        return {
            "source": self.source.id,
            "published": self.is_published,
            "records": self.source.record_count,
            "status": self.source.status,
            "result": self.outcome(),
            "waiting": self.waiting,
        }


def _processed(
    store: "Store", settings: "Settings", run_job: Callable[..., bool], source_id: str, *, seconds: float
) -> Processed:
    """Run the jobs of the source's kind until nothing of it waits, or the time is over."""
    from ingestion_pipeline.registry import declared
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    until = time.monotonic() + seconds
    with store.begin() as connection:
        since = store.clock.now(connection)
        source = sources_by_id(connection, [source_id]).get(source_id)
        if source is None:
            raise UnknownSource(source_id)
        declared(connection, [source_id], now=since, retries=True)
    jobs = _draining_jobs(source.kind)
    if "detect_recipes" in jobs:
        run_job("detect_recipes")
    run_job(f"ingest_{source.kind}", source_id)
    _drain(store, settings, run_job, jobs, source_id, until)
    with store.read() as connection:
        waiting, next_at = _waiting(connection, source_id)
        return Processed(
            source=sources_by_id(connection, [source_id])[source_id], since=since, waiting=waiting, waits_until=next_at
        )


def _draining_jobs(kind: Kind) -> list[str]:
    """Return the jobs that drain the tasks of the kind, in the order in which work passes through them."""
    from ingestion_pipeline.registry import systems

    specs = [spec for system in systems() for spec in system.work]
    return [spec.job.name for spec in specs if spec.kind == kind.value and spec.job is not None]


def _drain(
    store: "Store",
    settings: "Settings",
    run_job: Callable[..., bool],
    jobs: Sequence[str],
    source_id: str,
    until: float,
) -> None:
    """Run the draining jobs until no task of the source waits that is due soon."""
    while time.monotonic() < until:
        for job in jobs:
            if _has_work(store, settings, job):
                run_job(job)
        if source_id.partition(":")[0] == Kind.CATALOG.value:
            run_job("complete_extractions")
        with store.read() as connection:
            waiting, next_at = _waiting(connection, source_id)
            now = store.clock.now(connection)
        if not waiting or next_at is None:
            return
        wait = (next_at - now).total_seconds()
        if wait > LONGEST_WAIT_SECONDS or time.monotonic() + wait > until:
            return
        time.sleep(max(wait, 0.0))


def _has_work(store: "Store", settings: "Settings", job: str) -> bool:
    from ingestion_pipeline.registry import systems

    works = {spec.job.name: spec.job for system in systems() for spec in system.work if spec.job is not None}
    with store.read() as connection:
        return bool(works[job].pending(connection, settings, store.clock.now(connection)))


def _waiting(connection: "Connection", source_id: str) -> tuple[int, datetime | None]:
    """Return how many tasks of the source wait besides its next poll, and when the first is due."""
    from sqlalchemy import func, select

    from ingestion_pipeline.sources.poll_tasks import POLL
    from ingestion_pipeline.store.tables import ACTIVE, tasks

    query = select(func.count(), func.min(tasks.c.not_before)).where(
        tasks.c.source_id == source_id, tasks.c.kind != POLL, ACTIVE
    )
    count, first = connection.execute(query).one()
    return count, first


@click.command("try")
@click.argument("url")
@click.option("--kind", type=KindType(), help="What the URL is; by default recognised by the URL, then by the page.")
@click.option("--platform", help="Its platform; recognised by the URL if possible.")
@config_option
@click.option("--id", "source_id", help="kind:name of the source; made from the URL by default.")
@click.option("--pages", default=TRIED_PAGES, show_default=True, type=click.IntRange(min=1), help="Read at most these.")
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
    **output: bool,
) -> None:
    """Show what a source at URL would give, before it is added.

    Recognises kind and platform, fetches politely into a temporary database, detects the recipe,
    reads a few pages, and prints rows with their evidence, the polling schedule, the cost, and the
    declaration to paste into a source file.
    """
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.sources.lookup import sources_by_id
    from ingestion_pipeline.sources.registry import add as add_source

    home = load_settings(environment()).home
    with (
        tempfile.TemporaryDirectory(prefix="ingest-try-") as folder,
        variables_set(_temporary(home, Path(folder), pages)),
    ):
        raw, reason = _declaration(url, kind, platform, config, source_id)
        definition = _checked(raw)
        with opened() as (settings, store):
            with store.begin() as connection:
                add_source(connection, definition, actor=actor(), now=store.clock.now(connection))
            with running_jobs(is_verbose=output["verbose"], lists_jobs=True) as run_job:
                result = _processed(store, settings, run_job, definition.id, seconds=600)
            with store.read() as connection:
                rows = sample_rows(connection, definition.kind, definition.id)
                source = sources_by_id(connection, [definition.id])[definition.id]
                facts = {
                    "source": raw,
                    "recognised": reason,
                    "records": max(source.record_count, len(rows)),
                    "result": result.outcome(),
                    "rows": rows,
                    "schedule": _schedule(definition.kind, settings),
                    "cost_usd": _cost(connection),
                    "has_model": settings.has_model,
                }
    if is_json():
        print_json(facts)
    else:
        _print_trial(facts, definition.kind, pages)
    if not facts["rows"]:
        raise click.exceptions.Exit(1)
    if add:
        from ingestion_pipeline.registry import declared

        with changing() as (_, connection, now):
            add_source(connection, definition, actor=actor(), now=now)
            declared(connection, [definition.id], now=now)
        echo(f"added {definition.id}; `ingest run {definition.id}` reads all of it now", is_error=is_json())


def _temporary(home: Path, folder: Path, pages: int) -> dict[str, str | None]:
    """Return the settings of a trial: a store of its own, few pages, an end as soon as nothing waits."""
    from shutil import copy

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
        "INGESTION_EXTRACTION__QUIET_SECONDS": "0",
    }


def _checked(raw: Mapping[str, Any]) -> "Definition":
    from ingestion_pipeline.cli.sources import checked

    return checked(dict(raw))


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
    name = re.sub(r"[^a-z0-9._]+", "-", _address(url)).strip("-.") or "source"
    raw: dict[str, Any] = {"id": source_id or f"{kind}:{name}"[:120], "kind": kind, "url": url}
    if platform is not None:
        raw["platform"] = platform
    if config:
        raw["config"] = config
    return raw, reason


def _address(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"https://{url}")
    return f"{parts.netloc}{parts.path}".lower().removeprefix("www.")


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

    from ingestion_pipeline.settings import load_settings

    body, content_type = asyncio.run(_first_page(url, load_settings(environment())))
    kind, recognised, reason = recognised_by_body(body, content_type, url)
    return kind.value, platform or recognised, reason


async def _first_page(url: str, settings: "Settings") -> tuple[bytes, str]:
    """Return the start of the page, if robots.txt allows it."""
    from ingestion_pipeline.bootstrap import open_fetcher
    from ingestion_pipeline.pages import robots_allows
    from ingestion_pipeline.tasks.errors import WorkError

    parts = urlsplit(url)
    try:
        async with open_fetcher(settings) as fetcher:
            robots = await fetcher.fetch_start(
                f"{parts.scheme}://{parts.netloc}/robots.txt", max_bytes=FIRST_PAGE_BYTES, max_redirects=5
            )
            text = robots.body.decode("utf-8", "replace") if robots.status_code < 300 else ""  # noqa: PLR2004
            if not robots_allows(text, settings.user_agent, url):
                raise CommandRefused(f"{url} is disallowed by the site's robots.txt")
            page = await fetcher.fetch_start(url, max_bytes=FIRST_PAGE_BYTES, max_redirects=5)
    except WorkError as error:
        raise CommandRefused(f"{url} cannot be fetched: {error}") from error
    if page.status_code >= 400:  # noqa: PLR2004 - the error classes of HTTP
        raise CommandRefused(f"{url} answered {page.status_code}; open it in a browser to check the address")
    return page.body, page.headers.get("content-type", "")


def recognised_by_body(body: bytes, content_type: str, url: str) -> tuple[Kind, str | None, str]:
    """Return kind, platform and reason by what the page holds: a feed, jobs, courses, or else a website."""
    from ingestion_pipeline.companies.platforms.job_lists import recognised_jobs
    from ingestion_pipeline.reading import decode
    from ingestion_pipeline.reading.html.document import Document

    start = body[:500].lstrip().lower()
    if start.startswith((b"{", b"[")) or "json" in content_type:
        cure = "add --kind, --platform json and --config with the names of its fields"
        raise CommandRefused(f"{url} is JSON, which states no kind; {cure}")
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


def sample_rows(connection: "Connection", kind: Kind, source_id: str) -> list[dict[str, Any]]:
    """Return a few rows of the source: values, and for extracted items how each value is proved."""
    if kind is Kind.CATALOG:
        return _sample_items(connection, source_id)
    query = _sample_query(kind, source_id)
    rows: Sequence[RowMapping] = [] if query is None else connection.execute(query.limit(ROWS)).mappings().all()
    return [{name: value for name, value in row.items() if value not in (None, "", [], {})} for row in rows]


def _sample_query(kind: Kind, source_id: str) -> Any:  # noqa: ANN401 - a SQL statement of any columns
    """Return the query of what a person would look at first; None for kinds of other packages."""
    from sqlalchemy import select

    from ingestion_pipeline.store import tables as t

    match kind:
        case Kind.SERIES:
            chapter, release = t.chapters.c, t.chapter_sources.c
            columns = (chapter.number, chapter.title, release.language, chapter.published_at, release.url)
            joined = t.chapter_sources.join(t.chapters)
            return select(*columns).select_from(joined).where(release.source_id == source_id).order_by(release.id)
        case Kind.JOB_BOARD:
            job, link = t.job_listings.c, t.listing_sources.c
            columns = (job.title, job.company_name, job.location, job.posted_at, link.url)
            joined = t.listing_sources.join(t.job_listings)
            return select(*columns).select_from(joined).where(link.source_id == source_id).order_by(link.id)
        case Kind.WEBSITE:
            business, analysis = t.businesses.c, t.website_analyses.c
            columns = (business.name, business.industry, business.location, business.description, business.url)
            joined = t.website_analyses.join(t.businesses)
            return select(*columns).select_from(joined).where(analysis.source_id == source_id)
        case Kind.COMPANY:
            company = t.companies.c
            return select(*[c for c in company if c.name in _COMPANY_COLUMNS]).where(company.source_id == source_id)
        case _:
            return None


_COMPANY_COLUMNS = ("name", "website", "about", "industry", "headquarters", "size", "founded", "score", "tier")


def _sample_items(connection: "Connection", source_id: str) -> list[dict[str, Any]]:
    from sqlalchemy import select

    from ingestion_pipeline.store.tables import data_items, datasets

    query = (
        select(data_items.c.data, data_items.c.grounding)
        .join(datasets, datasets.c.id == data_items.c.dataset_id)
        .where(datasets.c.source_id == source_id)
        .order_by(data_items.c.id)
        .limit(ROWS)
    )
    return [
        {**{name: value for name, value in data.items() if value is not None}, "evidence": _statuses(grounding)}
        for data, grounding in connection.execute(query)
    ]


def _statuses(grounding: Mapping[str, Mapping[str, object]] | None) -> dict[str, str]:
    return {name: str(proof.get("status")) for name, proof in (grounding or {}).items()}


def _schedule(kind: Kind, settings: "Settings") -> dict[str, int]:
    from ingestion_pipeline.sources.source import Tier

    return {tier.value: int(settings.interval_seconds(kind.value, tier.value)) for tier in Tier}


def _cost(connection: "Connection") -> str:
    from sqlalchemy import func, select

    from ingestion_pipeline.store.tables import model_calls

    return str(connection.scalar(select(func.coalesce(func.sum(model_calls.c.cost_usd), 0))))


def _print_trial(facts: Mapping[str, Any], kind: Kind, pages: int) -> None:
    import yaml

    raw = facts["source"]
    echo(f"kind: {raw['kind']}, platform: {raw.get('platform', 'by kind')} (recognised {facts['recognised']})")
    echo(f"result: {facts['result']}")
    for row in facts["rows"]:
        evidence = row.get("evidence", {})
        echo("")
        for name, value in row.items():
            if name != "evidence":
                proof = f"  [{evidence[name]}]" if name in evidence else ""
                echo(f"  {name}: {shortened(str(cell(value)), EVIDENCE_CHARACTERS)}{proof}")
    if not facts["rows"]:
        echo("no rows were found; `ingest read` shows what a reader makes of a saved page", is_error=True)
        return
    hours = {tier: f"{seconds / 3600:g} h" for tier, seconds in facts["schedule"].items()}
    echo("\nschedule: " + ", ".join(f"{tier} every {span}" for tier, span in hours.items()))
    model = f"{facts['cost_usd']} USD for up to {pages} pages" if facts["has_model"] else "none: rules only, no model"
    echo(f"cost of models: {model}")
    echo("\n" + yaml.safe_dump({"sources": [raw]}, sort_keys=False).rstrip())
    echo(f"\npaste it into a file of your sources folder, or: ingest try {raw['url']} --kind {kind} --add")
