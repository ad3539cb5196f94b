"""Evaluates listings by rules, or with the strong model's score grounded in the listing, and writes the results.

Companies, decisions and matches are written in one transaction. An evaluation counts only if the listing is
unchanged since it was claimed; a listing changed in between is evaluated again. The number of statements does not
grow with the number of listings.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeGuard

from sqlalchemy import Connection, Row, RowMapping, or_, select

from ingestion_pipeline.companies.boards.listing_rows import lock_listings
from ingestion_pipeline.companies.job_listing import clean_company_name, company_slug, stated_company
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_rules import BaseScore, Skill, match_result, rule_score
from ingestion_pipeline.companies.matching.profile import NoProfile, Profile
from ingestion_pipeline.companies.matching.tasks import (
    ListingItem,
    ListingOutcome,
    ListingStage,
    ListingWork,
    Rules,
    decision_of,
    next_stage,
    same_content,
    write_decisions,
    write_failures,
    write_gone,
    write_matches,
    write_progress,
    write_scraped,
)
from ingestion_pipeline.companies.records import COMPANY, CompanyStatus, ListingDecision, ListingStatus, website_key
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Completed, EndedTask, Failed, Skipped, not_done
from ingestion_pipeline.engine.worker_loop import NOT_WRITTEN
from ingestion_pipeline.reading.evidence.grounding import ground
from ingestion_pipeline.reading.llm import (
    Answered,
    AnswerSchema,
    Billing,
    ModelClient,
    ModelTier,
    OverBudget,
    PageText,
    Prompt,
    Question,
    Unanswered,
)
from ingestion_pipeline.reading.text.plain_text import packaged_data
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources.source import shard_of
from ingestion_pipeline.store.changes import LISTING, Cause, Origin, set_origins
from ingestion_pipeline.store.database import SteadyClock
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import ACTIVE, companies, job_listings, tasks
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask, ReleaseTask
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus, finished, released
from ingestion_pipeline.urls import BadUrl, canonical_url, checked_url, host_of

_ANALYSED_FIELDS = ("about", "culture", "mission", "size", "headquarters", "industry", "founded")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentifiedCompanies:
    """Companies by listing id, the new ones, and those without an analysis with their website's key if known."""

    ids: Mapping[int, str]
    made: frozenset[str]
    unanalysed: Mapping[str, str | None] = field(default_factory=dict[str, str | None])


def company_id_of(work: ListingWork) -> str | None:
    """Return the company named by the board's source, else by the listing; None if neither."""
    if work.company_id or work.source_company_id:
        return work.company_id or work.source_company_id
    name = stated_company(work.listing.company)
    return company_slug(name) if name else None


def website_of(work: ListingWork) -> str | None:
    """Return the company's website as the listing states it, if it is a valid URL."""
    stated = work.scraped.get("company_website") or work.company_website
    try:
        return None if stated is None else canonical_url(checked_url(stated))
    except BadUrl:
        return None


def identify_companies(connection: Connection, works: Sequence[ListingWork], *, now: datetime) -> IdentifiedCompanies:
    """Ensure a row for every company that a listing names; safe for concurrent workers."""
    company_ids = {work.id: company_id for work in works if (company_id := company_id_of(work))}
    rows = {company_ids[work.id]: _row(work, company_ids[work.id], now) for work in works if work.id in company_ids}
    if not rows:
        return IdentifiedCompanies(ids={}, made=frozenset())
    existing = _existing_companies(connection, rows.values())
    missing = [row for id_, row in sorted(rows.items()) if id_ not in existing]
    made: set[str] = set()
    if missing:
        statement = insert_into(connection, companies).values(missing).on_conflict_do_nothing()
        made = set(connection.execute(statement.returning(companies.c.id)).scalars())
        if len(made) < len(missing):
            existing |= _existing_companies(connection, [row for row in missing if row["id"] not in made])
    ids = {id_: existing[name]["id"] if name in existing else name for id_, name in company_ids.items()}
    pending = {
        stored["id"]: stored["website_key"]
        for stored in existing.values()
        if stored["status"] == CompanyStatus.PENDING.value
    }
    pending |= {name: rows[name]["website_key"] for name in made}
    return IdentifiedCompanies(ids=ids, made=frozenset(made), unanalysed=pending)


