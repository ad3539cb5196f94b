"""The analysis of one company: its pages are fetched, parsed, evaluated, and written.

Rules apply to the text of the pages; the numbers of the score come from the settings. What is not stated is null with
a flag, and neither adds nor removes points. Each page is stored at once and noted in the task's state, so that none is
fetched twice: after a crash the next worker continues from there. Written are the company's record, discovery tasks
for its boards, and its source's health.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, RowMapping, update
from sqlalchemy.exc import NoResultFound

from ingestion_pipeline.companies.analysis.company_pages import (
    FIELDS,
    CompanyPage,
    Fact,
    FactMethod,
    Facts,
    PageToFetch,
    Role,
    SiteLink,
    company_name,
    embedded_facts,
    guessed_pages,
    head_facts,
    make_fact,
    missing_roles,
    named_pages,
    page_key,
    parse_company_page,
    places_of,
    role_of,
    technologies_in,
)
from ingestion_pipeline.companies.board_discovery import FoundBoard, boards_in, find_board_source
from ingestion_pipeline.companies.job_listing import MACHINE_LEARNING, canonical_name, clean_company_name
from ingestion_pipeline.companies.records import SOURCE_DISCOVERY, CompanyStatus, Completeness, company
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.politeness.rights import allows_models
from ingestion_pipeline.pages.visits.page import CrawledPage, KnownPage, NewPage, PageAnswer, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.structured.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.reading.text.plain_text import decode, phrases_of
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.groups import Company
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.changes import Cause, Origin, set_origins
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.claims import set_progress
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, FORBIDDEN, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import host_of

_PHRASES = phrases_of("ingestion_pipeline.companies.analysis")
TECH_CAP = 100  # points that technologies come to at most
REMOTE_BONUS = 15
MACHINE_LEARNING_BONUS = 10
TIER_FLOORS = {"S": 150, "A": 100, "B": 70, "C": 50}  # points; fewer are tier D
# A company's texts must be longer, in characters.
ABOUT_MINIMAL, CULTURE_MINIMAL = 50, 25
ABOUT_GOOD, CULTURE_GOOD = 100, 50
LARGE_EMPLOYEES = 10_000
SMALL_EMPLOYEES = 100  # below this it is small
POINTS_PER_RANK = 5  # skills are ranked 1 to 10: two of rank 10 reach the cap
MAX_EMPLOYEES = 10_000_000  # a larger number is not a head count


@dataclass(frozen=True, slots=True, kw_only=True)
class Employees:
    """A head count range; `high` is None where only "more than" is stated."""

    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The points, their parts, and the resulting tier."""

    points: int
    parts: Mapping[str, int]
    tier: str


def completeness(*, name: str | None, website: str | None, about: str | None, culture: str | None) -> Completeness:
    """Return the level: texts must be longer than the thresholds."""
    about_length, culture_length = len(about or ""), len(culture or "")
    if not (name and website):
        return Completeness.THIN
    if about_length > ABOUT_GOOD and culture_length > CULTURE_GOOD:
        return Completeness.GOOD
    is_minimal = about_length > ABOUT_MINIMAL or culture_length > CULTURE_MINIMAL
    return Completeness.MINIMAL if is_minimal else Completeness.THIN


def size_category(employees: Employees | None) -> str | None:
    """Return large, medium or small; None if the head count is unknown."""
    if employees is None:
        return None
    if employees.low >= LARGE_EMPLOYEES:
        return "large"
    most = employees.low if employees.high is None else employees.high
    return "small" if most < SMALL_EMPLOYEES else "medium"


_RANGE = re.compile(_PHRASES["head_count"])
_FEWER = re.compile(r"\b(?:under|up to|fewer than|less than|unter|bis zu)\s*$", re.IGNORECASE)


