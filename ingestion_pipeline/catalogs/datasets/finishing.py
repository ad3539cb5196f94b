"""Finish extractions: count progress, decide completion, end rows and tasks, update the source, notify.

Everything is counted from stored rows, so that no crash can make a sum wrong.

| looks | changed | waiting tasks | then |
|---|---|---|---|
| complete | not for `quiet_seconds` | none | COMPLETE (of an API at once) |
| complete | | some | keeps running |
| incomplete | not for `stale_seconds`, nor since the last retry was due | any | STALE |
| only a root, which failed | | any | STALE |
| of an API any failed page | | any | CANCELLED |
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from sqlalchemy import Connection, Row, and_, case, exists, func, null, or_, select, update

from ingestion_pipeline.catalogs.datasets.dataset_items import KEPT, MISSING, NOT_GOT, UNCHANGED, unpublished_dataset
from ingestion_pipeline.catalogs.datasets.publishing import FinishedDataset, finish_dataset, leave_incomplete
from ingestion_pipeline.catalogs.extraction.tasks import wake_for_models
from ingestion_pipeline.catalogs.extraction_states import update_extraction_tasks
from ingestion_pipeline.catalogs.recipes.next_pages import StepKind
from ingestion_pipeline.catalogs.states import (
    CRAWLING_STATES,
    EXTRACTION_NOTICE,
    EXTRACTION_TASKS,
    FETCH_PAGE,
    OPEN_PAGES,
    UNFINISHED_PAGES,
    DatasetStatus,
    ExtractionKind,
    ExtractionStatus,
    PageStatus,
    lock_extraction_rows,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.notices.message import write_notice
from ingestion_pipeline.reading.llm.batch_lines import drop_unsent
from ingestion_pipeline.reading.llm.ledger import CostLine, costs, costs_of, saved_calls
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.settings.groups import Extraction
from ingestion_pipeline.sources import poll_results
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.statements import audit, lock_rows, row_source
from ingestion_pipeline.store.tables import (
    CRAWLING,
    FRONTIER,
    audit_log,
    crawl_steps,
    extractions,
    pages,
    sources,
    tasks,
)
from ingestion_pipeline.store.types import Id, Json
from ingestion_pipeline.tasks.errors import BLOCKED_CODES, ErrorClass
from ingestion_pipeline.tasks.task import TaskStatus


@dataclass(slots=True)
class Progress:
    """The progress of one extraction; a page in progress counts as waiting, for it may wait again.

    Counted apart, a page that is retried for ever would look like a change each time. `kept_items` come from the
    dataset before, since their pages failed; `missing` pages stated records before, and failed or state none.
    """

    steps: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    items: int = 0
    methods: Counter[str] = field(default_factory=Counter[str])
    carried: int = 0
    kept_items: int = 0
    missing: int = 0
    costs: Sequence[CostLine] = ()
    saved: int = 0

    @property
    def pages(self) -> dict[str, int]:
        """The number of pages by state, over all steps."""
        return dict(sum(self.steps.values(), Counter[str]()))

    @property
    def unfinished(self) -> int:
        """The number of pages that were not fetched, or fetched and not extracted."""
        return sum(count for state, count in self.pages.items() if state in UNFINISHED_PAGES)

    def as_stored(self) -> dict[str, Any]:
        """Return the summary for the extraction's row."""
        return {
            "pages": self.pages,
            "steps": {key: _step(states) for key, states in sorted(self.steps.items())},
            "items": self.items,
            "rungs": dict(self.methods),
            "carried": self.carried,
            "kept": self.kept_items,
            "missing": self.missing,
            "cost": _cost(self.costs, self.saved),
        }


def _step(states: Mapping[str, int]) -> dict[str, Any]:
    total = sum(states.values())
    left = sum(count for state, count in states.items() if state in UNFINISHED_PAGES)
    return {"pages": dict(states), "total": total, "finished": total - left}


