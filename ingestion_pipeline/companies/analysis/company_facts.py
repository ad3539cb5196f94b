"""Facts about a company from one page: embedded data, meta tags and technology names."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.companies.analysis.site_pages import Role, is_called_like, is_same_site
from ingestion_pipeline.companies.company_names import is_placeholder_text, stated_company
from ingestion_pipeline.companies.platforms.fields import one_line
from ingestion_pipeline.companies.technologies import MACHINE_LEARNING, STACK
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
    from ingestion_pipeline.companies.analysis.site_pages import SiteLink


# The fields of C15, in display order.
TEXT_FIELDS = ("about", "culture", "mission", "size", "headquarters", "industry")
FIELDS = (*TEXT_FIELDS, "founded")
LONG_FIELD_CHARACTERS = {"about": 4_000, "culture": 4_000, "mission": 1_000}
SHORT_FIELD_CHARACTERS = 200


class FactMethod(StrEnum):
    """How a value was found: embedded data, the page's head, text rules, or a model."""

    EMBEDDED = "embedded"
    META = "meta"
    TEXT = "text"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyPage:
    """A parsed page with its visible `text`, one line per block, and the URLs in embeds and inline scripts."""

    url: str
    role: Role
    text: str
    headed: tuple[tuple[str, str], ...]
    embedded: EmbeddedData
    anchors: "tuple[SiteLink, ...]"
    embedded_urls: tuple[str, ...]
    script_urls: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A field's value, found on `page` by `method`, with its evidence."""

    value: str | int
    method: FactMethod
    page: str
    grounding: Grounding

    def as_evidence(self) -> dict[str, object]:
        """Return the evidence as it is stored beside the value."""
        grounding = self.grounding
        evidence: dict[str, object] = {
            "page": self.page,
            "method": self.method.value,
            "status": grounding.status.value,
        }
        if grounding.start is not None:
            evidence |= {"start": grounding.start, "end": grounding.end}
        return evidence


Facts = Mapping[str, Fact]


def make_fact(field: str, value: str | int, *, page: CompanyPage, method: FactMethod) -> Fact | None:
    """Return the fact, grounded in the page's text; None if the value states nothing.

    Embedded data and meta tags need not appear in the visible text: the data itself is their
    evidence. Values from rules and models must appear in the text.
    """
    cleaned = value if isinstance(value, int) else clean_value(field, value)
    if cleaned is None:
        return None
    grounding = _grounded(cleaned, page.text)
    if not grounding.is_proof and method in {FactMethod.EMBEDDED, FactMethod.META}:
        grounding = BY_SOURCE
    return Fact(value=cleaned, method=method, page=page.url, grounding=grounding)


def _grounded(value: str | int, text: str) -> Grounding:
    """Ground the value in the text; each paragraph of a longer value is grounded separately."""
    if isinstance(value, int) or "\n" not in value:
        return ground(value, text)
    groundings = [ground(line, text) for line in value.split("\n")]
    unproved = next((grounding for grounding in groundings if not grounding.is_proof), None)
    if unproved is not None:
        return unproved
    return Grounding(groundings[0].status, groundings[0].start, groundings[-1].end)


def clean_value(field: str, value: str) -> str | None:
    """Return the value normalised and of bounded length; None if it is blank or a placeholder."""
    lines = [" ".join(line.split()) for line in value.split("\n")]
    text = "\n".join(line for line in lines if line)
    if is_placeholder_text(text):
        return None
    most = LONG_FIELD_CHARACTERS.get(field, SHORT_FIELD_CHARACTERS)
    if len(text) <= most:
        return text
    # long texts are cut between words; in a short field a long value is a mistake
    return text[:most].rpartition(" ")[0] if field in LONG_FIELD_CHARACTERS else None


MIN_DESCRIPTION_CHARACTERS = 40  # characters; a shorter one is a slogan


def organizations(page: CompanyPage, home: str) -> list[Thing]:
    """Return the organizations in the page's data that are this company.

    They are those whose URL is the home page, else another page of this site; without any, the
    first that names no other site; organizations named like this site come first. An organization
    with a page or an id here and a site of its own is a partner, unless it is named like this site.
    """
    things = [thing for thing in page.embedded.things(*ORGANIZATION_TYPES) if _name(thing)]
    named = sorted(things, key=lambda thing: not is_called_like(_name(thing) or "", home))
    foreign_ids = {id(thing) for thing in named if _has_other_site(thing, home)}
    others = [thing for thing in named if id(thing) not in foreign_ids]
    at_home = [
        thing
        for thing in named
        if any(_is_home(site, home) for site in _addresses(thing, "url"))
        or (id(thing) not in foreign_ids and any(_is_home(site, home) for site in _sites(thing)))
    ]
    here = [thing for thing in others if any(is_same_site(site, home) for site in _sites(thing))]
    return at_home or here or others[:1]


