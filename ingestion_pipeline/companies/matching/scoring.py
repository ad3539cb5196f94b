"""Scores listings from 0 to 100: a base score by rules, and adjustments to any base score.

By rules the base is 50 for strength, 30 for coverage and 20 for level, where
- strength is the ranks of the profile's skills that the listing names, over its three best ranks;
- coverage is the share of the technologies named in the listing that are skills of the profile;
- level is 1 for a wanted seniority in the title, 0 where it names another, else a half.
Where the listing has no text, a part counts a half: it neither helps nor harms.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from ingestion_pipeline.companies.company_states import Priority
from ingestion_pipeline.companies.matching.listed_job import ListedJob, hours_apart, is_home
from ingestion_pipeline.companies.matching.profile import Profile
from ingestion_pipeline.companies.matching.terms import find, first_of
from ingestion_pipeline.companies.technologies import REQUIRED_SKILLS
from ingestion_pipeline.settings.systems import Match

RULES_VERSION = 2  # raise it when evaluation changes: all listings are evaluated again
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
    """A skill, and its span in the listing's text; without a span if it is not grounded."""

    name: str
    start: int | None = None
    end: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseScore:
    """A score before adjustments, and its evidence; `notes` are for people.

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
    """Points added to a base score, with the reason."""

    name: str
    points: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """The final score; `rank_score`, which has no limit, orders equal scores."""

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
        """Return the result as it is stored with the listing."""
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
            "adjustments": [asdict(adjustment) for adjustment in self.adjustments],
            "skills_matched": [skill.name for skill in self.base.matched],
            "skills_missing": [skill.name for skill in self.base.missing],
            "dropped": list(self.base.dropped),
        }


def rule_score(listing: ListedJob, profile: Profile) -> BaseScore:
    """Return the base score by rules."""
    matched = _mentioned(profile.skills, listing)
    own = {name.lower() for name in profile.skills}
    spans = {(skill.start, skill.end) for skill in matched}
    missing = tuple(
        skill
        for skill in _mentioned(REQUIRED_SKILLS, listing)
        if skill.name.lower() not in own and (skill.start, skill.end) not in spans
    )
    strength = _strength(matched, profile, listing)
    named = len(matched) + len(missing)
    coverage = len(matched) / named if named and listing.has_text else HALF
    others = COVERAGE * coverage + LEVEL * _level(listing, profile)
    return BaseScore(
        score=round(STRENGTH * min(1.0, strength) + others),
        method="rules",
        exact=STRENGTH * strength + others,
        matched=matched,
        missing=missing,
    )


def _mentioned(names: Mapping[str, int] | tuple[str, ...], listing: ListedJob) -> tuple[Skill, ...]:
    places = {name: find(name, listing.text) for name in names}
    return tuple(Skill(name=name, start=place[0], end=place[1]) for name, place in places.items() if place)


def _strength(matched: tuple[Skill, ...], profile: Profile, listing: ListedJob) -> float:
    best = sum(sorted(profile.skills.values(), reverse=True)[:BEST_SKILLS])
    ranks = sum(profile.skills[skill.name] for skill in matched)
    strength = ranks / best if best else HALF
    return strength if listing.has_text else max(HALF, strength)


def _level(listing: ListedJob, profile: Profile) -> float:
    levels = profile.seniority.wanted
    if not levels:
        return HALF
    if first_of(levels, listing.title_text):
        return 1.0
    return 0.0 if first_of(LEVELS, listing.title_text) else HALF


def adjustments(listing: ListedJob, profile: Profile, settings: Match, *, at: datetime) -> tuple[Adjustment, ...]:
    """Return adjustments for city, age, time zone, company size and role; none if unknown."""
    is_at_home = is_home(profile.home_city, listing.places)
    changes = [_freshness(listing, at)]
    if is_at_home:
        reason = f"in {profile.home_city or ''}"
        changes.append(Adjustment(name="home_city", points=settings.home_city_bonus, reason=reason))
    hours = 0.0 if is_at_home else hours_apart(profile.time_zone, listing.places, at=at)
    if hours is not None and profile.time_zone is not None:
        points = next((points for most, points in ZONES if hours < most), FAR)
        reason = "in your time zone" if points > 0 else f"{hours:g} hours away"
        changes.append(Adjustment(name="time_zone", points=points, reason=reason))
    if (size := SIZES.get(listing.size_category or "")) is not None:
        reason = f"a {listing.size_category} company"
        changes.append(Adjustment(name="company_size", points=size, reason=reason))
    if role := first_of(profile.roles, listing.title_text):
        reason = f"{role} in the title"
        changes.append(Adjustment(name="role", points=profile.roles[role], reason=reason))
    return tuple(change for change in changes if change.points)


def _freshness(listing: ListedJob, at: datetime) -> Adjustment:
    age = listing.age_days(at)
    if age is None:
        return Adjustment(name="freshness", points=UNKNOWN_AGE, reason="no date of posting")
    if age < 0:
        return Adjustment(name="freshness", points=0, reason="posted in the future")
    points = next((points for days, points in FRESHNESS if age <= days), OLDEST)
    return Adjustment(name="freshness", points=points, reason=f"posted {age:.1f} days ago")


def match_result(
    listing: ListedJob, profile: Profile, base: BaseScore, settings: Match, *, at: datetime
) -> MatchResult:
    """Return the adjusted, clamped score and whether it reaches the threshold."""
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
            skill.name: {"start": skill.start, "end": skill.end}
            for skill in (*base.matched, *base.missing)
            if skill.start is not None
        },
    )


def clamped(score: int) -> int:
    """Limit the score to 0 to 100."""
    return max(0, min(100, score))


def priority_of(score: int, settings: Match) -> Priority:
    """Return the match's priority."""
    if score >= settings.high_score:
        return Priority.HIGH
    return Priority.MEDIUM if score >= settings.medium_score else Priority.LOW


def _reason(score: int, base: BaseScore, changes: tuple[Adjustment, ...]) -> str:
    """Return a short reason for people: what fits, what is missing, what changed the score."""
    by = "by rules" if base.method == "rules" else f"by {base.model}"
    fits = ", ".join(skill.name for skill in base.matched[:5]) or "no skill of yours"
    parts = [f"{score} of 100: names {fits}"]
    if base.missing:
        parts.append("also wants " + ", ".join(skill.name for skill in base.missing[:4]))
    if changes:
        parts.append(", ".join(f"{change.reason} {change.points:+d}" for change in changes))
    if base.notes:
        parts.append(base.notes)
    return "; ".join(parts) + f" (base {base.score} {by})"
