"""Rows of analyses: how they are started, what they write, and their retention.

An analysis is started by a poll, on request, or again from a dead letter, if the queue has room. Its business,
answers and ranking of the day have natural keys, so that writing one twice has the effect of writing it once. The
caller's transaction checks the claim. Rankings, which the history plots, are never deleted.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, delete, exists, func, null, select, update

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.poll_handler import start_deferred
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source, poll_results
from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id
from ingestion_pipeline.sources.poll_tasks import POLL
from ingestion_pipeline.store.statements import insert_into, lock_rows
from ingestion_pipeline.store.tables import (
    ACTIVE,
    FRONTIER,
    OPEN,
    UNFINISHED,
    businesses,
    dead_letters,
    sources,
    tasks,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.store.types import Json, Moment
from ingestion_pipeline.tasks.claims import ClaimFilter, is_any_claimable
from ingestion_pipeline.tasks.ended_tasks import requeue_task
from ingestion_pipeline.tasks.errors import Resource, storable
from ingestion_pipeline.tasks.queue import Refusal, insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus
from ingestion_pipeline.websites import states
from ingestion_pipeline.websites.business import Business, business_key, home_url, parse_website_config
from ingestion_pipeline.websites.mentions import Mentions
from ingestion_pipeline.websites.provider_analysis import WebsiteAnalysed

FULL_WAIT = timedelta(minutes=1)  # until there may be room again
FIRST = states.PHASES[0]


class NotAWebsite(ValueError):
    """The source is not a website; only websites have analyses."""


def start_analyses(
    connection: Connection, sources: Sequence[Source], now: datetime, settings: Settings
) -> Mapping[str, str | Resource]:
    """Start an analysis of each source, as far as there is room; return a message for each."""
    analysis = website_analyses.c
    is_requested = analysis.source_id.in_([source.id for source in sources])
    running = select(analysis.source_id, analysis.id, analysis.status).where(UNFINISHED, is_requested)
    outcomes: dict[str, str | Resource] = {
        source_id: f"analysis {id_} is running: {status}" for source_id, id_, status in connection.execute(running)
    }
    complete = select(analysis.source_id).where(is_requested, states.IS_COMPLETE).distinct()
    analysed_before = set(connection.execute(complete).scalars())
    limit = settings.website.queue_limit
    room = limit - queue_sizes(connection).get(FIRST.kind, 0)
    new = [source for source in sources if source.id not in outcomes]
    for source in sorted(new[: max(room, 0)], key=attrgetter("id")):  # the lock order
        id_ = _start_analysis(connection, source, is_recurring=source.id in analysed_before, now=now)
        outcomes[source.id] = f"analysis {id_} started" if id_ else "an analysis is running"
    message = f"{Refusal.QUEUE_FULL.value}: {limit:,} analyses are waiting in {FIRST.queue}"
    full = Resource(message, until=now + FULL_WAIT, code=Refusal.QUEUE_FULL.value)
    return outcomes | {source.id: full for source in new[max(room, 0) :]}


def queue_sizes(connection: Connection) -> dict[str, int]:
    """Return how many tasks of each phase are waiting or running."""
    query = select(tasks.c.kind, func.count()).where(ACTIVE, tasks.c.kind.in_(states.KINDS)).group_by(tasks.c.kind)
    return {row[0]: row[1] for row in connection.execute(query)}


def _start_analysis(connection: Connection, source: Source, *, is_recurring: bool, now: datetime) -> int | None:
    """Insert the analysis and its first task; None if another process was first."""
    is_manual = parse_website_config(source.config)[0].is_manual
    flags = {"is_recurring": is_recurring, "is_manual": is_manual}
    priority = states.analysis_priority(created_at=now, now=now, **flags)
    tracking_id = str(uuid4())
    statement = (
        insert_into(connection, website_analyses)
        .values(
            source_id=source.id,
            url=home_url(source.url),
            status=FIRST.status.value,
            current_step=FIRST.status.value,
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
    if id_ is None:
        return None
    task = NewTask(
        kind=FIRST.kind,
        dedupe_key=states.dedupe_key(id_),
        source_id=source.id,
        url=source.url,
        payload={"analysis": id_},
        priority=states.task_priority(priority),
        shard=source.shard,
        not_before=now,
        tracking_id=tracking_id,
    )
    insert_tasks(connection, [task], now=now)
    return id_


MOST = 200  # at a time; the others are started by a poll run


def start_first_analyses(ctx: RunContext) -> int:
    """Start the analyses of new websites, as a poll does it; return how many."""
    query = select(sources.c.id).where(sources.c.kind == Kind.WEBSITE.value, sources.c.last_checked_at.is_(None))
    with ctx.store.read() as connection:
        ids = list(connection.execute(query.order_by(sources.c.created_at).limit(MOST)).scalars())
    return start_deferred(ctx, ClaimFilter(kind=POLL, due_of=ids), limit=MOST) if ids else 0


def request_analyses(ctx: RunContext, source_ids: Collection[str]) -> dict[str, str]:
    """Analyse each source now, due or not; it counts as its poll. Return a message for each.

    Raises:
        Resource: there is no room; nothing was started.
    """
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        requested = sources_by_id(connection, source_ids)
        for missing in set(source_ids) - requested.keys():
            raise UnknownSource(missing)
        for source in requested.values():
            if source.kind is not Kind.WEBSITE:
                raise NotAWebsite(
                    f"{source.id} is of the kind {source.kind}, and only websites are analysed;"
                    " `ingest sources list --kind website` shows them"
                )
        polls = poll_results.claim_polls(connection, source_ids, now=now, settings=ctx.settings)
        outcomes = start_analyses(connection, list(requested.values()), now=now, settings=ctx.settings)
        make_due(connection, tasks.c.source_id.in_(list(source_ids)), now=now)
        words: dict[str, str] = {}
        for source_id, word in outcomes.items():
            if isinstance(word, Resource):
                raise word
            words[source_id] = word
        started = [(polls[key], requested[key], words[key]) for key in sorted(polls)]
        poll_results.begin_crawls(connection, started, now=now, settings=ctx.settings, random=ctx.random)
    return words


def make_due(connection: Connection, those: ColumnElement[bool], *, now: datetime) -> int:
    """Make those of the waiting tasks due now; return how many."""
    later = (
        select(tasks.c.id)
        .where(
            FRONTIER,
            tasks.c.kind.in_(states.KINDS),
            tasks.c.status == TaskStatus.PENDING.value,
            tasks.c.not_before > now,
            those,
        )
        .with_for_update(skip_locked=True)  # a locked task is being changed by its worker
        .cte("later")
    )
    is_later = tasks.c.id.in_(select(later.c.id))
    return connection.execute(update(tasks).where(is_later).values(not_before=now)).rowcount


def is_work_waiting(connection: Connection, *, now: datetime) -> bool:
    """Return whether a phase of an analysis can be claimed now."""
    return is_any_claimable(connection, *states.KINDS, now=now)


def requeue_phase(connection: Connection, dead_letter: RowMapping, now: datetime) -> str:
    """Requeue the dead letter's task and its analysis, unless a newer analysis is running."""
    phase, id_ = states.BY_KIND[dead_letter["task_kind"]], dead_letter["payload"].get("analysis", 0)
    lock_rows(connection, tasks.c.id, [dead_letter["task_id"]])  # before the analysis, as its worker does
    query = select(website_analyses.c.source_id, website_analyses.c.status)
    row = connection.execute(query.where(website_analyses.c.id == id_).with_for_update()).one_or_none()
    if row is None:
        return "its analysis was deleted"
    others = select(website_analyses.c.id).where(
        UNFINISHED, website_analyses.c.source_id == row.source_id, website_analyses.c.id != id_
    )
    if connection.execute(others).first() is not None:
        return "a newer analysis of the website is running"
    if row.status not in {states.AnalysisStatus.FAILED.value, phase.status.value}:
        return f"its analysis is {row.status}"
    outcome = requeue_task(connection, dead_letter, now)
    if outcome == "queued":
        connection.execute(
            update(website_analyses)
            .where(website_analyses.c.id == id_)
            .values(
                status=phase.status.value,
                current_step=phase.status.value,
                failure=None,
                finished_at=None,
                progress_message="waits",
                updated_at=now,
            )
        )
    return outcome


