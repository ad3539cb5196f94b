"""What is expected of a source, how sure that is, and why it is checked when it is: for people."""

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
    outlook,
    rhythm_of,
)
from ingestion_pipeline.sources.scheduling.tiers import ADAPTIVE, is_adaptive
from ingestion_pipeline.sources.source import Source

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LIKELY = 2.0  # times as likely as on average is worth a word


def expectation(source: Source, prices: PollingBudget, *, now: datetime) -> dict[str, Any]:
    """The estimate under stable keys: changes a day, its confidence from 0 to 1, the reason."""
    rhythm = rhythm_of(source.rhythm)
    ahead = outlook(
        rhythm,
        now=now.timestamp(),
        since=source.created_at.timestamp(),
        prior_rate=prices.prior_rate(source.kind, source.platform),
    )
    return {
        "expected_changes_per_day": round(ahead.rate * DAY, 4),
        "change_confidence": confidence(rhythm),
        "planned_checks_per_day": source.checks_per_day and round(source.checks_per_day, 2),
        "checked_when": why(source, rhythm, ahead, prices, now=now),
    }


def confidence(rhythm: ChangeModel) -> float:
    """Nothing known is 0; eight gaps, old ones counting less, are two thirds."""
    return round(1 - 1 / sqrt(1 + rhythm.changes), 2)


def why(
    source: Source, rhythm: ChangeModel, ahead: Outlook, prices: PollingBudget, *, now: datetime
) -> str:
    """In a sentence."""
    if source.tier_pinned:
        return f"at the interval of {source.tier.upper()}, which is pinned"
    if not is_adaptive(source, rhythm, prices.settings):
        return f"at the interval of {source.tier.upper()}, {_why_not(source, prices)}"
    age = now.timestamp() - ahead.last_at
    parts = [f"a change is expected about every {_span(1 / ahead.rate)}"]
    if not rhythm.changes:
        parts.append(f"as of others like it, for no two of its own are known in {_span(age)}")
        return _at_a_price(parts, source, prices)
    if likely := _likely(rhythm):
        parts.append(f"mostly {likely} UTC")
    if age > ahead.quiet_from:
        parts.append(f"silent for {_span(age)}, longer than ever: checked less and less")
    elif age * ahead.rate > 1:
        parts.append(f"overdue, silent for {_span(age)}: checked more closely")
    return _at_a_price(parts, source, prices)


def _at_a_price(parts: Sequence[str], source: Source, prices: PollingBudget) -> str:
    price = prices.price(source.kind)
    return ", ".join(parts) + f"; a request is worth {price:.0f} s of expected delay"


def _why_not(source: Source, prices: PollingBudget) -> str:
    if not prices.settings.polling.adaptive:
        return "since polling.adaptive is off"
    if source.kind not in ADAPTIVE:
        return "as every source of its kind"
    return "until a few changes of it are known"


def _likely(rhythm: ChangeModel) -> str:
    week = rhythm.week
    if week is None:
        return ""
    days = [sum(week[24 * one : 24 * one + 24]) / 24 for one in range(7)]
    hours = [sum(week[one::24]) / 7 for one in range(24)]
    named = [DAYS[one] for one, weight in enumerate(days) if weight >= LIKELY]
    at = [f"{one:02}" for one, weight in enumerate(hours) if weight >= LIKELY]
    return " ".join([*named, *(["at " + "-".join((at[0], at[-1])) + " h"] if at else [])])


def _span(seconds: float) -> str:
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:.1f} days"
    return f"{seconds / 3_600:.1f} hours"