def employees_in(stated: str | None) -> Employees | None:
    """Parse a phrase such as "51-200 employees" or "10,000+"; None if it has no head count."""
    match = _RANGE.search(stated or "")
    if stated is None or match is None:
        return None
    low = _whole(match["low"], match["low_k"] or (match["high_k"] if match["to"] else None))
    high = _whole(match["high"], match["high_k"]) if match["high"] else None
    if match["more"] is None and high is None:
        high = low
    if _FEWER.search(stated[: match.start()]):
        low = 1
    if not 0 < low <= MAX_EMPLOYEES or (high is not None and not low <= high <= MAX_EMPLOYEES):
        return None
    return Employees(low=low, high=high)


def _whole(digits: str, thousands: str | None) -> int:
    number = int(re.sub("[^0-9]", "", digits)[:12])
    return number * 1_000 if thousands else number


def scoring_hash(ranks: Mapping[str, int], rules: Company) -> str:
    """Return a hash of ranks and rules: equal hashes give a company equal scores."""
    constants = [TECH_CAP, REMOTE_BONUS, MACHINE_LEARNING_BONUS, TIER_FLOORS]
    serialised = json.dumps([sorted(ranks.items()), rules.model_dump(mode="json"), constants], sort_keys=True)
    return sha256(serialised.encode()).hexdigest()


def rank_points(skills: Mapping[str, int]) -> dict[str, int]:
    """Return the points of each skill of a profile, by its rank."""
    return {skill: rank * POINTS_PER_RANK for skill, rank in skills.items()}


def tech_alignment(tech_stack: Mapping[str, Sequence[str]], ranks: Mapping[str, int], *, cap: int) -> int:
    """Return the points of the profile's skills that the company uses, at most `cap`; spellings count once."""
    used = {canonical_name(name) for names in tech_stack.values() for name in names}
    best: dict[str, int] = {}
    for skill, points in ranks.items():
        best[canonical_name(skill)] = max(points, best.get(canonical_name(skill), 0))
    points = sum(points for skill, points in best.items() if skill in used)
    return max(0, min(cap, points))


def score(
    *,
    tech_stack: Mapping[str, Sequence[str]],
    is_remote_first: bool | None,
    places: Iterable[str],
    ranks: Mapping[str, int],
    rules: Company,
) -> Score:
    """Return the points by the settings; only stated facts count."""
    city = re.compile(rf"(?<!\w){re.escape(rules.bonus_city)}(?!\w)", re.IGNORECASE)
    is_there = bool(rules.bonus_city) and any(city.search(place) for place in places)
    parts = {
        "city": rules.bonus_points if is_there else 0,
        "tech": tech_alignment(tech_stack, ranks, cap=TECH_CAP),
        "remote": REMOTE_BONUS if is_remote_first else 0,
        "machine_learning": MACHINE_LEARNING_BONUS if tech_stack.get(MACHINE_LEARNING) else 0,
    }
    points = sum(parts.values())
    return Score(points=points, parts=parts, tier=tier_of(points))


def tier_of(points: int) -> str:
    """Return the tier: S, A, B, C or D."""
    return next((tier for tier, floor in TIER_FLOORS.items() if points >= floor), "D")


MIN_PARAGRAPH_CHARACTERS = 60  # characters; shorter lines are menus, buttons and captions
MAX_PARAGRAPHS = 4

_SIZES = [re.compile(statement) for statement in _PHRASES.each("sizes")]
_SEATS = [re.compile(statement) for statement in _PHRASES.each("seats")]
_FOUNDED = re.compile(_PHRASES["founded"])
_INDUSTRY = re.compile(rf"^(?:industry|sector|branche|secteur){_PHRASES['then']}([^\n]{{2,80}})$", re.I | re.M)
_MISSION = re.compile(_PHRASES["mission"])
_HEADINGS = {field: re.compile(heading, re.I) for field, heading in _PHRASES.by_name("headings").items()}
_REMOTE_FIRST = re.compile(_PHRASES["remote_first"], re.IGNORECASE)
_NOT_REMOTE = re.compile(r"\b(?:not|no longer|never|isn't|aren't|nicht)\W+(?:\w+\W+){0,3}$", re.I)
_LEGAL = re.compile(_PHRASES["legal"], re.IGNORECASE)
_OFFICE = re.compile(_PHRASES["office"], re.IGNORECASE)