def company_name(pages: list[CompanyPage], home: str) -> tuple[str, str] | None:
    """Return the company's own name for itself and the URL of the page that states it."""
    for page in pages:
        for organization in organizations(page, home):
            if name := _name(organization):
                return name, page.url
    for page in pages:
        site_name = page.embedded.meta_content("og:site_name", "application-name")
        if name := stated_company(one_line(site_name, most=120)):
            return name, page.url
    return None


def embedded_facts(page: CompanyPage, home: str) -> Iterator[tuple[str, Fact]]:
    """Yield the fields that the page's embedded data states."""
    for organization in organizations(page, home):
        for field, value in _values(organization):
            if fact := make_fact(field, value, page=page, method=FactMethod.EMBEDDED):
                yield field, fact


def head_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """Yield the description in the head of an about page or home page."""
    if page.role not in {Role.ABOUT, Role.HOME}:
        return
    description = page.embedded.meta_content("description", "og:description", "twitter:description")
    if description and len(description) >= MIN_DESCRIPTION_CHARACTERS:
        fact = make_fact("about", description, page=page, method=FactMethod.META)
        if fact is not None:
            yield "about", fact


def places_of(page: CompanyPage, home: str) -> list[str]:
    """Return the head office and other offices that the organization's data states."""
    return [place for organization in organizations(page, home) for place in stated_places(organization)]


def _values(organization: Thing) -> Iterator[tuple[str, str | int]]:
    description = stated_description(organization)
    if description and len(description) >= MIN_DESCRIPTION_CHARACTERS:
        yield "about", to_markdown(description) if "<" in description else description
    values: dict[str, str | int | None] = {
        "size": stated_head_count(organization),
        "headquarters": stated_seat(organization),
        "industry": stated_industry(organization),
        "founded": founding_year(organization),
    }
    yield from ((name, value) for name, value in values.items() if value is not None)


def _name(organization: Thing) -> str | None:
    name = stated_company(stated_name(organization)) or stated_company(stated_legal_name(organization))
    return name[:120] if name else None


def _has_other_site(thing: Thing, home: str) -> bool:
    """Return whether it has a site that is neither this one nor a social network profile."""
    sites = _sites(thing)
    if sites and not any(is_same_site(site, home) for site in sites):
        return True
    if is_called_like(_name(thing) or "", home):
        return False
    same_as = [value for value in listed(thing.get("sameAs")) if isinstance(value, str)]
    return any(_is_address(site) and not is_same_site(site, home) and not is_profile(site) for site in same_as)


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


MAX_CHARACTERS = 400_000  # of one text; the rest is ignored

_BEFORE = r"(?<![A-Za-z0-9_@#.-])"
_AFTER = r"(?![A-Za-z0-9_#+@]|\.[A-Za-z])"
_FIRM = {name: re.compile(f"{_BEFORE}(?:{technology.pattern}){_AFTER}") for name, technology in STACK.items()}
_WORDS = {
    name: re.compile(f"{_BEFORE}(?:{technology.as_word})(?![A-Za-z0-9_#+@-]|\\.[A-Za-z])")
    for name, technology in STACK.items()
    if technology.as_word
}
_BETWEEN = re.compile(r"[\s,/&|;:\u00b7\u2022()+*-]{1,6}(?:(?:and|or|und|oder|et|y)\s)?")
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
_MAX_CHARACTERS_BETWEEN = 10


def technologies_in(text: str) -> dict[str, list[str]]:
    """Return the technologies that the text names by group, each once, in vocabulary order."""
    text = text[:MAX_CHARACTERS]
    spans = {name: [match.span() for match in rule.finditer(text)] for name, rule in _FIRM.items()}
    _add_words(text, spans)
    groups: dict[str, list[str]] = {}
    for name, technology in STACK.items():
        if spans[name] and technology.group is not None:
            groups.setdefault(technology.group, []).append(name)
    return groups


def _add_words(text: str, spans: dict[str, list[tuple[int, int]]]) -> None:
    """Add names that are also common words where the context shows a technology, repeatedly."""
    unsure = [(name, match.span()) for name, rule in _WORDS.items() for match in rule.finditer(text)]
    while True:
        # Terms of machine learning do not qualify the word beside them: "AI, go further".
        sure = [
            span for name, name_spans in spans.items() for span in name_spans if STACK[name].group != MACHINE_LEARNING
        ]
        taken = [candidate for candidate in unsure if _is_technology(text, candidate[1], sure)]
        if not taken:
            return
        for name, span in taken:
            spans[name].append(span)
        unsure = [candidate for candidate in unsure if candidate not in taken]


def _is_technology(text: str, span: tuple[int, int], sure: list[tuple[int, int]]) -> bool:
    start, end = span
    if _LEADING_IN.search(text[max(0, start - 100) : start]) or _NAMED_FOR.match(text, end):
        return True
    return any(
        (0 < start - other_end <= _MAX_CHARACTERS_BETWEEN and _BETWEEN.fullmatch(text[other_end:start]))
        or (0 < other_start - end <= _MAX_CHARACTERS_BETWEEN and _BETWEEN.fullmatch(text[end:other_start]))
        for other_start, other_end in sure
    )
