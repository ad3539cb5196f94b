"""One pass through a company's pages, politely; each page is kept at once, so none is asked twice.

What was seen stands in the task's state: whoever goes on after a crash begins with what is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.exc import NoResultFound

from ingestion_pipeline.companies.analysis.analysis import see_page
from ingestion_pipeline.companies.analysis.facts import CompanyPage
from ingestion_pipeline.companies.analysis.site import (
    PageToFetch,
    Role,
    SiteLink,
    guessed_pages,
    missing_roles,
    named_pages,
    role_of,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.archive import SnapshotArchive
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import (
    CrawledPage,
    KnownPage,
    NewPage,
    PageAnswer,
    PageVisit,
)
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.structured.sitemaps import Sitemap, read_sitemap
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import (
    FORBIDDEN,
    WALL_CODES,
    Permanent,
    Resource,
    Transient,
    WorkError,
)
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import set_progress
from ingestion_pipeline.urls import BadUrl, canonical_url, host_of

FETCHED = "fetched"  # the stage of a task while its pages come in
MAX_SITEMAP_PAGES = 200


@dataclass(slots=True)
class Visits:
    """The pages of one company, for one claim; `state` is what the task's row knows of them."""

    shop: RunContext
    visitor: PoliteVisitor
    archive: SnapshotArchive
    host: HostLease
    source: Source
    task: Task
    state: dict[str, Any]

    async def all_pages(self, website: str) -> list[CompanyPage]:
        """The home page and what it leads to; a home page that cannot be had is an error."""
        home = await self._needed(PageToFetch(url=website, role=Role.HOME, named_by="source"))
        pages = [home]
        wanted = named_pages(home.anchors, home=home.url, named_by="navigation")
        if missing_roles(one.role for one in wanted):
            listed = await self._sitemap(home.url)
            links = [SiteLink(url=url, text="") for url in listed]
            wanted += named_pages(links, home=home.url, named_by="sitemap", known=wanted)
        for one in wanted:
            pages += await self._optional(one, home.url)
        for role in missing_roles(one.role for one in pages):
            pages += await self._guessed(role, home.url)
        pages += await self._deeper(pages, home.url, wanted)
        return pages

    async def _needed(self, wanted: PageToFetch) -> CompanyPage:
        try:
            return await self._seen(wanted)
        except Resource as error:
            if error.code == FORBIDDEN:  # it will be so tomorrow
                raise Permanent(error.text, code=FORBIDDEN) from error
            raise

    async def _optional(self, wanted: PageToFetch, home: str) -> list[CompanyPage]:
        """The page, or nothing and a note why: one that is not there is no failure."""
        if wanted.url in self._failed():
            return []
        try:
            page = await self._seen(wanted)
        except WorkError as error:
            if not self._may_do_without(error):
                raise
            await self._note(wanted, error)
            return []
        is_home = _same(page.url, home)
        return [] if is_home else [page]

    def _may_do_without(self, error: WorkError) -> bool:
        """Whether to go on without the page: it is not there, forbidden, or failed to the last."""
        if isinstance(error, Permanent):
            return error.code not in WALL_CODES
        if isinstance(error, Transient):
            return self.task.attempts >= self.shop.settings.work.max_attempts
        return isinstance(error, Resource) and error.code == FORBIDDEN

    async def _guessed(self, role: Role, home: str) -> list[CompanyPage]:
        for one in guessed_pages(home, role):
            if found := await self._optional(one, home):
                return found
        return []

    async def _deeper(
        self, pages: Sequence[CompanyPage], home: str, known: Sequence[PageToFetch]
    ) -> list[CompanyPage]:
        """The list of jobs that a page for applicants leads to, if it is a page of its own."""
        careers = [page for page in pages if page.role is Role.CAREERS]
        links = [
            one
            for page in careers
            for one in page.anchors
            if role_of(one.url, one.text) is Role.CAREERS
        ]
        asked = [*known, *(PageToFetch(url=one.url, role=one.role, named_by="") for one in pages)]
        further = named_pages(links, home=home, named_by="careers page", known=asked)[:1]
        found: list[CompanyPage] = []
        for one in further:
            found += await self._optional(one, home)
        return found

    async def _sitemap(self, home: str) -> list[str]:
        """The addresses of the sitemap that are called like a page we want; none if it has none."""
        if "sitemap" not in self.state:
            named = [url for url in await self._read_sitemap(home) if role_of(url)]
            self.state["sitemap"] = named[:MAX_SITEMAP_PAGES]
            await asyncio.to_thread(self._remember)
        return list(self.state["sitemap"])

    async def _read_sitemap(self, home: str) -> list[str]:
        url = f"{home.split('://', 1)[0]}://{host_of(home)}/sitemap.xml"
        try:
            found = await self._one_sitemap(url)
            if found.is_index and found.entries:
                of_pages = [one.url for one in found.entries if "page" in one.url.lower()]
                inner = (of_pages or [one.url for one in found.entries])[0]
                found = await self._one_sitemap(inner, depth=1)
        except WorkError as error:
            if not self._may_do_without(error):
                raise
            return []
        return [] if found.is_index else [one.url for one in found.entries]

    async def _one_sitemap(self, url: str, *, depth: int = 0) -> Sitemap:
        answer = await self._visit(PageVisit(url=url, is_data=True))
        if not isinstance(answer, NewPage):
            raise Permanent(f"{url} was not sent", code="empty_body")
        return read_sitemap(
            answer.body, url=answer.final_url, content_type=answer.content_type, depth=depth
        )

    # --- one page

    async def _seen(self, wanted: PageToFetch) -> CompanyPage:
        """The page, from what is kept if this task has had it; else it is asked for and kept."""
        stored = await asyncio.to_thread(self._had, wanted.url)
        if stored is None:
            known = await asyncio.to_thread(self._known, wanted.url)
            answer = await self._visit(PageVisit(url=wanted.url, known=known))
            kept = await asyncio.to_thread(self._keep, wanted, answer)
            stored = await asyncio.to_thread(self._stored, int(kept["snapshot"]))
        html = decode(stored.body, stored.content_type)
        return await asyncio.to_thread(see_page, html, url=stored.url, role=wanted.role)

    async def _visit(self, visit: PageVisit) -> PageAnswer:
        return await self.visitor.visit(
            visit,
            host=self.host,
            honours_robots=not self.source.ignores_robots,
            own=host_of(self.task.url or self.source.url),
        )

    def _had(self, url: str) -> CrawledPage | None:
        """The page as this task has got it; None if it has not, or if it was cleared away since."""
        kept = next((one for one in self._kept() if one["asked"] == url), None)
        if kept is None:
            return None
        try:
            return self._stored(int(kept["snapshot"]))
        except (NoResultFound, WorkError):
            self.state = self.state | {"pages": [one for one in self._kept() if one is not kept]}
            return None

    def _known(self, url: str) -> KnownPage | None:
        with self.shop.store.read() as connection:
            return self.archive.known(connection, [url]).get(url)

    def _keep(self, wanted: PageToFetch, answer: PageAnswer) -> Mapping[str, Any]:
        """The page is a snapshot, and the task knows it: both or neither."""
        now = self.shop.store.now()
        is_new = isinstance(answer, NewPage)
        stored = self.archive.store([(self.source.id, answer)], now=now) if is_new else ()
        with self.shop.store.begin() as connection:
            if isinstance(answer, NewPage):
                snapshot = self.archive.keep(connection, stored, now=now)[0]
            else:
                self.archive.renew(connection, [answer])
                snapshot = answer.known.snapshot_id
            kept = {
                "asked": wanted.url,
                "role": wanted.role.value,
                "named_by": wanted.named_by,
                "snapshot": snapshot,
            }
            self.state = self.state | {"pages": [*self._kept(), kept]}
            set_progress(connection, self.task, stage=FETCHED, state=self.state)
        self.task = replace(self.task, stage=FETCHED, state=self.state)
        return kept

    async def _note(self, wanted: PageToFetch, error: WorkError) -> None:
        failed = {
            "asked": wanted.url,
            "role": wanted.role.value,
            "named_by": wanted.named_by,
            "code": error.code,
        }
        self.state = self.state | {"failed": [*self.state.get("failed", ()), failed]}
        await asyncio.to_thread(self._remember)

    def _remember(self) -> None:
        with self.shop.store.begin() as connection:
            set_progress(connection, self.task, stage=FETCHED, state=self.state)
        self.task = replace(self.task, stage=FETCHED, state=self.state)

    def _stored(self, snapshot_id: int) -> CrawledPage:
        return self.archive.stored(KnownPage(snapshot_id=snapshot_id, content_hash=""))

    def _kept(self) -> list[Mapping[str, Any]]:
        return list(self.state.get("pages", ()))

    def _failed(self) -> set[str]:
        return {one["asked"] for one in self.state.get("failed", ())}


def _same(one: str, other: str) -> bool:
    try:
        return canonical_url(one).rstrip("/") == canonical_url(other).rstrip("/")
    except BadUrl:
        return False
