"""Finds the job boards of a company: on its pages, then by one request that registers the board as a source.

Pages link to boards, embed them or contain them; finding them makes no requests. Confidence is high if the URL pattern
matches and the adapter can parse the first page, medium if only the pattern matches, and low for a company's own page.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, select, update

from ingestion_pipeline.companies.analysis.company_pages import (
    MIN_NAME_CHARACTERS,
    CompanyPage,
    Role,
    is_same_site,
    page_key,
    plain_name,
    site_label,
)
from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, JobBoard, board_identity
from ingestion_pipeline.companies.platforms.job_lists import RECOGNISE, recognised_jobs, sample_titles
from ingestion_pipeline.companies.records import Confidence, company
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request
from ingestion_pipeline.pages.politeness.host_leases import PacedFetch
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.text.plain_text import phrases_of
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.platforms import Platform, recognize_platform
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.statements import audit
from ingestion_pipeline.store.tables import companies, sources
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of

RSS = "rss"
GENERIC = "generic"
MAX_BOARDS = 5  # of one company; more are the boards of its customers, or of a job portal
_NO_BOARDS = frozenset({"mangadex"})
_PHRASES = phrases_of("ingestion_pipeline.companies")
_JOB_WORDS = re.compile(_PHRASES["job_words"], re.IGNORECASE)
_BEFORE_NAME = re.compile(r"^(?:get|join|try|the|weare|hello|team|use|with|my)(?=[a-z0-9]{4})")
_AFTER_NAME = re.compile(_PHRASES["after_name"])
_MARKS = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBoard:
    """A job board, the page that leads to it, and the confidence before it is probed."""

    platform: str
    url: str
    token: str | None
    page: str
    confidence: Confidence
    note: str | None = None

    def as_dict(self) -> Mapping[str, object]:
        """Return the board as it is stored in the company's record."""
        return asdict(self) | {"confidence": self.confidence.value}

    @property
    def has_reader(self) -> bool:
        """Return whether an adapter for the platform exists."""
        return self.platform in PLATFORMS or self.platform == GENERIC


def boards_in(pages: Sequence[CompanyPage], *, home: str, names: Iterable[str] = ()) -> list[FoundBoard]:
    """Return the company's boards, most certain first: known platforms, else its careers page.

    A board belongs to the company if its careers page links to it, one of its pages embeds it, or the board's token is
    the company's name: other pages link to the boards of customers and partners.
    """
    company_names = {name for name in (*names, site_label(home)) if plain_name(name)}
    boards: dict[tuple[str, str], FoundBoard] = {}
    ordered = sorted(pages, key=lambda page: page.role is not Role.CAREERS)
    for page in ordered:
        for board in _recognised(page, company_names):
            identity = board_identity(board.platform, board.url, {}) or (board.token or board.url).casefold()
            boards.setdefault((board.platform, identity), board)
    with_token = {board.platform for board in boards.values() if board.token}
    # The tenant's own address says less than those of its boards.
    tenants = {(platform, identity.partition("/")[0]) for platform, identity in boards if "/" in identity}
    named = [
        board
        for key, board in boards.items()
        if key not in tenants and (board.token or board.platform not in with_token)
    ]
    return (named or list(_generic(ordered, home)))[:MAX_BOARDS]


def _recognised(page: CompanyPage, company_names: set[str]) -> Iterator[FoundBoard]:
    for url, is_embedded in _addresses(page):
        platform = recognize_platform(url)
        if platform is None or platform.name in _NO_BOARDS or platform.name == RSS:
            continue
        if page.role is Role.CAREERS or is_embedded or _is_named(platform, company_names):
            yield _board(platform, url, page)
    if page.role is Role.CAREERS:
        for url in (*page.feeds, *(anchor.url for anchor in page.anchors)):
            platform = recognize_platform(url)
            if platform is not None and platform.name == RSS and _JOB_WORDS.search(url):
                yield _board(platform, url, page)


def _addresses(page: CompanyPage) -> Iterator[tuple[str, bool]]:
    """Yield every URL on the page, and whether the page embeds it."""
    yield from ((url, True) for url in page.embedded_urls)
    yield from ((url, False) for url in page.script_urls)
    yield from ((anchor.url, False) for anchor in page.anchors)


def _board(platform: Platform, url: str, page: CompanyPage) -> FoundBoard:
    note = None if platform.name in PLATFORMS else f"nothing reads {platform.name} yet"
    return FoundBoard(
        platform=platform.name,
        url=_canonical(url),
        token=platform.token,
        page=page.url,
        confidence=Confidence.MEDIUM,
        note=note,
    )


