"""Filters listings, and scores them from 0 to 100, by the rules of a profile. Pure functions.

One rejection is final, and the first in this order is named: job type, seniority, company, keywords, salary,
commission only, work mode, deadline, age, forbidden technology. Otherwise strikes are added up, and
`filter.strike_threshold` of them filter the listing. What a listing does not state never counts against it, so a
listing with no data passes.

The base score is 50 for strength, 30 for coverage and 20 for level, where
- strength is the ranks of the profile's skills that the listing names, over its three best ranks;
- coverage is the share of the technologies named in the listing that are skills of the profile;
- level is 1 for a wanted seniority in the title, 0 where it names another, else a half.
Where the listing has no text, a part counts a half: it neither helps nor harms. Adjustments apply to any base
score, also a model's.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any

from ingestion_pipeline.companies.job_listing import REQUIRED_SKILLS, Remote, is_expired
from ingestion_pipeline.companies.matching.listed_job import (
    ListedJob,
    Text,
    find,
    find_phrase,
    first_of,
    hours_apart,
    is_home,
    places,
)
from ingestion_pipeline.companies.matching.profile import Allowed, Profile
from ingestion_pipeline.companies.records import Priority
from ingestion_pipeline.reading.text.plain_text import phrases_of
from ingestion_pipeline.settings.groups import Filter, Match
from ingestion_pipeline.urls import BadUrl, host_of

HARD = "rejection"
STRIKE = "strike"
MIN_TYPE_CHARACTERS = 4  # shorter words are too ambiguous in a description
NEAR_CHARACTERS = 50  # between a job type and the word that refers to the role
MAX_ROLE_WORD_CHARACTERS = 12  # "opportunity" and the separator after it
STRIKES_SALARY = 2
MAX_YEARS = 25  # more are years of the company's history

_PHRASES = phrases_of("ingestion_pipeline.companies.matching")
_ROLE_WORD = re.compile(_PHRASES["role_word"], re.IGNORECASE)
_YEARS = re.compile(_PHRASES["years"], re.IGNORECASE | re.DOTALL)
_EXPERIENCE = re.compile(r"experience|hands-on|background|expertise", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterItem:
    """One rejection or strike; a rejection has no points."""

    category: str
    name: str
    reason: str
    detail: str = ""
    points: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Whether the listing passed, and every item against it."""

    passed: bool
    strikes: int
    threshold: int
    items: tuple[FilterItem, ...] = ()

    @property
    def rejected_by(self) -> str | None:
        """Return the name of the rejection, or `strikes`; None if it passed."""
        if self.passed:
            return None
        return next((item.name for item in self.items if item.category == HARD), "strikes")

    def as_dict(self) -> dict[str, Any]:
        """Return the result as it is stored."""
        return asdict(self) | {"rejected_by": self.rejected_by, "items": [asdict(item) for item in self.items]}


def filter_listing(listing: ListedJob, profile: Profile, limits: Filter, *, at: datetime) -> FilterResult:
    """Return the filter's result for the listing at that moment."""
    threshold = limits.strike_threshold
    rejections = chain(
        _rejected_job_type(listing, profile),
        _rejected_words(listing, profile),
        _rejected_pay(listing, profile, limits),
        _rejected_work_mode(listing, profile),
        _rejected_age(listing, profile, limits, at),
    )
    if (rejection := next(rejections, None)) is not None:
        return FilterResult(passed=False, strikes=0, threshold=threshold, items=(rejection,))
    items = (
        *_numbers_strikes(listing, profile, limits),
        *_words_strikes(listing, profile),
        *_text_strikes(listing, profile, limits, at),
    )
    total = sum(item.points for item in items)
    return FilterResult(passed=total < threshold, strikes=total, threshold=threshold, items=items)


def stopped(profile: Profile, *, title: str, url: str | None, company: str | None) -> FilterItem | None:
    """Return why the stop lists forbid fetching the listing; None if it may be fetched."""
    stop = profile.stop
    if name := _company_part(stop.companies, company):
        return _hard("stop_company", f"the company is on your stop list: {name}", company or "")
    host = _host(url)
    for domain in stop.domains:
        if host == domain or host.endswith(f".{domain}"):
            return _hard("stop_domain", f"the domain is on your stop list: {domain}", host)
    address = Text.of(re.sub(r"[-_/.?=&%+]+", " ", url or ""))
    for keyword in stop.keywords:
        if find_phrase(keyword, Text.of(title)) or find_phrase(keyword, address):
            return _hard("stop_keyword", f"title or URL has {keyword!r} of your stop list", title)
    return None


