"""What a page states of its company: a value, where it was found, and what proves it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.companies.analysis.site import Role, is_called_like, is_same_site
from ingestion_pipeline.companies.names import is_word_for_nothing, stated_company
from ingestion_pipeline.companies.platforms.fields import one_line
from ingestion_pipeline.companies.vocabulary import MACHINE_LEARNING, STACK
from ingestion_pipeline.reading.evidence.grounding import BY_SOURCE, Grounding, ground
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.structured.embedded import EmbeddedData, Thing
from ingestion_pipeline.reading.structured.organizations import (
    ORGANIZATION_TYPES,
    founding_year,
    is_profile,
    listed,
    stated_description,
    stated_head_count,
    stated_industry,
    stated_legal_name,
    stated_name,
    stated_places,
    stated_seat,
)

if TYPE_CHECKING:
    from ingestion_pipeline.companies.analysis.site import SiteLink


# The fields of C15, in the order in which they are shown.
TEXT_FIELDS = ("about", "culture", "mission", "size", "headquarters", "industry")
FIELDS = (*TEXT_FIELDS, "founded")
MOST_CHARACTERS = {"about": 4_000, "culture": 4_000, "mission": 1_000}
MOST_OTHERWISE = 200


class FactMethod(StrEnum):
    """Who found a value: data for machines, the page's head, rules on its text, or a model."""

    EMBEDDED = "embedded"
    META = "meta"
    TEXT = "text"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyPage:
    """A page of the company as it was seen; `text` is what a visitor reads, a line per block.

    `embedded_urls` are of frames, scripts and forms; `script_urls` are what inline scripts mention.
    """

    url: str
    role: Role
    text: str
    headed: tuple[tuple[str, str], ...]
    embedded: EmbeddedData
    anchors: tuple[SiteLink, ...]
    embedded_urls: tuple[str, ...]
    script_urls: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value of a field, found on `page` by `rung`."""

    value: str | int
    rung: FactMethod
    page: str
    grounding: Grounding

    def as_evidence(self) -> dict[str, object]:
        """What is kept beside the value."""
        found = self.grounding
        evidence: dict[str, object] = {
            "page": self.page,
            "rung": self.rung.value,
            "status": found.status.value,
        }
        if found.start is not None:
            evidence |= {"start": found.start, "end": found.end}
        return evidence


Facts = Mapping[str, Fact]


def stated(field: str, value: str | int, *, page: CompanyPage, rung: FactMethod) -> Fact | None:
    """The fact, proved by the page's text; None if the value says nothing.

    What a page says to machines need not stand in its text: then its own data are the proof. Of
    rules and models everything must stand there.
    """
    fitting = value if isinstance(value, int) else clean_value(field, value)
    if fitting is None:
        return None
    found = _grounded(fitting, page.text)
    if not found.is_proof and rung in {FactMethod.EMBEDDED, FactMethod.META}:
        found = BY_SOURCE
    return Fact(value=fitting, rung=rung, page=page.url, grounding=found)


def _grounded(value: str | int, text: str) -> Grounding:
    """What proves the value; of several paragraphs each must stand there, for itself."""
    if isinstance(value, int) or "\n" not in value:
        return ground(value, text)
    found = [ground(line, text) for line in value.split("\n")]
    unproved = next((one for one in found if not one.is_proof), None)
    if unproved is not None:
        return unproved
    return Grounding(found[0].status, found[0].start, found[-1].end)


def clean_value(field: str, value: str) -> str | None:
    """The value in one piece and of bounded length; None for a blank or a word for nothing."""
    lines = [" ".join(line.split()) for line in value.split("\n")]
    text = "\n".join(line for line in lines if line)
    if is_word_for_nothing(text):
        return None
    most = MOST_CHARACTERS.get(field, MOST_OTHERWISE)
    if len(text) <= most:
        return text
    # a long one is cut between words; of a short field a long value is a mistake
    return text[:most].rpartition(" ")[0] if field in MOST_CHARACTERS else None


LEAST_DESCRIPTION = 40  # characters; a shorter one is a slogan


def organizations(page: CompanyPage, home: str) -> list[Thing]:
    """Return the organizations that the page speaks of as its own.

    They are those whose address is the home page, else another page of this site; without any, the
    first that names no site of its own elsewhere; those called like this site before others. An
    organization with a page or an id here and a site elsewhere is a partner, unless it is called
    like this site.
    """
    things = [thing for thing in page.embedded.things(*ORGANIZATION_TYPES) if _name(thing)]
    named = sorted(things, key=lambda thing: not is_called_like(_name(thing) or "", home))
    strange = {id(thing) for thing in named if _has_other_site(thing, home)}
    others = [thing for thing in named if id(thing) not in strange]
    at_home = [
        thing
        for thing in named
        if any(_is_home(site, home) for site in _addresses(thing, "url"))
        or (id(thing) not in strange and any(_is_home(site, home) for site in _sites(thing)))
    ]
    here = [thing for thing in others if any(is_same_site(site, home) for site in _sites(thing))]
    return at_home or here or others[:1]


def company_name(pages: list[CompanyPage], home: str) -> tuple[str, str] | None:
    """What the company calls itself, and the page that says so."""
    for page in pages:
        for one in organizations(page, home):
            if name := _name(one):
                return name, page.url
    for page in pages:
        said = page.embedded.meta_content("og:site_name", "application-name")
        if name := stated_company(one_line(said, most=120)):
            return name, page.url
    return None


def embedded_facts(page: CompanyPage, home: str) -> Iterator[tuple[str, Fact]]:
    """The fields that the page's own data state."""
    for one in organizations(page, home):
        for field, value in _values(one):
            if fact := stated(field, value, page=page, rung=FactMethod.EMBEDDED):
                yield field, fact