def _generic(pages: Sequence[CompanyPage], home: str) -> Iterator[FoundBoard]:
    """Yield the company's own careers page; used where no platform was recognised."""
    careers = [page for page in pages if page.role is Role.CAREERS]
    stating = [page for page in careers if any(page.embedded.things("JobPosting"))]
    for page in stating[:1] or careers[-1:]:
        yield FoundBoard(
            platform=GENERIC,
            url=_canonical(page.url),
            token=None,
            page=page.url,
            confidence=Confidence.LOW,
            note=None if is_same_site(page.url, home) else "on another host",
        )


def _is_named(platform: Platform, company_names: set[str]) -> bool:
    """Return whether the token is the company's name, or one starts with words of the other.

    Words such as "get" before the name and "inc" after it are ignored: `getacme` belongs to Acme.
    `meta` does not belong to Metabase, whose name only starts with a part of a word.
    """
    token = plain_name(platform.token or "")
    without_word = _BEFORE_NAME.sub("", token)
    tokens = {token, without_word, _AFTER_NAME.sub("", token), _AFTER_NAME.sub("", without_word)}
    names = {plain_name(name) for name in company_names}
    parts_of_token = _first_words(platform.token or "")
    parts_of_names = {part for name in company_names for part in _first_words(name)}
    return bool(tokens & names or parts_of_token & names or tokens & parts_of_names)


def _first_words(text: str) -> set[str]:
    """Return the prefixes of the text that end at a word boundary; short ones are left out."""
    words = _MARKS.sub(" ", text.casefold()).split()
    prefixes = ("".join(words[:count]) for count in range(1, len(words) + 1))
    return {part for part in prefixes if len(part) >= MIN_NAME_CHARACTERS}


def _canonical(url: str) -> str:
    try:
        return canonical_url(url)
    except BadUrl:
        return url


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
        return _generic_board(probe, answer)
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


def _generic_board(probe: Probe, answer: Fetched) -> Probed:
    """Return the result for a company's own page: JSON-LD postings, else a recognised list."""
    document = Document.of(answer.body, answer.content_type)
    postings = sum(1 for _ in document.embedded.things("JobPosting"))
    if postings:
        details = f"the company's own page with {postings} JobPosting items"
        config = probe.config or {"may_be_empty": True}
        return Probed(probe=probe, platform="jsonld", config=config, confidence=Confidence.LOW, details=details)
    config = probe.config
    if jobs := [] if config else recognised_jobs(document, url=answer.final_url):
        config = {RECOGNISE: True}
        details = f"the company's own page; {len(jobs)} jobs recognised by layout: {sample_titles(jobs)}"
    else:
        details = (
            "the company's own page, without a recognised list of jobs; it needs `items` and"
            " `fields` (CSS selectors) in its config"
        )
    return Probed(probe=probe, platform="html", config=config, confidence=Confidence.LOW, details=details)


def find_board_source(connection: Connection, *, platform: str, url: str) -> str | None:
    """Return the id of the source of this board or with this URL; None if there is none.

    Identities are compared whole: a search for the token inside URLs matches boards of other companies.
    """
    query = select(sources.c.id, sources.c.url, sources.c.platform, sources.c.config).where(
        sources.c.kind == Kind.JOB_BOARD.value
    )
    requested_url, identity = page_key(url), board_identity(platform, url, {})
    for row in connection.execute(query.order_by(sources.c.created_at, sources.c.id)):
        if page_key(row.url) == requested_url:
            return row.id
        if identity and row.platform == platform and board_identity(platform, row.url, row.config) == identity:
            return row.id
    return None


_ODD = re.compile(r"[^a-z0-9._-]+")
MAX_NAME = 90


def save_board(connection: Connection, probed: Probed, *, now: datetime, settings: Settings) -> str | None:
    """Register the board and its poll, in the discovery's lineage; None if it has a source or is refused."""
    task, url = probed.probe.task, probed.probe.url
    existing_id = find_board_source(connection, platform=probed.platform, url=url)
    if existing_id is not None:
        note_board(connection, probed, source_id=existing_id, now=now)
        return None
    source_id = _free_id(connection, probed)
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


def _free_id(connection: Connection, probed: Probed) -> str:
    """Return `job_board:greenhouse-acme`, with the task's id appended if that is taken."""
    probe = probed.probe
    identity = board_identity(probed.platform, probe.url, {})
    name = f"{probed.platform}-{identity}" if identity else (probe.company_id or host_of(probe.url))
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
