"""A listing as the evaluation sees it: what its rows state, and the terms, places and work mode in its text.

Terms of a profile are found as whole words only, and no "go" in "go to market". A term is searched as plain text
first, which takes a microsecond a page; its context is examined only where it occurs.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cache, cached_property, lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from ingestion_pipeline.companies.job_listing import (
    OTHER_NAMES,
    TIMES_A_YEAR,
    Remote,
    salary_as_dict,
    salary_in_description,
)
from ingestion_pipeline.reading.text.plain_text import packaged_data, phrases_of

_PHRASES = phrases_of("ingestion_pipeline.companies.matching")
# Names that are also everyday words, as is every single letter: they count if the spelling is the
# name's own and the context is a list or about technology.
_EVERYDAY = frozenset({"go", "swift", "rust", "dart", "express", "spring", "julia"})
_LISTED = re.compile(_PHRASES["listed"], re.IGNORECASE | re.MULTILINE)
_LINE_BEGINS = re.compile(r"^[\s#>*]*$", re.MULTILINE)
_GOES_ON = re.compile(_PHRASES["goes_on"], re.IGNORECASE)
_TRADE = re.compile(_PHRASES["trade"], re.IGNORECASE | re.MULTILINE)
_TARGET = re.compile(r"\]\((?:[^()\s]|\([^()\s]*+\))*+\)")
_JOINED = re.compile(r"[^\s,/;|)*]\w")  # as in C•CURE
_AROUND = 30  # characters of context that show whether an everyday word is a name


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its lower-case form, made once for many terms; link targets are blanked."""

    text: str
    lower: str

    @classmethod
    def of(cls, *parts: str | None) -> "Text":
        """Return the non-empty parts, one line each."""
        text = "\n".join(part for part in parts if part)
        lower = text.lower()
        if len(lower) != len(text):  # some letters (İ) become two: offsets would differ
            lower = text
        if "](" in text:
            lower = _TARGET.sub(lambda link: " " * len(link[0]), lower)
        return cls(text, lower)


def find(term: str, text: Text) -> tuple[int, int] | None:
    """Return the first span of the term or one of its other names as a whole word."""
    lowered = term.lower()
    for name in (lowered, *OTHER_NAMES.get(lowered, ())):
        if _may_hold(name, text) and (span := next(_places(name, text), None)):
            return span
    return None


def first_of(terms: Iterable[str], text: Text) -> str | None:
    """Return the first of the terms, in their own order, that is in the text."""
    return next((term for term in terms if find(term, text) is not None), None)


def find_phrase(keyword: str, text: Text) -> bool:
    """Return whether the text has the phrase anywhere, or a single word as a whole word."""
    phrase = " ".join(keyword.lower().split())
    return phrase in text.lower if " " in phrase else find(keyword, text) is not None


def places(term: str, text: Text) -> Iterator[tuple[int, int]]:
    """Yield every span of the term itself as a whole word."""
    lowered = term.lower()
    if _may_hold(lowered, text):
        yield from _places(lowered, text)


def _may_hold(term: str, text: Text) -> bool:
    """Check cheaply whether the text may have the term; words may be on two lines."""
    return term in text.lower or (" " in term and all(word in text.lower for word in term.split()))


def _places(term: str, text: Text) -> Iterator[tuple[int, int]]:
    for match in _pattern(term).finditer(text.lower):
        start, end = match.span()
        is_everyday = len(term) == 1 or term in _EVERYDAY
        if not is_everyday or _is_a_name(text.text, start, end):
            yield start, end


@lru_cache(maxsize=4_096)
def _pattern(term: str) -> re.Pattern[str]:
    """Match no part of a word, nor "c" in "c++", "java" in "java.script", "net" in "asp.net"."""
    before = r"(?<!\w)(?<!\w[.&])" if term[:1].isalnum() else ""
    after = r"(?![\w+#])(?!\.\w|&\w)" if term[-1:].isalnum() else r"(?![\w+#])"
    return re.compile(before + r"\s+".join(map(re.escape, term.split())) + after)


