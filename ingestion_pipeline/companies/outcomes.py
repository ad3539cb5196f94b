"""Results of company analyses and board probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.companies.analysis.analysis import CompanyEvaluation, Findings
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyAnalysed:
    """An analysed company; `failed` has the error codes of failed pages by URL."""

    task: Task
    company_id: str
    source: Source
    findings: Findings
    evaluation: CompanyEvaluation
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A probed board, and the confidence that it can be parsed."""

    task: Task
    company_id: str | None
    platform: str
    url: str
    config: Mapping[str, Any]
    confidence: Confidence
    details: str