# Of `website_answers`, as fields of a `ProviderAnswer`.
_FACTS = ("prompt", "model", "model_version", "answer", "error", "input_tokens", "output_tokens", "cost_usd")


def upsert_business(connection: Connection, business: Business, *, now: datetime) -> int:
    """Insert or update the business at this address; return its id."""
    values = business.as_json()
    facts = {name: values[name] for name in values if name not in {"url", "unsure"}} | {"updated_at": now}
    statement = insert_into(connection, businesses).values(
        url=business.url, url_key=business_key(business.url), created_at=now, **facts
    )
    return connection.execute(
        statement.on_conflict_do_update(index_elements=["url_key"], set_=facts | {"modified_at": Moment()}).returning(
            businesses.c.id
        )
    ).scalar_one()


def store_answers(
    connection: Connection,
    analysis_id: int,
    answers: Sequence[states.ProviderAnswer],
    *,
    now: datetime,
    run_id: str | None = None,
) -> None:
    """Upsert one row per prompt and provider; an answer is final, a failure may be replaced."""
    if not answers:
        return
    rows = [_answer_row(analysis_id, answer) | {"created_at": now, "run_id": run_id} for answer in answers]
    statement = insert_into(connection, website_answers).values(rows)
    excluded = statement.excluded
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["analysis_id", "prompt_index", "provider"],
            set_={
                name: excluded[name] for name in (*_FACTS, "cited_urls", "status", "mentions", "created_at", "run_id")
            }
            | {"modified_at": Moment()},
            where=website_answers.c.status == states.AnswerStatus.FAILED.value,
        )
    )


