"""A discovered board becomes a source: polled at once if it is sure, else when somebody says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, update

from ingestion_pipeline.companies.discovery.standing import standing_source
from ingestion_pipeline.companies.outcomes import Probed
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.polls import POLL
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind, SourceStatus, Tier, shard_of
from ingestion_pipeline.store.audit import audit
from ingestion_pipeline.store.tables import companies, sources
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.queue import Refusal, spawn
from ingestion_pipeline.work.task import NewTask, Task

_ODD = re.compile(r"[^a-z0-9._-]+")
MAX_NAME = 90


def save_board(
    connection: Connection, probed: Probed, *, now: datetime, settings: Settings
) -> str | None:
    """The board's source, made now; None if it has one, or if its lineage does not want its poll.

    The poll is the discovery's child, so that what it finds belongs to the same lineage.
    """
    found = recognize_platform(probed.url)
    token = found.token if found is not None and found.name == probed.platform else None
    standing = standing_source(connection, platform=probed.platform, url=probed.url, token=token)
    if standing is not None:
        note_board(connection, probed, source_id=standing, now=now)
        return None
    source_id = _free_id(connection, probed, token)
    is_sure = probed.confidence is Confidence.HIGH
    made = spawn(
        connection,
        probed.task,
        _poll(source_id, probed.url, now=now),
        now=now,
        policy=settings.work,
        is_permanent=True,
    )
    if isinstance(made, Refusal):
        note_board(connection, probed, source_id=None, now=now, note=f"refused: {made.value}")
        return None
    register(connection, [_definition(connection, probed, source_id, is_sure)], now=now)
    _settle(connection, probed, source_id, is_sure=is_sure, now=now)
    note_board(connection, probed, source_id=source_id, now=now)
    return source_id


def _poll(source_id: str, url: str, *, now: datetime) -> NewTask:
    return NewTask(
        kind=POLL,
        dedupe_key=source_id,
        not_before=now,
        source_id=source_id,
        url=url,
        priority=Tier.WARM.priority,
        shard=shard_of(host_of(url)),
    )


def _definition(
    connection: Connection,
    probed: Probed,
    source_id: str,
    is_sure: bool,  # noqa: FBT001
) -> Definition:
    row = company(connection, probed.company_id) if probed.company_id else None
    return Definition(
        id=source_id,
        kind=Kind.JOB_BOARD,
        url=probed.url,
        name=row["name"] if row is not None else None,
        platform=probed.platform,
        config=dict(probed.config),
        enabled=is_sure,
        company=probed.company_id,
    )


def _settle(
    connection: Connection, probed: Probed, source_id: str, *, is_sure: bool, now: datetime
) -> None:
    """The source is of the discovery's lineage; what is not sure waits for approval."""
    values: dict[str, Any] = {"tracking_id": probed.task.tracking_id}
    if not is_sure:
        values |= {
            "status": SourceStatus.PENDING_VALIDATION.value,
            "status_reason": (
                f"confidence {probed.confidence.value}: {probed.said}; it is polled after"
                f" `ingest sources enable {source_id}`"
            ),
        }
    connection.execute(update(sources).where(sources.c.id == source_id).values(**values))
    audit(
        connection,
        actor="system",
        action="source.discovered",
        subject=source_id,
        now=now,
        detail={
            "url": probed.url,
            "platform": probed.platform,
            "confidence": probed.confidence.value,
            "company": probed.company_id,
            "task": probed.task.id,
        },
    )


def _free_id(connection: Connection, probed: Probed, token: str | None) -> str:
    """`job_board:greenhouse-acme`; with a part of the lineage's id where another board has that."""
    name = f"{probed.platform}-{token}" if token else (probed.company_id or host_of(probed.url))
    slug = _ODD.sub("-", name.casefold()).strip("-.")[:MAX_NAME] or "board"
    source_id = f"{Kind.JOB_BOARD.value}:{slug}"
    if sources_by_id(connection, [source_id]):
        return f"{source_id}-{probed.task.id}"
    return source_id


def note_board(
    connection: Connection,
    probed: Probed,
    *,
    source_id: str | None,
    now: datetime,
    note: str | None = None,
) -> None:
    """The company's record says what became of the board."""
    said = {
        "confidence": probed.confidence.value,
        "source_id": source_id,
        "note": note or probed.said,
    }
    change_board(connection, probed.company_id, probed.task, said, now=now)


def change_board(
    connection: Connection,
    company_id: str | None,
    task: Task,
    said: Mapping[str, Any],
    *,
    now: datetime,
) -> None:
    """The board that the discovery was of has these values in the company's record."""
    row = company(connection, company_id) if company_id else None
    if row is None:
        return
    known: list[dict[str, Any]] = row["boards"] or []
    boards = [{**one, **said} if one.get("url") == task.url else one for one in known]
    connection.execute(
        update(companies).where(companies.c.id == row["id"]).values(boards=boards, updated_at=now)
    )