def _existing_companies(connection: Connection, rows: Iterable[Mapping[str, Any]]) -> dict[str, RowMapping]:
    """Return the stored company by requested id; it may be another of the same website."""
    requested = list(rows)
    keys = [row["website_key"] for row in requested if row["website_key"]]
    query = select(companies.c.id, companies.c.website_key, companies.c.status).where(
        or_(companies.c.id.in_([row["id"] for row in requested]), companies.c.website_key.in_(keys))
    )
    by_id: dict[str, RowMapping] = {row["id"]: row for row in connection.execute(query).mappings()}
    by_key = {stored["website_key"]: stored for stored in by_id.values() if stored["website_key"]}
    return {
        row["id"]: by_id[row["id"]] if row["id"] in by_id else by_key[row["website_key"]]
        for row in requested
        if row["id"] in by_id or row["website_key"] in by_key
    }


def _row(work: ListingWork, company_id: str, now: datetime) -> dict[str, Any]:
    is_own = _is_own_company(work, company_id)
    website = website_of(work) if is_own else None
    name = stated_company(work.listing.company) if is_own else None
    return {
        "id": company_id,
        "name": clean_company_name(name) if name else None,
        "website": website,
        "website_key": None if website is None else website_key(website),
        "status": CompanyStatus.PENDING.value,
        "quality": {"missing": list(_ANALYSED_FIELDS)},
        "discovered_by": f"listing:{work.id}",
        "tracking_id": work.task.tracking_id,
        "created_at": now,
        "updated_at": now,
    }


def _is_own_company(work: ListingWork, company_id: str) -> bool:
    """Return whether the listing's name and website are those of its assigned company.

    A company's board may list a partner's jobs, whose name and site are not the company's.
    """
    name = stated_company(work.listing.company)
    slug = company_slug(name) if name else company_id
    return f"{slug}-".startswith(f"{company_id}-") or f"{company_id}-".startswith(f"{slug}-")


def spawn_analyses(
    connection: Connection,
    works: Sequence[ListingWork],
    identified: IdentifiedCompanies,
    *,
    now: datetime,
    policy: Work,
) -> dict[str, int | Refusal]:
    """Spawn an analysis for each unanalysed company whose website is known and that has none.

    Return by company id the task, or why there is none. The task is a child of the listing's own task: the spawn guard
    refuses what its lineage has seen, so that a thin company, its board and its jobs do not run in circles.
    """
    first = {identified.ids[work.id]: work for work in reversed(works) if _is_unanalysed(work, identified)}
    under_way = _under_way(connection, first.keys() - identified.made)
    made: dict[str, int | Refusal] = {}
    for company_id, work in sorted(first.items()):
        if company_id in under_way:
            continue
        website = website_of(work) or ""
        child = NewTask(
            kind=COMPANY,
            dedupe_key=company_id,
            not_before=now,
            shard=shard_of(host_of(website)),
            url=website,
            payload={"company_id": company_id},
        )
        made[company_id] = spawn(connection, work.task, child, now=now, policy=policy)
    return made


def _is_unanalysed(work: ListingWork, identified: IdentifiedCompanies) -> bool:
    """Return whether the listing names the website of its own company, which has no analysis."""
    company_id, website = identified.ids.get(work.id), website_of(work)
    if company_id is None or company_id not in identified.unanalysed or website is None:
        return False
    key = identified.unanalysed[company_id]
    return _is_own_company(work, company_id) if key is None else key == website_key(website)