def _cost(lines: Sequence[CostLine], saved: int) -> dict[str, Any]:
    return {
        "calls": sum(line.calls for line in lines),
        "saved_calls": saved,
        "input_tokens": sum(line.input_tokens for line in lines),
        "output_tokens": sum(line.output_tokens for line in lines),
        "usd": _dollars(sum((line.cost_usd for line in lines), Decimal(0))),
        "open_usd": _dollars(sum((line.open_usd for line in lines), Decimal(0))),
        "by_call_site": [
            {
                "call_site": line.call_site,
                "model": line.model,
                "calls": line.calls,
                "input_tokens": line.input_tokens,
                "output_tokens": line.output_tokens,
                "usd": _dollars(line.cost_usd),
            }
            for line in lines
        ],
    }


def _dollars(amount: Decimal) -> str:
    """Format as text: a float would not be the sum of its parts."""
    return f"{amount.normalize():f}"


def progress(connection: Connection, extraction_ids: Collection[int]) -> dict[int, Progress]:
    """Return the progress of each of these extractions."""
    ids = list(extraction_ids)
    by_id = {id_: Progress() for id_ in ids}
    for row in connection.execute(_pages_by_step(ids)):
        entry = by_id[row.extraction_id]
        entry.steps[row.step][row.state] += row.pages
        entry.items += int(row.items or 0)
        entry.carried += row.carried
        entry.kept_items += int(row.kept or 0)
        entry.missing += row.missing
        if row.extraction_method is not None:
            entry.methods[row.extraction_method] += row.pages
    for id_, lines in costs_of(connection, ids).items():
        by_id[id_].costs = lines
    for id_, count in saved_calls(connection, ids).items():
        by_id[id_].saved = count
    return by_id


def _pages_by_step(ids: Sequence[int]) -> Any:  # noqa: ANN401 - a SQL statement
    waiting = PageStatus.WAITING.value
    state = case((pages.c.status.in_(OPEN_PAGES), waiting), else_=pages.c.status).label("state")
    counted = (
        select(
            pages.c.extraction_id,
            pages.c.step_id,
            state,
            pages.c.extraction_method,
            func.count().label("pages"),
            func.sum(pages.c.item_count).label("items"),
            func.count().filter(UNCHANGED).label("carried"),
            func.sum(pages.c.item_count).filter(KEPT).label("kept"),
            func.count().filter(MISSING).label("missing"),
        )
        .where(pages.c.extraction_id.in_(ids))
        .group_by(pages.c.extraction_id, pages.c.step_id, state, pages.c.extraction_method)
        .subquery("counted")
    )
    query = select(counted, crawl_steps.c.key.label("step")).join(crawl_steps, crawl_steps.c.id == counted.c.step_id)
    return query.order_by(counted.c.step_id, counted.c.state, counted.c.extraction_method)


def running(
    connection: Connection, *, source_ids: Collection[str] | None = None, extraction_id: int | None = None
) -> Sequence[Row[Any]]:
    """Return the rows of the running extractions, the oldest first."""
    query = select(extractions).where(CRAWLING)
    if source_ids is not None:
        query = query.where(extractions.c.source_id.in_(list(source_ids)))
    if extraction_id is not None:
        query = query.where(extractions.c.id == extraction_id)
    return connection.execute(query.order_by(extractions.c.id)).all()


def write_summaries(connection: Connection, summaries: Mapping[int, Mapping[str, Any]], *, now: datetime) -> None:
    """Write these summaries, which have changed, with the time of the change."""
    if not summaries:
        return
    lock_extraction_rows(connection, summaries.keys())
    rows = [(id_, dict(summary)) for id_, summary in sorted(summaries.items())]
    new_summaries = row_source(connection, {"id": Id, "summary": Json}, rows, "given")
    connection.execute(
        update(extractions)
        .where(extractions.c.id == new_summaries.c.id)
        .values(summary=new_summaries.c.summary, changed_at=now)
    )


REOPENED = ("extraction.resume", "extraction.retry")  # what an operator does to one that has ended


