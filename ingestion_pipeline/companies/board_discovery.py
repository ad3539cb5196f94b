"""Probes a job board with one request for its first page and registers it as a source.

Confidence is high if the URL pattern matches and the adapter can parse the page, medium if only the
pattern matches, and low for a company's own page.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.companies.analysis.boards import GENERIC, RSS
from ingestion_pipeline.companies.company_states import Confidence
from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, JobBoard
from ingestion_pipeline.companies.platforms.configured_lists import RECOGNISE
from ingestion_pipeline.companies.platforms.recognition import recognised_jobs, sample_titles
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request
from ingestion_pipeline.pages.politeness.host_leases import PacedFetch
from ingestion_pipeline.reading.structured.embedded import read_embedded
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import companies, sources
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of

FORBIDDEN = "blocked_by_robots"
HTML_ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The request for a board's first page; a generic board is a page without a known platform."""

    task: Task
    company_id: str | None
    platform: str
    url: str
    config: Mapping[str, Any]
    board: JobBoard | None
    request: Request
    honours_robots: bool

    @property
    def host(self) -> str:
        """Return the host that is requested."""
        return host_of(self.request.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The platform and config to parse a board with, and the confidence that it can be parsed."""

    probe: Probe
    platform: str
    config: Mapping[str, Any]
    confidence: Confidence
    details: str


def probe_of(task: Task, platform: str, url: str, config: Mapping[str, Any]) -> Probe:
    """Return the probe for the board of a discovery task; raise if it is not identified or has no adapter."""
    board, request, honours_robots = None, Request(url=url, accept=HTML_ACCEPT), True
    if platform != GENERIC:
        if platform not in PLATFORMS:
            raise Permanent(f"nothing reads boards of {platform} yet", code="no_reader")
        board = PLATFORMS[platform].configure(url, config)
        request, honours_robots = board.first_request(), PLATFORMS[platform].honours_robots
    return Probe(
        task=task,
        company_id=task.payload.get("company_id") or None,
        platform=platform,
        url=url,
        config=config,
        board=board,
        request=request,
        honours_robots=honours_robots,
    )


async def probe_board(probe: Probe, fetch: PacedFetch, *, now: datetime) -> Probed:
    """Request the board's first page; a permanent error is a result too, for a person to decide."""
    try:
        return _read(probe, await fetch(probe.request), now=now)
    except (Permanent, Resource) as error:
        if isinstance(error, Resource) and error.code != FORBIDDEN:
            raise
        is_generic = probe.platform == GENERIC
        return Probed(
            probe=probe,
            platform="html" if is_generic else probe.platform,
            config=probe.config,
            confidence=Confidence.LOW if is_generic else Confidence.MEDIUM,
            details=f"its first page was not read ({error.code}): {error.text[:300]}",
        )


def _read(probe: Probe, answer: Answer, *, now: datetime) -> Probed:
    if not isinstance(answer, Fetched):
        raise Permanent(f"{probe.request.url} sent no body", code="empty_body")
    if probe.board is None:
        return _generic(probe, answer)
    try:
        reading = probe.board.read([answer.body], content_types=[answer.content_type], urls=[answer.final_url], now=now)
    except BadConfig as error:
        raise Permanent(str(error), code="bad_config") from error
    count = len(reading.records)
    # An empty feed may be about anything; an empty board is a board without jobs.
    is_sure = count > 0 or probe.platform != RSS
    return Probed(
        probe=probe,
        platform=probe.platform,
        config=probe.config,
        confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM,
        details=f"its first page lists {count} jobs",
    )


def _generic(probe: Probe, answer: Fetched) -> Probed:
    """Return the result for a company's own page: JSON-LD postings, else a recognised list."""
    html = decode(answer.body, answer.content_type)
    postings = sum(1 for _ in read_embedded(html).things("JobPosting"))
    if postings:
        details = f"the company's own page with {postings} JobPosting items"
        config = probe.config or {"may_be_empty": True}
        return Probed(probe=probe, platform="jsonld", config=config, confidence=Confidence.LOW, details=details)
    config = probe.config
    if jobs := [] if config else recognised_jobs(html, url=answer.final_url):
        config = {RECOGNISE: True}
        details = f"the company's own page; {len(jobs)} jobs recognised by layout: {sample_titles(jobs)}"
    else:
        details = (
            "the company's own page, without a recognised list of jobs; it needs `items` and"
            " `fields` (CSS selectors) in its config"
        )
    return Probed(probe=probe, platform="html", config=config, confidence=Confidence.LOW, details=details)


def find_board_source(connection: Connection, *, platform: str, url: str, token: str | None) -> str | None:
    """Return the id of the source with this board token or this URL; None if there is none.

    Tokens are compared whole: a search for the token inside URLs matches boards of other companies.
    """
    query = select(sources.c.id, sources.c.url, sources.c.platform, sources.c.config).where(
        sources.c.kind == Kind.JOB_BOARD.value
    )
    requested_url = _canonical(url)
    for row in connection.execute(query.order_by(sources.c.created_at, sources.c.id)):
        if _canonical(row.url) == requested_url:
            return row.id
        if token and row.platform == platform and _token(row.url, platform, row.config) == token:
            return row.id
    return None


def _token(url: str, platform: str, config: Mapping[str, Any]) -> str | None:
    if isinstance(named := config.get("board_token"), str):
        return named
    recognized = recognize_platform(url)
    return recognized.token if recognized is not None and recognized.name == platform else None


def _canonical(url: str) -> str:
    try:
        return canonical_url(url).rstrip("/")
    except BadUrl:
        return url


_ODD = re.compile(r"[^a-z0-9._-]+")
MAX_NAME = 90


def save_board(connection: Connection, probed: Probed, *, now: datetime, settings: Settings) -> str | None:
    """Register the board and its poll, in the discovery's lineage; None if it has a source or is refused."""
    task, url = probed.probe.task, probed.probe.url
    token = _token(url, probed.platform, {})
    existing_id = find_board_source(connection, platform=probed.platform, url=url, token=token)
    if existing_id is not None:
        note_board(connection, probed, source_id=existing_id, now=now)
        return None
    source_id = _free_id(connection, probed, token)
    poll = NewTask(
        kind=POLL,
        dedupe_key=source_id,
        not_before=now,
        source_id=source_id,
        url=url,
        priority=Tier.WARM.priority,
        shard=shard_of(host_of(url)),
    )
    made = spawn(connection, task, poll, now=now, policy=settings.work, is_permanent=True)
    if isinstance(made, Refusal):
        note_board(connection, probed, source_id=None, now=now, note=f"refused: {made.value}")
        return None
    _register(connection, probed, source_id, now=now)
    note_board(connection, probed, source_id=source_id, now=now)
    return source_id


def _register(connection: Connection, probed: Probed, source_id: str, *, now: datetime) -> None:
    """Register the source in the discovery's lineage; below high confidence it waits for approval."""
    probe, is_sure = probed.probe, probed.confidence is Confidence.HIGH
    row = company(connection, probe.company_id) if probe.company_id else None
    definition = Definition(
        id=source_id,
        kind=Kind.JOB_BOARD,
        url=probe.url,
        name=row["name"] if row is not None else None,
        platform=probed.platform,
        config=dict(probed.config),
        enabled=is_sure,
        company=probe.company_id,
    )
    register(connection, [definition], now=now)
    values: dict[str, Any] = {"tracking_id": probe.task.tracking_id}
    if not is_sure:
        values["status"] = SourceStatus.PENDING_VALIDATION.value
        values["status_reason"] = (
            f"confidence {probed.confidence.value}: {probed.details}; it is polled after"
            f" `ingest sources enable {source_id}`"
        )
    connection.execute(update(sources).where(sources.c.id == source_id).values(**values))
    detail = {
        "url": probe.url,
        "platform": probed.platform,
        "confidence": probed.confidence.value,
        "company": probe.company_id,
        "task": probe.task.id,
    }
    audit(connection, actor="system", action="source.discovered", subject=source_id, now=now, detail=detail)


def _free_id(connection: Connection, probed: Probed, token: str | None) -> str:
    """Return `job_board:greenhouse-acme`, with the task's id appended if that is taken."""
    probe = probed.probe
    name = f"{probed.platform}-{token}" if token else (probe.company_id or host_of(probe.url))
    slug = _ODD.sub("-", name.casefold()).strip("-.")[:MAX_NAME] or "board"
    source_id = f"{Kind.JOB_BOARD.value}:{slug}"
    return f"{source_id}-{probe.task.id}" if sources_by_id(connection, [source_id]) else source_id


def note_board(
    connection: Connection, probed: Probed, *, source_id: str | None, now: datetime, note: str | None = None
) -> None:
    """Record the outcome of the discovery in the company's record."""
    changes = {"confidence": probed.confidence.value, "source_id": source_id, "note": note or probed.details}
    change_board(connection, probed.probe.company_id, probed.probe.task, changes, now=now)


def change_board(
    connection: Connection, company_id: str | None, task: Task, changes: Mapping[str, Any], *, now: datetime
) -> None:
    """Update the board with the task's URL in the company's record."""
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    existing: list[dict[str, Any]] = row["boards"] or []
    boards = [{**board, **changes} if board.get("url") == task.url else board for board in existing]
    connection.execute(update(companies).where(companies.c.id == row["id"]).values(boards=boards, updated_at=now))
