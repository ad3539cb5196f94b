"""Explain the schedule of a source to people: expected changes, confidence, and the reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from math import sqrt
from typing import Any

from ingestion_pipeline.sources.scheduling.budget import PollingBudget
from ingestion_pipeline.sources.scheduling.change_model import (
    DAY,
    ChangeModel,
    Outlook,
    change_model_from_json,
    outlook,
)
from ingestion_pipeline.sources.scheduling.tiers import REPEATED, is_adaptive
from ingestion_pipeline.sources.source import Source

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LIKELY = 2.0  # times as likely as on average is mentioned


def expectation(source: Source, budget: PollingBudget, *, now: datetime) -> dict[str, Any]:
    """Return the estimate under stable keys: changes a day, confidence from 0 to 1, the reason."""
    model = change_model_from_json(source.change_model)
    ahead = outlook(
        model,
        now=now.timestamp(),
        since=source.created_at.timestamp(),
        prior_rate=budget.prior_rate(source.kind, source.platform),
    )
    return {
        "expected_changes_per_day": round(ahead.rate * DAY, 4),
        "change_confidence": confidence(model),
        "planned_checks_per_day": source.checks_per_day and round(source.checks_per_day, 2),
        "checked_when": explain_next_check(source, model, ahead, budget, now=now),
    }


def confidence(model: ChangeModel) -> float:
    """Return 0 without any known gap; eight gaps, old ones counting less, give two thirds."""
    return round(1 - 1 / sqrt(1 + model.changes), 2)


def explain_next_check(
    source: Source, model: ChangeModel, ahead: Outlook, budget: PollingBudget, *, now: datetime
) -> str:
    """Return in a sentence why the source is checked when it is."""
    if source.tier_pinned:
        return f"at the interval of {source.tier.upper()}, which is pinned"
    if not is_adaptive(source, model, budget.settings):
        return f"at the interval of {source.tier.upper()}, {_why_not(source, budget)}"
    age = now.timestamp() - ahead.last_at
    parts = [f"a change is expected about every {_span(1 / ahead.rate)}"]
    if not model.changes:
        parts.append(f"as of others like it, for no two of its own are known in {_span(age)}")
        return _with_request_cost(parts, source, budget)
    if likely := _likely(model):
        parts.append(f"mostly {likely} UTC")
    if age > ahead.quiet_from:
        parts.append(f"silent for {_span(age)}, longer than ever: checked less and less")
    elif age * ahead.rate > 1:
        parts.append(f"overdue, silent for {_span(age)}: checked more closely")
    return _with_request_cost(parts, source, budget)


def _with_request_cost(parts: Sequence[str], source: Source, budget: PollingBudget) -> str:
    cost = budget.request_cost(source.kind)
    return ", ".join(parts) + f"; a request is worth {cost:.0f} s of expected delay"


def _why_not(source: Source, budget: PollingBudget) -> str:
    if not budget.settings.polling.adaptive:
        return "since polling.adaptive is off"
    if source.kind in REPEATED:
        return "as every source of its kind"
    return "until a few changes of it are known"


def _likely(model: ChangeModel) -> str:
    week = model.week
    if week is None:
        return ""
    days = [sum(week[24 * index : 24 * index + 24]) / 24 for index in range(7)]
    hours = [sum(week[index::24]) / 7 for index in range(24)]
    named = [DAYS[index] for index, weight in enumerate(days) if weight >= LIKELY]
    at = [f"{index:02}" for index, weight in enumerate(hours) if weight >= LIKELY]
    return " ".join([*named, *(["at " + "-".join((at[0], at[-1])) + " h"] if at else [])])


def _span(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    return f"{seconds / 3_600:.1f} hours"
