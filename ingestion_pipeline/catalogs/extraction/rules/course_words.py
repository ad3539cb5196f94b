"""Recognize the words, credits and codes of courses, and parse a course's first line.

CS 101 Introduction to Computing (3); 3 cr., (3-0-3), 1 TO 3, 3.000 Credit hours, 9.6 CEUs. The words
for a course's parts are in `layouts/words.yaml`,
those for units of credits in `layouts/phrases.yaml`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import lru_cache

from pydantic import BaseModel, ConfigDict

from ingestion_pipeline.reading.text.plain_text import packaged_data


class CoursePart(Enum):
    """The part of a course that a label names."""

    DESCRIPTION = "description"
    PREREQUISITES = "prerequisites"
    CREDITS = "credits"
    TITLE = "title"
    CODE = "code"
    OTHER = "other"
    UNNAMED = "unnamed"  # formatted like a label, and in no word list


class _Labels(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    part: CoursePart
    labels: tuple[str, ...]


class _Words(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    labels: tuple[_Labels, ...]
    noise: tuple[str, ...]
    section_titles: tuple[str, ...]
    no_subjects: frozenset[str]


@lru_cache(maxsize=4_096)  # a catalogue has few labels, and many of each
def part_named(label: str) -> CoursePart | None:
    """Return the part that the label names, whether it ends in (s) or not; None if it is no label."""
    names = (label, label.removesuffix("(s)"))
    return next((part for part, pattern in _patterns() if any(map(pattern.fullmatch, names))), None)


def is_noise(line: str) -> bool:
    """Return whether the line belongs to the page and not to a course."""
    return _noise().fullmatch(line) is not None


def names_section(line: str) -> bool:
    """Return whether the line is the title of a page or section, and not of a course."""
    return _sections().fullmatch(line.strip(" :.")) is not None


def names_subject(words: Sequence[str]) -> bool:
    """Return whether the words before a number may name a subject."""
    return _words().no_subjects.isdisjoint(words)


@lru_cache(maxsize=1)
def _words() -> _Words:
    return _Words.model_validate(packaged_data("ingestion_pipeline.catalogs.extraction", "layouts/words.yaml"))


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[CoursePart, re.Pattern[str]], ...]:
    before = "(?:course |class |module |unit |subject |paper )?"
    return tuple((group.part, _any_of(group.labels, before=before)) for group in _words().labels)


@lru_cache(maxsize=1)
def _noise() -> re.Pattern[str]:
    return _any_of(_words().noise)


@lru_cache(maxsize=1)
def _sections() -> re.Pattern[str]:
    return _any_of(_words().section_titles)


def _any_of(patterns: Sequence[str], *, before: str = "") -> re.Pattern[str]:
    choices = "|".join(f"(?:{pattern})" for pattern in patterns)
    return re.compile(rf"\A{before}(?:{choices})", re.IGNORECASE)


_WORDS = re.compile(r"[^\W_]+")
_PARTS = re.compile(r"[A-Z][a-z]+")  # of a choice's name: BachelorDegree


def words_of(text: str) -> str:
    """Return the lower-case words, separated and surrounded by single blanks."""
    # B.S. and Ph.D. are one word each.
    joined = re.sub(r"\b((?:\w{1,2}\.){2,})", lambda match: match[1].replace(".", ""), text)
    return f" {' '.join(_WORDS.findall(joined.casefold()))} "


def has_phrase(text: str, phrases: Iterable[str]) -> bool:
    """Return whether one of the phrases is in the text."""
    words = words_of(text)
    return any(words_of(phrase) in words for phrase in phrases)


def choice_by_phrase(text: str, choices: Mapping[str, Iterable[str]]) -> str | None:
    """Return the first choice with a phrase in the text."""
    words = words_of(text)
    matches = (choice for choice, phrases in choices.items() if any(words_of(phrase) in words for phrase in phrases))
    return next(matches, None)


def choice_by_name(text: str, choices: Iterable[str]) -> str | None:
    """Return the choice whose name is the text: Bachelor Degree is BachelorDegree."""
    name = words_of(text).replace(" ", "")
    return next((choice for choice in choices if choice.casefold() == name), None)


def choice_in_words(text: str, choices: Iterable[str]) -> str | None:
    """Return the one choice whose name of several words is in the text: "3 semester hours"."""
    words = words_of(text)
    phrases = {choice: " ".join(_PARTS.findall(choice)).casefold() for choice in choices}
    matches = [
        choice
        for choice, phrase in phrases.items()
        if " " in phrase and (f" {phrase} " in words or f" {phrase}s " in words)
    ]
    return matches[0] if len(matches) == 1 else None


PHRASES = packaged_data("ingestion_pipeline.catalogs.extraction", "layouts/phrases.yaml")
MAX_CREDITS = 60  # a year of study in Europe; more is the sum of a programme
MAX_TRAILING_CHARACTERS = 60
MAX_AFTER_CREDITS = 1_000  # characters of hours and terms; each match scans all that follows
MAX_BEFORE_UNIT = 40
MAX_UNITS = 400  # Chicago counts a course as 100 units

# A decimal comma counts where the fraction is a usual one: 7,5 and not 1,2.
_N = r"[0-9]{1,3}(?:\.[0-9]{1,3}|,(?:0|00|5|50|25|75)(?![0-9]))?"
_TO = r"\s*+(?:-|\u2013|\u2014|/|\bto\b|\bor\b|,)\s*+"
_RANGE = rf"(?P<low>{_N})(?:{_TO}(?P<high>{_N}))?"
_HOURS = r"(?:hours?|hrs?\.?)"
_UNIT = rf"(?=[^\W\d_])(?:{'|'.join(PHRASES['units'])})"
_STATED = re.compile(rf"(?<![\w.$-]){_RANGE}\s*+-?\s*+(?P<unit>{_UNIT})(?![a-z])", re.IGNORECASE)
_LABELLED = re.compile(
    rf"(?<![a-z])(?P<unit>(?:(?:semester|quarter|total|course|min(?:imum)?\.?)\s+)?"
    rf"(?:credit(?:s|\(s\))?(?:[ /-]*(?:{_HOURS}|units?|value)(?:\(s\))?)?|units?(?:\(s\))?|ects"
    rf"|crs?\.?|hours?))\s*+[:=]?\s*+\(?\s*{_RANGE}(?![\w%])(?:\s*(?:hours?|units?|credits?)\b)?"
    r"(?!\s*(?:lecture|lab|contact|clock))",
    re.IGNORECASE,
)
_CEU = re.compile(
    rf"(?P<a>{_N})\s*(?:ceus?\b|continuing education units?)"
    rf"|(?:ceus?|continuing education units?)\s*+[:=]?\s*+(?P<b>{_N})",
    re.IGNORECASE,
)
_NON_CREDIT = re.compile(r"\bnon-?\s?credit\b", re.IGNORECASE)
# (3-0-3): hours of lectures, hours of laboratory, credits; with `units` they are added.
_TRIPLE = re.compile(
    rf"(?:[(\[]\s*+|(?<![\s(\[])\s*+|(?<!\s))(?P<a>{_N})-(?P<b>{_N})-(?P<c>{_N})\s*[)\]]?\s*(?P<unit>units?)?",
    re.IGNORECASE,
)
_BARE = re.compile(rf"[(\[]\s*{_RANGE}-?\s*[)\]]\s*\.?$", re.IGNORECASE)  # (4-) goes on
# CSE 142 First Programs (4) NSc, RSN: what a course counts for, in capitals after the credits.
_MARKS = r"(?-i:(?=.{0,60}[A-Z&]{2})(?:[ ,/]{1,4}[A-Z][A-Za-z&]{1,4}){1,6})"
_BEFORE_MARKS = re.compile(rf"[(\[]\s*{_RANGE}\s*[)\]]{_MARKS}\s*$")
# (1-5, max. 15): max. is over all repetitions; ([1-5]-, max. 5) continues over terms.
_WITH_MOST = re.compile(
    rf"\([(\[]?\s*{_RANGE}\s*[)\]]?-?\s*[,;]\s*max(?:\.|imum)?\s*(?:of\s*)?{_N}[^()]{{0,20}}\)"
    rf"(?:{_MARKS})?\s*$",
    re.IGNORECASE,
)
_BEFORE_TAG = re.compile(rf"[(\[]\s*{_RANGE}\s*[)\]]\s+[A-Z][a-z]{{2,14}}:\s.{{1,60}}$")
_VARIES = re.compile(rf"(?:(?<!\s)\s++)?+\(\*-?(?:,[^()]{{0,20}})?\)(?:{_MARKS})?\s*$")  # (*, max. 50)
# GEOG 181 LAB,LEC 0.50
_BY_COMPONENTS = re.compile(
    r"^\s*(?:(?:LEC|LAB|TUT|TST|SEM|PRJ|STU|PRA|CLN|FLD|RDG|DIS|WRK|ENS|OLN|WSP)[, ]*)+"
    rf"{_RANGE}\s*$",
    re.IGNORECASE,
)
_BRACKETED_HOURS = re.compile(rf"[(\[]\s*{_RANGE}\s*(?:hours?|hrs?\.?)\s*[)\]]\s*$", re.IGNORECASE)
_IN_BRACKETS = re.compile(rf"\(\s*{_RANGE}\s*(?:hours?|hrs?\.?)?\s*\)", re.IGNORECASE)
_BARE_HOURS = re.compile(rf"(?<![\w.$]){_RANGE}\s*hours?\.?$", re.IGNORECASE)
_BEFORE_HOURS = re.compile(rf"(?<![\w.]){_RANGE}\s*\([0-9]+-[0-9]+(?:-[0-9]+)?\)\s*$", re.IGNORECASE)
_AT_START = re.compile(rf"\s*[(\[]\s*{_RANGE}\s*(?P<unit>{_UNIT})[^()\[\]]{{0,30}}[)\]]", re.IGNORECASE)
_LEADING = re.compile(
    rf"(?P<open>[(\[]\s*)?{_RANGE}\s*(?P<unit>{_UNIT})\s*(?(open)[)\]][.:;,]?|[.:;,])\s+"
    r"(?-i:(?=[A-Z]))(?=(?:\S+\s+){3})",
    re.IGNORECASE,
)
# (3 hrs.) Who draws maps; (3) Who draws maps
_LEADING_BARE = re.compile(
    rf"[(\[]\s*{_RANGE}\s*(?P<unit>{_HOURS})?\s*[)\]][.:;,]?\s+(?-i:(?=[A-Z]))(?=(?:\S+\s+){{3}})", re.IGNORECASE
)
_CLOSED = re.compile(r"[^()\[\]]{0,30}[)\]]|\.?")
_FIRST_SIGNS = frozenset("([0123456789cCuUsSqQtT")  # of texts that `leading_credits` matches
_TRAILING = re.compile(rf"(?<=[.!?)])\s+\(?{_RANGE}\s*(?P<unit>{_UNIT})\)?\.?$", re.IGNORECASE)
# Credit Hours: 3.00. Who draws maps; Cr. 3. (3-0). Who draws maps; Credits 3. 3 Lecture Hours. Who
_LED = re.compile(
    rf"(?P<unit>(?:(?:semester|quarter|total|course)\s+)?"
    rf"(?:credit(?:s|\(s\))?(?:[ /-]*{_HOURS})?|units?|crs?\.?))\s*+[:=]?\s*+{_RANGE}"
    r"(?:\s*(?:hours?|units?|credits?))?[.;]\s+(?:\([0-9]+-[0-9]+(?:-[0-9]+)?\)\.?\s+)?"
    r"(?:[0-9.]+\s+(?:lecture|lab(?:oratory)?|other|recitation|studio)\s+hours?[.;]\s+){0,3}"
    r"(?-i:(?=[A-Z]))(?=(?:\S+\s+){3})",
    re.IGNORECASE,
)
_BARE_AT_START = re.compile(rf"\s*\(\s*{_RANGE}\s*\)\s+(?=[^\W\d_])")  # CPSC 110 (4) Programs
_SUMMED = re.compile(rf"units?\s*+[:=]?\s*+(?P<a>{_N})-(?P<b>{_N})-(?P<c>{_N})", re.IGNORECASE)
# `Writing | 3 credits | Lecture`, `Writing Class: 3 Lab: 0 Credits: 3`, `Internship Variable 1-6`
_TAIL = re.compile(rf"(?<=[0-9a-z.)])\s*\|\s*(?![^|]*(?:{_N}))[^|]*$", re.IGNORECASE)
_HOURS_BEFORE = re.compile(
    r"(?<!\s)\s++(?:(?:class|lec(?:ture)?|lab|work|clinical|contact)(?: hours?)?\s*:\s*[0-9].*"
    r"|variable(?: credit)?)\s*$",
    re.IGNORECASE,
)
_AT_THE_END = (
    *(_TRIPLE, _BEFORE_HOURS, _BARE, _BEFORE_MARKS, _WITH_MOST, _BEFORE_TAG, _BY_COMPONENTS),
    *(_BRACKETED_HOURS, _BARE_HOURS),
)
_NOT_CREDITS = re.compile(r"(?:lecture|lab(?:oratory)?|contact|clock|clinical)\s+$", re.IGNORECASE)
_TYPES = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in PHRASES["credit_types"].items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credits:
    """Credits of a course: a range or one value, and the words that state them."""

    low: Decimal | None = None
    high: Decimal | None = None
    ceu: Decimal | None = None
    non_credit: bool = False
    kind: str | None = None
    quote: str = ""
    is_sum: bool = False


def heading_credits(text: str) -> tuple[Credits | None, str]:
    """Return the credits at the end of a course's first line, and the line without them."""
    if (first := _AT_START.match(text)) and (credits_ := read_credits(first[0])):
        return credits_, text[first.end() :]
    if (first := _BARE_AT_START.match(text)) and (credits_ := _range(first, first[0].strip())):
        return credits_, text[first.end() :]
    text = _TAIL.sub("", text)
    stated = [match for pattern in (_STATED, _CEU, _LABELLED) for match in pattern.finditer(text)]
    stated = [match for match in stated if _is_at_end(text, match)]
    credits_ = read_credits(text[min(match.start() for match in stated) :]) if stated else None
    if credits_ is not None:
        return credits_, _HOURS_BEFORE.sub("", _without(text, min(match.start() for match in stated)))
    for pattern in _AT_THE_END:
        at_end = next((match for match in pattern.finditer(text) if _is_at_end(text, match)), None)
        credits_ = _unnamed(at_end) if at_end else None
        if at_end and credits_:
            return credits_, _HOURS_BEFORE.sub("", _without(text, at_end.start()))
    if (stated_none := _NON_CREDIT.search(text)) and _is_at_end(text, stated_none):
        return Credits(non_credit=True, quote=stated_none[0]), _without(text, stated_none.start())
    return None, _VARIES.sub("", text)