def _is_a_name(text: str, start: int, end: int) -> bool:
    written = text[start:end]
    if written != written.capitalize():
        return False
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    if _JOINED.match(after) or _GOES_ON.match(after):
        return False
    if _LISTED.search(before) is not None:
        return True
    begins = start <= _AROUND or "\n" in before
    line = before.rpartition("\n")[2]
    return begins and _LINE_BEGINS.search(line) is not None and _TRADE.match(after) is not None


_MIN_YEARLY_PAY = 10_000  # without a period a smaller amount is not per year


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """The input of an evaluation; `size_category` is the company's, None if unknown."""

    title: str
    url: str | None = None
    company: str | None = None
    locations: tuple[str, ...] = ()
    remote: Remote | None = None
    description: str | None = None
    employment_type: str | None = None
    salary: Mapping[str, Any] | None = None
    posted_at: datetime | None = None
    valid_until: datetime | None = None
    size_category: str | None = None

    @cached_property
    def title_text(self) -> Text:
        """Return the title, prepared for term lookup."""
        return Text.of(self.title)

    @cached_property
    def text(self) -> Text:
        """Return title and description, prepared for term lookup."""
        return Text.of(self.title, self.description)

    @cached_property
    def work_mode(self) -> Remote | None:
        """Return the work mode as the board states it, else as title or description do."""
        if self.remote is not None:
            return self.remote
        return work_mode_in(self.title) or work_mode_in(self.description or "")

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Return the job's places as the board states them, else as title or description do."""
        return self.locations or (*places_in_text(self.title), *places_in_text(self.description or ""))

    @cached_property
    def pay(self) -> Mapping[str, Any] | None:
        """Return the pay as the board states it, else as the description does."""
        if self.salary or not self.description:
            return self.salary
        pay = salary_in_description(self.description)
        return salary_as_dict(pay) if pay else None

    @property
    def has_text(self) -> bool:
        """Return whether there is a description to look terms up in."""
        return bool(self.description and self.description.strip())

    def age_days(self, at: datetime) -> float | None:
        """Return the age at that time; negative for a future date, None if no date is stated."""
        return None if self.posted_at is None else (at - self.posted_at).total_seconds() / 86_400

    def best_salary(self, currency: str) -> Decimal | None:
        """Return the most it pays in a year in the currency, assumed if none is stated; None if not stated."""
        stated = self.pay or {}
        if stated.get("currency") not in {None, currency}:
            return None
        amount = _decimal(stated.get("maximum")) or _decimal(stated.get("minimum"))
        if amount is None:
            return None
        period = stated.get("period")
        if period is None:
            return amount if amount >= _MIN_YEARLY_PAY else None
        return amount * TIMES_A_YEAR[period] if period in TIMES_A_YEAR else None


