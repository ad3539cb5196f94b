"""Filters listings before a model is asked: rejections first, then strikes.

One rejection is final, and the first in this order is named: job type, seniority, company,
keywords, salary, commission only, work mode, deadline, age, forbidden technology. Otherwise strikes
are added up, and `filter.strike_threshold` of them filter the listing. What a listing does not
state never counts against it, so a listing with no data passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ingestion_pipeline.companies.listing import Remote, is_expired
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.locations import is_home
from ingestion_pipeline.companies.matching.profile import Allowed, Profile
from ingestion_pipeline.companies.matching.terms import Text, find, find_phrase, first_of, places
from ingestion_pipeline.settings.systems import Filter
from ingestion_pipeline.urls import BadUrl, host_of

HARD = "rejection"
STRIKE = "strike"
MIN_TYPE_CHARACTERS = 4  # shorter words are too ambiguous in a description
NEAR_CHARACTERS = 50  # between a job type and the word that refers to the role
MAX_ROLE_WORD_CHARACTERS = 12  # "opportunity" and the separator after it
STRIKES_SALARY = 2
MAX_YEARS = 25  # more are years of the company's history

_ROLE_WORD = re.compile(
    r"\b(?:role|position|job|employment|opportunity|opening|engagement|assignment|hire|basis)\b", re.IGNORECASE
)
_YEARS = re.compile(
    r"(?<![\w.])([0-9]{1,2})\s*+(?:(?:\+|(?:-|\u2013|to)\s*+[0-9]{1,2}\s*+\+?+)\s*+)?"
    r"(?:or more\s++)?(?:years?|yrs?)\b(?=(.{0,60}))",
    re.IGNORECASE | re.DOTALL,
)
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
        return {
            "passed": self.passed,
            "strikes": self.strikes,
            "threshold": self.threshold,
            "rejected_by": self.rejected_by,
            "items": [asdict(item) for item in self.items],
        }


def filter_listing(listing: ListedJob, profile: Profile, limits: Filter, *, at: datetime) -> FilterResult:
    """Return the filter's result for the listing at that moment."""
    subject = _FilterInput(listing, profile, limits, at)
    for rejects in _REJECTIONS:
        if (item := rejects(subject)) is not None:
            return FilterResult(passed=False, strikes=0, threshold=limits.strike_threshold, items=(item,))
    items = tuple(item for strikes in _STRIKES for item in strikes(subject))
    total = sum(item.points for item in items)
    return FilterResult(
        passed=total < limits.strike_threshold, strikes=total, threshold=limits.strike_threshold, items=items
    )


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


@dataclass(frozen=True, slots=True)
class _FilterInput:
    listing: ListedJob
    profile: Profile
    limits: Filter
    at: datetime


def _hard(name: str, reason: str, detail: str = "") -> FilterItem:
    return FilterItem(category=HARD, name=name, reason=reason, detail=detail[:200])


def _strike(name: str, reason: str, points: int, detail: str = "") -> FilterItem:
    return FilterItem(category=STRIKE, name=name, reason=reason, detail=detail[:200], points=points)


def _job_type(subject: _FilterInput) -> FilterItem | None:
    listing = subject.listing
    stated = Text.of(listing.employment_type.replace("_", " ") if listing.employment_type else None)
    for word in subject.profile.job_types_unwanted:
        if find(word, listing.title_text):
            return _hard("job_type", f"you do not want {word}; the title says so", listing.title)
        if find(word, stated):
            return _hard("job_type", f"you do not want {word}; the board says so", stated.text)
        if near := _role_context(word, listing):
            return _hard("job_type", f"you do not want {word}; the description says so", near)
    return None


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


def _seniority(subject: _FilterInput) -> FilterItem | None:
    level = first_of(subject.profile.seniority.unwanted, subject.listing.title_text)
    if level is None:
        return None
    return _hard("seniority", f"you do not want {level}", subject.listing.title)


def _company(subject: _FilterInput) -> FilterItem | None:
    name = _company_part(subject.profile.stop.companies, subject.listing.company)
    if name is None:
        return None
    reason = f"the company is on your stop list: {name}"
    return _hard("company", reason, subject.listing.company or "")


def _company_part(names: tuple[str, ...], company: str | None) -> str | None:
    lower = (company or "").lower()
    return next((name for name in names if lower and name.lower() in lower), None)


def _keywords(subject: _FilterInput) -> FilterItem | None:
    for keyword in subject.profile.reject_keywords:
        if find_phrase(keyword, subject.listing.text):
            return _hard("keyword", f"it says {keyword!r}", subject.listing.title)
    return None


def _salary_floor(subject: _FilterInput) -> FilterItem | None:
    best = subject.listing.best_salary(subject.profile.currency)
    own = subject.profile.salary_floor
    floor = subject.limits.salary_floor if own is None else own
    if best is None or best >= floor:
        return None
    reason = f"it pays at most {best:,.0f} a year; your floor is {floor:,}"
    return _hard("salary", reason, str(dict(subject.listing.pay or {})))


