"""What speaks against a listing before anything is asked of a model: rejections, then strikes.

One rejection is the end, and the first in this order is named: job type, seniority, company,
keywords, salary, commission only, way of working, deadline, age, forbidden technology. Else
strikes are added up, and `filter.strike_threshold` of them filter. What a listing does not state
never counts against it, so that one with no data passes.
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
LEAST_TYPE_LETTERS = 4  # shorter words mean too much in a description
NEAR_CHARACTERS = 50  # between a type of job and the word that says it is one
LONGEST_ROLE_WORD = 12  # "opportunity" and what parts it from the next word
STRIKES_SALARY = 2
MOST_YEARS = 25  # more are the company's own

_ROLE_WORD = re.compile(
    r"\b(?:role|position|job|employment|opportunity|opening|engagement|assignment|hire|basis)\b",
    re.IGNORECASE,
)
_YEARS = re.compile(
    r"(?<![\w.])([0-9]{1,2})\s*+(?:(?:\+|(?:-|\u2013|to)\s*+[0-9]{1,2}\s*+\+?+)\s*+)?"
    r"(?:or more\s++)?(?:years?|yrs?)\b(?=(.{0,60}))",
    re.IGNORECASE | re.DOTALL,
)
_EXPERIENCE = re.compile(r"experience|hands-on|background|expertise", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterItem:
    """One thing that speaks against it; a rejection has no points."""

    category: str
    name: str
    reason: str
    detail: str = ""
    points: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Whether it passed, and everything that spoke against it."""

    passed: bool
    strikes: int
    threshold: int
    items: tuple[FilterItem, ...] = ()

    @property
    def rejected_by(self) -> str | None:
        """The name of the rejection, or `strikes`; None if it passed."""
        if self.passed:
            return None
        return next((one.name for one in self.items if one.category == HARD), "strikes")

    def as_dict(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "passed": self.passed,
            "strikes": self.strikes,
            "threshold": self.threshold,
            "rejected_by": self.rejected_by,
            "items": [asdict(one) for one in self.items],
        }


def filter_listing(
    listing: ListedJob, profile: Profile, limits: Filter, *, at: datetime
) -> FilterResult:
    """What the filter makes of the listing at that moment."""
    judged = _Evaluated(listing, profile, limits, at)
    for rejects in _REJECTIONS:
        if (item := rejects(judged)) is not None:
            return FilterResult(
                passed=False, strikes=0, threshold=limits.strike_threshold, items=(item,)
            )
    items = tuple(item for strikes in _STRIKES for item in strikes(judged))
    total = sum(item.points for item in items)
    return FilterResult(
        passed=total < limits.strike_threshold,
        strikes=total,
        threshold=limits.strike_threshold,
        items=items,
    )


def stopped(
    profile: Profile, *, title: str, url: str | None, company: str | None
) -> FilterItem | None:
    """Why nothing of the listing is even fetched, by the stop lists; None if it may be."""
    stop = profile.stop
    if found := _company_part(stop.companies, company):
        return _hard("stop_company", f"the company is on your stop list: {found}", company or "")
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
class _Evaluated:
    listing: ListedJob
    profile: Profile
    limits: Filter
    at: datetime


def _hard(name: str, reason: str, detail: str = "") -> FilterItem:
    return FilterItem(category=HARD, name=name, reason=reason, detail=detail[:200])


def _strike(name: str, reason: str, points: int, detail: str = "") -> FilterItem:
    return FilterItem(category=STRIKE, name=name, reason=reason, detail=detail[:200], points=points)


def _job_type(judged: _Evaluated) -> FilterItem | None:
    listing = judged.listing
    stated = Text.of(listing.employment_type.replace("_", " ") if listing.employment_type else None)
    for word in judged.profile.job_types_unwanted:
        if find(word, listing.title_text):
            return _hard("job_type", f"you do not want {word}; the title says so", listing.title)
        if find(word, stated):
            return _hard("job_type", f"you do not want {word}; the board says so", stated.text)
        if near := _said_of_the_role(word, listing):
            return _hard("job_type", f"you do not want {word}; the description says so", near)
    return None


def _said_of_the_role(word: str, listing: ListedJob) -> str | None:
    """The words around, where the description calls the role that."""
    if len(word) < LEAST_TYPE_LETTERS or not listing.description:
        return None
    text = Text.of(listing.description)
    for start, end in places(word, text):
        first = max(0, start - NEAR_CHARACTERS - LONGEST_ROLE_WORD)
        around = text.text[first : end + NEAR_CHARACTERS + LONGEST_ROLE_WORD]
        for role in _ROLE_WORD.finditer(around):
            gap = max(first + role.start() - end, start - first - role.end())
            if gap <= NEAR_CHARACTERS:
                return " ".join(around.split())
    return None


def _seniority(judged: _Evaluated) -> FilterItem | None:
    found = first_of(judged.profile.seniority.unwanted, judged.listing.title_text)
    if found is None:
        return None
    return _hard("seniority", f"you do not want {found}", judged.listing.title)


def _company(judged: _Evaluated) -> FilterItem | None:
    found = _company_part(judged.profile.stop.companies, judged.listing.company)
    if found is None:
        return None
    said = f"the company is on your stop list: {found}"
    return _hard("company", said, judged.listing.company or "")


