"""What people are told when an extraction ends: one notice for each end, and none twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, func, select, update

from ingestion_pipeline.catalogs.completing.publishing import DatasetEnd
from ingestion_pipeline.catalogs.states import DatasetStatus, ExtractionStatus
from ingestion_pipeline.notices.subjects import EXTRACTION, write_notice
from ingestion_pipeline.reading.models.ledger import costs
from ingestion_pipeline.store.tables import audit_log, extractions

REOPENED = ("extraction.resume", "extraction.retry")  # what an operator does to one that has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFacts:
    """What the notice says."""

    extraction_id: int
    source_id: str
    status: ExtractionStatus
    page_count: int
    failed_pages: int
    reason: str | None
    dataset: DatasetEnd | None
    left_pages: int = 0
    missing: Sequence[str] = ()


def tell_end(connection: Connection, facts: EndFacts, *, now: datetime) -> bool:
    """Whoever wants to hear of extractions is told of this end; False if they were already."""
    statement = (
        update(extractions)
        .where(extractions.c.id == facts.extraction_id, extractions.c.notified_at.is_(None))
        .values(notified_at=now)
    )
    if not connection.execute(statement).rowcount:
        return False
    cost = sum(
        (line.cost_usd for line in costs(connection, extraction_id=facts.extraction_id)), Decimal(0)
    )
    subject_id = _subject_id(connection, facts.extraction_id)
    return write_notice(connection, EXTRACTION, subject_id, payload_of(facts, cost), now=now)


def _subject_id(connection: Connection, extraction_id: int) -> str:
    """The extraction's id; its second end, after somebody opened it again, is a subject apart."""
    query = select(func.count()).where(
        audit_log.c.subject == f"extraction:{extraction_id}", audit_log.c.action.in_(REOPENED)
    )
    times: int = connection.execute(query).scalar_one()
    return f"{extraction_id}:{times + 1}" if times else str(extraction_id)


def payload_of(facts: EndFacts, cost_usd: Decimal) -> dict[str, Any]:
    """The notice's words for people and facts for programs."""
    word = facts.status.value.lower()
    dataset = facts.dataset
    left = f", {facts.left_pages} left" if facts.left_pages else ""
    lines = [f"{facts.page_count} pages, {facts.failed_pages} failed{left}"]
    if dataset is not None:
        lines.append(_dataset_line(dataset))
        lines += [f"- {one['message']}" for one in dataset.findings]
        lines += _kept_line(facts.extraction_id, dataset)
    lines += _missing_lines(facts)
    if facts.reason is not None:
        lines.append(f"why: {facts.reason}")
    if cost_usd:
        lines.append(f"language models: {cost_usd:.4f} dollars")
    if facts.status is not ExtractionStatus.COMPLETE:
        lines.append(f"`ingest extractions resume {facts.extraction_id}` goes on with it")
    elif dataset is not None and dataset.status is DatasetStatus.QUARANTINED:
        lines.append(f"`ingest extractions publish {facts.extraction_id}` accepts it all the same")
    return {
        "source_id": facts.source_id,
        "title": f"{facts.source_id}: extraction {facts.extraction_id} is {word}",
        "text": "\n".join(lines),
        "extraction_id": facts.extraction_id,
        "status": facts.status.value,
        "pages": facts.page_count,
        "failed_pages": facts.failed_pages,
        "missing": list(facts.missing),
        "reason": facts.reason,
        "cost_usd": f"{cost_usd:f}",
        "dataset": None if dataset is None else _dataset_facts(dataset),
    }


def _dataset_line(dataset: DatasetEnd) -> str:
    if dataset.is_confirmed:
        return f"version {dataset.version} of the dataset still holds: {dataset.items} items"
    return f"version {dataset.version} of the dataset, {dataset.status}: {dataset.items} items"


def _kept_line(extraction_id: int, dataset: DatasetEnd) -> list[str]:
    if not dataset.kept:
        return []
    cure = f"`ingest extractions retry {extraction_id}` visits them again"
    return [f"{dataset.kept} items are those of the time before: their pages failed; {cure}"]


def _missing_lines(facts: EndFacts) -> list[str]:
    """Return the pages that were not got, each with the reason; of many, the first."""
    more = facts.failed_pages + facts.left_pages - len(facts.missing)
    lines = [f"missing: {page}" for page in facts.missing]
    if more > 0 and lines:
        cure = f"`ingest extractions pages {facts.extraction_id}` shows all"
        lines.append(f"and {more} more; {cure}")
    return lines


def _dataset_facts(dataset: DatasetEnd) -> dict[str, Any]:
    return {
        "id": dataset.id,
        "version": dataset.version,
        "status": dataset.status.value,
        "items": dataset.items,
        "flagged": dataset.flagged,
        "findings": [dict(one) for one in dataset.findings],
        "is_confirmed": dataset.is_confirmed,
        "kept": dataset.kept,
    }