def read_credits(text: str) -> Credits | None:
    """Return the credits that a text states with their unit; None if there are none."""
    ceu = _CEU.search(text)
    rest = _CEU.sub(" ", text)
    stated = _first_stated(rest)
    if triple := _SUMMED.search(rest) or (stated is None and _TRIPLE.fullmatch(rest.strip())):
        stated = _unnamed(triple)
    non_credit = _NON_CREDIT.search(text)
    if not (ceu or stated or non_credit):
        return None
    return Credits(
        low=stated.low if stated else None,
        high=stated.high if stated else None,
        ceu=_number(ceu["a"] or ceu["b"]) if ceu else None,
        non_credit=bool(non_credit),
        kind=None if non_credit else stated.kind if stated else None,
        quote=non_credit[0] if non_credit else stated.quote if stated else ceu[0] if ceu else "",
        is_sum=stated is not None and stated.is_sum,
    )


def leading_credits(text: str) -> tuple[Credits, str] | None:
    """Return the credits at the start of a paragraph, and the rest: (3 cr.) Who draws maps."""
    if text[:1] not in _FIRST_SIGNS:
        return None
    first = _LEADING.match(text) or _LED.match(text) or _LEADING_BARE.match(text)
    credits_ = _range(first, first[0].strip(" ().[]"), unit=first["unit"] or "") if first else None
    return (credits_, text[first.end() :]) if first and credits_ else None