def _under_way(connection: Connection, company_ids: Collection[str]) -> set[str]:
    if not company_ids:
        return set()
    is_theirs = tasks.c.dedupe_key.in_(list(company_ids))
    query = select(tasks.c.dedupe_key).where(ACTIVE, tasks.c.kind == COMPANY, is_theirs)
    return set(connection.execute(query).scalars())


WAITS_FOR_COMPANY = "company_sparse"
PAGE_GONE = "page_gone"  # the code of a listing whose own page is gone
STATUSES = {
    ListingDecision.MATCHED: TaskStatus.SUCCESS,
    ListingDecision.FILTERED: TaskStatus.FILTERED,
    ListingDecision.SKIPPED: TaskStatus.SKIPPED,
}


class ListingWriter:
    """Writes outcomes in one transaction, in which all their claims are held."""

    def __init__(self, connection: Connection, ctx: RunContext, rules: Rules, *, now: datetime) -> None:
        self._connection = connection
        self._ctx = ctx
        self._rules = rules
        self._now = now
        self._ended: list[EndedTask] = []

    def write(self, outcomes: Sequence[ListingOutcome]) -> Sequence[EndedTask]:
        """Write what the outcomes change; return what becomes of their tasks."""
        rows = self._locked([_listing_id(outcome) for outcome in outcomes])
        set_origins(self._connection, self._origins(outcomes, rows), now=self._now, default=self._ctx.origin)
        skipped = [outcome for outcome in outcomes if isinstance(outcome, Skipped)]
        gone = {_listing_id(outcome): outcome.reason for outcome in skipped if outcome.code == PAGE_GONE}
        withdrawn = write_gone(self._connection, self._rules, gone, now=self._now)
        self._ended += [_skip(outcome.task, outcome.reason) for outcome in skipped]
        current = [outcome for outcome in outcomes if self._is_current(outcome, rows)]
        failures = [outcome for outcome in current if isinstance(outcome, Failed)]
        works = [_work(outcome) for outcome in current]
        identified = identify_companies(self._connection, works, now=self._now)
        evaluated = [outcome.value for outcome in current if isinstance(outcome, Completed)]
        amounts = self._write_evaluated(evaluated, identified, rows)
        self._write_failures(failures, identified)
        spawn_analyses(self._connection, works, identified, now=self._now, policy=self._ctx.settings.work)
        amounts["withdrawn"] += withdrawn
        amounts["scraped"] = sum(bool(work.scraped) for work in works)
        amounts["companies"] = len(identified.made)
        return [replace(self._ended[0], amounts=amounts), *self._ended[1:]]

    def _origins(self, outcomes: Sequence[ListingOutcome], rows: _Rows) -> dict[str, Origin]:
        """Return why the decision on each listing changes."""
        by_listing = {_listing_id(outcome): outcome.task for outcome in outcomes if _listing_id(outcome) in rows}
        return {
            f"{LISTING}{id_}": Origin(
                cause=self._cause(task, rows[id_]), source_id=task.source_id, run_id=self._ctx.run_id
            )
            for id_, task in by_listing.items()
        }

    def _cause(self, task: Task, row: Row[Any]) -> Cause:
        if row.rules_hash is None:
            return Cause.FIRST_SYNC if task.payload.get("is_first_sync") else Cause.SOURCE_CHANGED
        if not same_content(row.rules_hash, row.content_hash):
            return Cause.SOURCE_CHANGED
        # By the same profile, only a model can decide otherwise.
        return Cause.MODEL_CHANGED if row.rules_hash.startswith(self._rules.hash) else Cause.PROFILE_CHANGED

    def _locked(self, ids: Sequence[int]) -> _Rows:
        """Lock the listings before writing, in one order, to avoid deadlocks; return them by id.

        The lock on all listings also excludes a board that writes some of them step by step.
        """
        lock_listings(self._connection)
        columns = (job_listings.c[name] for name in ("id", "content_hash", "status", "decision", "rules_hash"))
        query = select(*columns).where(job_listings.c.id.in_(ids)).order_by(job_listings.c.id)
        return {row.id: row for row in self._connection.execute(query.with_for_update())}

    def _is_current(self, outcome: ListingOutcome, rows: _Rows) -> TypeGuard[CurrentOutcome]:
        """Return whether the listing is unchanged; else skip or release its task."""
        if isinstance(outcome, Skipped):
            return False
        if outcome.item is None:  # it could not be loaded
            self._ended.append(not_done(outcome))
            return False
        row = rows.get(outcome.item.work.id)
        if row is None or row.status == ListingStatus.CLOSED.value:
            self._ended.append(_skip(outcome.task, "the listing was closed meanwhile"))
            return False
        if row.content_hash == outcome.item.work.content_hash:
            return True
        changed = Resource("the listing was changed meanwhile", until=self._now, code="outdated")
        move = released(outcome.task, changed, not_before=self._now)
        self._ended.append(EndedTask(move=move, count="retried", again_at=self._now))
        return False

    def _write_evaluated(
        self, works: Sequence[ListingWork], identified: IdentifiedCompanies, rows: _Rows
    ) -> dict[str, int]:
        decisions = {work.id: decision_of(work.state) for work in works}
        works = write_scraped(self._connection, works)
        write_decisions(self._connection, self._rules, works, identified.ids, now=self._now)
        before = {id_ for id_ in decisions if rows[id_].decision == ListingDecision.MATCHED.value}
        new, withdrawn, notified = write_matches(
            self._connection, self._rules, works, identified.ids, before=before, now=self._now, run_id=self._ctx.run_id
        )
        for work in works:
            move = finished(work.task, status=STATUSES[decisions[work.id]])
            move = replace(move, stage="SAVE", state=None, error=_skip_reason(work))
            self._ended.append(EndedTask(move=move, count=decisions[work.id].value))
        return {"new_matches": new, "withdrawn": withdrawn, "told": notified}

    def _write_failures(self, failures: Sequence[Failed[ListingItem]], identified: IdentifiedCompanies) -> None:
        works = write_scraped(self._connection, [_work(failure) for failure in failures])
        write_progress(self._connection, works, identified.ids)
        self._ended += map(_failed, failures)
        failed_ids = {failure.task.id for failure in failures if isinstance(failure.decision, DeadLetterTask)}
        write_failures(self._connection, self._rules, [work for work in works if work.task.id in failed_ids])