def _hard(name: str, reason: str, detail: str = "") -> FilterItem:
    return FilterItem(category=HARD, name=name, reason=reason, detail=detail[:200])


def _strike(name: str, reason: str, points: int, detail: str = "") -> FilterItem:
    return FilterItem(category=STRIKE, name=name, reason=reason, detail=detail[:200], points=points)


def _rejected_job_type(listing: ListedJob, profile: Profile) -> Iterator[FilterItem]:
    stated = Text.of(listing.employment_type.replace("_", " ") if listing.employment_type else None)
    for word in profile.job_types_unwanted:
        if find(word, listing.title_text):
            yield _hard("job_type", f"you do not want {word}; the title says so", listing.title)
        elif find(word, stated):
            yield _hard("job_type", f"you do not want {word}; the board says so", stated.text)
        elif near := _role_context(word, listing):
            yield _hard("job_type", f"you do not want {word}; the description says so", near)


def _rejected_words(listing: ListedJob, profile: Profile) -> Iterator[FilterItem]:
    """Yield rejections by seniority, company and keywords."""
    if level := first_of(profile.seniority.unwanted, listing.title_text):
        yield _hard("seniority", f"you do not want {level}", listing.title)
    if name := _company_part(profile.stop.companies, listing.company):
        yield _hard("company", f"the company is on your stop list: {name}", listing.company or "")
    for keyword in profile.reject_keywords:
        if find_phrase(keyword, listing.text):
            yield _hard("keyword", f"it says {keyword!r}", listing.title)


def _role_context(word: str, listing: ListedJob) -> str | None:
    """Return the surrounding words where the description uses the word for the role."""
    if len(word) < MIN_TYPE_CHARACTERS or not listing.description:
        return None
    text = Text.of(listing.description)
    for start, end in places(word, text):
        first = max(0, start - NEAR_CHARACTERS - MAX_ROLE_WORD_CHARACTERS)
        around = text.text[first : end + NEAR_CHARACTERS + MAX_ROLE_WORD_CHARACTERS]
        for role in _ROLE_WORD.finditer(around):
            gap = max(first + role.start() - end, start - first - role.end())
            if gap <= NEAR_CHARACTERS:
                return " ".join(around.split())
    return None


def _company_part(names: tuple[str, ...], company: str | None) -> str | None:
    lower = (company or "").lower()
    return next((name for name in names if lower and name.lower() in lower), None)


def _rejected_pay(listing: ListedJob, profile: Profile, limits: Filter) -> Iterator[FilterItem]:
    """Yield rejections by salary and by pay of commission only."""
    best = listing.best_salary(profile.currency)
    floor = limits.salary_floor if profile.salary_floor is None else profile.salary_floor
    if best is not None and best < floor:
        reason = f"it pays at most {best:,.0f} a year; your floor is {floor:,}"
        yield _hard("salary", reason, str(dict(listing.pay or {})))
    for phrase in profile.commission_phrases:
        if phrase.lower() in listing.text.lower:
            yield _hard("commission", "it pays commission only", phrase)


def _rejected_work_mode(listing: ListedJob, profile: Profile) -> Iterator[FilterItem]:
    mode, modes, home = listing.work_mode, profile.work_modes, profile.home_city
    if mode is None:
        return
    allowed = {Remote.REMOTE: modes.remote, Remote.HYBRID: modes.hybrid, Remote.ON_SITE: modes.on_site}[mode]
    named = mode.value.replace("_", "-") + ("" if listing.remote else " by its text")
    where = ", ".join(listing.places)
    if allowed is Allowed.NO:
        yield _hard("work_mode", f"it is {named}, which you do not want", where)
    elif allowed is Allowed.HOME_CITY and home and listing.places and not is_home(home, listing.places):
        yield _hard("work_mode", f"it is {named}, and not in {home}", where)