SYSTEM = "system"
STALE_CODE = "stale"  # failure code of an extraction whose last pages make no progress
NAMED_PAGES = 10  # in a notice
ROOTS = (StepKind.FETCH_ROOT.value, StepKind.FETCH_VIA_API.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishReason:
    """How an extraction is to finish; without a `failure` it is complete or was cancelled."""

    status: ExtractionStatus
    failure: Mapping[str, Any] | None = None
    actor: str = SYSTEM


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An extraction that has just finished: its status, its failure if any, and its dataset."""

    id: int
    source_id: str
    kind: ExtractionKind
    status: ExtractionStatus
    failure: Mapping[str, Any] | None
    page_count: int
    dataset: FinishedDataset | None

    @property
    def is_complete(self) -> bool:
        """Whether it completed."""
        return self.status is ExtractionStatus.COMPLETE

    @property
    def is_shown(self) -> bool:
        """Whether the dataset that it built, or confirmed as unchanged, is published."""
        return self.dataset is not None and self.dataset.status is DatasetStatus.PUBLISHED

    @property
    def is_held_back(self) -> bool:
        """Whether the dataset that it built is quarantined: what was published before stays."""
        return self.dataset is not None and self.dataset.status is DatasetStatus.QUARANTINED


COMPLETE = FinishReason(status=ExtractionStatus.COMPLETE)


def budget_finish(message: str) -> FinishReason:
    """Return the finish of an extraction whose model budget is used up."""
    failure = {"class": ErrorClass.RESOURCE.value, "code": "over_budget", "message": message}
    return FinishReason(status=ExtractionStatus.CANCELLED, failure=failure)


def finish_extractions(
    connection: Connection, finishes: Mapping[int, FinishReason], *, now: datetime, settings: Settings, random: Random
) -> list[Ended]:
    """Finish those that are still running; return them. Others are left as they are."""
    rows = {id_: _mark_ended(connection, id_, finishes[id_], now=now) for id_ in sorted(finishes)}
    finished = [(row, finishes[id_]) for id_, row in rows.items() if row is not None]
    left = [row for row, finish in finished if finish.status is not ExtractionStatus.COMPLETE]
    if left:  # their running tasks end by themselves
        update_extraction_tasks(
            connection,
            tasks.c.source_id.in_({row.source_id for row in left}),
            tasks.c.tracking_id.in_([row.tracking_id for row in left]),
            tasks.c.status == TaskStatus.PENDING.value,
            values={"status": TaskStatus.CANCELLED.value, "updated_at": now},
        )
        drop_unsent(connection, [row.id for row in left])
    results = [(_ended(connection, row, finish, settings=settings, now=now), finish) for row, finish in finished]
    progress_by_id = progress(connection, [ended.id for ended, _ in results]) if results else {}
    for ended, _ in results:
        progress_by_id[ended.id].missing += progress_by_id[ended.id].unfinished if ended.is_shown else 0
    write_summaries(connection, {id_: entry.as_stored() for id_, entry in progress_by_id.items()}, now=now)
    # All locks before the first source is written: the lock order of registration.
    source_ids = [ended.source_id for ended, _ in results]
    lock_polls(connection, source_ids)
    lock_rows(connection, sources.c.id, source_ids)
    for ended, finish in results:
        counts = _page_counts(connection, ended.id)
        if ended.kind is not ExtractionKind.RERUN:  # which says nothing about the source
            _update_source(connection, ended, counts, now=now, settings=settings, random=random)
        _audit_finish(connection, ended, finish, now=now)
        _notify_finish(connection, ended, counts, now=now)
    return [ended for ended, _ in results]


def _mark_ended(connection: Connection, extraction_id: int, finish: FinishReason, *, now: datetime) -> Row[Any] | None:
    """Mark the extraction as ended; return its row, None if it was not running any more."""
    statement = (
        update(extractions)
        .where(extractions.c.id == extraction_id, CRAWLING)
        .values(
            status=finish.status.value,
            failure=dict(finish.failure) if finish.failure else null(),
            finished_at=now,
            updated_at=now,
        )
        .returning(*extractions.c)
    )
    return connection.execute(statement).one_or_none()


def _ended(connection: Connection, row: Row[Any], finish: FinishReason, *, settings: Settings, now: datetime) -> Ended:
    """Finish the extraction's dataset, or leave it incomplete."""
    # An API's list without one of its pages looks like a shorter list.
    is_stale = finish.failure is not None and finish.failure["code"] == STALE_CODE
    is_partial = is_stale and row.kind != ExtractionKind.API.value
    if finish.status is ExtractionStatus.COMPLETE or (is_partial and unpublished_dataset(connection, row.id)):
        dataset = finish_dataset(connection, row, settings=settings, now=now)
    else:
        dataset = leave_incomplete(connection, row.id)
    if dataset is not None:
        connection.execute(update(extractions).where(extractions.c.id == row.id).values(dataset_id=dataset.id))
    return Ended(
        id=row.id,
        source_id=row.source_id,
        kind=ExtractionKind(row.kind),
        status=finish.status,
        failure=finish.failure,
        page_count=row.page_count + (0 if dataset is None else dataset.unlisted),
        dataset=dataset,
    )


def failed_finishes(connection: Connection, extraction_ids: Collection[int]) -> dict[int, FinishReason]:
    """Return the finishes of those extractions that cannot become complete any more."""
    failures = root_failures(connection, extraction_ids)
    return {id_: failed_finish(kind, failure) for id_, (kind, failure) in failures.items()}


def failed_finish(kind: str, failure: Mapping[str, Any]) -> FinishReason:
    """Return the finish after a failure: final for an API, else it can be resumed."""
    is_api = kind == ExtractionKind.API.value
    status = ExtractionStatus.CANCELLED if is_api else ExtractionStatus.STALE
    return FinishReason(status=status, failure=failure)


def root_failures(connection: Connection, extraction_ids: Collection[int]) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """Return kind and failure of running extractions that cannot become complete.

    Of an API that is any failed page: a list without one of its pages looks like a shorter list.
    Else it is a failed root without other pages. A page in ERROR has used up its attempts, or
    cannot be fetched at all: a retry would still wait.
    """
    if not extraction_ids:
        return {}
    other = pages.alias("other")
    has_others = exists().where(other.c.extraction_id == extractions.c.id, other.c.status != PageStatus.ERROR.value)
    is_lost_root = and_(crawl_steps.c.kind.in_(ROOTS), crawl_steps.c.parent_id.is_(None), ~has_others)
    query = (
        select(extractions.c.id, extractions.c.kind, pages.c.failure)
        .join(pages, pages.c.extraction_id == extractions.c.id)
        .join(crawl_steps, crawl_steps.c.id == pages.c.step_id)
        .where(
            extractions.c.id.in_(list(extraction_ids)),
            extractions.c.status.in_(CRAWLING_STATES),
            pages.c.status == PageStatus.ERROR.value,
            or_(extractions.c.kind == ExtractionKind.API.value, is_lost_root),
        )
        .order_by(pages.c.id.desc())  # so that the first failure is the one reported
    )
    unknown = {"class": ErrorClass.PERMANENT.value, "code": "error", "message": "a page failed"}
    return {row.id: (row.kind, row.failure or unknown) for row in connection.execute(query)}


def _update_source(
    connection: Connection,
    ended: Ended,
    counts: Row[int, int, int],
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> None:
    """Write the extraction's result to the source's row."""
    if (failure := ended.failure) is not None and not ended.is_shown:
        is_blocked_page = failure["code"] in BLOCKED_CODES
        kind = str(failure["code"]).replace("_", " ")
        result = "failed" if failure["class"] != ErrorClass.RESOURCE.value else ended.status.lower()
        failed_crawl = poll_results.FailedCrawl(
            source_id=ended.source_id,
            outcome=f"extraction {ended.id} {result}: {failure['message']}",
            error_class=failure["class"],
            # robots.txt, a pause that the host asked for, or an operator: not the source's fault
            is_strike=failure["class"] != ErrorClass.RESOURCE.value,
            blocked_reason=f"behind a {kind}: {failure['message']}" if is_blocked_page else None,
        )
        poll_results.fail_crawl(connection, failed_crawl, now=now, settings=settings, random=random)
        return
    new, failed, left = counts
    poll_results.complete_crawl(
        connection,
        ended.source_id,
        outcome=f"extraction {ended.id}: {ended.page_count} pages, {new} new, {failed} failed"
        + (f", {left} left" if left else "")
        + (f"; version {ended.dataset.version} is quarantined" if ended.dataset and ended.is_held_back else ""),
        records=_published_records(ended, fetched=ended.page_count - failed - left),
        has_news=new > 0,
        now=now,
    )


def _published_records(ended: Ended, *, fetched: int) -> int | None:
    """Return the number of published records: of a crawl without a dataset its pages; None if it is unchanged."""
    if ended.dataset is None:
        return fetched
    return None if ended.is_held_back else ended.dataset.items


def _page_counts(connection: Connection, extraction_id: int) -> Row[int, int, int]:
    """Return how many pages had new content, how many failed, and how many were left."""
    query = select(
        func.count().filter(pages.c.outcome == "new").label("new"),
        func.count().filter(pages.c.status == PageStatus.ERROR.value).label("failed"),
        func.count().filter(pages.c.status.in_(UNFINISHED_PAGES)).label("left"),
    ).where(pages.c.extraction_id == extraction_id)
    return connection.execute(query).one()


def _audit_finish(connection: Connection, ended: Ended, finish: FinishReason, *, now: datetime) -> None:
    """Write to the audit log how it finished, by whom, and the state of its dataset."""
    dataset = ended.dataset
    detail: dict[str, Any] = {"source": ended.source_id}
    if ended.failure is not None:
        detail["reason"] = ended.failure["message"]
    if dataset is not None:
        detail |= {"dataset": dataset.id, "version": dataset.version, "is": dataset.status.value}
        detail |= {"findings": list(dataset.findings)} if dataset.findings else {}
    audit(
        connection,
        actor=finish.actor,
        action=f"extraction.{ended.status.lower()}",
        subject=f"extraction:{ended.id}",
        now=now,
        detail=detail,
    )


def _notify_finish(connection: Connection, ended: Ended, counts: Row[int, int, int], *, now: datetime) -> None:
    """Notify followers of extractions, once for each finish."""
    unnotified = update(extractions).where(extractions.c.id == ended.id, extractions.c.notified_at.is_(None))
    if not connection.execute(unnotified.values(notified_at=now)).rowcount:
        return
    cost = sum((line.cost_usd for line in costs(connection, extraction_id=ended.id)), Decimal(0))
    query = select(func.count()).where(
        audit_log.c.subject == f"extraction:{ended.id}", audit_log.c.action.in_(REOPENED)
    )
    times: int = connection.execute(query).scalar_one()
    subject_id = f"{ended.id}:{times + 1}" if times else str(ended.id)  # a finish after a resume or retry has its own
    missing = _missing_pages(connection, ended.id)
    write_notice(connection, EXTRACTION_NOTICE, subject_id, _finish_payload(ended, counts, missing, cost), now=now)


def _finish_payload(
    ended: Ended, counts: Row[int, int, int], missing: Sequence[str], cost_usd: Decimal
) -> dict[str, Any]:
    """Return the notice's text for people and facts for programs."""
    dataset, reason = ended.dataset, None if ended.failure is None else str(ended.failure["message"])
    left = f", {counts.left} left" if counts.left else ""
    lines = [f"{ended.page_count} pages, {counts.failed} failed{left}"]
    if dataset is not None:
        lines += _dataset_lines(ended.id, dataset)
    lines += [f"missing: {page}" for page in missing]
    if missing and (more := counts.failed + counts.left - len(missing)) > 0:
        lines.append(f"and {more} more; `ingest extractions pages {ended.id}` shows all")
    if reason is not None:
        lines.append(f"reason: {reason}")
    if cost_usd:
        lines.append(f"language models: {cost_usd:.4f} dollars")
    if not ended.is_complete:
        lines.append(f"`ingest extractions resume {ended.id}` resumes it")
    elif dataset is not None and dataset.status is DatasetStatus.QUARANTINED:
        lines.append(f"`ingest extractions publish {ended.id}` publishes it anyway")
    return {
        "source_id": ended.source_id,
        "title": f"{ended.source_id}: extraction {ended.id} is {ended.status.value.lower()}",
        "text": "\n".join(lines),
        "extraction_id": ended.id,
        "status": ended.status.value,
        "pages": ended.page_count,
        "failed_pages": counts.failed,
        "missing": list(missing),
        "reason": reason,
        "cost_usd": f"{cost_usd:f}",
        "dataset": None if dataset is None else _dataset_facts(dataset),
    }


def _dataset_lines(extraction_id: int, dataset: FinishedDataset) -> Iterator[str]:
    state = " of the dataset is unchanged" if dataset.is_confirmed else f" of the dataset, {dataset.status}"
    yield f"version {dataset.version}{state}: {dataset.items} items"
    yield from (f"- {finding['message']}" for finding in dataset.findings)
    if dataset.kept_items:
        cure = f"`ingest extractions retry {extraction_id}` fetches them again"
        yield f"{dataset.kept_items} items are kept from the version before: their pages failed; {cure}"


def _dataset_facts(dataset: FinishedDataset) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "version": dataset.version,
        "status": dataset.status.value,
        "items": dataset.items,
        "flagged": dataset.flagged,
        "findings": [dict(finding) for finding in dataset.findings],
        "is_confirmed": dataset.is_confirmed,
        "kept": dataset.kept_items,
    }


def _missing_pages(connection: Connection, extraction_id: int) -> list[str]:
    """Return the first pages that were not fetched or extracted, each with the reason."""
    reason = func.coalesce(pages.c.failure["message"].as_string(), "still waiting")
    query = (
        select(pages.c.url, reason.label("reason"))
        .where(pages.c.extraction_id == extraction_id, pages.c.status.in_(NOT_GOT))
        .order_by(pages.c.id)
        .limit(NAMED_PAGES)
    )
    return [f"{row.url}: {row.reason}" for row in connection.execute(query)]


LONGEST_WAIT = timedelta(days=3)  # that a page may be put off while its host serves no other page
CHECKED_AT_ONCE = 200  # extractions whose pages one statement counts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionProgress:
    """Everything that the decision about an extraction depends on."""

    kind: ExtractionKind
    unfinished: int
    total: int
    has_pending: bool
    quiet_for: timedelta
    since_retry: timedelta | None = None  # negative while a page waits for its next attempt
    failure: Mapping[str, Any] | None = None


def decide(state: ExtractionProgress, *, limits: Extraction) -> FinishReason | None:
    """Return how the extraction finishes now; None if it keeps running."""
    if state.failure is not None:
        return failed_finish(state.kind, state.failure)
    if not state.unfinished and state.total:
        is_quiet = state.quiet_for >= timedelta(seconds=limits.quiet_seconds)
        may_end = is_quiet or state.kind is ExtractionKind.API
        return COMPLETE if may_end and not state.has_pending else None
    stalled_for = state.quiet_for if state.since_retry is None else min(state.quiet_for, state.since_retry)
    if stalled_for < timedelta(seconds=limits.stale_seconds):
        return None
    summary = f"{state.unfinished} of {state.total} pages were left and nothing changed for"
    failure = {
        "class": ErrorClass.RESOURCE.value,
        "code": STALE_CODE,
        "message": f"{summary} {state.quiet_for.total_seconds() / 3600:.1f} hours",
    }
    return FinishReason(status=ExtractionStatus.STALE, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """The result of a check of all running extractions."""

    running: int
    changed: int
    ended: Sequence[Ended]


def update_completions(ctx: RunContext, *, source_ids: Collection[str] | None = None) -> Completions:
    """Update every running extraction's summary, and finish those that are over.

    Pages that waited for a model become due again if there is one by now. One transaction covers
    many summaries, but each finish has its own, so that a large dataset blocks no other.
    """
    wake_for_models(ctx)
    with ctx.store.read() as connection:
        active = running(connection, source_ids=source_ids)
    changed, ended = 0, list[Ended]()
    for first in range(0, len(active), CHECKED_AT_ONCE):
        batch = active[first : first + CHECKED_AT_ONCE]
        with ctx.store.begin() as connection:
            now = ctx.store.clock.now(connection)
            written, finishes = _check(connection, batch, now=now, settings=ctx.settings)
            changed += written
        for id_ in finishes:
            ended += _finish(ctx, id_)
    return Completions(running=len(active), changed=changed, ended=ended)


def _finish(ctx: RunContext, extraction_id: int) -> list[Ended]:
    """Finish the extraction if that is still right: pages may have been added meanwhile."""
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        lock_extraction_rows(connection, [extraction_id])
        active = running(connection, extraction_id=extraction_id)
        _, finishes = _check(connection, active, now=now, settings=ctx.settings)
        return finish_extractions(connection, finishes, now=now, settings=ctx.settings, random=ctx.random)


def _check(
    connection: Connection, active: Sequence[Row[Any]], *, now: datetime, settings: Settings
) -> tuple[int, dict[int, FinishReason]]:
    """Write the summaries that have changed; return their number, and how each extraction that is over finishes."""
    counts = progress(connection, [row.id for row in active])
    stored = {id_: entry.as_stored() for id_, entry in counts.items()}
    changed = {row.id: stored[row.id] for row in active if row.summary != stored[row.id]}
    write_summaries(connection, changed, now=now)
    pending = _pending(connection, active)
    roots = root_failures(connection, [row.id for row in active])
    finishes: dict[int, FinishReason] = {}
    for row in active:
        changed_at = now if row.id in changed else row.changed_at or row.created_at
        retry_at = pending.get(row.id)
        state = ExtractionProgress(
            kind=ExtractionKind(row.kind),
            unfinished=counts[row.id].unfinished,
            total=sum(counts[row.id].pages.values()),
            has_pending=row.id in pending,
            quiet_for=now - changed_at,
            since_retry=retry_at and now - min(retry_at, changed_at + LONGEST_WAIT),
            failure=roots[row.id][1] if row.id in roots else None,
        )
        if (finish := decide(state, limits=settings.extraction)) is not None:
            finishes[row.id] = finish
    return len(changed), finishes


def without_tasks(connection: Connection) -> list[int]:
    """Return the running extractions without a task that waits or runs, the oldest first."""
    waits = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(EXTRACTION_TASKS),
            tasks.c.source_id == extractions.c.source_id,
            tasks.c.tracking_id == extractions.c.tracking_id,
        )
        .correlate(extractions)
    )
    query = select(extractions.c.id).where(CRAWLING, ~waits.exists()).order_by(extractions.c.id)
    return list(connection.execute(query).scalars())


def _pending(connection: Connection, active: Sequence[Row[Any]]) -> dict[int, datetime | None]:
    """Return the extractions with a waiting or running task; by source, as the index has it.

    The value is when the last page that waits to be fetched is due; a page that waits for a model may wait for ever.
    """
    ids = {row.tracking_id: row.id for row in active}
    retry_at = func.max(tasks.c.not_before).filter(
        tasks.c.kind == FETCH_PAGE, tasks.c.status == TaskStatus.PENDING.value
    )
    query = select(tasks.c.tracking_id, retry_at).where(
        FRONTIER,
        tasks.c.kind.in_(EXTRACTION_TASKS),
        tasks.c.source_id.in_({row.source_id for row in active}),
        tasks.c.tracking_id.in_(list(ids)),
    )
    grouped = connection.execute(query.group_by(tasks.c.tracking_id))
    return {ids[tracking_id]: due_at for tracking_id, due_at in grouped}
