"""Probes a job board with one request for its first page and registers it as a source.

Confidence is high if the URL pattern matches and the adapter can parse the page, medium if only the
pattern matches, and low for a company's own page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.companies.analysis.boards import GENERIC, RSS
from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, JobBoard, JobPlatform
from ingestion_pipeline.companies.platforms.generic import RECOGNISE
from ingestion_pipeline.companies.platforms.recognition import recognised_jobs, sample_titles
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.companies.states import Confidence
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
class Probed:
    """A probed board, and the confidence that it can be parsed."""

    task: Task
    company_id: str | None
    platform: str
    url: str
    config: Mapping[str, Any]
    confidence: Confidence
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The request for a board's first page; a generic board is a page without a known platform."""

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
class ProbeResult:
    """The platform and config to parse the board with, and the confidence."""

    platform: str
    config: Mapping[str, Any]
    confidence: Confidence
    details: str


def probe_of(platform: str, url: str, config: Mapping[str, Any]) -> Probe:
    """Return the probe for the board.

    Raises:
        BadConfig: neither URL nor config identifies the board.
        Permanent: there is no adapter for this platform.
    """
    if platform == GENERIC:
        return Probe(
            platform=platform,
            url=url,
            config=config,
            board=None,
            request=Request(url=url, accept=HTML_ACCEPT),
            honours_robots=True,
        )
    if platform not in PLATFORMS:
        raise Permanent(f"nothing reads boards of {platform} yet", code="no_reader")
    adapter: JobPlatform = PLATFORMS[platform]
    board = adapter.configure(url, config)
    return Probe(
        platform=platform,
        url=url,
        config=config,
        board=board,
        request=board.first_request(),
        honours_robots=adapter.honours_robots,
    )


async def probe_board(probe: Probe, fetch: PacedFetch, *, now: datetime) -> ProbeResult:
    """Request the board's first page and return the result; transient errors are raised.

    A board that is missing or returns something else is a result with medium confidence and the
    error, for a person to decide.
    """
    try:
        answer = await fetch(probe.request)
        return _read(probe, answer, now=now)
    except Permanent as error:
        return _unsure(probe, error.code, error.text)
    except Resource as error:
        if error.code != FORBIDDEN:
            raise
        return _unsure(probe, error.code, error.text)


def _read(probe: Probe, answer: Answer, *, now: datetime) -> ProbeResult:
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
    return ProbeResult(
        platform=probe.platform,
        config=probe.config,
        confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM,
        details=f"its first page lists {count} jobs",
    )


def _generic(probe: Probe, answer: Fetched) -> ProbeResult:
    """Return the result for a company's own page: JSON-LD postings, else a recognised list."""
    html = decode(answer.body, answer.content_type)
    postings = sum(1 for _ in read_embedded(html).things("JobPosting"))
    if postings:
        details = f"the company's own page with {postings} JobPosting items"
        return ProbeResult(
            platform="jsonld", config=probe.config or {"may_be_empty": True}, confidence=Confidence.LOW, details=details
        )
    config = probe.config
    jobs = [] if config else recognised_jobs(html, url=answer.final_url)
    if jobs:
        config = {RECOGNISE: True}
        details = f"the company's own page; {len(jobs)} jobs recognised by layout: {sample_titles(jobs)}"
    else:
        details = (
            "the company's own page, without a recognised list of jobs; it needs `items` and"
            " `fields` (CSS selectors) in its config"
        )
    return ProbeResult(platform="html", config=config, confidence=Confidence.LOW, details=details)


def _unsure(probe: Probe, code: str, text: str) -> ProbeResult:
    is_generic = probe.platform == GENERIC
    return ProbeResult(
        platform="html" if is_generic else probe.platform,
        config=probe.config,
        confidence=Confidence.LOW if is_generic else Confidence.MEDIUM,
        details=f"its first page was not read ({code}): {text[:300]}",
    )


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
    """Register the board as a source and return its id.

    Return None if it has a source already, or if the spawn guard refuses its poll. The poll is a
    child task of the discovery, so that its results have the same lineage.
    """
    platform = recognize_platform(probed.url)
    is_same = platform is not None and platform.name == probed.platform
    token = platform.token if platform is not None and is_same else None
    existing_id = find_board_source(connection, platform=probed.platform, url=probed.url, token=token)
    if existing_id is not None:
        note_board(connection, probed, source_id=existing_id, now=now)
        return None
    source_id = _free_id(connection, probed, token)
    is_sure = probed.confidence is Confidence.HIGH
    made = spawn(
        connection, probed.task, _poll(source_id, probed.url, now=now), now=now, policy=settings.work, is_permanent=True
    )
    if isinstance(made, Refusal):
        note_board(connection, probed, source_id=None, now=now, note=f"refused: {made.value}")
        return None
    register(connection, [_definition(connection, probed, source_id, is_sure)], now=now)
    _set_provenance(connection, probed, source_id, is_sure=is_sure, now=now)
    note_board(connection, probed, source_id=source_id, now=now)
    return source_id


def _poll(source_id: str, url: str, *, now: datetime) -> NewTask:
    return NewTask(
        kind=POLL,
        dedupe_key=source_id,
        not_before=now,
        source_id=source_id,
        url=url,
        priority=Tier.WARM.priority,
        shard=shard_of(host_of(url)),
    )


def _definition(
    connection: Connection,
    probed: Probed,
    source_id: str,
    is_sure: bool,  # noqa: FBT001
) -> Definition:
    row = company(connection, probed.company_id) if probed.company_id else None
    return Definition(
        id=source_id,
        kind=Kind.JOB_BOARD,
        url=probed.url,
        name=row["name"] if row is not None else None,
        platform=probed.platform,
        config=dict(probed.config),
        enabled=is_sure,
        company=probed.company_id,
    )


def _set_provenance(connection: Connection, probed: Probed, source_id: str, *, is_sure: bool, now: datetime) -> None:
    """Set the source's lineage; a source below high confidence waits for approval."""
    values: dict[str, Any] = {"tracking_id": probed.task.tracking_id}
    if not is_sure:
        values |= {
            "status": SourceStatus.PENDING_VALIDATION.value,
            "status_reason": (
                f"confidence {probed.confidence.value}: {probed.details}; it is polled after"
                f" `ingest sources enable {source_id}`"
            ),
        }
    connection.execute(update(sources).where(sources.c.id == source_id).values(**values))
    audit(
        connection,
        actor="system",
        action="source.discovered",
        subject=source_id,
        now=now,
        detail={
            "url": probed.url,
            "platform": probed.platform,
            "confidence": probed.confidence.value,
            "company": probed.company_id,
            "task": probed.task.id,
        },
    )


def _free_id(connection: Connection, probed: Probed, token: str | None) -> str:
    """Return `job_board:greenhouse-acme`, with the task's id appended if that is taken."""
    name = f"{probed.platform}-{token}" if token else (probed.company_id or host_of(probed.url))
    slug = _ODD.sub("-", name.casefold()).strip("-.")[:MAX_NAME] or "board"
    source_id = f"{Kind.JOB_BOARD.value}:{slug}"
    if sources_by_id(connection, [source_id]):
        return f"{source_id}-{probed.task.id}"
    return source_id


def note_board(
    connection: Connection, probed: Probed, *, source_id: str | None, now: datetime, note: str | None = None
) -> None:
    """Record the outcome of the discovery in the company's record."""
    changes = {"confidence": probed.confidence.value, "source_id": source_id, "note": note or probed.details}
    change_board(connection, probed.company_id, probed.task, changes, now=now)


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
