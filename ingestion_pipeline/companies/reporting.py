"""Reports on companies: one with its lineage and cost, or a list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select

from ingestion_pipeline.companies.analysis.model_facts import CALL_SITE
from ingestion_pipeline.companies.states import COMPANY, SOURCE_DISCOVERY
from ingestion_pipeline.store.tables import audit_log, companies, model_calls, tasks
from ingestion_pipeline.tasks.queue import REFUSED, lineage_of
from ingestion_pipeline.tasks.task import TaskStatus

MAX_LISTED = 1_000
_LISTED = ("id", "name", "website", "status", "tier", "score", "analyzed_at", "source_id", "quality")


class UnknownCompany(LookupError):
    """No company has this id."""

    def __init__(self, company_id: str) -> None:
        super().__init__(f"there is no company {company_id!r}; `ingest companies list` shows all")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyReport:
    """A company's record, the refusals of the spawn guard in its lineage, and its cost."""

    row: Mapping[str, Any]
    refusals: Sequence[Mapping[str, Any]]
    tasks: Sequence[Mapping[str, Any]]
    cost_usd: Decimal

    @property
    def facts_by_method(self) -> Counter[str]:
        """Return the number of facts by extraction method."""
        evidence: dict[str, dict[str, Any]] = self.row["evidence"] or {}
        return Counter(str(fact["method"]) for fact in evidence.values())


def sources_in_progress(connection: Connection, source_ids: Collection[str], *, now: datetime) -> list[str]:
    """Return those of these sources whose company a worker is analysing now."""
    query = select(tasks.c.source_id).where(
        tasks.c.kind == COMPANY,
        tasks.c.source_id.in_(list(source_ids)),
        tasks.c.status == TaskStatus.PROCESSING.value,
        tasks.c.lease_until > now,
    )
    return sorted(set(connection.execute(query).scalars()))


def list_companies(
    connection: Connection, *, status: str | None = None, tier: str | None = None
) -> list[dict[str, Any]]:
    """Return companies by score, best first; those without a score last."""
    query = select(*(companies.c[name] for name in _LISTED))
    if status is not None:
        query = query.where(companies.c.status == status)
    if tier is not None:
        query = query.where(companies.c.tier == tier)
    ordered = query.order_by(func.coalesce(companies.c.score, -1).desc(), companies.c.id)
    return [dict(row) for row in connection.execute(ordered.limit(MAX_LISTED)).mappings()]


def company_report(connection: Connection, company_id: str) -> CompanyReport:
    """Return the company's report; raise `UnknownCompany` if there is no such company."""
    query = select(companies).where(companies.c.id == company_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        raise UnknownCompany(company_id)
    return _report(connection, row)


def analysed_since(
    connection: Connection, *, since: datetime, source_ids: Collection[str] | None = None, limit: int
) -> list[CompanyReport]:
    """Return the companies with a source that were analysed since then."""
    query = select(companies).where(companies.c.source_id.is_not(None), companies.c.analyzed_at >= since)
    if source_ids is not None:
        query = query.where(companies.c.source_id.in_(list(source_ids)))
    rows = connection.execute(query.order_by(companies.c.id).limit(limit)).mappings().all()
    return [_report(connection, row) for row in rows]


def _report(connection: Connection, row: RowMapping) -> CompanyReport:
    return CompanyReport(
        row=dict(row),
        refusals=_refusals(connection, row["tracking_id"]),
        tasks=_tasks(connection, row["source_id"]),
        cost_usd=_cost(connection, row["source_id"]),
    )


def _refusals(connection: Connection, tracking_id: str) -> list[dict[str, Any]]:
    """Return what the spawn guard refused to the company's lineage, oldest first."""
    query = select(audit_log.c.at, audit_log.c.detail).where(
        audit_log.c.subject == lineage_of(tracking_id), audit_log.c.action == REFUSED
    )
    return [{"at": at, **detail} for at, detail in connection.execute(query.order_by(audit_log.c.at))]


def _tasks(connection: Connection, source_id: str | None) -> list[dict[str, Any]]:
    """Return the newest analyses and discoveries of the company's source."""
    names = ("id", "kind", "url", "status", "attempts", "stage", "error")
    query = select(*(tasks.c[name] for name in names)).where(
        tasks.c.source_id == source_id, tasks.c.kind.in_([COMPANY, SOURCE_DISCOVERY])
    )
    rows = connection.execute(query.order_by(tasks.c.id.desc()).limit(20)).mappings()
    return [dict(row) for row in rows]


def _cost(connection: Connection, source_id: str | None) -> Decimal:
    query = select(func.sum(model_calls.c.cost_usd)).where(
        model_calls.c.source_id == source_id, model_calls.c.call_site == CALL_SITE
    )
    return connection.execute(query).scalar_one() or Decimal(0)