def trailing_credits(text: str) -> Credits | None:
    """Return the credits that end a paragraph as their own sentence: ... graphs. 3 credits."""
    last = _TRAILING.search(text, max(0, len(text) - MAX_TRAILING_CHARACTERS))
    return _range(last, last[0].strip(" ()."), unit=last["unit"]) if last else None


def limited(least: Credits, most: Credits) -> Credits:
    """Return the range from one to the other, where a page states each on its own line."""
    high = most.high or most.low
    is_range = least.low is not None and high is not None and least.low < high
    return replace(least, high=high) if is_range else least


def credit_ends(text: str) -> list[int]:
    """Return the end positions of credits in the text, with the bracket around them."""
    matches = [match for pattern in (_STATED, _IN_BRACKETS) for match in pattern.finditer(text)]
    ends = {end.end() for match in matches if (end := _CLOSED.match(text, match.end()))}
    return sorted(ends)


def slot_credits(text: str) -> Credits | None:
    """Return the credits of an element or column for credits, where a bare number is enough."""
    bare = re.fullmatch(rf"\s*+[(\[]?+\s*+{_RANGE}\s*+[)\]]?\s*+\.?\s*+", text, re.IGNORECASE)
    if bare:
        return _range(bare, text.strip())
    if triple := _TRIPLE.match(text.strip()):
        return _unnamed(triple)
    if stated := read_credits(text):
        return stated
    first_number = re.match(rf"\s*+[(\[]?+\s*+{_RANGE}(?![\w%])", text, re.IGNORECASE)
    return _range(first_number, first_number[0]) if first_number else None


