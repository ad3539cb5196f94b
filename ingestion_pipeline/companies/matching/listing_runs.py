"""Runs over listings: which are queued again, the rest of a listing from its own page, and the work loop's handler.

Queued again are those that wait for a profile, those evaluated by other rules, and replayed dead letters. Missing
descriptions are fetched politely, host by host, from the listing's page or the platform's API, while other
listings are evaluated; a few model requests run at a time. Where the page has no structured data, the cheap model
marks the first and last words of the description; the text between is cut out only if both appear on the page.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, TextClause, or_, select, update

from ingestion_pipeline.companies.boards.listing_rows import (
    close_expired,
    close_inactive_boards,
    expired_listings,
    given_ids,
    has_inactive_boards,
)
from ingestion_pipeline.companies.job_listing import (
    Listing,
    Remote,
    listing_as_dict,
    salary_as_dict,
    salary_in,
    stated_company,
)
from ingestion_pipeline.companies.matching.evaluation import (
    NO_PROFILE,
    PAGE_GONE,
    ListingEvaluator,
    ListingWriter,
    ModelScorer,
)
from ingestion_pipeline.companies.matching.profile import (
    EMPTY_PROFILE,
    BadProfile,
    NoProfile,
    Profile,
    ProfileResult,
    load_profile,
)
from ingestion_pipeline.companies.matching.tasks import (
    SCRAPED_COLUMNS,
    SNAPSHOT,
    ListingItem,
    ListingOutcome,
    ListingStage,
    ListingWork,
    MatchCounts,
    Rules,
    next_stage,
    open_listings,
)
from ingestion_pipeline.companies.places import places_as_dicts
from ingestion_pipeline.companies.platforms import job_lists, platform
from ingestion_pipeline.companies.records import JOB, ListingStatus, job_task
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed, EndedTask, NotNeeded, Skipped, TaskHandler
from ingestion_pipeline.engine.worker_loop import WorkerLoop
from ingestion_pipeline.pages.content.snapshots import SnapshotArchive
from ingestion_pipeline.pages.http.fetcher import HttpFetcher
from ingestion_pipeline.pages.politeness.host_leases import HostLease
from ingestion_pipeline.pages.visits.page import NewPage, PageVisit
from ingestion_pipeline.pages.visits.polite_visits import PoliteVisitor
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    PageText,
    Prompt,
    Question,
    open_model,
)
from ingestion_pipeline.reading.text.plain_text import packaged_data
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.changes import Cause, set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.tables import FRONTIER, LISTED, job_listings, listing_sources, sources, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker, is_any_claimable
from ingestion_pipeline.tasks.ended_tasks import requeue_task
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus
from ingestion_pipeline.urls import host_of

LISTINGS_HELD = 200  # by a run at a time
REQUEUED_AT_ONCE = 2_000  # the rest follows with the next run
_PENDING = (FRONTIER, tasks.c.kind == JOB, tasks.c.status == TaskStatus.PENDING.value)
_WAITS_FOR_PROFILE = (*_PENDING, tasks.c.error_code == NO_PROFILE)


def _make_due(connection: Connection, *conditions: ColumnElement[bool] | TextClause, now: datetime) -> int:
    waiting = (
        select(tasks.c.id)
        .where(*conditions, tasks.c.not_before > now)
        .with_for_update(skip_locked=True)  # locked tasks are being worked on
        .cte("waiting")
    )
    statement = update(tasks).where(tasks.c.id.in_(select(waiting.c.id)))
    return connection.execute(statement.values(not_before=now)).rowcount


def requeue_outdated(
    connection: Connection,
    rules: Rules,
    *,
    now: datetime,
    source_ids: Collection[str] | None = None,
    limit: int = REQUEUED_AT_ONCE,
) -> int:
    """Requeue open listings that were evaluated by other rules, at most `limit`; return how many."""
    # This check uses the index; finding the oldest reads many more rows.
    if not _has_outdated(connection, rules):
        return 0
    query = select(job_listings.c.id).where(LISTED, _has_other_rules(rules)).limit(limit)
    if source_ids is not None:
        query = query.where(job_listings.c.source_id.in_(list(source_ids)))
    chosen = connection.execute(query.order_by(job_listings.c.id)).scalars().all()
    return len(insert_tasks(connection, evaluation_tasks(connection, chosen, now=now), now=now))


def evaluation_tasks(connection: Connection, listing_ids: Collection[int], *, now: datetime) -> list[NewTask]:
    """Return an evaluation task for each of these listings that is open, in its lineage.

    Listings of a board's first sync stay unreported, whatever profile they fit later: a new profile
    is not news of the board.
    """
    requested = given_ids(connection, listing_ids)
    names = ("id", "url", "url_key", "source_id", "tracking_id", "first_seen_at")
    query = (
        select(*(job_listings.c[name] for name in names), sources.c.synced_at)
        .join(requested, requested.c.id == job_listings.c.id)
        .outerjoin(sources, sources.c.id == job_listings.c.source_id)
        .where(job_listings.c.status == ListingStatus.OPEN.value)
        .order_by(job_listings.c.id)
    )
    return [
        job_task(
            row["id"],
            row["url"] if row["url_key"] else None,  # a shared URL is not the listing's own
            row["source_id"],
            now=now,
            is_first_sync=row["synced_at"] is None or row["first_seen_at"] <= row["synced_at"],
            tracking_id=row["tracking_id"],
        )
        for row in connection.execute(query).mappings()
    ]


def _has_other_rules(rules: Rules) -> ColumnElement[bool]:
    """Select listings evaluated by other rules; those never evaluated are not selected."""
    own = rules.rules_hash("")
    judged = job_listings.c.rules_hash
    return or_(judged < own, judged >= own[:-1] + ";")  # ";" is the character after ":"


def is_work_waiting(connection: Connection, rules: Rules | None, *, now: datetime) -> bool:
    """Return whether a listing is due, waits for a profile, or has outdated rules."""
    if is_any_claimable(connection, JOB, now=now):
        return True
    if rules is None:
        return False
    sleeping = select(tasks.c.id).where(*_WAITS_FOR_PROFILE).limit(1)
    return connection.execute(sleeping).first() is not None or _has_outdated(connection, rules)


def _has_outdated(connection: Connection, rules: Rules) -> bool:
    others = select(job_listings.c.id).where(LISTED, _has_other_rules(rules)).limit(1)
    return connection.execute(others).first() is not None


def external_ids(connection: Connection, listings: Sequence[tuple[int, str]]) -> dict[int, str]:
    """Return the platform's own id of each of these listings on its first board."""
    query = select(listing_sources.c.listing_id, listing_sources.c.source_id, listing_sources.c.external_id).where(
        listing_sources.c.listing_id.in_([listing_id for listing_id, _ in listings])
    )
    boards = dict(listings)
    return {
        row.listing_id: row.external_id
        for row in connection.execute(query)
        if row.external_id and boards[row.listing_id] == row.source_id
    }


