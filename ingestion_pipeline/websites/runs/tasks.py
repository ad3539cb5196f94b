"""Claimed tasks of analyses, with what the phases before them stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from ingestion_pipeline.engine.outcomes import Outcome, Skipped
from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import website_analyses
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.websites.analysis import ProviderAnswer, WebsiteAnalysed
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.rows import answers_of
from ingestion_pipeline.websites.source_config import WebsiteConfig, parse_website_config
from ingestion_pipeline.websites.states import (
    BY_KIND,
    STARTED_PERCENT,
    WEBSITE_ANALYSIS,
    WEBSITE_INFO,
    AskedPrompt,
    Informed,
    Phase,
    Prompted,
    PromptedBy,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPhase:
    """A claimed phase of an analysis, with the answers of an earlier attempt."""

    task: Task
    source: Source
    phase: Phase
    analysis_id: int
    business_id: int | None
    url: str
    created_at: datetime
    is_recurring: bool
    is_manual: bool
    info: Mapping[str, Any] | None
    prompts: tuple[AskedPrompt, ...]
    previous_answers: Sequence[ProviderAnswer]
    times: Mapping[str, Any]

    @property
    def config(self) -> WebsiteConfig:
        """Return the operator's config of the website."""
        return parse_website_config(self.source.config)[0]

    @property
    def host(self) -> str | None:
        """Return the host whose pages it fetches; None if it fetches none."""
        is_read = self.task.kind == WEBSITE_INFO and not self.config.is_manual
        return host_of(self.url) if is_read else None

    @property
    def business(self) -> Business:
        """Return the result of the first phase."""
        if self.info is None:
            raise ValueError(f"analysis {self.analysis_id} has no information yet")
        return Business.from_json(self.info)


PhaseResult = Informed | Prompted | WebsiteAnalysed
PhaseOutcome = Outcome[ClaimedPhase, PhaseResult]
LoadedPhase = ClaimedPhase | PhaseOutcome


def open_phases(connection: Connection, claimed: Sequence[Task], *, now: datetime) -> list[LoadedPhase]:
    """Return the phase of each claimed task, and mark its analysis as started.

    Tasks that were lost since they were claimed are left out: another worker has them.
    """
    mine = claims.held(connection, [(task.id, task.fence) for task in claimed])
    ours = [task for task in claimed if task.id in mine]
    ids = [task.payload.get("analysis", 0) for task in ours]
    query = select(website_analyses).where(website_analyses.c.id.in_(ids))
    rows = {row["id"]: row for row in connection.execute(query).mappings()}
    sources = sources_by_id(connection, {task.source_id or "" for task in ours})
    opened = [
        _open_phase(connection, task, rows.get(id_), sources.get(task.source_id or ""), now=now)
        for task, id_ in zip(ours, ids, strict=True)
    ]
    for item in opened:
        if isinstance(item, ClaimedPhase):
            _record_start(connection, item, now=now)
    return opened


def _open_phase(
    connection: Connection, task: Task, row: RowMapping | None, source: Source | None, *, now: datetime
) -> LoadedPhase:
    phase = BY_KIND[task.kind]
    if row is None or source is None:
        return _obsolete(task, "its analysis or its source was deleted")
    if row["status"] != phase.status.value:
        return _obsolete(task, f"its analysis is {row['status']}")
    if source.status is SourceStatus.DISABLED:
        return _obsolete(task, f"{source.id} is disabled: {source.status_reason}")
    prompts = tuple(_prompt(prompt) for prompt in row["prompts"] or ())
    taken = ("business_id", "url", "created_at", "is_recurring", "is_manual", "info")
    return ClaimedPhase(
        task=task,
        source=source,
        phase=phase,
        analysis_id=row["id"],
        prompts=prompts,
        previous_answers=_previous_answers(connection, task, row["id"], prompts),
        times=_times(row["phase_times"], phase, task, now),
        **{name: row[name] for name in taken},
    )


def _obsolete(task: Task, reason: str) -> Skipped[ClaimedPhase]:
    return Skipped(task=task, reason=reason, code="unwanted")


def _previous_answers(
    connection: Connection, task: Task, analysis_id: int, prompts: Sequence[AskedPrompt]
) -> Sequence[ProviderAnswer]:
    if task.kind != WEBSITE_ANALYSIS:
        return ()
    direct = frozenset(number for number, prompt in enumerate(prompts) if prompt.is_direct)
    return answers_of(connection, analysis_id, direct=direct)


def _prompt(stored: Mapping[str, Any]) -> AskedPrompt:
    return AskedPrompt(text=stored["text"], is_direct=stored["is_direct"], by=PromptedBy(stored["by"]))


def _times(stored: Mapping[str, Any], phase: Phase, task: Task, now: datetime) -> dict[str, Any]:
    """Return when the phase could have started and when it did; of several attempts the last."""
    since = max(task.created_at, task.not_before)
    began = {"claimable": since.isoformat(), "began": now.isoformat(), "attempts": task.attempts}
    return {**stored, phase.queue: began}


def _record_start(connection: Connection, item: ClaimedPhase, *, now: datetime) -> None:
    started = func.coalesce(website_analyses.c.started_at, now)
    values: dict[str, Any] = {
        "started_at": started,
        "progress_message": item.phase.message,
        "phase_times": dict(item.times),
        "updated_at": now,
    }
    if item.task.kind == WEBSITE_INFO:
        values["progress_percent"] = STARTED_PERCENT
    connection.execute(update(website_analyses).where(website_analyses.c.id == item.analysis_id).values(values))