def _first_stated(text: str) -> Credits | None:
    """Return the first credits with a unit, unless the word before it says that these are other hours."""
    for match in sorted([*_STATED.finditer(text), *_LABELLED.finditer(text)], key=lambda match: match.start()):
        unit = match.start("unit")
        if not _NOT_CREDITS.search(text, max(0, unit - MAX_BEFORE_UNIT), unit) and (
            credits_ := _range(match, match[0], unit=match["unit"])
        ):
            return credits_
    return None


def _number(text: str) -> Decimal:
    return Decimal(text.replace(",", "."))


def _range(match: re.Match[str], quote: str, *, unit: str = "") -> Credits | None:
    low, high = _number(match["low"]), _number(match["high"]) if match["high"] else None
    most = MAX_UNITS if unit.lower().startswith("unit") else MAX_CREDITS
    if low > most or (high is not None and not low <= high <= most):
        return None
    kind = next((name for name, pattern in _TYPES.items() if pattern.search(unit)), None)
    return Credits(low=low, high=high, kind=kind, quote=" ".join(quote.split()))


def _unnamed(match: re.Match[str]) -> Credits | None:
    if "c" not in match.re.groupindex:
        return _range(match, match[0])
    parts = [_number(match[name]) for name in ("a", "b", "c")]
    is_sum = match.re is _SUMMED or bool(match["unit"])
    value = sum(parts, Decimal(0)) if is_sum else parts[2]
    if value > MAX_CREDITS:
        return None
    return Credits(low=value, quote=match[0].strip(), is_sum=is_sum)