def text_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """Yield the fields that rules find in the page's text, the most reliable value first."""
    for name, value in _rule_values(page):
        fact = make_fact(name, value, page=page, method=FactMethod.TEXT)
        if fact is not None and fact.grounding.is_proof:
            yield name, fact


def is_remote_first(text: str) -> bool | None:
    """Return True if the text says that the company is remote first, None if it does not say."""
    matches = _REMOTE_FIRST.finditer(text)
    is_stated = any(not _NOT_REMOTE.search(text[max(0, match.start() - 40) : match.start()]) for match in matches)
    return True if is_stated else None


def offices_in(text: str) -> list[str]:
    """Return the lines that mention an office or a head office."""
    return [line[:300] for line in text.split("\n") if _OFFICE.search(line)][:50]


def _rule_values(page: CompanyPage) -> Iterator[tuple[str, str | int]]:
    yield from _section_values(page)
    text = page.text
    if (mission := _MISSION.search(text)) is not None:
        yield "mission", mission[1].strip()
    if page.role is Role.CULTURE and (paragraphs := _paragraphs(text)):
        yield "culture", paragraphs
    if page.role is Role.ABOUT and (paragraphs := _paragraphs(text)):
        yield "about", paragraphs
    for rule in _SIZES:
        yield from (("size", size) for match in rule.finditer(text) if (size := _size(match)))
    for rule in _SEATS:
        yield from (("headquarters", match[1]) for match in rule.finditer(text))
    if (industry := _INDUSTRY.search(text)) is not None:
        yield "industry", industry[1]
    if (founded := _FOUNDED.search(text)) is not None:
        yield "founded", int(founded[1])


def _section_values(page: CompanyPage) -> Iterator[tuple[str, str]]:
    """Yield fields from sections with known headings; careers pages often describe the culture."""
    for heading, below in page.headed:
        for name, rule in _HEADINGS.items():
            is_relevant = name != "about" or page.role in {Role.ABOUT, Role.HOME}
            if is_relevant and rule.fullmatch(heading.strip(" .:!?")) and (paragraphs := _paragraphs(below)):
                yield name, paragraphs


def _paragraphs(text: str) -> str | None:
    """Return the first lines that are full sentences, joined; None if there is none."""
    paragraphs = [
        line for line in text.split("\n") if len(line) >= MIN_PARAGRAPH_CHARACTERS and not _LEGAL.search(line)
    ]
    return "\n".join(paragraphs[:MAX_PARAGRAPHS]) or None


def _size(match: re.Match[str]) -> str | None:
    """Return the phrase if its number can be a head count; a year before "employees" is not one."""
    employees = employees_in(match[1])
    is_year = bool(re.fullmatch(r"(?:19|20)[0-9]{2}", match[1]))
    return " ".join(match[0].split()) if employees and not is_year else None


