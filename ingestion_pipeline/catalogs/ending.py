"""Extractions that have just ended, and what their sources' rows say of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from random import Random
from typing import Any

from sqlalchemy import Connection, func, select

from ingestion_pipeline.catalogs.extractions import Ended, cancel_extractions, end_extractions
from ingestion_pipeline.catalogs.states import PageStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.polls import lock_polls
from ingestion_pipeline.store.tables import pages
from ingestion_pipeline.work.errors import WALL_CODES, ErrorClass

Reasons = Mapping[int, Mapping[str, Any]]


def end_and_tell(
    connection: Connection,
    extraction_ids: Collection[int],
    cancelled: Reasons,
    *,
    now: datetime,
    settings: Settings,
    random: Random,
) -> set[int]:
    """Those with a reason are cancelled, those that no page keeps open have ended; their ids."""
    over = [
        *cancel_extractions(connection, cancelled, now=now),
        *end_extractions(connection, extraction_ids, now=now),
    ]
    # All of them before the first source is written: as whoever registers sources does it.
    lock_polls(connection, [ended.source_id for ended in over])
    for ended in over:
        _tell_source(connection, ended, now=now, settings=settings, random=random)
    return {ended.id for ended in over}


def _tell_source(
    connection: Connection, ended: Ended, *, now: datetime, settings: Settings, random: Random
) -> None:
    """The source's row says what its extraction came to."""
    if (failure := ended.failure) is not None:
        is_wall = failure["code"] in WALL_CODES
        kind = str(failure["code"]).replace("_", " ")
        walk = crawls.FailedWalk(
            source_id=ended.source_id,
            outcome=f"extraction {ended.id} failed: {failure['message']}",
            error_class=failure["class"],
            # what robots.txt forbids, or a pause that was asked for, is nobody's fault
            is_strike=failure["class"] != ErrorClass.RESOURCE.value,
            wall=f"behind a {kind}: {failure['message']}" if is_wall else None,
        )
        crawls.fail(connection, walk, now=now, settings=settings, random=random)
        return
    new, failed = _counts(connection, ended.id)
    crawls.complete(
        connection,
        ended.source_id,
        outcome=f"extraction {ended.id}: {ended.page_count} pages, {new} new, {failed} failed",
        pages=ended.page_count - failed,
        has_news=new > 0,
        now=now,
    )


def _counts(connection: Connection, extraction_id: int) -> tuple[int, int]:
    """How many pages said something new, and how many failed."""
    query = select(
        func.count().filter(pages.c.outcome == "new"),
        func.count().filter(pages.c.status == PageStatus.ERROR.value),
    ).where(pages.c.extraction_id == extraction_id)
    new, failed = connection.execute(query).one()
    return new, failed
