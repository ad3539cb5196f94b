"""What the work on companies and boards comes to, as closed types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.companies.analysis.analysis import Findings, Judgement
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import WorkError
from ingestion_pipeline.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyAnalysed:
    """A company whose pages were read; `failed` are the pages that were not had, by address."""

    task: Task
    company_id: str
    source: Source
    findings: Findings
    judgement: Judgement
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class NotNeeded:
    """Work that is not to be done: the company is known well, or the board is a source."""

    task: Task
    why: str
    source_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A board that was asked for its first page, and how sure it is that it can be read."""

    task: Task
    company_id: str | None
    platform: str
    url: str
    config: Mapping[str, Any]
    confidence: Confidence
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotDone:
    """Work that failed, or could not be begun."""

    task: Task
    error: WorkError
    company_id: str | None = None
    source: Source | None = None
    stack: str | None = None


Outcome = CompanyAnalysed | NotNeeded | Probed | NotDone