CurrentOutcome = Completed[ListingItem, ListingWork] | Failed[ListingItem]
_Rows = Mapping[int, Row[tuple[int, str, str, str | None]]]  # id, content hash, status, decision


def _work(outcome: CurrentOutcome) -> ListingWork:
    """Return the listing with its progress; without its page's columns if these could not be written."""
    if isinstance(outcome, Completed):
        return outcome.value
    if outcome.item is None:
        raise ValueError(f"task {outcome.task.id} was not loaded")
    work = outcome.item.work
    return replace(work, scraped={}) if outcome.error.code == NOT_WRITTEN else work


def _failed(failure: Failed[ListingItem]) -> EndedTask:
    """Retry, release or dead-letter the task; its progress is stored in its state."""
    work = _work(failure)
    state: dict[str, object] = {"has_data": work.state.has_data}
    if waits := work.company_waits + (failure.error.code == WAITS_FOR_COMPANY):
        state["company_waits"] = waits
    task = replace(failure.task, stage=next_stage(work.state).value, state=state)
    if isinstance(failure.decision, DeadLetterTask):
        tries = f"after {work.task.attempts} attempts" if work.task.attempts > 1 else "at once"
        message = (
            f"failed {tries}: {failure.error}. Check {work.listing.url or f'listing {work.id}'} and fix the cause, then"
            " `ingest dead-letters replay ID` evaluates it again"
        )
        return not_done(replace(failure, task=task, error=Permanent(message, code=failure.error.code)))
    ended = not_done(replace(failure, task=task))
    if isinstance(failure.decision, ReleaseTask):
        # `released` clears the stage of a task without attempts; it is needed to resume.
        return replace(ended.with_move(stage=task.stage), count="waiting")
    return ended


