"""Writes an analysis: the company's record, discovery tasks for its boards, its source's health."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, update

from ingestion_pipeline.companies.analysis.boards import FoundBoard
from ingestion_pipeline.companies.analysis.company_facts import FIELDS
from ingestion_pipeline.companies.analysis.findings import CompanyEvaluation, Findings
from ingestion_pipeline.companies.board_discovery import find_board_source
from ingestion_pipeline.companies.company_states import SOURCE_DISCOVERY, CompanyStatus, Completeness
from ingestion_pipeline.companies.records import company
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Source, crawls
from ingestion_pipeline.sources.poll_tasks import lock_polls
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.queue import Refusal, spawn
from ingestion_pipeline.tasks.task import NewTask, Task

# Columns whose change is news; the others say how a value was found.
_NEWS_FIELDS = (*FIELDS, "name", "tech_stack", "score", "is_remote_first")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyAnalysed:
    """An analysed company; `failed` has the error codes of failed pages by URL."""

    task: Task
    company_id: str
    source: Source
    findings: Findings
    evaluation: CompanyEvaluation
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


def save_company(connection: Connection, analysed: CompanyAnalysed, *, now: datetime, settings: Settings) -> None:
    """Update the company's record, where values no longer found stay, and spawn a discovery of each new board."""
    # Polls are locked before the company everywhere.
    lock_polls(connection, [analysed.source.id])
    before = company(connection, analysed.company_id)
    if before is None:
        return
    boards = [
        _board(connection, analysed, board, before, now=now, settings=settings) for board in analysed.findings.boards
    ]
    values = _values(analysed, before) | {"boards": boards}
    is_thin = analysed.evaluation.completeness is Completeness.THIN
    connection.execute(
        update(companies)
        .where(companies.c.id == analysed.company_id)
        .values(
            **values,
            status=(CompanyStatus.PENDING if is_thin else CompanyStatus.ACTIVE).value,
            failure=None,
            tracking_id=analysed.task.tracking_id,
            analyzed_at=now,
            updated_at=now,
        )
    )
    crawls.complete(
        connection,
        analysed.source.id,
        outcome=summary(analysed),
        records=1,
        has_news=any(values[name] != before[name] for name in _NEWS_FIELDS),
        now=now,
    )


def summary(analysed: CompanyAnalysed) -> str:
    """Return a one-line summary of the analysis."""
    findings, evaluation = analysed.findings, analysed.evaluation
    return (
        f"{evaluation.completeness.value}: {len(findings.facts)} of {len(FIELDS)} facts on"
        f" {len(findings.pages)} pages, {len(findings.boards)} boards,"
        f" {evaluation.score.points} points, tier {evaluation.score.tier}"
    )


def _values(analysed: CompanyAnalysed, before: RowMapping) -> dict[str, Any]:
    findings, evaluation = analysed.findings, analysed.evaluation
    evidence = dict(before["evidence"] or {}) | {name: fact.as_evidence() for name, fact in findings.facts.items()}
    facts = {name: findings.value(name) if name in findings.facts else before[name] for name in FIELDS}
    has_size = "size" in findings.facts
    return {
        **facts,
        "name": findings.name or before["name"],
        "employees_low": evaluation.employees_low if has_size else before["employees_low"],
        "employees_high": evaluation.employees_high if has_size else before["employees_high"],
        "size_category": evaluation.size_category if has_size else before["size_category"],
        "is_remote_first": findings.is_remote_first,
        "tech_stack": {group: list(names) for group, names in findings.tech_stack.items()},
        "score": evaluation.score.points,
        "score_parts": dict(evaluation.score.parts),
        "tier": evaluation.score.tier,
        "scoring_hash": evaluation.scoring_hash,
        "quality": {
            **evaluation.quality,
            "pages": [page.url for page in findings.pages],
            **({"pages_failed": dict(analysed.failed)} if analysed.failed else {}),
        },
        "evidence": evidence,
    }


def _board(
    connection: Connection,
    analysed: CompanyAnalysed,
    board: FoundBoard,
    before: RowMapping,
    *,
    now: datetime,
    settings: Settings,
) -> Mapping[str, Any]:
    """Return the board as stored in the record; the results of an earlier discovery stay."""
    earlier: list[dict[str, Any]] = before["boards"] or []
    previous = next((saved for saved in earlier if saved.get("url") == board.url), None)
    entry = dict(board.as_dict())
    if previous is not None:
        entry |= {name: previous.get(name) for name in ("confidence", "note", "source_id")}
    source_id = find_board_source(connection, platform=board.platform, url=board.url, token=board.token)
    if source_id is not None:
        return entry | {"source_id": source_id}
    if not board.has_reader:
        return entry
    discovery = NewTask(
        kind=SOURCE_DISCOVERY,
        dedupe_key=board.url,
        not_before=now,
        source_id=analysed.source.id,
        url=board.url,
        shard=analysed.source.shard,
        payload={"company_id": analysed.company_id, "platform": board.platform, "token": board.token},
    )
    made = spawn(connection, analysed.task, discovery, now=now, policy=settings.work)
    return entry | ({"note": f"refused: {made.value}"} if isinstance(made, Refusal) else {})
