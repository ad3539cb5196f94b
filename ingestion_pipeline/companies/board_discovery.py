"""A board asked once, politely, for its first page: can we read it, and how sure is that?

Pattern and a page that its adapter reads are high; the pattern alone is medium; a page of the
company's own, whatever it says, is low.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.companies.analysis.boards import GENERIC, RSS
from ingestion_pipeline.companies.outcomes import Probed
from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, JobBoard, JobPlatform
from ingestion_pipeline.companies.platforms.generic import RECOGNISE
from ingestion_pipeline.companies.platforms.recognition import recognised, sampled
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request
from ingestion_pipeline.pages.politeness.paced_fetch import PacedFetch
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
    """What is asked of a board; a generic one is a page that says by itself what it is."""

    platform: str
    url: str
    config: Mapping[str, Any]
    board: JobBoard | None
    request: Request
    honours_robots: bool

    @property
    def host(self) -> str:
        """Whom it asks."""
        return host_of(self.request.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The platform to read it by, its config, and how sure that is."""

    platform: str
    config: Mapping[str, Any]
    confidence: Confidence
    said: str


def probe_of(platform: str, url: str, config: Mapping[str, Any]) -> Probe:
    """What to ask of the board.

    Raises:
        BadConfig: address and config do not say whose board it is.
        Permanent: nothing reads boards of this platform.
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


async def ask(probe: Probe, fetch: PacedFetch, *, now: datetime) -> ProbeResult:
    """The verdict on the board; what may pass, or is nobody's fault, is raised.

    A board that is not there, or answers with something else, is a verdict: medium, with what it
    said, and a person decides.
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
        reading = probe.board.read(
            [answer.body],
            content_types=[answer.content_type],
            urls=[answer.final_url],
            now=now,
        )
    except BadConfig as error:
        raise Permanent(str(error), code="bad_config") from error
    count = len(reading.records)
    # An empty feed may be a feed of anything; an empty board is a board without jobs.
    is_sure = count > 0 or probe.platform != RSS
    return ProbeResult(
        platform=probe.platform,
        config=probe.config,
        confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM,
        said=f"its first page lists {count} jobs",
    )


def _generic(probe: Probe, answer: Fetched) -> ProbeResult:
    """A page of the company's own: read by its data for machines, else by its layout if sure."""
    html = decode(answer.body, answer.content_type)
    postings = sum(1 for _ in read_embedded(html).things("JobPosting"))
    if postings:
        said = f"a page of its own that states {postings} jobs for machines"
        return ProbeResult(
            platform="jsonld",
            config=probe.config or {"may_be_empty": True},
            confidence=Confidence.LOW,
            said=said,
        )
    config = probe.config
    jobs = [] if config else recognised(html, url=answer.final_url)
    if jobs:
        config = {RECOGNISE: True}
        said = f"a page of its own; {len(jobs)} jobs recognised by its layout: {sampled(jobs)}"
    else:
        said = (
            "a page of its own, on which no list of jobs is recognised; it needs `items` and"
            " `fields` (CSS selectors) in its config"
        )
    return ProbeResult(platform="html", config=config, confidence=Confidence.LOW, said=said)


def _unsure(probe: Probe, code: str, text: str) -> ProbeResult:
    is_generic = probe.platform == GENERIC
    return ProbeResult(
        platform="html" if is_generic else probe.platform,
        config=probe.config,
        confidence=Confidence.LOW if is_generic else Confidence.MEDIUM,
        said=f"its first page was not read ({code}): {text[:300]}",
    )


def standing_source(
    connection: Connection, *, platform: str, url: str, token: str | None
) -> str | None:
    """The id of the source of this board or of this very address; None if there is none.

    The origin looked for a token inside addresses, and took strangers' boards for its own.
    """
    query = select(sources.c.id, sources.c.url, sources.c.platform, sources.c.config).where(
        sources.c.kind == Kind.JOB_BOARD.value
    )
    wanted = _canonical(url)
    for row in connection.execute(query.order_by(sources.c.created_at, sources.c.id)):
        if _canonical(row.url) == wanted:
            return row.id
        if token and row.platform == platform and _token(row.url, platform, row.config) == token:
            return row.id
    return None


def _token(url: str, platform: str, config: Mapping[str, Any]) -> str | None:
    if isinstance(named := config.get("board_token"), str):
        return named
    found = recognize_platform(url)
    return found.token if found is not None and found.name == platform else None


def _canonical(url: str) -> str:
    try:
        return canonical_url(url).rstrip("/")
    except BadUrl:
        return url


_ODD = re.compile(r"[^a-z0-9._-]+")
MAX_NAME = 90


def save_board(
    connection: Connection, probed: Probed, *, now: datetime, settings: Settings
) -> str | None:
    """The board's source, made now; None if it has one, or if its lineage does not want its poll.

    The poll is the discovery's child, so that what it finds belongs to the same lineage.
    """
    found = recognize_platform(probed.url)
    token = found.token if found is not None and found.name == probed.platform else None
    standing = standing_source(connection, platform=probed.platform, url=probed.url, token=token)
    if standing is not None:
        note_board(connection, probed, source_id=standing, now=now)
        return None
    source_id = _free_id(connection, probed, token)
    is_sure = probed.confidence is Confidence.HIGH
    made = spawn(
        connection,
        probed.task,
        _poll(source_id, probed.url, now=now),
        now=now,
        policy=settings.work,
        is_permanent=True,
    )
    if isinstance(made, Refusal):
        note_board(connection, probed, source_id=None, now=now, note=f"refused: {made.value}")
        return None
    register(connection, [_definition(connection, probed, source_id, is_sure)], now=now)
    _settle(connection, probed, source_id, is_sure=is_sure, now=now)
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


def _settle(
    connection: Connection, probed: Probed, source_id: str, *, is_sure: bool, now: datetime
) -> None:
    """The source is of the discovery's lineage; what is not sure waits for approval."""
    values: dict[str, Any] = {"tracking_id": probed.task.tracking_id}
    if not is_sure:
        values |= {
            "status": SourceStatus.PENDING_VALIDATION.value,
            "status_reason": (
                f"confidence {probed.confidence.value}: {probed.said}; it is polled after"
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
    """`job_board:greenhouse-acme`; with a part of the lineage's id where another board has that."""
    name = f"{probed.platform}-{token}" if token else (probed.company_id or host_of(probed.url))
    slug = _ODD.sub("-", name.casefold()).strip("-.")[:MAX_NAME] or "board"
    source_id = f"{Kind.JOB_BOARD.value}:{slug}"
    if sources_by_id(connection, [source_id]):
        return f"{source_id}-{probed.task.id}"
    return source_id


def note_board(
    connection: Connection,
    probed: Probed,
    *,
    source_id: str | None,
    now: datetime,
    note: str | None = None,
) -> None:
    """The company's record says what became of the board."""
    said = {
        "confidence": probed.confidence.value,
        "source_id": source_id,
        "note": note or probed.said,
    }
    change_board(connection, probed.company_id, probed.task, said, now=now)


def change_board(
    connection: Connection,
    company_id: str | None,
    task: Task,
    said: Mapping[str, Any],
    *,
    now: datetime,
) -> None:
    """The board that the discovery was of has these values in the company's record."""
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    known: list[dict[str, Any]] = row["boards"] or []
    boards = [{**one, **said} if one.get("url") == task.url else one for one in known]
    connection.execute(
        update(companies).where(companies.c.id == row["id"]).values(boards=boards, updated_at=now)
    )
