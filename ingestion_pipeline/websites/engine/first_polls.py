"""The first poll of a website, done where it is noticed: it asks nobody, and only begins."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from sqlalchemy import Connection, select

from ingestion_pipeline.pages.poll_results import (
    ClaimedPoll,
    Deferred,
    PollResult,
    failure_of,
    write_results,
)
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.work import claims
from ingestion_pipeline.work.claims import ClaimFilter
from ingestion_pipeline.work.errors import Permanent

MOST = 200  # at a time; the others are polled by a run, as all sources are


def begin_first(shop: RunContext) -> int:
    """New websites have an analysis under way; how many began.

    As a poll does it, but claimed and written in one transaction: a run of its own would take
    longer to start than the analysis takes.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        ids = _unpolled(connection)
        if not ids:
            return 0
        polls = claims.claim(
            connection,
            ClaimFilter(kind=POLL, due_of=ids),
            owner=str(uuid4()),
            now=now,
            lease=timedelta(seconds=shop.settings.work.lease_seconds),
            limit=MOST,
        )
        known = sources_by_id(connection, ids)
        claimed = [ClaimedPoll(task=task, source=known[task.source_id or ""]) for task in polls]
        counts, _ = write_results(
            connection,
            [_result(shop, one) for one in claimed],
            batch_id="",  # there are no listings
            now=now,
            settings=shop.settings,
            random=shop.random,
            begun_by=shop.begun,
        )
    return counts.begun


def _unpolled(connection: Connection) -> list[str]:
    query = select(sources.c.id).where(
        sources.c.kind == Kind.WEBSITE.value, sources.c.last_checked_at.is_(None)
    )
    return list(connection.execute(query.order_by(sources.c.created_at).limit(MOST)).scalars())


def _result(shop: RunContext, one: ClaimedPoll) -> PollResult:
    try:
        shop.begun[one.source.kind].check(one.source)
    except ValueError as error:
        return failure_of(one, Permanent(str(error), code="bad_config"))
    return Deferred(task=one.task, source=one.source)