def _company_part(names: tuple[str, ...], company: str | None) -> str | None:
    lower = (company or "").lower()
    return next((name for name in names if lower and name.lower() in lower), None)


def _keywords(judged: _Evaluated) -> FilterItem | None:
    for keyword in judged.profile.reject_keywords:
        if find_phrase(keyword, judged.listing.text):
            return _hard("keyword", f"it says {keyword!r}", judged.listing.title)
    return None


def _salary_floor(judged: _Evaluated) -> FilterItem | None:
    best = judged.listing.best_salary(judged.profile.currency)
    own = judged.profile.salary_floor
    floor = judged.limits.salary_floor if own is None else own
    if best is None or best >= floor:
        return None
    said = f"it pays at most {best:,.0f} a year; your floor is {floor:,}"
    return _hard("salary", said, str(dict(judged.listing.pay or {})))


def _commission(judged: _Evaluated) -> FilterItem | None:
    lower = judged.listing.text.lower
    found = next((one for one in judged.profile.commission_phrases if one.lower() in lower), None)
    return _hard("commission", "it pays commission only", found) if found else None


def _work_mode(judged: _Evaluated) -> FilterItem | None:
    listing, modes = judged.listing, judged.profile.work_modes
    mode = listing.work_mode
    if mode is None:
        return None
    allowed = {
        Remote.REMOTE: modes.remote,
        Remote.HYBRID: modes.hybrid,
        Remote.ON_SITE: modes.on_site,
    }[mode]
    source = "" if listing.remote else " by its text"
    named = mode.value.replace("_", "-") + source
    where = ", ".join(listing.places)
    if allowed is Allowed.NO:
        return _hard("work_mode", f"it is {named}, which you do not want", where)
    home = judged.profile.home_city
    if allowed is Allowed.HOME_CITY and home and listing.places:
        if is_home(home, listing.places):
            return None
        return _hard("work_mode", f"it is {named}, and not in {home}", where)
    return None


def _expired(judged: _Evaluated) -> FilterItem | None:
    deadline = judged.listing.valid_until
    if deadline is None or not is_expired(deadline, now=judged.at):
        return None
    return _hard("expired", f"it could be applied for until {deadline:%Y-%m-%d %H:%M} UTC")


def _age(judged: _Evaluated) -> FilterItem | None:
    age = judged.listing.age_days(judged.at)
    if age is None or age <= judged.limits.max_age_days:
        return None
    return _hard("age", f"posted {age:.0f} days ago; at most {judged.limits.max_age_days:g}")


def _forbidden(judged: _Evaluated) -> FilterItem | None:
    found = first_of(judged.profile.technologies.forbidden, judged.listing.text)
    return _hard("technology", f"it names {found}, which you forbid") if found else None


_REJECTIONS: tuple[Callable[[_Evaluated], FilterItem | None], ...] = (
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


def _low_salary(judged: _Evaluated) -> Iterator[FilterItem]:
    best, wished = judged.listing.best_salary(judged.profile.currency), judged.limits.strike_salary
    if best is not None and best < wished:
        said = f"it pays at most {best:,.0f} a year, less than {wished:,}"
        yield _strike("salary", said, STRIKES_SALARY)


def _experience(judged: _Evaluated) -> Iterator[FilterItem]:
    asked, wished = years_asked(judged.listing), judged.limits.strike_experience_years
    if asked is not None and asked < wished:
        yield _strike("experience", f"it asks for {asked} years, fewer than {wished}", 1)


def years_asked(listing: ListedJob) -> int | None:
    """The most years of experience that the description asks for; of "3-5" it is 3."""
    asked = [
        int(found[1])
        for found in _YEARS.finditer(listing.description or "")
        if int(found[1]) <= MOST_YEARS and _EXPERIENCE.search(found[2])
    ]
    return max(asked, default=None)


def _level(judged: _Evaluated) -> Iterator[FilterItem]:
    points: Mapping[str, int] = judged.profile.seniority.strikes
    if found := first_of(points, judged.listing.title_text):
        yield _strike("seniority", f"the title says {found}", points[found], judged.listing.title)


def _undesired(judged: _Evaluated) -> Iterator[FilterItem]:
    for name, points in judged.profile.technologies.undesired.items():
        if find(name, judged.listing.text):
            yield _strike("technology", f"it names {name}", points)


def _required(judged: _Evaluated) -> Iterator[FilterItem]:
    required, listing = judged.profile.technologies.required, judged.listing
    if required and listing.has_text and first_of(required, listing.text) is None:
        yield _strike("required_technology", f"it names none of {', '.join(required)}", 1)


def _short(judged: _Evaluated) -> Iterator[FilterItem]:
    length, least = len((judged.listing.description or "").strip()), judged.limits.short_description
    if judged.listing.has_text and length < least:
        yield _strike("description", f"its description has {length} characters, not {least}", 1)


def _buzzword(judged: _Evaluated) -> Iterator[FilterItem]:
    if found := first_of(judged.profile.buzzwords, judged.listing.text):
        yield _strike("buzzword", f"it says {found!r}", 1)


def _not_new(judged: _Evaluated) -> Iterator[FilterItem]:
    age = judged.listing.age_days(judged.at)
    if age is not None and age > judged.limits.strike_age_days:
        yield _strike("age", f"posted {age:.1f} days ago", 1)


_STRIKES: tuple[Callable[[_Evaluated], Iterator[FilterItem]], ...] = (
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