def _rejected_age(listing: ListedJob, profile: Profile, limits: Filter, at: datetime) -> Iterator[FilterItem]:
    """Yield rejections by deadline and age, and by forbidden technologies."""
    deadline, age = listing.valid_until, listing.age_days(at)
    if deadline is not None and is_expired(deadline, now=at):
        yield _hard("expired", f"it could be applied for until {deadline:%Y-%m-%d %H:%M} UTC")
    if age is not None and age > limits.max_age_days:
        yield _hard("age", f"posted {age:.0f} days ago; at most {limits.max_age_days:g}")
    if technology := first_of(profile.technologies.forbidden, listing.text):
        yield _hard("technology", f"it names {technology}, which you forbid")


def _numbers_strikes(listing: ListedJob, profile: Profile, limits: Filter) -> Iterator[FilterItem]:
    """Yield strikes for low pay and little experience."""
    best, years = listing.best_salary(profile.currency), years_required(listing)
    if best is not None and best < limits.strike_salary:
        reason = f"it pays at most {best:,.0f} a year, less than {limits.strike_salary:,}"
        yield _strike("salary", reason, STRIKES_SALARY)
    if years is not None and years < limits.strike_experience_years:
        yield _strike("experience", f"it asks for {years} years, fewer than {limits.strike_experience_years}", 1)


def years_required(listing: ListedJob) -> int | None:
    """Return the most years of experience that the description requires; of "3-5" it is 3."""
    years = [
        int(match[1])
        for match in _YEARS.finditer(listing.description or "")
        if int(match[1]) <= MAX_YEARS and _EXPERIENCE.search(match[2])
    ]
    return max(years, default=None)


def _words_strikes(listing: ListedJob, profile: Profile) -> Iterator[FilterItem]:
    """Yield strikes for seniority and technologies."""
    points: Mapping[str, int] = profile.seniority.strikes
    if level := first_of(points, listing.title_text):
        yield _strike("seniority", f"the title says {level}", points[level], listing.title)
    for name, strikes in profile.technologies.undesired.items():
        if find(name, listing.text):
            yield _strike("technology", f"it names {name}", strikes)
    required = profile.technologies.required
    if required and listing.has_text and first_of(required, listing.text) is None:
        yield _strike("required_technology", f"it names none of {', '.join(required)}", 1)


def _text_strikes(listing: ListedJob, profile: Profile, limits: Filter, at: datetime) -> Iterator[FilterItem]:
    """Yield strikes for a short description, a buzzword and age."""
    length, age = len((listing.description or "").strip()), listing.age_days(at)
    if 0 < length < limits.short_description:
        yield _strike("description", f"its description has {length} characters, not {limits.short_description}", 1)
    if buzzword := first_of(profile.buzzwords, listing.text):
        yield _strike("buzzword", f"it says {buzzword!r}", 1)
    if age is not None and age > limits.strike_age_days:
        yield _strike("age", f"posted {age:.1f} days ago", 1)


def _host(url: str | None) -> str:
    try:
        return host_of(url or "")
    except BadUrl:
        return ""


RULES_VERSION = 2  # raise it when evaluation changes: all listings are evaluated again
STRENGTH, COVERAGE, LEVEL = 50, 30, 20
HIGH_SCORE = 85  # from so many on: priority high
MEDIUM_SCORE = 70
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
        names = ("score", "rank_score", "threshold", "is_match", "reason")
        return {name: getattr(self, name) for name in names} | {
            "base_score": self.base.score,
            "method": self.base.method,
            "model": self.base.model,
            "priority": self.priority.value,
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
    points, reason = UNKNOWN_AGE, "no date of posting"
    if age is not None:
        points = 0 if age < 0 else next((points for days, points in FRESHNESS if age <= days), OLDEST)
        reason = "posted in the future" if age < 0 else f"posted {age:.1f} days ago"
    return Adjustment(name="freshness", points=points, reason=reason)


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
        priority=priority_of(score),
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


def priority_of(score: int) -> Priority:
    """Return the match's priority."""
    if score >= HIGH_SCORE:
        return Priority.HIGH
    return Priority.MEDIUM if score >= MEDIUM_SCORE else Priority.LOW


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
