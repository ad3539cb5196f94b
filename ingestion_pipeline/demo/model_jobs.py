"""What the demo's model says of jobs: as the rules do, in its own words, and proved by the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.demo.openings import (
    HIGH,
    LOW,
    MEDIUM,
    Opening,
    driftwood_openings,
    kestrel_openings,
)
from ingestion_pipeline.demo.state import DemoState, mutate

FIELDS = frozenset({"score", "skills_matched", "skills_missing", "summary"})
SCORES = {HIGH: 96, MEDIUM: 92, LOW: 57}
OTHERWISE = 40
OWN = ("Python", "PostgreSQL", "Kubernetes")
OTHERS = ("Terraform", "Kafka", "React", "TypeScript", "WordPress")


def is_about_jobs(schema: Mapping[str, Any]) -> bool:
    """Whether the question is how well a job fits."""
    return schema.get("properties", {}).keys() == FIELDS


def opinion(told: str) -> dict[str, Any] | None:
    """How well the job fits that the text is of; None if the demo has no such job."""
    known = [one for one in _openings() if one.title in told and one.text in told]
    if not known:
        return None
    job = known[0]
    return {
        "score": SCORES.get(job.outcome, OTHERWISE),
        "skills_matched": _quoted(job, OWN),
        "skills_missing": _quoted(job, OTHERS),
        "summary": f"The work of a {job.title.partition(',')[0].lower()} by the water.",
    }


def _quoted(job: Opening, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"skill": name, "quote": name} for name in names if name in job.text]


def _openings() -> list[Opening]:
    """In every state of the site; what a mutation changed counts as it is then."""
    shipped = DemoState()
    return [*driftwood_openings(mutate(shipped)), *driftwood_openings(shipped), *kestrel_openings()]
