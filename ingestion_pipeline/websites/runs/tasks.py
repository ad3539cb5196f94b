"""Claimed tasks as work: which analysis, in which phase, and what the phases before it left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, select, update

from ingestion_pipeline.sources import Source, SourceStatus
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store.tables import website_analyses
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.websites.analysis import ProviderAnswer, WebsiteAnalysed
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.rows import answers_of
from ingestion_pipeline.websites.source_config import Given, given_of
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

BEGUN = "begun"  # the stage of a task from its claim to its end: one that is found so was left


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPhase:
    """A phase of an analysis that is ours to do; `known` are answers of an attempt before."""

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
    known: Sequence[ProviderAnswer]
    times: Mapping[str, Any]

    @property
    def has_killed(self) -> bool:
        """Whether its last worker died over it, or over a neighbour."""
        return self.task.stage == BEGUN

    @property
    def given(self) -> Given:
        """What the operator says of the website."""
        return given_of(self.source.config)[0]

    @property
    def host(self) -> str | None:
        """Whose pages it reads; None if it reads none."""
        is_read = self.task.kind == WEBSITE_INFO and not self.given.is_manual
        return host_of(self.url) if is_read else None

    @property
    def business(self) -> Business:
        """What the first phase found."""
        if self.info is None:
            raise ValueError(f"analysis {self.analysis_id} has no information yet")
        return Business.from_json(self.info)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseDone:
    """A phase that came to something."""

    item: ClaimedPhase
    outcome: Informed | Prompted | WebsiteAnalysed

    @property
    def task(self) -> Task:
        """The claim."""
        return self.item.task


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseNotDone:
    """A phase that did not."""

    item: ClaimedPhase
    error: WorkError
    stack: str | None = None

    @property
    def task(self) -> Task:
        """The claim."""
        return self.item.task


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLongerNeeded:
    """A task that nobody needs: its analysis has ended or is elsewhere, or its source is off."""

    task: Task
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOff:
    """A claim that is given back as it was: something else must be served alone."""

    task: Task


PhaseResult = PhaseDone | PhaseNotDone | NoLongerNeeded | PutOff


def open_phases(
    connection: Connection, claimed: Sequence[Task], *, now: datetime
) -> list[ClaimedPhase | NoLongerNeeded]:
    """What is to be done with each; an analysis whose phase begins says so.

    What was lost since it was claimed is left out: it is another worker's to say.
    """
    mine = claims.held(connection, [(task.id, task.fence) for task in claimed])
    ours = [task for task in claimed if task.id in mine]
    ids = [task.payload.get("analysis", 0) for task in ours]
    query = select(website_analyses).where(website_analyses.c.id.in_(ids))
    rows = {row["id"]: row for row in connection.execute(query).mappings()}
    known = sources_by_id(connection, {task.source_id or "" for task in ours})
    opened = [
        _opened(connection, task, rows.get(id_), known.get(task.source_id or ""), now=now)
        for task, id_ in zip(ours, ids, strict=True)
    ]
    begun = [one for one in opened if isinstance(one, ClaimedPhase)]
    for one in begun:
        _say_begun(connection, one, now=now)
    if begun:
        claims.set_stage(connection, [(one.task.id, one.task.fence) for one in begun], BEGUN)
    return opened


def _opened(
    connection: Connection,
    task: Task,
    row: RowMapping | None,
    source: Source | None,
    *,
    now: datetime,
) -> ClaimedPhase | NoLongerNeeded:
    phase = BY_KIND[task.kind]
    if row is None or source is None:
        return NoLongerNeeded(task=task, why="its analysis or its source is gone")
    if row["status"] != phase.status.value:
        return NoLongerNeeded(task=task, why=f"its analysis is {row['status']}")
    if source.status is SourceStatus.DISABLED:
        return NoLongerNeeded(task=task, why=f"{source.id} is disabled: {source.status_reason}")
    prompts = tuple(_prompt(one) for one in row["prompts"] or ())
    taken = ("business_id", "url", "created_at", "is_recurring", "is_manual", "info")
    return ClaimedPhase(
        task=task,
        source=source,
        phase=phase,
        analysis_id=row["id"],
        prompts=prompts,
        known=_known(connection, task, row["id"], prompts),
        times=_times(row["phase_times"], phase, task, now),
        **{name: row[name] for name in taken},
    )


def _known(
    connection: Connection, task: Task, analysis_id: int, prompts: Sequence[AskedPrompt]
) -> Sequence[ProviderAnswer]:
    if task.kind != WEBSITE_ANALYSIS:
        return ()
    direct = frozenset(number for number, one in enumerate(prompts) if one.is_direct)
    return answers_of(connection, analysis_id, direct=direct)


def _prompt(kept: Mapping[str, Any]) -> AskedPrompt:
    return AskedPrompt(text=kept["text"], is_direct=kept["is_direct"], by=PromptedBy(kept["by"]))


def _times(kept: Mapping[str, Any], phase: Phase, task: Task, now: datetime) -> dict[str, Any]:
    """When the phase could have begun and when it did; of several attempts the last."""
    since = max(task.created_at, task.not_before)
    began = {
        "claimable": since.isoformat(),
        "began": now.isoformat(),
        "attempts": task.attempts,
    }
    return {**kept, phase.queue: began}


def _say_begun(connection: Connection, item: ClaimedPhase, *, now: datetime) -> None:
    started = func.coalesce(website_analyses.c.started_at, now)
    values: dict[str, Any] = {
        "started_at": started,
        "progress_message": item.phase.message,
        "phase_times": dict(item.times),
        "updated_at": now,
    }
    if item.task.kind == WEBSITE_INFO:
        values["progress_percent"] = STARTED_PERCENT
    connection.execute(
        update(website_analyses).where(website_analyses.c.id == item.analysis_id).values(values)
    )
