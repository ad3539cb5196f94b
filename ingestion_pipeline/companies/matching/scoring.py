"""How well a listing fits, from 0 to 100: a base by rules, and adjustments that hold for any base.

By rules the base is 50 for strength, 30 for coverage and 20 for level, where
- strength is the ranks of the profile's skills that the listing names, over its three best ranks;
- coverage is how much of the technologies that the listing names are skills of the profile;
- level is 1 for a wanted seniority in the title, 0 where it names another, else a half.
What the listing has no words for counts a half: it neither helps nor harms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.locations import hours_apart, is_home
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.terms import find, first_of
from ingestion_pipeline.companies.states import Priority
from ingestion_pipeline.companies.vocabulary import ASKED_FOR
from ingestion_pipeline.settings.systems import Match

RULES_VERSION = 2  # raise it when the same listing would be judged otherwise: all are judged anew
STRENGTH, COVERAGE, LEVEL = 50, 30, 20
BEST_SKILLS = 3
HALF = 0.5
UNKNOWN_AGE = -10
OLDEST = -50
FRESHNESS = ((1, 15), (2, 5), (3, 0), (7, -35), (14, -40), (30, -45))  # days, points
ZONES = ((0.5, 5), (2.5, -2), (4.5, -5), (8.5, -10))  # hours, points; half hours round down
FAR = -15
SIZES = {"large": 10, "small": -5}
LEVELS = (
    *("intern", "junior", "entry level", "graduate", "associate", "mid-level", "senior", "sr"),
    *("staff", "principal", "lead", "head", "director", "vp", "chief", "manager"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill, and where the listing's text proves it; no span where it is only said."""

    name: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseScore:
    """A score before adjustments, and what it rests on; `notes` are for people.

    `exact` is the score without limit: naming all skills is more than naming the three best.
    """

    score: int
    method: str
    exact: float | None = None
    matched: tuple[Skill, ...] = ()
    missing: tuple[Skill, ...] = ()
    model: str | None = None
    notes: str = ""
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Points that are added to a base, with the reason."""

    name: str
    points: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """How well it fits, all in all; `rank_score`, which has no limit, orders equal scores."""

    score: int
    rank_score: float
    base: BaseScore
    adjustments: tuple[Adjustment, ...]
    threshold: int
    is_match: bool
    priority: Priority
    reason: str
    grounding: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def as_dict(self) -> dict[str, Any]:
        """As it is stored with the listing."""
        return {
            "score": self.score,
            "base_score": self.base.score,
            "rank_score": self.rank_score,
            "method": self.base.method,
            "model": self.base.model,
            "threshold": self.threshold,
            "is_match": self.is_match,
            "priority": self.priority.value,
            "reason": self.reason,
            "adjustments": [asdict(one) for one in self.adjustments],
            "skills_matched": [one.name for one in self.base.matched],
            "skills_missing": [one.name for one in self.base.missing],
            "dropped": list(self.base.dropped),
        }


def rule_score(listing: ListedJob, profile: Profile) -> BaseScore:
    """The base score by rules."""
    matched = _found(profile.skills, listing)
    own = {name.lower() for name in profile.skills}
    spans = {(one.start, one.end) for one in matched}
    missing = tuple(
        one
        for one in _found(ASKED_FOR, listing)
        if one.name.lower() not in own and (one.start, one.end) not in spans
    )
    strength = _strength(matched, profile, listing)
    others = COVERAGE * (
        _coverage(len(matched), len(missing)) if listing.has_text else HALF
    ) + LEVEL * _level(listing, profile)
    return BaseScore(
        score=round(STRENGTH * min(1.0, strength) + others),
        method="rules",
        exact=STRENGTH * strength + others,
        matched=matched,
        missing=missing,
    )


def _found(names: Mapping[str, int] | tuple[str, ...], listing: ListedJob) -> tuple[Skill, ...]:
    places = {name: find(name, listing.text) for name in names}
    return tuple(
        Skill(name=name, start=place[0], end=place[1]) for name, place in places.items() if place
    )


def _strength(matched: tuple[Skill, ...], profile: Profile, listing: ListedJob) -> float:
    best = sum(sorted(profile.skills.values(), reverse=True)[:BEST_SKILLS])
    ranks = sum(profile.skills[one.name] for one in matched)
    strength = ranks / best if best else HALF
    return strength if listing.has_text else max(HALF, strength)


def _coverage(matched: int, missing: int) -> float:
    return matched / (matched + missing) if matched + missing else HALF


def _level(listing: ListedJob, profile: Profile) -> float:
    wanted = profile.seniority.wanted
    if not wanted:
        return HALF
    if first_of(wanted, listing.title_text):
        return 1.0
    return 0.0 if first_of(LEVELS, listing.title_text) else HALF


def adjustments(
    listing: ListedJob, profile: Profile, settings: Match, *, at: datetime
) -> tuple[Adjustment, ...]:
    """Home city, freshness, time zone, size of the company, role; none where nothing is known."""
    is_at_home = is_home(profile.home_city, listing.places)
    found = [_freshness(listing, at)]
    if is_at_home:
        points, city = settings.home_city_bonus, profile.home_city or ""
        found.append(Adjustment(name="home_city", points=points, reason=f"in {city}"))
    hours = 0.0 if is_at_home else hours_apart(profile.time_zone, listing.places, at=at)
    if hours is not None and profile.time_zone is not None:
        found.append(_zone(hours))
    if (size := SIZES.get(listing.size_category or "")) is not None:
        said = f"a {listing.size_category} company"
        found.append(Adjustment(name="company_size", points=size, reason=said))
    if role := first_of(profile.roles, listing.title_text):
        said = f"{role} in the title"
        found.append(Adjustment(name="role", points=profile.roles[role], reason=said))
    return tuple(one for one in found if one.points)


def _freshness(listing: ListedJob, at: datetime) -> Adjustment:
    age = listing.age_days(at)
    if age is None:
        return Adjustment(name="freshness", points=UNKNOWN_AGE, reason="no date of posting")
    if age < 0:
        return Adjustment(name="freshness", points=0, reason="posted in the future")
    points = next((points for days, points in FRESHNESS if age <= days), OLDEST)
    return Adjustment(name="freshness", points=points, reason=f"posted {age:.1f} days ago")


def _zone(hours: float) -> Adjustment:
    points = next((points for most, points in ZONES if hours < most), FAR)
    said = "in your time zone" if points > 0 else f"{hours:g} hours away"
    return Adjustment(name="time_zone", points=points, reason=said)


def match_result(
    listing: ListedJob, profile: Profile, base: BaseScore, settings: Match, *, at: datetime
) -> MatchResult:
    """The base with its adjustments, clamped, against the threshold that holds there."""
    changes = adjustments(listing, profile, settings, at=at)
    points = sum(change.points for change in changes)
    score = clamped(base.score + points)
    exact = base.score if base.exact is None else base.exact
    is_at_home = is_home(profile.home_city, listing.places)
    threshold = settings.home_city_score if is_at_home else settings.min_score
    return MatchResult(
        score=score,
        rank_score=round(exact + points, 2),
        base=base,
        adjustments=changes,
        threshold=threshold,
        is_match=score >= threshold,
        priority=priority_of(score, settings),
        reason=_reason(score, base, changes),
        grounding={
            one.name: {"start": one.start, "end": one.end}
            for one in (*base.matched, *base.missing)
            if one.start is not None
        },
    )


def clamped(score: int) -> int:
    """Between 0 and 100."""
    return max(0, min(100, score))


def priority_of(score: int, settings: Match) -> Priority:
    """How soon it is worth a look."""
    if score >= settings.high_score:
        return Priority.HIGH
    return Priority.MEDIUM if score >= settings.medium_score else Priority.LOW


def _reason(score: int, base: BaseScore, changes: tuple[Adjustment, ...]) -> str:
    """In a few words for people: what fits, what is missing, what moved the score."""
    by = "by rules" if base.method == "rules" else f"by {base.model}"
    fits = ", ".join(one.name for one in base.matched[:5]) or "no skill of yours"
    parts = [f"{score} of 100: names {fits}"]
    if base.missing:
        parts.append("also wants " + ", ".join(one.name for one in base.missing[:4]))
    if changes:
        parts.append(", ".join(f"{one.reason} {one.points:+d}" for one in changes))
    if base.notes:
        parts.append(base.notes)
    return "; ".join(parts) + f" (base {base.score} {by})"