def _listing_id(outcome: ListingOutcome) -> int:
    return int(outcome.task.payload.get("listing_id", 0))


def _skip_reason(work: ListingWork) -> str | None:
    """Return why the listing did not become a match, for its task's row."""
    state = work.state
    if state.stop is not None:
        return state.stop.reason
    if state.filtered is not None and not state.filtered.passed:
        return "; ".join(item.reason for item in state.filtered.items)[:2_000]
    if state.match is not None and not state.match.is_match:
        return f"below {state.match.threshold}: {state.match.reason}"[:2_000]
    return None


def _skip(task: Task, why: str) -> EndedTask:
    move = finished(task, status=TaskStatus.SKIPPED)
    return EndedTask(move=replace(move, error_code="listing_gone", error=why[:2_000]), count="skipped")


CALL_SITE = "match_listing"
MAX_CHARACTERS = 30_000
NOTE_CHARACTERS = 300
_PROMPT = packaged_data("ingestion_pipeline.companies.matching", "prompts.yaml")[CALL_SITE]
SCHEMA = AnswerSchema(name="listing_match", schema=_PROMPT["schema"])


class ModelScorer:
    """Scorer of listings for one profile with the strong model."""

    def __init__(self, client: ModelClient, profile: Profile) -> None:
        self._client = client
        self._profile = profile
        instructions: str = _PROMPT["instructions"]
        self._prompt = Prompt(
            name=CALL_SITE, version=1, instructions=instructions.format(candidate=_profile_text(profile))
        )

    async def score(self, listing: ListedJob, *, source_id: str | None) -> BaseScore | None:
        """Return the base score, None if the model gives no usable answer; raise Resource if it has to wait."""
        text = listing.text.text[:MAX_CHARACTERS]
        question = Question(
            prompt=self._prompt,
            schema=SCHEMA,
            page=PageText(text=_page(text, listing)),
            # The prompt contains the candidate, and prompts are identified by their version alone.
            extractor_version=f"match 1 {self._profile.hash[:16]}",
        )
        billing = Billing(call_site=CALL_SITE, source_id=source_id)
        match await self._client.ask(question, billing, tiers=[ModelTier.STRONG]):
            case Answered() as answer:
                return self._checked(answer, text)
            case Unanswered() | OverBudget():
                return None

    def _checked(self, answer: Answered, text: str) -> BaseScore:
        data: Mapping[str, Any] = answer.data
        own = {name.lower(): name for name in self._profile.skills}
        matched = list(_proved(data["skills_matched"], text))
        missing = list(_proved(data["skills_missing"], text))
        own_skills = [
            Skill(name=own[skill.name.lower()], start=skill.start, end=skill.end)
            for skill in matched
            if skill.name.lower() in own
        ]
        lacking = [skill for skill in missing if skill.name.lower() not in own]
        named = [str(entry["skill"]) for key in ("skills_matched", "skills_missing") for entry in data[key]]
        proved = {skill.name.lower() for skill in (*own_skills, *lacking)}
        return BaseScore(
            score=int(data["score"]),
            method="model",
            model=answer.model,
            matched=_each_once(own_skills),
            missing=_each_once(lacking),
            notes=" ".join(str(data["summary"]).split())[:NOTE_CHARACTERS],
            dropped=tuple(name[:80] for name in named if name.lower() not in proved),
        )


def _proved(entries: list[Mapping[str, str]], text: str) -> Iterator[Skill]:
    """Yield the skills that appear in the listing, or whose quote does and mentions them."""
    for entry in entries:
        skill = " ".join(entry["skill"].split())[:80]
        grounding = ground(skill, text)
        if not grounding.is_proof and (quoted := ground(entry["quote"], text)).is_proof:
            grounding = quoted if _mentions(skill, entry["quote"]) else grounding
        if skill and grounding.is_proof:
            yield Skill(name=skill, start=grounding.start, end=grounding.end)


