"""An analysis becomes the company's record, its boards' discoveries and its source's health."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, update

from ingestion_pipeline.companies.analysis.boards import FoundBoard
from ingestion_pipeline.companies.analysis.facts import FIELDS
from ingestion_pipeline.companies.analysis.scoring import Completeness
from ingestion_pipeline.companies.board_discovery import standing_source
from ingestion_pipeline.companies.outcomes import CompanyAnalysed
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.companies.states import SOURCE_DISCOVERY, CompanyStatus
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import crawls
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask

# What a change of makes news; the rest is how it was found.
_TOLD = (*FIELDS, "name", "tech_stack", "score", "is_remote_first")


def save_company(
    connection: Connection, done: CompanyAnalysed, *, now: datetime, settings: Settings
) -> None:
    """The record is filled, and each board that is new to us has its discovery.

    Thin data is kept all the same, with its flag; a value that was known and is not found any more
    stays until another is found.
    """
    lock_polls(connection, [done.source.id])  # before the company: so has whoever polls it
    before = company(connection, done.company_id)
    if before is None:
        return
    boards = [
        _board(connection, done, one, before, now=now, settings=settings)
        for one in done.findings.boards
    ]
    values = _values(done, before) | {"boards": boards}
    connection.execute(
        update(companies)
        .where(companies.c.id == done.company_id)
        .values(
            **values,
            status=_status(done).value,
            failure=None,
            tracking_id=done.task.tracking_id,
            analyzed_at=now,
            updated_at=now,
        )
    )
    crawls.complete(
        connection,
        done.source.id,
        outcome=summary(done),
        records=1,
        has_news=any(values[name] != before[name] for name in _TOLD),
        now=now,
    )


def summary(done: CompanyAnalysed) -> str:
    """What the analysis came to, for people."""
    found, judged = done.findings, done.judgement
    return (
        f"{judged.completeness.value}: {len(found.facts)} of {len(FIELDS)} facts on"
        f" {len(found.pages)} pages, {len(found.boards)} boards, {judged.score.points} points,"
        f" tier {judged.score.tier}"
    )


def _status(done: CompanyAnalysed) -> CompanyStatus:
    is_thin = done.judgement.completeness is Completeness.THIN
    return CompanyStatus.PENDING if is_thin else CompanyStatus.ACTIVE


def _values(done: CompanyAnalysed, before: RowMapping) -> dict[str, Any]:
    found, judged = done.findings, done.judgement
    evidence = dict(before["evidence"] or {}) | {
        name: fact.as_evidence() for name, fact in found.facts.items()
    }
    facts = {name: found.value(name) if name in found.facts else before[name] for name in FIELDS}
    has_size = "size" in found.facts
    return {
        **facts,
        "name": found.name or before["name"],
        "employees_low": judged.employees_low if has_size else before["employees_low"],
        "employees_high": judged.employees_high if has_size else before["employees_high"],
        "size_category": judged.size_category if has_size else before["size_category"],
        "is_remote_first": found.is_remote_first,
        "tech_stack": {group: list(names) for group, names in found.tech_stack.items()},
        "score": judged.score.points,
        "score_parts": dict(judged.score.parts),
        "tier": judged.score.tier,
        "scored_as": judged.scored_as,
        "quality": {
            **judged.quality,
            "pages": [page.url for page in found.pages],
            **({"pages_failed": dict(done.failed)} if done.failed else {}),
        },
        "evidence": evidence,
    }


def _board(
    connection: Connection,
    done: CompanyAnalysed,
    board: FoundBoard,
    before: RowMapping,
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Any]:
    """The board as the record keeps it; what a discovery said of it earlier stays."""
    earlier: list[dict[str, Any]] = before["boards"] or []
    known = next((one for one in earlier if one.get("url") == board.url), None)
    kept = dict(board.as_dict())
    if known is not None:
        kept |= {name: known.get(name) for name in ("confidence", "note", "source_id")}
    standing = standing_source(
        connection, platform=board.platform, url=board.url, token=board.token
    )
    if standing is not None:
        return kept | {"source_id": standing}
    if not board.has_reader:
        return kept
    made = spawn(
        connection, done.task, _discovery(done, board, now=now), now=now, policy=settings.work
    )
    return kept | ({"note": f"refused: {made.value}"} if isinstance(made, Refusal) else {})


def _discovery(done: CompanyAnalysed, board: FoundBoard, *, now: datetime) -> NewTask:
    return NewTask(
        kind=SOURCE_DISCOVERY,
        dedupe_key=board.url,
        not_before=now,
        source_id=done.source.id,
        url=board.url,
        shard=done.source.shard,
        payload={
            "company_id": done.company_id,
            "platform": board.platform,
            "token": board.token,
        },
    )