def _is_at_end(text: str, match: re.Match[str]) -> bool:
    """Return whether only hours, terms in brackets or punctuation follow the match."""
    if len(text) - match.end() > MAX_AFTER_CREDITS:
        return False
    rest = text[match.end() :]
    rest = re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", rest)
    rest = _CEU.sub("", _STATED.sub("", rest))
    return bool(re.fullmatch(r"[\s.,;:|)\]/+*-]*(?:\s[A-Z]{1,3}\b[.,/]?){0,3}\s*", rest))


def _without(text: str, end: int) -> str:
    """Return the text before the credits, without the bracket that opened for them."""
    before = text[:end]
    if before.count("(") <= before.count(")") and before.count("[") <= before.count("]"):
        return before
    bracket = max(before.rfind(sign) for sign in "()[]")
    return before[:bracket].rstrip() if before[bracket] in "([" else before


MAX_TITLE_CHARACTERS = 200
MAX_TITLE_WORDS = 25
MIN_REST_WORDS = 4  # fewer words say when a course is offered, not what it is about

# COMP SCI 400, CIS*1500, MATH& 151, BUS-A 100, EN.601.226, I&C SCI 31, A&EP 110
_SUBJECT = r"(?<![A-Z])[A-Z][A-Z&_]{0,9}(?:[ /-](?:[A-Z&]{1,9})){0,3}"
_NUMBER = (
    r"[A-Z]{0,2}[0-9]{1,5}(?:[A-Z]{1,2}[0-9]{1,3})?(?:\.[0-9]{1,4})?[A-Z]{0,3}(?![0-9a-z])"
    r"(?:(?:-[A-Z]\b){1,5}|-[0-9A-Z]{1,3}\b)?"
)
_LETTERED = rf"{_SUBJECT}(?:\s{{0,3}}[-*.:_]?\s{{0,3}}){_NUMBER}"
_FIGURES = (
    r"[0-9]{1,2}\.[A-Z]{0,3}[0-9]{2,4}[A-Z]{0,2}|[0-9]{3}-[0-9]{4}-[0-9]{2}[A-Z]?|[0-9]{2}-[0-9]{3}"
    r"|[A-Z]{2}\.[0-9]{3}\.[0-9]{3}|[0-9]{2}:[0-9]{3}:[0-9]{3}"
)
_ONE = rf"(?:{_FIGURES}|{_LETTERED})"
_ALSO = rf"(?:\s*(?:/|,|&|and|or)\s*(?:{_ONE}|[0-9]{{3,5}}[A-Z]{{0,2}}\b))"
CODE = re.compile(rf"{_ONE}{_ALSO}{{0,5}}(?![\w%]|:[0-9]{{2}})")
ONE_CODE = re.compile(_ONE)
_LOOSE_CODE = re.compile(rf"(?:{_ONE}|[A-Za-z][A-Za-z&. -]{{1,40}}?\s?[-*]?\s?{_NUMBER}){_ALSO}{{0,5}}")