def _mentions(skill: str, quote: str) -> bool:
    """Return whether the quote is about the skill: it has every word of it, in any order."""
    words = re.findall(r"\w{2,}", skill.lower())
    return bool(words) and set(words) <= set(re.findall(r"\w+", quote.lower()))


def _each_once(skills: list[Skill]) -> tuple[Skill, ...]:
    return tuple({skill.name.lower(): skill for skill in reversed(skills)}.values())[::-1]


def _page(text: str, listing: ListedJob) -> str:
    """Return the text first, so that offsets in it are offsets in the listing, then the facts."""
    facts = [f"Company: {listing.company}"] if listing.company else []
    facts += [f"Locations: {'; '.join(listing.locations)}"] if listing.locations else []
    return "\n\n".join([text, "\n".join(facts)]) if facts else text


def _profile_text(profile: Profile) -> str:
    skills = ", ".join(f"{name} {rank}" for name, rank in profile.skills.items())
    lines = [f"skills with ranks: {skills}"]
    if profile.seniority.wanted:
        lines.append(f"seniority wanted: {', '.join(profile.seniority.wanted)}")
    if profile.roles:
        liked = ", ".join(f"{name} {points:+d}" for name, points in profile.roles.items())
        lines.append(f"roles, liked above 0: {liked}")
    return "\n".join(lines)


NO_PROFILE = "no_profile"
COMPANY_WAIT = timedelta(minutes=1)  # each time that a listing waits for its company's data
NO_PROFILE_WAIT = timedelta(hours=1)  # due at once when there is one: see `match_listings`
_ANALYSIS_AHEAD = frozenset({CompanyStatus.PENDING, CompanyStatus.ANALYZING})


class ListingEvaluator:
    """Evaluator of listings by one set of rules, and by the strong model if it has a scorer."""

    def __init__(
        self, rules: Rules, *, clock: SteadyClock, scorer: ModelScorer | None = None, lacking: NoProfile | None = None
    ) -> None:
        self._rules = rules
        self._clock = clock
        self._scorer = scorer
        self._lacking = lacking

    def filtered(self, work: ListingWork) -> ListingWork:
        """Return the listing after its filters, unless it has passed them already."""
        if next_stage(work.state) is not ListingStage.FILTER:
            return work
        return replace(work, state=self._rules.filtered(work.state, work.listing, at=work.at))

    async def scored(self, work: ListingWork) -> ListingWork:
        """Return the filtered listing with its decision; raise Resource to wait for a profile or a company."""
        if next_stage(work.state) is ListingStage.SAVE:
            return work
        if (reason := self._reason_to_wait(work)) is not None:
            raise reason
        if self._scorer is None:
            base = rule_score(work.listing, self._rules.profile)
        else:
            base = await self._scorer.score(work.listing, source_id=work.source_id) or replace(
                rule_score(work.listing, self._rules.profile), notes="the model gave no usable answer"
            )
        match = match_result(work.listing, self._rules.profile, base, self._rules.settings.match, at=work.at)
        return replace(work, state=replace(work.state, match=match))

    def _reason_to_wait(self, work: ListingWork) -> Resource | None:
        """Return an error to wait for a profile or, a few times, for the company's data if an analysis is coming."""
        now, settings = self._clock.now(), self._rules.settings.match
        if self._lacking is not None:
            return Resource(str(self._lacking), until=now + NO_PROFILE_WAIT, code=NO_PROFILE)
        is_new = work.company_status is None and work.company_id is None and company_id_of(work)
        is_coming = work.company_status in _ANALYSIS_AHEAD or is_new
        if not is_coming or website_of(work) is None or work.company_waits >= settings.company_waits:
            return None
        message = f"its company is not analysed yet; wait {work.company_waits + 1}"
        until = now + COMPANY_WAIT
        return Resource(message, until=until, code=WAITS_FOR_COMPANY)
