"""An analysis as a table of visibility: in all, then by provider, beside competitors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.websites.reporting import AnalysisReport

ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityRow:
    """How visible the business is to one provider, or to all; shares from 0 to 1.

    Of a provider that answered nothing there are no numbers. `competitors` are by name the share
    of the same answers that name each, the most visible first.
    """

    provider: str
    prompts: int
    answers: int
    visibility: float | None = None
    unprompted: float | None = None
    best_rank: int | None = None
    mean_rank: float | None = None
    score: int | None = None
    competitors: Mapping[str, float] = field(default_factory=dict[str, float])
    failure: str | None = None


def visibility_rows(report: AnalysisReport) -> list[VisibilityRow]:
    """All providers together, then each; nothing before the analysis is complete."""
    found = report.analysis
    return list(_rows(found, prompts=len(report.prompts))) if found else []


def _rows(found: Mapping[str, Any], *, prompts: int) -> Iterator[VisibilityRow]:
    failures: Mapping[str, str] = found.get("failures", {})
    by_provider: Mapping[str, Mapping[str, Any]] = found["by_provider"]
    providers = len(by_provider.keys() | failures.keys())
    yield _row(ALL, {**found["overall"], "competitors": found["competitors"]}, prompts * providers)
    for name, one in by_provider.items():
        yield _row(name, one, prompts, failures.get(name))
    for name in failures.keys() - by_provider.keys():
        yield VisibilityRow(provider=name, prompts=prompts, answers=0, failure=failures[name])


def _row(
    provider: str, one: Mapping[str, Any], prompts: int, failure: str | None = None
) -> VisibilityRow:
    others: Mapping[str, Mapping[str, Any]] = one.get("competitors", {})
    shares = {name: float(other["visibility"]) for name, other in others.items()}
    taken = ("answers", "visibility", "unprompted", "best_rank", "score")
    return VisibilityRow(
        provider=provider,
        prompts=prompts,
        competitors=dict(sorted(shares.items(), key=lambda pair: -pair[1])),
        failure=failure,
        mean_rank=one.get("mean_rank"),  # rankings of old have none
        **{name: one[name] for name in taken},
    )