_SIGN = re.compile(r"(?=(?:[^0-9]*[0-9]){3})[A-Z0-9][A-Z0-9.:/_*-]{2,19}")
_CODE_LAST = re.compile(
    rf"(?P<title>.{{3,150}}?)(?: ?[(\[] ?(?P<code>{_ONE}) ?[)\]]"
    rf"|(?: [-\u2013\u2014|/]|:|,) (?P<bare>{_ONE}))"
)
# Modern Languages 210: a code only with punctuation after it, or with credits; else a phrase.
_WORDED_CODE = re.compile(
    r"[A-Z][a-z]{1,14}(?: (?:[A-Z][a-z]{1,14}|and|of|&)){0,3}"
    r" [0-9]{2,4}[A-Za-z]?(?:/[A-Z])?(?![\w%])"
)
_HOURS_OF = re.compile(
    r"(?:(?:credit|lecture|lab|laboratory|contact|clinical|studio|semester|quarter|other) )?"
    r"(?:hours?|credits?|units?|points?)\b",
    re.IGNORECASE,
)
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff\ufe0f\u200d"  # arrows to stars, and emoji
_LEADING_MARKS = re.compile(rf"^[\s*+†‡§#•·»>{_PICTURES}\u2013\u2014-]+")
_KIND = re.compile(  # Module LAWS20011: Law of the Sea
    r"^(?i:course|module|unit|subject|paper|modul|kurs|asignatura|cours)(?i: code)?[:#]? "
    r"(?=[A-Z]{2,9}[ -]?[0-9])"
)
_KIND_OF_TITLE = re.compile(  # Postgraduate Course: Stories of Place (LLLG07031)
    r"^(?:(?:under|post)?graduate )?(?:course|module|unit|subject|modul|kurs|cours"
    r"|asignatura|disciplina): (?=\S)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"^[\s.:|,;*†‡·•\u2013\u2014-]+")
_BAR = re.compile(r"\s[|\u00b7\u2022]\s")
_CLASS_HOURS = re.compile(r"(?:(?<!\s)\s++)?+\([0-9]{1,2}(?:[-:,][0-9]{1,2}){1,3}\)$")  # lecture and laboratory hours
_AT_END = re.compile(r"(?<![\s,:;|*†‡·•\u2013\u2014-])[\s,:;|*†‡·•\u2013\u2014-]++$")
_STOP = re.compile(r"(?<![A-Z]\.[A-Z])(?<!\.\.)\.$")
_LONE_STOP = re.compile(r"^[^.]*[a-z]{4}\.$")  # of a whole word; Intro to Comp. Sci. has its own
_TITLE_START = re.compile(
    rf"[{_PICTURES}\s]*+"
    r"[\"'\u201c\u2018(¿¡]?(?:[^\W\d_]|[0-9]{1,4}(?:[a-zA-Z]{1,2}\b|-|\b))"
)
_TERM = re.compile(r"(?:SP|FL|FA|SU|WI|AU|WN|SS|WS) ?20[0-9]{2}")  # FL2020
_COUNT = re.compile(r"[0-9]{1,2}\.(?:0{2,4}|250?|50{1,2}|750?)")
_ALPHABETIC = re.compile(r"[^\W\d_]")
# A text that continues like a sentence about a course is no title.
_SENTENCE = re.compile(
    r"(?:is|are|was|were|will|may|must|should|can|has|have|or|and|with|in|to|at|as|from|for|by|if|on"
    r"|only|does|minimum|grade|concurrently|through|required|course|courses)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The first line of a course; `title` is empty where another line has it."""

    code: str
    title: str
    credits: Credits | None


def read_heading(line: str) -> Heading | None:
    """Parse a line that begins with a course code; None if it is something else."""
    line = _KIND.sub("", _LEADING_MARKS.sub("", " ".join(line.split())))
    code = CODE.match(line)
    is_worded = code is None
    code = code or _WORDED_CODE.match(line)
    if code is None or not is_subject(code[0].upper() if is_worded else code[0]):
        return None
    rest = line[code.end() :]
    has_sign = bool(_BETWEEN.match(rest.lstrip()))
    has_stop = rest.startswith(".") or (rest.startswith(":") and bool(_LONE_STOP.search(rest)))
    first, *others = _BAR.split(rest.lstrip(" |\u00b7\u2022"))
    if others and (own := read_credits(first)):  # ENV 100 | 3 credits | Fall
        return Heading(code=clean_code(code[0]), title="", credits=own)
    stated, rest = heading_credits(rest)
    title = clean_title(rest, has_stop=has_stop or stated is not None)
    if not is_title(title) or (is_worded and not (title and (stated or has_sign))):
        return None
    is_count = _HOURS_OF.match(title) if title else _COUNT.fullmatch(code[0])
    if code[0][0].isdigit() and is_count:  # 3.000 Lecture hours, 3.00
        return None
    return Heading(code=clean_code(code[0]), title=title, credits=stated)


def reversed_heading(line: str) -> str | None:
    """Return a heading that ends with its code turned round: Botany (BIO 101), Botany - BIO 101."""
    match = _CODE_LAST.fullmatch(" ".join(line.split()))
    if match is None or not is_title(match["title"]) or read_heading(line):
        return None
    if part_named(match["title"]):  # Prerequisite: BIO 101
        return None
    title = _KIND_OF_TITLE.sub("", match["title"])
    turned = f"{match['code'] or match['bare']} {title}"
    return turned if read_heading(turned) else None


def split_heading(line: str) -> tuple[str, str] | None:
    """Split a line into code, title and credits, and the text after them; None if it lacks one."""
    if not CODE.match(line):
        return None
    for end in credit_ends(line[:MAX_TITLE_CHARACTERS]):
        heading, rest = read_heading(line[:end]), line[end:].lstrip(" .:;\u2013\u2014-")
        if heading and heading.title and heading.credits and len(rest.split()) >= MIN_REST_WORDS:
            return line[:end], rest
    return None


def read_code(text: str, *, is_sure: bool = False) -> str | None:
    """Return the code in an element made for codes, in capitals or not.

    With `is_sure`, any token with three digits counts: 61411, 2026/K-17.
    """
    text = _LEADING_MARKS.sub("", " ".join(text.split())).rstrip(" .:-\u2013\u2014|")
    match = CODE.match(text) or _LOOSE_CODE.match(text)
    if match and match.end() >= len(text) - 1:
        return clean_code(match[0])
    return text if is_sure and _SIGN.fullmatch(text) else None


def clean_code(code: str) -> str:
    """Return the code as it is written, with single blanks."""
    return " ".join(code.split()).rstrip(".:- ")


def clean_title(text: str, *, has_stop: bool = True) -> str:
    """Return the title without separators from code and credits, and without a full stop."""
    text = _CLASS_HOURS.sub("", _AT_END.sub("", _BETWEEN.sub("", text)).strip())
    return text[:-1].rstrip() if has_stop and _STOP.search(text) else text


def is_title(text: str) -> bool:
    """Return whether the text can be a course's title; an empty one can."""
    if not text:
        return True
    is_short = len(text) <= MAX_TITLE_CHARACTERS and len(text.split()) <= MAX_TITLE_WORDS
    is_worded = is_short and bool(_ALPHABETIC.search(text))  # 001 numbers a section
    return is_worded and bool(_TITLE_START.match(text)) and not _SENTENCE.match(text)


def is_subject(code: str) -> bool:
    """Return whether the letters before the number may name a subject."""
    if _TERM.fullmatch(code):
        return False
    words = re.match(r"[A-Z&]+(?:[ /-][A-Z&]+)*", code)
    return words is None or names_subject(re.split(r"[ /-]", words[0]))