def store_mentions(connection: Connection, analysis_id: int, analysed: WebsiteAnalysed) -> None:
    """Store the mentions and the sentiment of each answer."""
    sentiments = {answer.pair: answer.sentiment for answer in analysed.answers}
    rows = [
        {
            "of_prompt": pair[0],
            "of_provider": pair[1],
            "found": {"names": _mentions_json(mentions), "sentiment": sentiments[pair]},
        }
        for pair, mentions in analysed.mentions.items()
    ]
    if rows:
        connection.execute(
            update(website_answers)
            .where(
                website_answers.c.analysis_id == analysis_id,
                website_answers.c.prompt_index == bindparam("of_prompt"),
                website_answers.c.provider == bindparam("of_provider"),
            )
            .values(mentions=bindparam("found", type_=Json)),
            rows,
        )


def _mentions_json(mentions: Mapping[str, Mentions]) -> dict[str, Any]:
    return {
        name: {
            "count": places.count,
            "rank": places.rank,
            "is_exact": places.is_exact,
            "places": [[place.start, place.end] for place in places.places],
        }
        for name, places in mentions.items()
        if places
    }


def answers_of(
    connection: Connection, analysis_id: int, *, direct: frozenset[int] = frozenset()
) -> list[states.ProviderAnswer]:
    """Return the stored answers; `direct` are the numbers of prompts that name the business."""
    query = (
        select(website_answers)
        .where(website_answers.c.analysis_id == analysis_id)
        .order_by(website_answers.c.prompt_index, website_answers.c.provider)
    )
    return [
        states.ProviderAnswer(
            prompt_index=row["prompt_index"],
            provider=row["provider"],
            status=states.AnswerStatus(row["status"]),
            is_direct=row["prompt_index"] in direct,
            sentiment=row["mentions"]["sentiment"] if row["mentions"] else None,
            cited_urls=tuple(row["cited_urls"] or ()),
            **{name: row[name] for name in _FACTS},
        )
        for row in connection.execute(query).mappings()
    ]