def _decimal(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None


_DAY_HOURS = 24


def is_home(home_city: str | None, locations: Iterable[str]) -> bool:
    """Return whether a location is the home city; "Portland, OR" is not in Maine."""
    if not home_city:
        return False
    city, _, region = (part.strip() for part in home_city.partition(","))
    return any(_is_in_city(city, region, location) for location in locations)


def _is_in_city(city: str, region: str, location: str) -> bool:
    span = find(city, Text.of(location))
    if span is None:
        return False
    named = re.match(r"\s*[,(]\s*([^,;()|/]+)", location[span[1] :])
    if named is None or not region:
        return True
    stated_region, home_region = _region(named[1]), _region(region)
    return stated_region == home_region or stated_region not in _states().values()


def _region(name: str) -> str:
    """Return the state's code, else the name itself; "OR 97201" is OR."""
    plain = " ".join(re.sub("[0-9]+", " ", name).lower().split())
    return _states().get(plain, plain)


def hours_apart(time_zone: str | None, locations: Iterable[str], *, at: datetime) -> float | None:
    """Return the smallest time difference to a location in hours; None if none is known."""
    if time_zone is None:
        return None
    mine = at.astimezone(ZoneInfo(time_zone)).utcoffset()
    zones = {zone for location in locations for zone in zones_of(location)}
    if mine is None or not zones:
        return None
    return min(_apart(mine.total_seconds(), zone, at) for zone in zones)


def _apart(mine: float, zone: str, at: datetime) -> float:
    theirs = at.astimezone(ZoneInfo(zone)).utcoffset()
    hours = abs(mine - (theirs.total_seconds() if theirs else 0)) / 3_600
    return min(hours, _DAY_HOURS - hours)


@lru_cache(maxsize=4_096)
def zones_of(location: str) -> frozenset[str]:
    """Return a location's time zones by city, else state, else country; empty if unknown."""
    text = Text.of(location)
    for kind in ("abbreviations", "cities", "regions", "countries"):
        names: Mapping[str, str] = _known()[kind]
        zones = frozenset(zone for name, zone in names.items() if _names(name, text))
        if zones:
            return zones
    return frozenset()


def _names(name: str, text: Text) -> bool:
    place = find(name.lower(), text)
    if place is None:
        return False
    is_code = name.isupper() and len(name) <= 4  # noqa: PLR2004 - OR is a state, or is a word
    return not is_code or text.text[slice(*place)] == name


@cache
def _known() -> Mapping[str, Any]:
    raw = packaged_data("ingestion_pipeline.companies.matching", "places.yaml")
    flat = {
        kind: {name: zone for zone, names in raw[kind].items() for name in names}
        for kind in ("abbreviations", "cities", "regions", "countries")
    }
    return flat | {"states": {name.lower(): code for code, name in raw["states"].items()}}


@cache
def _states() -> Mapping[str, str]:
    """Return lower-case state codes by name and by code."""
    codes = {name: code.lower() for name, code in _known()["states"].items()}
    return codes | {code: code for code in codes.values()}


MAX_CHARACTERS = 30_000  # of a text that are searched; the longest of our samples has 20,000
BEFORE_CHARACTERS = 25  # before "on-site" that may make it an exception
_WORDS = _PHRASES.each("work_mode_words")
_PLACE_WORDS = _PHRASES.each("place_words")

_ON_SITE = re.compile(_PHRASES["on_site"], re.IGNORECASE)
_NOT_THE_RULE = re.compile(_PHRASES["not_the_rule"], re.IGNORECASE)
_NO_REMOTE = re.compile(_PHRASES["no_remote"], re.IGNORECASE)
_DAYS = re.compile(_PHRASES["days"], re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?\n;]")
_WHOLE_WEEK = frozenset({"5", "five"})
_HYBRID = re.compile(_PHRASES["hybrid"], re.IGNORECASE)
_REMOTE = re.compile(_PHRASES["remote"], re.IGNORECASE)
_PLACES = [re.compile(statement) for statement in _PHRASES.each("places")]
_OFFICE = re.compile(r" (?:Office|HQ|Headquarters|Campus|Studio)$")


def work_mode_in(text: str) -> Remote | None:
    """Return the work mode that the text states; None if it states none or several."""
    text = _lines_with(_WORDS, text)
    if not text:
        return None
    days = {(match["days"] or match["more"]).lower() for match in _DAYS.finditer(text)}
    is_remote = _REMOTE.search(_NO_REMOTE.sub(" ", text)) is not None
    if _HYBRID.search(text) or days - _WHOLE_WEEK:
        return None if is_remote else Remote.HYBRID
    is_remote = is_remote or "from home" in text.lower()
    is_on_site = bool(days) or _NO_REMOTE.search(text) is not None or _is_on_site(text)
    if is_on_site == is_remote:
        return None
    return Remote.REMOTE if is_remote else Remote.ON_SITE


def _lines_with(words: Sequence[str], text: str) -> str:
    """Return the lines that have one of the words; patterns are applied only to these."""
    lines = text[:MAX_CHARACTERS].split("\n")
    return "\n".join(line for line in lines if any(word in line.lower() for word in words))


def _is_on_site(text: str) -> bool:
    starts = (match.start() for match in _ON_SITE.finditer(text))
    before = (text[max(0, start - BEFORE_CHARACTERS) : start] for start in starts)
    return any(not _NOT_THE_RULE.search(_SENTENCE_END.split(words)[-1]) for words in before)


def places_in_text(text: str) -> tuple[str, ...]:
    """Return the places that the text states as the job's, most certain first."""
    text = _lines_with((*_WORDS, *_PLACE_WORDS), text)
    stated = (_OFFICE.sub("", match[1]) for rule in _PLACES for match in rule.finditer(text))
    return tuple(dict.fromkeys(stated))
