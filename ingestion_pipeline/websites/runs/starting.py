"""Start of analyses: the row and the task of its first phase, if the queue has room."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from uuid import uuid4

from sqlalchemy import Connection, func, insert, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, crawls
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.tables import ACTIVE, FRONTIER, UNFINISHED, tasks, website_analyses
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.queue import Refusal
from ingestion_pipeline.tasks.task import TaskStatus
from ingestion_pipeline.websites.business import home_url
from ingestion_pipeline.websites.source_config import parse_website_config
from ingestion_pipeline.websites.states import (
    PHASES,
    AnalysisStatus,
    Phase,
    analysis_priority,
    dedupe_key,
    task_priority,
)

KINDS = tuple(phase.kind for phase in PHASES)
FULL_WAIT = timedelta(minutes=1)  # until there may be room again
FIRST = PHASES[0]


class NotAWebsite(ValueError):
    """The source is not a website; only websites have analyses."""


def start_analyses(
    connection: Connection, sources: Sequence[Source], *, now: datetime, settings: Settings
) -> Mapping[str, str | Resource]:
    """Start an analysis of each source, as far as there is room; return a message for each."""
    source_ids = [source.id for source in sources]
    outcomes: dict[str, str | Resource] = dict(_running(connection, source_ids))
    analysed_before = _analysed_before(connection, source_ids)
    limit = settings.website.queue_limit
    room = limit - queue_sizes(connection).get(FIRST.kind, 0)
    new = [source for source in sources if source.id not in outcomes]
    for source in sorted(new[: max(room, 0)], key=attrgetter("id")):  # the lock order
        id_ = _start_analysis(connection, source, is_recurring=source.id in analysed_before, now=now)
        outcomes[source.id] = f"analysis {id_} started" if id_ else "an analysis is running"
    return outcomes | {source.id: _full(FIRST, limit, now) for source in new[max(room, 0) :]}


def queue_sizes(connection: Connection) -> dict[str, int]:
    """Return how many tasks of each phase are waiting or running."""
    query = select(tasks.c.kind, func.count()).where(ACTIVE, tasks.c.kind.in_(KINDS)).group_by(tasks.c.kind)
    return {row[0]: row[1] for row in connection.execute(query)}


def _full(phase: Phase, limit: int, now: datetime) -> Resource:
    message = f"{Refusal.QUEUE_FULL.value}: {limit:,} analyses are waiting in {phase.queue}"
    return Resource(message, until=now + FULL_WAIT, code=Refusal.QUEUE_FULL.value)


def _running(connection: Connection, source_ids: Collection[str]) -> dict[str, str]:
    query = select(website_analyses.c.source_id, website_analyses.c.id, website_analyses.c.status).where(
        UNFINISHED, website_analyses.c.source_id.in_(list(source_ids))
    )
    return {source_id: f"analysis {id_} is running: {status}" for source_id, id_, status in connection.execute(query)}


def _analysed_before(connection: Connection, source_ids: Collection[str]) -> set[str]:
    query = select(website_analyses.c.source_id).where(
        website_analyses.c.source_id.in_(list(source_ids)), website_analyses.c.status == AnalysisStatus.COMPLETED.value
    )
    return set(connection.execute(query.distinct()).scalars())


def _start_analysis(connection: Connection, source: Source, *, is_recurring: bool, now: datetime) -> int | None:
    """Insert the analysis and its first task; None if another process was first."""
    is_manual = parse_website_config(source.config)[0].is_manual
    flags = {"is_recurring": is_recurring, "is_manual": is_manual}
    priority = analysis_priority(created_at=now, now=now, **flags)
    tracking_id = str(uuid4())
    statement = (
        insert_into(connection, website_analyses)
        .values(
            source_id=source.id,
            url=home_url(source.url),
            status=FIRST.status.value,
            current_step=FIRST.step,
            priority=priority,
            tracking_id=tracking_id,
            progress_message="waits",
            phase_times={},
            config_version=source.config_version,
            created_at=now,
            updated_at=now,
            **flags,
        )
        .on_conflict_do_nothing(index_elements=["source_id"], index_where=UNFINISHED)
        .returning(website_analyses.c.id)
    )
    id_ = connection.execute(statement).scalar_one_or_none()
    if id_ is not None:
        _enqueue_first(connection, source, id_, tracking_id, priority, now=now)
    return id_


def _enqueue_first(
    connection: Connection, source: Source, id_: int, tracking_id: str, priority: int, *, now: datetime
) -> None:
    connection.execute(
        insert(tasks).values(
            kind=FIRST.kind,
            dedupe_key=dedupe_key(id_),
            source_id=source.id,
            url=source.url,
            payload={"analysis": id_},
            status=TaskStatus.PENDING.value,
            priority=task_priority(priority),
            shard=source.shard,
            not_before=now,
            tracking_id=tracking_id,
            ancestry=[],
            created_at=now,
            updated_at=now,
        )
    )


def request_analyses(ctx: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Analyse each source now, due or not; it counts as its poll. Return a message for each.

    Raises:
        Resource: there is no room; nothing was started.
    """
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        sources = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - sources.keys():
            raise UnknownSource(missing)
        _check_kinds(sources.values())
        polls = crawls.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_analyses(connection, list(sources.values()), now=now, settings=ctx.settings)
        make_due(connection, source_ids, now=now)
        words: dict[str, str] = {}
        for source_id, word in outcomes.items():
            if isinstance(word, Resource):
                raise word
            words[source_id] = word
        started = [(polls[key], sources[key], words[key]) for key in sorted(polls)]
        crawls.begin(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    return words


def _check_kinds(sources: Iterable[Source]) -> None:
    for source in sources:
        if source.kind is not Kind.WEBSITE:
            raise NotAWebsite(
                f"{source.id} is of the kind {source.kind}, and only websites are analysed;"
                " `ingest sources list --kind website` shows them"
            )


def make_due(
    connection: Connection, source_ids: Collection[str] | None, *, now: datetime, code: str | None = None
) -> int:
    """Make waiting tasks due now: of these sources, and those that wait for the reason `code`."""
    narrowed = [
        *([] if source_ids is None else [tasks.c.source_id.in_(list(source_ids))]),
        *([] if code is None else [tasks.c.error_code == code]),
    ]
    later = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(KINDS),
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before > now,
            *narrowed,
        )
        .with_for_update(skip_locked=True)  # a locked task is being changed by its worker
        .cte("later")
    )
    is_later = tasks.c.id.in_(select(later.c.id))
    return connection.execute(update(tasks).where(is_later).values(not_before=now)).rowcount