_ORDER = {Role.ABOUT: 0, Role.HOME: 1, Role.CULTURE: 2, Role.CAREERS: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a company's pages state, before evaluation."""

    name: str | None
    website: str
    facts: Facts
    tech_stack: Mapping[str, list[str]]
    is_remote_first: bool | None
    places: tuple[str, ...]
    boards: tuple[FoundBoard, ...]
    pages: tuple[CompanyPage, ...]
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:  # noqa: ANN401 - text or a year
        """Return the field's value; None if no page states it."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    @property
    def missing(self) -> list[str]:
        """Return the fields that no page states."""
        return [name for name in FIELDS if name not in self.facts]

    def with_more(self, facts: Facts, *notes: str) -> "Findings":
        """Return a copy with facts added for missing fields."""
        return replace(self, facts={**facts, **self.facts}, notes=(*self.notes, *notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyEvaluation:
    """Completeness, size, score and quality flags of a company."""

    completeness: Completeness
    size_category: str | None
    employees_low: int | None
    employees_high: int | None
    score: Score
    scoring_hash: str
    quality: Mapping[str, Any]


def collect_findings(pages: Sequence[CompanyPage], *, website: str, known_name: str | None = None) -> Findings:
    """Return what the pages state about the company; `known_name` overrides the stated name."""
    ordered = sorted(pages, key=lambda page: _ORDER[page.role])
    stated_name = company_name(sorted(pages, key=lambda page: page.role is not Role.HOME), website)
    name = known_name or (clean_company_name(stated_name[0]) if stated_name else None)
    text = "\n".join(page.text for page in ordered)
    names = [candidate for candidate in (name, stated_name[0] if stated_name else None) if candidate]
    offices = [place for page in ordered for place in places_of(page, website)]
    facts = _facts(ordered, website)
    seat = facts.get("headquarters")
    return Findings(
        name=name,
        website=website,
        facts=facts,
        tech_stack=technologies_in(text),
        is_remote_first=is_remote_first(text),
        places=(*([str(seat.value)] if seat else []), *offices, *offices_in(text)),
        boards=tuple(boards_in(pages, home=website, names=names)),
        pages=tuple(ordered),
    )


def evaluate_company(findings: Findings, *, ranks: Mapping[str, int], rules: Company) -> CompanyEvaluation:
    """Return completeness, size, score and quality flags, computed with the settings."""
    employees = employees_in(findings.value("size"))
    level = completeness(
        name=findings.name, website=findings.website, about=findings.value("about"), culture=findings.value("culture")
    )
    return CompanyEvaluation(
        completeness=level,
        size_category=size_category(employees),
        employees_low=employees.low if employees else None,
        employees_high=employees.high if employees else None,
        score=score(
            tech_stack=findings.tech_stack,
            is_remote_first=findings.is_remote_first,
            places=findings.places,
            ranks=ranks,
            rules=rules,
        ),
        scoring_hash=scoring_hash(ranks, rules),
        quality={
            "level": level.value,
            "missing": [*([] if findings.name else ["name"]), *findings.missing],
            **({"notes": list(findings.notes)} if findings.notes else {}),
        },
    )


def _facts(pages: Sequence[CompanyPage], website: str) -> dict[str, Fact]:
    """Return the first fact of each field, ordered by extraction method and then by page."""
    facts: dict[str, Fact] = {}
    from_data = [named_fact for page in pages for named_fact in embedded_facts(page, website)]
    from_text = [named_fact for page in pages for named_fact in text_facts(page)]
    from_head = [named_fact for page in pages for named_fact in head_facts(page)]
    # Meta tags are written for search engines: the visible text is better.
    for name, fact in (*from_data, *from_text, *from_head):
        facts.setdefault(name, fact)
    return facts


FETCHED = "fetched"  # the stage of a task while its pages are fetched
MAX_SITEMAP_PAGES = 200


@dataclass(slots=True)
class CompanyCrawl:
    """The crawl of one company's pages under one claim; `state` mirrors the task's state."""

    ctx: RunContext
    visitor: PoliteVisitor
    archive: SnapshotArchive
    host: HostLease
    source: Source
    task: Task
    state: dict[str, Any]

    async def all_pages(self, website: str) -> list[CompanyPage]:
        """Return the home page and the pages it leads to; raise if the home page fails."""
        try:
            home = await self._page(PageToFetch(url=website, role=Role.HOME, named_by="source"))
        except Resource as error:
            if error.code == FORBIDDEN:  # retrying would not help
                raise Permanent(error.text, code=FORBIDDEN) from error
            raise
        pages = [home]
        targets = named_pages(home.anchors, home=home.url, named_by="navigation")
        if missing_roles(page.role for page in targets):
            links = [SiteLink(url=url, text="") for url in await self._sitemap(home.url)]
            targets += named_pages(links, home=home.url, named_by="sitemap", existing=targets)
        for page in targets:
            pages += await self._optional(page, home.url)
        for role in missing_roles(page.role for page in pages):
            pages += await self._guessed(role, home.url)
        pages += await self._deeper(pages, home.url, targets)
        return pages

    async def _optional(self, target: PageToFetch, home: str) -> list[CompanyPage]:
        """Return the page, or an empty list after recording the failure."""
        if any(failure["asked"] == target.url for failure in self.state.get("failed", ())):
            return []
        try:
            page = await self._page(target)
        except WorkError as error:
            if not self._is_dispensable(error):
                raise
            failed = {"asked": target.url, "role": target.role.value, "named_by": target.named_by, "code": error.code}
            self.state = self.state | {"failed": [*self.state.get("failed", ()), failed]}
            await asyncio.to_thread(self._save_progress)
            return []
        return [] if page_key(page.url) == page_key(home) else [page]

    def _is_dispensable(self, error: WorkError) -> bool:
        """Return whether to continue without it: missing, forbidden, or out of attempts."""
        if isinstance(error, Permanent):
            return error.code not in BLOCKED_CODES
        if isinstance(error, Transient):
            return self.task.attempts >= self.ctx.settings.work.max_attempts
        return isinstance(error, Resource) and error.code == FORBIDDEN

    async def _guessed(self, role: Role, home: str) -> list[CompanyPage]:
        for target in guessed_pages(home, role):
            if pages := await self._optional(target, home):
                return pages
        return []

    async def _deeper(
        self, pages: Sequence[CompanyPage], home: str, targets: Sequence[PageToFetch]
    ) -> list[CompanyPage]:
        """Return the job list that a careers page links to, if it is a page of its own."""
        careers = [page for page in pages if page.role is Role.CAREERS]
        links = [link for page in careers for link in page.anchors if role_of(link.url, link.text) is Role.CAREERS]
        fetched = [PageToFetch(url=page.url, role=page.role, named_by="") for page in pages]
        deeper = named_pages(links, home=home, named_by="careers page", existing=[*targets, *fetched])
        return await self._optional(deeper[0], home) if deeper else []

    async def _sitemap(self, home: str) -> list[str]:
        """Return the sitemap's URLs whose path names a role; empty if there is no sitemap."""
        if "sitemap" not in self.state:
            named = [url for url in await self._read_sitemap(home) if role_of(url)]
            self.state["sitemap"] = named[:MAX_SITEMAP_PAGES]
            await asyncio.to_thread(self._save_progress)
        return list(self.state["sitemap"])

    async def _read_sitemap(self, home: str) -> list[str]:
        url = f"{home.split('://', 1)[0]}://{host_of(home)}/sitemap.xml"
        try:
            sitemap = await self._fetch_sitemap(url)
            if sitemap.is_index and sitemap.entries:
                of_pages = [entry.url for entry in sitemap.entries if "page" in entry.url.lower()]
                inner = (of_pages or [entry.url for entry in sitemap.entries])[0]
                sitemap = await self._fetch_sitemap(inner, depth=1)
        except WorkError as error:
            if not self._is_dispensable(error):
                raise
            return []
        return [] if sitemap.is_index else [entry.url for entry in sitemap.entries]

    async def _fetch_sitemap(self, url: str, *, depth: int = 0) -> Sitemap:
        answer = await self._visit(PageVisit(url=url, is_data=True))
        if not isinstance(answer, NewPage):
            raise Permanent(f"{url} returned no body", code="empty_body")
        return read_sitemap(answer.body, url=answer.final_url, content_type=answer.content_type, depth=depth)

    async def _page(self, target: PageToFetch) -> CompanyPage:
        """Return the page, from its snapshot if this task has fetched it, else by fetching it."""
        stored = await asyncio.to_thread(self._load_page, target.url)
        if stored is None:
            known_page = await asyncio.to_thread(self._known_page, target.url)
            answer = await self._visit(PageVisit(url=target.url, known_page=known_page))
            entry = await asyncio.to_thread(self._save_page, target, answer)
            stored = await asyncio.to_thread(self._snapshot_page, int(entry["snapshot"]))
        html = decode(stored.body, stored.content_type)
        page = await asyncio.to_thread(parse_company_page, html, url=stored.url, role=target.role)
        return replace(page, may_ask_models=not self.ctx.settings.rights.honour or allows_models(stored.rights))

    async def _visit(self, visit: PageVisit) -> PageAnswer:
        return await self.visitor.visit(
            visit,
            host=self.host,
            honours_robots=not self.source.ignores_robots,
            own=host_of(self.task.url or self.source.url),
        )

    def _load_page(self, url: str) -> CrawledPage | None:
        """Return the page that this task fetched; None if it did not, or its snapshot is gone."""
        entry = next((saved for saved in self._page_entries() if saved["asked"] == url), None)
        if entry is None:
            return None
        try:
            return self._snapshot_page(int(entry["snapshot"]))
        except (NoResultFound, WorkError):
            self.state = self.state | {"pages": [saved for saved in self._page_entries() if saved is not entry]}
            return None

    def _known_page(self, url: str) -> KnownPage | None:
        with self.ctx.store.read() as connection:
            return self.archive.known_pages(connection, [url]).get(url)

    def _save_page(self, target: PageToFetch, answer: PageAnswer) -> Mapping[str, Any]:
        """Store the page as a snapshot and in the task's state, in one transaction."""
        now = self.ctx.store.now()
        is_new = isinstance(answer, NewPage)
        stored = self.archive.store([(self.source.id, answer)], now=now) if is_new else ()
        with self.ctx.store.begin() as connection:
            if isinstance(answer, NewPage):
                snapshot = self.archive.keep(connection, stored, now=now)[0]
            else:
                self.archive.renew(connection, [answer])
                snapshot = answer.known_page.snapshot_id
            entry = {"asked": target.url, "role": target.role.value, "named_by": target.named_by, "snapshot": snapshot}
            self.state = self.state | {"pages": [*self._page_entries(), entry]}
            set_progress(connection, self.task, stage=FETCHED, state=self.state)
        self.task = replace(self.task, stage=FETCHED, state=self.state)
        return entry

    def _save_progress(self) -> None:
        with self.ctx.store.begin() as connection:
            set_progress(connection, self.task, stage=FETCHED, state=self.state)
        self.task = replace(self.task, stage=FETCHED, state=self.state)

    def _snapshot_page(self, snapshot_id: int) -> CrawledPage:
        return self.archive.stored(KnownPage(snapshot_id=snapshot_id, content_hash=""))

    def _page_entries(self) -> list[Mapping[str, Any]]:
        return list(self.state.get("pages", ()))


# Columns whose change is news; the others say how a value was found.
_NEWS_FIELDS = (*FIELDS, "name", "tech_stack", "score", "is_remote_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyAnalysed:
    """An analysed company; `failed` has the error codes of failed pages by URL."""

    task: Task
    company_id: str
    source: Source
    findings: Findings
    evaluation: CompanyEvaluation
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


def save_company(
    connection: Connection, analysed: CompanyAnalysed, *, now: datetime, settings: Settings, run_id: str | None = None
) -> None:
    """Update the company's record, where values no longer found stay, and spawn a discovery of each new board."""
    # Polls are locked before the company everywhere.
    lock_polls(connection, [analysed.source.id])
    before = company(connection, analysed.company_id)
    if before is None:
        return
    cause = Cause.FIRST_SYNC if before["analyzed_at"] is None else Cause.SOURCE_CHANGED
    origin = Origin(cause=cause, source_id=analysed.source.id, run_id=run_id)
    set_origins(connection, {}, now=now, default=origin)
    boards = [
        _board(connection, analysed, board, before, now=now, settings=settings) for board in analysed.findings.boards
    ]
    values = _values(analysed, before) | {"boards": boards}
    is_thin = analysed.evaluation.completeness is Completeness.THIN
    connection.execute(
        update(companies)
        .where(companies.c.id == analysed.company_id)
        .values(
            **values,
            status=(CompanyStatus.PENDING if is_thin else CompanyStatus.ACTIVE).value,
            failure=None,
            tracking_id=analysed.task.tracking_id,
            analyzed_at=now,
            updated_at=now,
        )
    )
    poll_results.complete_crawl(
        connection,
        analysed.source.id,
        outcome=summary(analysed),
        records=1,
        has_news=any(values[name] != before[name] for name in _NEWS_FIELDS),
        now=now,
    )


def summary(analysed: CompanyAnalysed) -> str:
    """Return a one-line summary of the analysis."""
    findings, evaluation = analysed.findings, analysed.evaluation
    return (
        f"{evaluation.completeness.value}: {len(findings.facts)} of {len(FIELDS)} facts on"
        f" {len(findings.pages)} pages, {len(findings.boards)} boards,"
        f" {evaluation.score.points} points, tier {evaluation.score.tier}"
    )


def _values(analysed: CompanyAnalysed, before: RowMapping) -> dict[str, Any]:
    findings, evaluation = analysed.findings, analysed.evaluation
    evidence = dict(before["evidence"] or {}) | {name: fact.as_evidence() for name, fact in findings.facts.items()}
    facts = {name: findings.value(name) if name in findings.facts else before[name] for name in FIELDS}
    has_size = "size" in findings.facts
    return {
        **facts,
        "name": findings.name or before["name"],
        "employees_low": evaluation.employees_low if has_size else before["employees_low"],
        "employees_high": evaluation.employees_high if has_size else before["employees_high"],
        "size_category": evaluation.size_category if has_size else before["size_category"],
        "is_remote_first": findings.is_remote_first,
        "tech_stack": {group: list(names) for group, names in findings.tech_stack.items()},
        "score": evaluation.score.points,
        "score_parts": dict(evaluation.score.parts),
        "tier": evaluation.score.tier,
        "scoring_hash": evaluation.scoring_hash,
        "quality": {
            **evaluation.quality,
            "pages": [page.url for page in findings.pages],
            **({"pages_failed": dict(analysed.failed)} if analysed.failed else {}),
        },
        "evidence": evidence,
    }


def _board(
    connection: Connection,
    analysed: CompanyAnalysed,
    board: FoundBoard,
    before: RowMapping,
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Any]:
    """Return the board as stored in the record; the results of an earlier discovery stay."""
    earlier: list[dict[str, Any]] = before["boards"] or []
    previous = next((saved for saved in earlier if saved.get("url") == board.url), None)
    entry = dict(board.as_dict())
    if previous is not None:
        entry |= {name: previous.get(name) for name in ("confidence", "note", "source_id")}
    source_id = find_board_source(connection, platform=board.platform, url=board.url)
    if source_id is not None:
        return entry | {"source_id": source_id}
    if not board.has_reader:
        return entry
    discovery = NewTask(
        kind=SOURCE_DISCOVERY,
        dedupe_key=board.url,
        not_before=now,
        source_id=analysed.source.id,
        url=board.url,
        shard=analysed.source.shard,
        payload={"company_id": analysed.company_id, "platform": board.platform, "token": board.token},
    )
    made = spawn(connection, analysed.task, discovery, now=now, policy=settings.work)
    return entry | ({"note": f"refused: {made.value}"} if isinstance(made, Refusal) else {})