def head_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """What an about page, or the home page, says of itself in its head."""
    if page.role not in {Role.ABOUT, Role.HOME}:
        return
    said = page.embedded.meta_content("description", "og:description", "twitter:description")
    if said and len(said) >= LEAST_DESCRIPTION:
        fact = stated("about", said, page=page, rung=FactMethod.META)
        if fact is not None:
            yield "about", fact


def places_of(page: CompanyPage, home: str) -> list[str]:
    """Where the organization has its seat and its offices, as its data say."""
    return [place for one in organizations(page, home) for place in stated_places(one)]


def _values(one: Thing) -> Iterator[tuple[str, str | int]]:
    description = stated_description(one)
    if description and len(description) >= LEAST_DESCRIPTION:
        yield "about", to_markdown(description) if "<" in description else description
    values: dict[str, str | int | None] = {
        "size": stated_head_count(one),
        "headquarters": stated_seat(one),
        "industry": stated_industry(one),
        "founded": founding_year(one),
    }
    yield from ((name, value) for name, value in values.items() if value is not None)


def _name(one: Thing) -> str | None:
    name = stated_company(stated_name(one)) or stated_company(stated_legal_name(one))
    return name[:120] if name else None


def _has_other_site(thing: Thing, home: str) -> bool:
    """Return whether it has a site that is neither this one nor a profile on a network."""
    sites = _sites(thing)
    if sites and not any(is_same_site(site, home) for site in sites):
        return True
    if is_called_like(_name(thing) or "", home):
        return False
    same_as = [value for value in listed(thing.get("sameAs")) if isinstance(value, str)]
    return any(
        _is_address(site) and not is_same_site(site, home) and not is_profile(site)
        for site in same_as
    )


def _is_home(site: str, home: str) -> bool:
    path = urlsplit(site).path.strip("/")
    return is_same_site(site, home) and path in {"", urlsplit(home).path.strip("/")}


def _sites(thing: Thing) -> list[str]:
    return [*_addresses(thing, "url"), *_addresses(thing, "@id")]


def _addresses(thing: Thing, key: str) -> list[str]:
    values = listed(thing.get(key))
    return [value for value in values if isinstance(value, str) and _is_address(value)]


def _is_address(value: str) -> bool:
    try:
        return urlsplit(value).scheme in {"http", "https"}
    except ValueError:
        return False


MAX_CHARACTERS = 400_000  # of one text; what comes later is not looked at

_BEFORE = r"(?<![A-Za-z0-9_@#.-])"
_AFTER = r"(?![A-Za-z0-9_#+@]|\.[A-Za-z])"
_FIRM = {name: re.compile(f"{_BEFORE}(?:{one.pattern}){_AFTER}") for name, one in STACK.items()}
_WORDS = {
    name: re.compile(f"{_BEFORE}(?:{one.as_word})(?![A-Za-z0-9_#+@-]|\\.[A-Za-z])")
    for name, one in STACK.items()
    if one.as_word
}
_BESIDE = r"[\s,/&|;:\u00b7\u2022()+*-]{1,6}(?:(?:and|or|und|oder|et|y)\s)?"
_BETWEEN = re.compile(_BESIDE)
_LEADING_IN = re.compile(
    r"\b(?:written|built|coded?|coding|develop\w*|programm\w*|implemented|backends?|services|stack"
    r"|experience|expert\w*|proficien\w*|fluen\w*|skill\w*|engineers?)\b[^.!?\n]{0,40}"
    r"\b(?:in|with|using|of|on)\s$"
)
_NAMED_FOR = re.compile(
    r"\s(?:developers?|engineers?|programmers?|programming|services?|microservices?|backends?"
    r"|back-end|frontends?|front-end|code(?:base)?|language|SDK|librar(?:y|ies)|components?"
    r"|applications?|modules?|compiler|hooks)\b"
)
_MOST_BETWEEN = 10


def technologies_in(text: str) -> dict[str, list[str]]:
    """The technologies that the text names, by group, each once and in the order of the data."""
    text = text[:MAX_CHARACTERS]
    spans = {name: [one.span() for one in rule.finditer(text)] for name, rule in _FIRM.items()}
    _add_words(text, spans)
    found: dict[str, list[str]] = {}
    for name, technology in STACK.items():
        if spans[name] and technology.group is not None:
            found.setdefault(technology.group, []).append(name)
    return found


def _add_words(text: str, spans: dict[str, list[tuple[int, int]]]) -> None:
    """Names that are words, where their surroundings say so; one that is sure makes others sure."""
    unsure = [
        (name, found.span()) for name, rule in _WORDS.items() for found in rule.finditer(text)
    ]
    while True:
        # What machine learning is called says nothing of the word beside it: "AI, go further".
        sure = [
            span
            for name, some in spans.items()
            for span in some
            if STACK[name].group != MACHINE_LEARNING
        ]
        taken = [one for one in unsure if _is_meant(text, one[1], sure)]
        if not taken:
            return
        for name, span in taken:
            spans[name].append(span)
        unsure = [one for one in unsure if one not in taken]


def _is_meant(text: str, span: tuple[int, int], sure: list[tuple[int, int]]) -> bool:
    start, end = span
    if _LEADING_IN.search(text[max(0, start - 100) : start]) or _NAMED_FOR.match(text, end):
        return True
    return any(
        (0 < start - other_end <= _MOST_BETWEEN and _is_between(text[other_end:start]))
        or (0 < other_start - end <= _MOST_BETWEEN and _is_between(text[end:other_start]))
        for other_start, other_end in sure
    )


def _is_between(text: str) -> bool:
    return _BETWEEN.fullmatch(text) is not None
