"""Analyses begin: a row, and the task of its first phase; or there is no room for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
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
from ingestion_pipeline.websites.source_config import given_of
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


class NoWebsite(ValueError):
    """Only a website has analyses."""


def begin(
    connection: Connection, sources: Sequence[Source], *, now: datetime, settings: Settings
) -> Mapping[str, str | Resource]:
    """Each source has an analysis under way, as far as there is room; a word for people on each."""
    said: dict[str, str | Resource] = dict(_under_way(connection, [one.id for one in sources]))
    known = _analysed_before(connection, [one.id for one in sources])
    limit = settings.website.queue_limit
    room = limit - queue_sizes(connection).get(FIRST.kind, 0)
    new = [source for source in sources if source.id not in said]
    for source in sorted(new[: max(room, 0)], key=lambda one: one.id):  # in one order, whoever asks
        id_ = _begin(connection, source, is_recurring=source.id in known, now=now)
        said[source.id] = f"analysis {id_} begun" if id_ else "an analysis goes on"
    return said | {one.id: _full(FIRST, limit, now) for one in new[max(room, 0) :]}


def queue_sizes(connection: Connection) -> dict[str, int]:
    """How many tasks of each phase wait or are at work."""
    query = (
        select(tasks.c.kind, func.count())
        .where(ACTIVE, tasks.c.kind.in_(KINDS))
        .group_by(tasks.c.kind)
    )
    return {row[0]: row[1] for row in connection.execute(query)}


def _full(phase: Phase, limit: int, now: datetime) -> Resource:
    said = f"{Refusal.QUEUE_FULL.value}: {limit:,} analyses wait in {phase.queue} already"
    return Resource(said, until=now + FULL_WAIT, code=Refusal.QUEUE_FULL.value)


def _under_way(connection: Connection, source_ids: Collection[str]) -> dict[str, str]:
    query = select(
        website_analyses.c.source_id, website_analyses.c.id, website_analyses.c.status
    ).where(UNFINISHED, website_analyses.c.source_id.in_(list(source_ids)))
    return {
        source_id: f"analysis {id_} goes on: {status}"
        for source_id, id_, status in connection.execute(query)
    }


def _analysed_before(connection: Connection, source_ids: Collection[str]) -> set[str]:
    query = select(website_analyses.c.source_id).where(
        website_analyses.c.source_id.in_(list(source_ids)),
        website_analyses.c.status == AnalysisStatus.COMPLETED.value,
    )
    return set(connection.execute(query.distinct()).scalars())


def _begin(
    connection: Connection, source: Source, *, is_recurring: bool, now: datetime
) -> int | None:
    """The new analysis' id; None if another process was first."""
    is_manual = given_of(source.config)[0].is_manual
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
    connection: Connection,
    source: Source,
    id_: int,
    tracking_id: str,
    priority: int,
    *,
    now: datetime,
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


def ask_for(shop: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Each source is analysed now, due or not, which counts as its poll; in a word for people.

    Raises:
        Resource: there is no room; nothing was begun.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        known = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - known.keys():
            raise UnknownSource(missing)
        _refuse_others(known.values())
        polls = crawls.claim_polls(connection, source_ids, now=now, settings=shop.settings)
        said = begin(connection, list(known.values()), now=now, settings=shop.settings)
        make_due(connection, source_ids, now=now)
        words: dict[str, str] = {}
        for source_id, word in said.items():
            if isinstance(word, Resource):
                raise word
            words[source_id] = word
        begun = [(polls[key], known[key], words[key]) for key in sorted(polls)]
        crawls.begin(connection, begun, now=now, settings=shop.settings, random=shop.random)
    return words


def _refuse_others(found: Iterable[Source]) -> None:
    for one in found:
        if one.kind is not Kind.WEBSITE:
            raise NoWebsite(
                f"{one.id} is of the kind {one.kind}, and only websites are analysed;"
                " `ingest sources list --kind website` shows them"
            )


def make_due(
    connection: Connection,
    source_ids: Collection[str] | None,
    *,
    now: datetime,
    code: str | None = None,
) -> int:
    """What waits of these sources' analyses is due now; all that waits for the reason `code`."""
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
        .with_for_update(skip_locked=True)  # what somebody has is being dealt with
        .cte("later")
    )
    is_later = tasks.c.id.in_(select(later.c.id))
    return connection.execute(update(tasks).where(is_later).values(not_before=now)).rowcount