def upsert_ranking(
    connection: Connection, business_id: int, analysis_id: int, analysed: WebsiteAnalysed, *, now: datetime
) -> None:
    """Upsert the ranking of business and day (UTC): a later analysis replaces an earlier one."""
    ranking, result = analysed.ranking, analysed.ranking.as_json()
    values: dict[str, Any] = {
        "analysis_id": analysis_id,
        "visibility": ranking.overall.visibility,
        "visibility_low": ranking.overall.low,
        "visibility_high": ranking.overall.high,
        "answers": ranking.overall.answers,
        "score": ranking.overall.score,
        "mentions": ranking.overall.mentions,
        "prompts": len({answer.prompt_index for answer in analysed.answers}),
        "by_provider": result["by_provider"],
        "competitors": result["competitors"],
        "cost_usd": ranking.cost_usd,
        "updated_at": now,
    }
    statement = insert_into(connection, website_rankings).values(
        business_id=business_id, day=now.astimezone(UTC).date(), created_at=now, **values
    )
    connection.execute(
        statement.on_conflict_do_update(index_elements=["business_id", "day"], set_=values | {"modified_at": Moment()})
    )


def _answer_row(analysis_id: int, answer: states.ProviderAnswer) -> dict[str, Any]:
    facts = {name: getattr(answer, name) for name in _FACTS}
    texts = {name: storable(facts[name]) for name in ("prompt", "answer", "error") if facts[name] is not None}
    return {
        "analysis_id": analysis_id,
        "prompt_index": answer.prompt_index,
        "provider": answer.provider,
        "status": answer.status.value,
        "cited_urls": list(answer.cited_urls) or null(),
        "mentions": null() if answer.sentiment is None else {"sentiment": answer.sentiment},
        **facts,
        **texts,
    }


ANSWERS_FOR = timedelta(days=180)
ANALYSES_FOR = timedelta(days=365)
SWEPT_AT_ONCE = 500  # analyses; the rest is deleted by the next run


def old_answers(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete the texts of old answers; their results stay with the analysis.

    Never those of a website's last complete analysis, nor of one that may be resumed.
    """
    has_answers = exists().where(website_answers.c.analysis_id == website_analyses.c.id)
    ids = _lock_old(connection, now - ANSWERS_FOR, has_answers)
    statement = delete(website_answers).where(website_answers.c.analysis_id.in_(ids))
    return connection.execute(statement).rowcount


def old_analyses(connection: Connection, _settings: Settings, now: datetime) -> int:
    """Delete old analyses with their remaining answers, except the last of each website."""
    ids = _lock_old(connection, now - ANALYSES_FOR, website_analyses.c.id.not_in(states.newest_analyses()))
    connection.execute(delete(website_answers).where(website_answers.c.analysis_id.in_(ids)))
    statement = delete(website_analyses).where(website_analyses.c.id.in_(ids))
    return connection.execute(statement).rowcount


def _lock_old(connection: Connection, before: datetime, those: ColumnElement[bool]) -> list[int]:
    """Lock and return old analyses, without the last complete one and those a dead letter may requeue.

    Those that another transaction deletes or requeues now are left out.
    """
    may_go_on = exists().where(
        OPEN,
        dead_letters.c.task_kind.in_(states.KINDS),
        dead_letters.c.source_id == website_analyses.c.source_id,
        website_analyses.c.status == states.AnalysisStatus.FAILED.value,
    )
    query = (
        select(website_analyses.c.id)
        .where(
            website_analyses.c.finished_at < before,
            website_analyses.c.id.not_in(states.newest_analyses(states.IS_COMPLETE)),
            ~may_go_on,
            those,
        )
        .order_by(website_analyses.c.id)
        .limit(SWEPT_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    return list(connection.execute(query).scalars())