CLOSED = "no board lists it any more"


def requeue_job(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Requeue the task, or insert a new one if it was deleted or has ended since."""
    listing_id = dead_letter["payload"].get("listing_id")
    again = evaluation_tasks(connection, [] if listing_id is None else [listing_id], now=now)
    if not again:
        return CLOSED
    status = connection.execute(select(tasks.c.status).where(tasks.c.id == dead_letter["task_id"])).scalar()
    if status not in {None, TaskStatus.SKIPPED.value, TaskStatus.CANCELLED.value}:
        return requeue_task(connection, dead_letter, now)
    made = insert_tasks(connection, again, now=now)
    return "queued" if made else "already queued"


CALL_SITE = "scrape_listing"
MIN_CUT_CHARACTERS = 100
_FIELDS = ("first_words", "last_words", "company", "location", "salary")
SCHEMA = AnswerSchema(
    name="listing_detail",
    schema={
        "type": "object",
        "properties": {name: {"type": ["string", "null"]} for name in _FIELDS},
        "required": list(_FIELDS),
        "additionalProperties": False,
    },
)
PROMPT = Prompt(
    name=CALL_SITE,
    version=1,
    instructions=packaged_data("ingestion_pipeline.companies.matching", "prompts.yaml")[CALL_SITE]["instructions"],
)


async def ask_model(client: ModelClient, text: str, *, source_id: str | None) -> Mapping[str, Any]:
    """Return the listing's columns that the cheap model finds and the page proves; the whole text if nothing helps."""
    question = Question(prompt=PROMPT, schema=SCHEMA, page=PageText(text=text), extractor_version="detail 1")
    billing = Billing(call_site=CALL_SITE, source_id=source_id)
    answer = await client.ask(question, billing, tiers=[ModelTier.CHEAP])
    if not isinstance(answer, Answered):
        return {"description": text}
    return proved_columns(answer.data, text)


def proved_columns(answer: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the parts of an answer that appear in the text, as columns."""
    stated = {"company_name": stated_company(answer["company"]), "location": answer["location"]}
    columns: dict[str, Any] = {
        column: value for column, value in stated.items() if value and ground(value, text).is_proof
    }
    columns["description"] = _cut(answer, text)
    if answer["salary"] and ground(answer["salary"], text).is_proof:
        salary = salary_in(answer["salary"])
        columns |= {"salary": dict(salary_as_dict(salary))} if salary else {}
    return columns


def _cut(answer: Mapping[str, Any], text: str) -> str:
    first, last = (ground(answer[name], text) for name in ("first_words", "last_words"))
    if first.start is None or last.end is None or last.end - first.start < MIN_CUT_CHARACTERS:
        return text
    return text[first.start : last.end]


MIN_CHARACTERS = 100  # a shorter text is not a job description
MAX_CHARACTERS = 60_000
GONE = frozenset({"http_404", "http_410", "soft_not_found"})
FORBIDDEN = "blocked_by_robots"
_SAME_NAMED = ("description", "employment_type", "salary", "posted_at", "valid_until")  # in a listing and its columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """Where the rest of a listing is, and whether its board's own adapter parses it."""

    visit: PageVisit
    honours_robots: bool
    is_from_platform: bool


def detail_of(work: ListingWork, source: Source, *, external_id: str | None) -> Detail | None:
    """Return the platform's API request for the listing, else its page; None if it has neither."""
    listing = work.listing
    request = None
    try:
        adapter = platform(source.platform or "")
        board = adapter.configure(source.url, source.config)
        stated = Listing(external_id=external_id, title=listing.title, url=listing.url)
        request = board.detail_request(stated)
        honours_robots = adapter.honours_robots and not source.ignores_robots
    except ValueError:  # a bad source config; the page can still be fetched
        honours_robots = True
    if request is not None and request.body is None:
        visit = PageVisit(url=request.url, is_data=True)
        return Detail(visit=visit, honours_robots=honours_robots, is_from_platform=True)
    if listing.url is None or not work.has_own_page:
        return None
    visit = PageVisit(url=listing.url)
    return Detail(visit=visit, honours_robots=not source.ignores_robots, is_from_platform=False)


async def read_detail(
    answer: NewPage, detail: Detail, source: Source, *, now: datetime, client: ModelClient | None = None
) -> Mapping[str, Any]:
    """Return the columns that the response fills; fields it does not state are left out."""
    document = Document.of(answer.body, answer.content_type, url=answer.final_url)
    listing = _stated(answer, document, detail, source, now)
    if listing is not None:
        # The title that a sitemap's URL spells is replaced by the page's.
        return _columns(listing) | ({"title": listing.title} if source.platform == job_lists.SITEMAP.name else {})
    text = document.main_content[:MAX_CHARACTERS]
    document.release()
    if len(text.strip()) < MIN_CHARACTERS:
        raise Transient(
            f"{answer.url} has {len(text.strip())} characters of text: no description; it may need"
            " a browser, or a board of another platform",
            code="no_description",
        )
    if client is not None and answer.may_ask_models:
        return await ask_model(client, text, source_id=source.id)
    return {"description": text}


def _stated(answer: NewPage, document: Document, detail: Detail, source: Source, now: datetime) -> Listing | None:
    """Return the posting as the platform or embedded data states it; None if neither does."""
    urls = [answer.final_url]
    if detail.is_from_platform:
        board = platform(source.platform or "").configure(source.url, source.config)
        reading = board.read([answer.body], content_types=[answer.content_type], urls=urls, now=now)
    else:
        try:
            reading = job_lists.configure_json_ld(answer.final_url, {}).read_documents([document], urls=urls, now=now)
        except Permanent:
            return None
    if len(reading.records) != 1 and not detail.is_from_platform:
        return None  # several postings: it is unknown which one is meant
    return next((record for record in reading.records if record.description), None)


def _columns(listing: Listing) -> dict[str, Any]:
    stated = {**listing_as_dict(listing), "company_name": stated_company(listing.company)}
    stated |= {"posted_at": listing.posted_at, "valid_until": listing.valid_until}
    stated["places"] = places_as_dicts(listing.location, *listing.other_locations) or None
    return {name: stated[name] for name in SCRAPED_COLUMNS if stated.get(name) is not None}


def with_detail(work: ListingWork, scraped: Mapping[str, Any]) -> ListingWork:
    """Return the work with the page's values where its list had none; it has its data now."""
    listing = work.listing
    remote = scraped.get("remote")
    location = scraped.get("location")
    merged = replace(
        listing,
        title=scraped.get("title") or listing.title,
        company=listing.company or scraped.get("company_name"),
        locations=listing.locations or ((location,) if location else ()),
        remote=listing.remote or (Remote(remote) if remote else None),
        **{name: getattr(listing, name) or scraped.get(name) for name in _SAME_NAMED},
    )
    return replace(work, listing=merged, scraped=dict(scraped), state=replace(work.state, has_data=True))


class ListingHandler(TaskHandler[ListingItem, ListingWork]):
    """Evaluates listings, for one run; missing descriptions are fetched from the listings' own pages first."""

    concurrency = 8  # listings that ask a model
    flush_after = 100
    transaction_size = 500

    def __init__(
        self,
        ctx: RunContext,
        fetcher: HttpFetcher,
        rules: Rules,
        evaluator: ListingEvaluator,
        *,
        clock: SteadyClock,
        client: ModelClient | None = None,
        source_ids: Sequence[str] | None = None,
    ) -> None:
        self.host_concurrency = ctx.settings.polling.concurrency
        self.capacity = LISTINGS_HELD
        self.policy = ctx.settings.work
        self.boards: set[str] = set()  # with evaluated listings
        self._ctx = ctx
        self._rules = rules
        self._evaluator = evaluator
        self._client = client
        self._clock = clock
        self._source_ids = source_ids
        self._visitor = PoliteVisitor(fetcher, None, clock, ctx.settings)
        self._archive = SnapshotArchive(ctx.store, ctx.content, ctx.run_id)
        self._turns = asyncio.Semaphore(self.concurrency)

    def claim_requests(self, room: int, held: Sequence[ListingItem]) -> Sequence[tuple[ClaimFilter, int]]:  # noqa: ARG002
        """Claim all due listings, or an equal share per board."""
        if self._source_ids is None:
            return [(ClaimFilter(kind=JOB), room)]
        share = max(1, room // max(1, len(self._source_ids)))
        return [(ClaimFilter(kind=JOB, frontier_of=source_id), share) for source_id in self._source_ids]

    def load(
        self, connection: Connection, tasks: Sequence[Task], *, now: datetime
    ) -> Sequence[ListingItem | Skipped[ListingItem]]:
        """Return the listings in their initial state, with where the rest of their data is."""
        opened = open_listings(connection, tasks, now=now)
        works = [self._started(work) for work in opened if isinstance(work, ListingWork)]
        to_scrape = [work for work in works if next_stage(work.state) is ListingStage.SCRAPE]
        sources = sources_by_id(connection, {work.source_id for work in to_scrape})
        ids = external_ids(connection, [(work.id, work.source_id) for work in to_scrape])
        scraped = {work.id: _item(work, sources.get(work.source_id), ids.get(work.id)) for work in to_scrape}
        items = [scraped.get(work.id) or ListingItem(work=work) for work in works]
        return [*items, *(outcome for outcome in opened if isinstance(outcome, Skipped))]

    def _started(self, work: ListingWork) -> ListingWork:
        was_read = bool((work.task.state or {}).get("has_data"))
        has_data = work.listing.has_text or work.listing.url is None or was_read
        return replace(work, state=self._rules.initial_state(work.listing, has_data=has_data))

    async def execute(self, item: ListingItem, host: HostLease | None) -> ListingWork:
        """Fetch the listing's own page if it is needed, and evaluate the listing."""
        if host is not None and item.source is not None and item.detail is not None:
            item.work = with_detail(item.work, await self._scraped(item.source, item.detail, host))
        item.work = self._evaluator.filtered(item.work)
        async with self._turns:
            item.work = await self._evaluator.scored(item.work)
        return item.work

    async def _scraped(self, source: Source, detail: Detail, host: HostLease) -> Mapping[str, object]:
        """Return the columns that the page fills, none if robots.txt forbids it; raise NotNeeded if it is gone."""
        try:
            answer = await self._visitor.visit(
                detail.visit, host=host, honours_robots=detail.honours_robots, own=host_of(detail.visit.url)
            )
        except WorkError as error:
            if error.code in GONE:
                raise NotNeeded(f"its own page is gone: {error}", code=PAGE_GONE) from error
            if error.code == FORBIDDEN:
                return {}
            raise
        if not isinstance(answer, NewPage):
            raise Transient(f"{detail.visit.url} returned no body", code="empty_body")
        columns = await read_detail(answer, detail, source, now=self._clock.now(), client=self._client)
        return {**columns, SNAPSHOT: await asyncio.to_thread(self._save_page, answer, source.id)}

    def _save_page(self, answer: NewPage, source_id: str) -> int:
        now = self._clock.now()
        stored = self._archive.store([(source_id, answer)], now=now)
        with self._ctx.store.begin() as connection:
            return self._archive.keep(connection, stored, now=now)[0]

    def persist(
        self, connection: Connection, outcomes: Sequence[ListingOutcome], *, now: datetime
    ) -> Sequence[EndedTask]:
        """Write companies, decisions and matches."""
        self.boards |= {outcome.value.source_id for outcome in outcomes if isinstance(outcome, Completed)}
        return ListingWriter(connection, self._ctx, self._rules, now=now).write(outcomes)


def _item(work: ListingWork, source: Source | None, external_id: str | None) -> ListingItem:
    """Return the listing with its own page; one without a page is evaluated as it is."""
    detail = source and detail_of(work, source, external_id=external_id)
    return ListingItem(work=work, source=source, detail=detail) if detail else ListingItem(work=with_detail(work, {}))


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchRunResult:
    """The evaluated `boards`, listings `closed` for their boards or deadlines, and the profile's `problem`."""

    counts: MatchCounts
    boards: frozenset[str] = frozenset()
    reevaluated: int = 0
    closed: int = 0
    problem: str | None = None


def profile_path(settings: Settings) -> Path:
    """Return the profile's path; a relative path is in the working directory."""
    return Path(settings.match.profile).expanduser().absolute()


def settings_profile(settings: Settings) -> ProfileResult:
    """Return the profile that the settings name, or why there is none."""
    return load_profile(profile_path(settings))


def are_listings_waiting(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """Return whether a run would evaluate or close anything; a bad profile evaluates none."""
    if has_inactive_boards(connection, now=now) or expired_listings(connection, now=now):
        return True
    profile = settings_profile(settings)
    if isinstance(profile, BadProfile):
        return False
    rules = Rules(profile=profile, settings=settings) if isinstance(profile, Profile) else None
    return is_work_waiting(connection, rules, now=now)


def profile_findings(settings: Settings) -> list[Finding]:
    """Return the profile's problems; empty if there is no profile."""
    profile = settings_profile(settings)
    if not isinstance(profile, BadProfile):
        return []
    return [
        Finding(subject=f"{profile.path.name}:{problem.line}", message=f"{problem.field}: {problem.message}")
        for problem in profile.problems
    ]


async def match_listings(
    ctx: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Sequence[str] | None = None,
    seconds: float | None = None,
) -> MatchRunResult:
    """Evaluate waiting listings, or those of these boards, after closing ended ones; none with a bad profile."""
    closed = await asyncio.to_thread(_close_ended, ctx)
    loaded = settings_profile(ctx.settings)
    if isinstance(loaded, BadProfile):
        log.warning("listings not evaluated: fix the profile\n%s", loaded)
        return MatchRunResult(counts=MatchCounts(), problem=str(loaded), closed=closed)
    profile = EMPTY_PROFILE if isinstance(loaded, NoProfile) else loaded
    lacking = loaded if isinstance(loaded, NoProfile) else None
    rules = Rules(profile=profile, settings=ctx.settings)
    reevaluated = await asyncio.to_thread(_prepare, ctx, rules, source_ids, lacking)
    clock = SteadyClock(await asyncio.to_thread(ctx.store.now))
    async with open_model(ctx.store, ctx.settings, is_needed=lacking is None) as client:
        scorer = client and ModelScorer(client, profile)
        handler = ListingHandler(
            ctx,
            fetcher,
            rules,
            ListingEvaluator(rules, clock=clock, scorer=scorer, lacking=lacking),
            clock=clock,
            client=client,
            source_ids=source_ids,
        )
        loop: WorkerLoop[ListingItem, ListingWork] = WorkerLoop(
            ctx, worker, fetcher, handler, clock=clock, seconds=seconds
        )
        counts = MatchCounts.of(await loop.run())
    problem = None if lacking is None else str(lacking)
    return MatchRunResult(
        counts=counts, boards=frozenset(handler.boards), reevaluated=reevaluated, closed=closed, problem=problem
    )


def _close_ended(ctx: RunContext) -> int:
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        set_origins(connection, {}, now=now, default=replace(ctx.origin, cause=Cause.OPERATOR))
        closed = close_inactive_boards(connection, now=now)
        set_origins(connection, {}, now=now, default=ctx.origin)  # a deadline that the board has stated
        return closed + close_expired(connection, now=now)


def _prepare(ctx: RunContext, rules: Rules, source_ids: Sequence[str] | None, lacking: NoProfile | None) -> int:
    """Make waiting listings due, all of boards requested by hand, and requeue outdated ones; return how many."""
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        if source_ids is not None:
            _make_due(connection, *_PENDING, tasks.c.source_id.in_(list(source_ids)), now=now)
        if lacking is not None:
            return 0
        _make_due(connection, *_WAITS_FOR_PROFILE, now=now)
    # A second transaction: a transaction that waits to insert a task must hold no other.
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        return requeue_outdated(connection, rules, now=now, source_ids=source_ids)