def _commission(subject: _FilterInput) -> FilterItem | None:
    lower = subject.listing.text.lower
    matched = next((phrase for phrase in subject.profile.commission_phrases if phrase.lower() in lower), None)
    return _hard("commission", "it pays commission only", matched) if matched else None


def _work_mode(subject: _FilterInput) -> FilterItem | None:
    listing, modes = subject.listing, subject.profile.work_modes
    mode = listing.work_mode
    if mode is None:
        return None
    allowed = {Remote.REMOTE: modes.remote, Remote.HYBRID: modes.hybrid, Remote.ON_SITE: modes.on_site}[mode]
    source = "" if listing.remote else " by its text"
    named = mode.value.replace("_", "-") + source
    where = ", ".join(listing.places)
    if allowed is Allowed.NO:
        return _hard("work_mode", f"it is {named}, which you do not want", where)
    home = subject.profile.home_city
    if allowed is Allowed.HOME_CITY and home and listing.places:
        if is_home(home, listing.places):
            return None
        return _hard("work_mode", f"it is {named}, and not in {home}", where)
    return None


def _expired(subject: _FilterInput) -> FilterItem | None:
    deadline = subject.listing.valid_until
    if deadline is None or not is_expired(deadline, now=subject.at):
        return None
    return _hard("expired", f"it could be applied for until {deadline:%Y-%m-%d %H:%M} UTC")


def _age(subject: _FilterInput) -> FilterItem | None:
    age = subject.listing.age_days(subject.at)
    if age is None or age <= subject.limits.max_age_days:
        return None
    return _hard("age", f"posted {age:.0f} days ago; at most {subject.limits.max_age_days:g}")


def _forbidden(subject: _FilterInput) -> FilterItem | None:
    technology = first_of(subject.profile.technologies.forbidden, subject.listing.text)
    return _hard("technology", f"it names {technology}, which you forbid") if technology else None


_REJECTIONS: tuple[Callable[[_FilterInput], FilterItem | None], ...] = (
    _job_type,
    _seniority,
    _company,
    _keywords,
    _salary_floor,
    _commission,
    _work_mode,
    _expired,
    _age,
    _forbidden,
)


def _low_salary(subject: _FilterInput) -> Iterator[FilterItem]:
    best, threshold = (subject.listing.best_salary(subject.profile.currency), subject.limits.strike_salary)
    if best is not None and best < threshold:
        reason = f"it pays at most {best:,.0f} a year, less than {threshold:,}"
        yield _strike("salary", reason, STRIKES_SALARY)


def _experience(subject: _FilterInput) -> Iterator[FilterItem]:
    years, least = years_required(subject.listing), subject.limits.strike_experience_years
    if years is not None and years < least:
        yield _strike("experience", f"it asks for {years} years, fewer than {least}", 1)


def years_required(listing: ListedJob) -> int | None:
    """Return the most years of experience that the description requires; of "3-5" it is 3."""
    years = [
        int(match[1])
        for match in _YEARS.finditer(listing.description or "")
        if int(match[1]) <= MAX_YEARS and _EXPERIENCE.search(match[2])
    ]
    return max(years, default=None)


def _level(subject: _FilterInput) -> Iterator[FilterItem]:
    points: Mapping[str, int] = subject.profile.seniority.strikes
    if level := first_of(points, subject.listing.title_text):
        yield _strike("seniority", f"the title says {level}", points[level], subject.listing.title)


def _undesired(subject: _FilterInput) -> Iterator[FilterItem]:
    for name, points in subject.profile.technologies.undesired.items():
        if find(name, subject.listing.text):
            yield _strike("technology", f"it names {name}", points)


def _required(subject: _FilterInput) -> Iterator[FilterItem]:
    required, listing = subject.profile.technologies.required, subject.listing
    if required and listing.has_text and first_of(required, listing.text) is None:
        yield _strike("required_technology", f"it names none of {', '.join(required)}", 1)


def _short(subject: _FilterInput) -> Iterator[FilterItem]:
    length, least = (len((subject.listing.description or "").strip()), subject.limits.short_description)
    if subject.listing.has_text and length < least:
        yield _strike("description", f"its description has {length} characters, not {least}", 1)


def _buzzword(subject: _FilterInput) -> Iterator[FilterItem]:
    if buzzword := first_of(subject.profile.buzzwords, subject.listing.text):
        yield _strike("buzzword", f"it says {buzzword!r}", 1)


def _not_new(subject: _FilterInput) -> Iterator[FilterItem]:
    age = subject.listing.age_days(subject.at)
    if age is not None and age > subject.limits.strike_age_days:
        yield _strike("age", f"posted {age:.1f} days ago", 1)


_STRIKES: tuple[Callable[[_FilterInput], Iterator[FilterItem]], ...] = (
    _low_salary,
    _experience,
    _level,
    _undesired,
    _required,
    _short,
    _buzzword,
    _not_new,
)


def _host(url: str | None) -> str:
    try:
        return host_of(url or "")
    except BadUrl:
        return ""
