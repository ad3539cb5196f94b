"""The analysis of one company: fetches the pages of its website, and writes what was found on them.

Each page is stored at once and noted in the task's state, so that none is fetched twice: after a crash the next
worker continues from there. Written are the company's record, discovery tasks for its boards, and its source's
health.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, update
from sqlalchemy.exc import NoResultFound

from ingestion_pipeline.companies.analysis.company_pages import (
    FIELDS,
    CompanyPage,
    PageToFetch,
    Role,
    SiteLink,
    guessed_pages,
    missing_roles,
    named_pages,
    page_key,
    parse_company_page,
    role_of,
)
from ingestion_pipeline.companies.analysis.findings import CompanyEvaluation, Findings
from ingestion_pipeline.companies.board_discovery import FoundBoard, find_board_source
from ingestion_pipeline.companies.records import SOURCE_DISCOVERY, CompanyStatus, Completeness, company
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import CrawledPage, KnownPage, NewPage, PageAnswer, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.structured.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, poll_results
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.claims import set_progress
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, FORBIDDEN, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task
from ingestion_pipeline.urls import host_of

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
        return await asyncio.to_thread(parse_company_page, html, url=stored.url, role=target.role)

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


def save_company(connection: Connection, analysed: CompanyAnalysed, *, now: datetime, settings: Settings) -> None:
    """Update the company's record, where values no longer found stay, and spawn a discovery of each new board."""
    # Polls are locked before the company everywhere.
    lock_polls(connection, [analysed.source.id])
    before = company(connection, analysed.company_id)
    if before is None:
        return
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
    source_id = find_board_source(connection, platform=board.platform, url=board.url, token=board.token)
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
