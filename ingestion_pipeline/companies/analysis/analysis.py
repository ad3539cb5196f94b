"""What a company says of itself in words: rules for sentences and for parts under a heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.companies.analysis.boards import FoundBoard, boards_in
from ingestion_pipeline.companies.analysis.facts import (
    FIELDS,
    CompanyPage,
    Fact,
    FactMethod,
    Facts,
    company_name,
    embedded_facts,
    head_facts,
    places_of,
    stated,
    technologies_in,
)
from ingestion_pipeline.companies.analysis.scoring import (
    Completeness,
    Score,
    completeness,
    employees_in,
    score,
    scored_as,
    size_category,
)
from ingestion_pipeline.companies.analysis.site import Role, anchors_of
from ingestion_pipeline.companies.names import clean_company_name
from ingestion_pipeline.reading.html.head import feeds_of, title_of
from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.html.visible import visible_page
from ingestion_pipeline.reading.structured.embedded import embedded_of
from ingestion_pipeline.settings.systems import Company

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


LEAST_PARAGRAPH = 60  # characters; shorter lines are menus, buttons and captions
MOST_PARAGRAPHS = 4

_NUMBER = r"[0-9]{1,3}(?:[.,\u2019' ][0-9]{3}){1,4}+(?![0-9])|[0-9]++"
_MANY = (
    rf"(?:{_NUMBER})(?:\s?[kK]\b)?(?:\s*+(?:-|\u2013|to|bis)\s*+(?:{_NUMBER})(?:\s?[kK]\b)?|\+)?"
)
_THEN = r"(?:\s*+:|[^\S\n]*+\n)\s*+"  # a colon or the end of the line
_PEOPLE = (
    r"employees|team ?members|staff members|colleagues|teammates|staff|Mitarbeiter(?:innen"
    r"|:innen|\*innen)?(?:nde)?|Mitarbeitende|collaborateurs|salari\u00e9s|empleados|dipendenti"
)
_SIZES = (
    # "250 people" are anybody's; "a team of 250 people" is ours
    re.compile(
        rf"\b(?:over|more than|about|around|nearly|some|\u00fcber|rund|plus de)?+\s*+({_MANY})"
        rf"\s++(?:[a-z]++\s)?(?:{_PEOPLE})\b"
    ),
    re.compile(
        rf"\b(?:team|company|workforce|group|crew) of (?:over |more than |about |around )?"
        rf"({_MANY})(?:\s+(?:{_PEOPLE}|people|professionals|engineers|experts))?"
    ),
    re.compile(
        rf"\b(?:company size|employees|head ?count|team size|Mitarbeiterzahl){_THEN}"
        rf"({_MANY})(?:\s+(?:{_PEOPLE}|people))?",
        re.IGNORECASE,
    ),
)
# A word of a name has no dot, so that a name ends with its sentence; "D.C." and "St." have theirs.
_WORD = r"(?:(?:St|Ft|Mt)\. )?[A-Z\u00c0-\u00de][\w'\u2019-]*+"
_PLACE = (
    r"((?:the )?(?:(?:[A-Z]\.){2,4}"
    rf"|{_WORD}(?:[ ](?:{_WORD}|of|de|la|am|an der|upon|do|del)(?![\w'\u2019-]))*+)"
    # behind a comma "Acme builds" is the next thing that is said
    rf"(?:,[ ](?:(?:[A-Z]\.){{2,4}}|{_WORD}(?:[ ]{_WORD})*+)"
    r"(?![ ](?!(?:and|with|where|but|or|since|is|are|has|have|und|mit)\b)[a-z])){0,2})"
)
_SEATS = (
    re.compile(
        rf"\b[Hh]eadquarter(?:ed|s are|s is|s)?(?: is| are)?(?: located)? (?:in|at) {_PLACE}"
    ),
    re.compile(
        rf"\b(?:[Hh]ead(?:quarters| office)|HQ|Hauptsitz|Firmensitz|Si\u00e8ge(?: social)?)"
        rf"{_THEN}{_PLACE}"
    ),
    re.compile(
        rf"\b(?:[Ww]e are|[Ww]e're|is|are|[Cc]ompany|[Ss]tart-?up|[Tt]eam) based in {_PLACE}"
    ),
    re.compile(rf"\b(?:mit )?Sitz in {_PLACE}"),
)
_FOUNDED = re.compile(
    r"\b(?:[Ff]ounded|[Ee]stablished|[Ss]tarted|[Ii]ncorporated|[Ll]aunched|[Gg]egr\u00fcndet|[Ff]ond\u00e9e?"
    r"|[Ff]undada|[Ff]ondata|[Ff]ounding year|[Gg]r\u00fcndung(?:sjahr)?)\b"
    r"(?:[^.!?\n]{0,40}?\b(?:in|im|en|nel|back in|year|Jahr)|\s*+:|[^\S\n]*+\n"
    r"|\s++by\b[^.!?\n]{0,60}?\bin)?"
    r"\s*+(?:the year |Jahre? )?(1[6-9][0-9]{2}|20[0-9]{2})\b(?![0-9])"
)
_INDUSTRY = re.compile(rf"^(?:industry|sector|branche|secteur){_THEN}([^\n]{{2,80}})$", re.I | re.M)
_MISSION = re.compile(
    r"((?:[Oo]ur|[Tt]he company's|[Uu]nsere) (?:[Mm]ission|[Pp]urpose)(?: is| ist|:)\s"
    r"[^.!?\n]{10,400}[.!?]?"
    r"|(?:We are|We're) on a mission to [^.!?\n]{10,400}[.!?]?)"
)
_HEADINGS = {
    "mission": re.compile(
        r"(?:(?:our|the|unsere|notre|la nostra) )?(?:mission|purpose|why we exist)(?: statement)?"
        r"(?: (?:and|&) vision)?",
        re.I,
    ),
    "culture": re.compile(
        r"\A.*\b(?:culture|values|life at|how we work|what we believe|working (?:at|here)|kultur"
        r"|werte|valeurs|valores|what it's like|why (?:join|work)|perks|benefits)\b.*",
        re.I,
    ),
    "about": re.compile(
        r"(?:about(?: us| the company| .{2,30})?|who we are|our (?:story|company)|what we do"
        r"|\u00fcber uns|wer wir sind|qui sommes-nous|\u00e0 propos.*|chi siamo"
        r"|qui\u00e9nes somos)",
        re.I,
    ),
}
_REMOTE_FIRST = re.compile(
    r"\b(?:remote[- ]first|fully[- ]remote|100 ?% remote|all[- ]remote|remote[- ]only"
    r"|remote[- ]native|(?:fully |globally )?distributed (?:team|company|organi[sz]ation)"
    r"|work(?:ing)? from anywhere)\b",
    re.IGNORECASE,
)
_NOT_REMOTE = re.compile(r"\b(?:not|no longer|never|isn't|aren't|nicht)\W+(?:\w+\W+){0,3}$", re.I)
_LEGAL = re.compile(
    r"cookie|privacy|terms of|all rights reserved|\u00a9|copyright|subscribe|newsletter|javascript"
    r"|datenschutz|impressum",
    re.IGNORECASE,
)
_OFFICE = re.compile(
    r"\b(?:offices?|headquarter\w*|HQ|located|based|B\u00fcros?|Standorte?|Sitz|hubs?)\b",
    re.IGNORECASE,
)


def text_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """The fields that rules find in the page's text, the surest of each first."""
    for name, value in _found(page):
        fact = stated(name, value, page=page, rung=FactMethod.TEXT)
        if fact is not None and fact.grounding.is_proof:
            yield name, fact


def is_remote_first(text: str) -> bool | None:
    """True where the text says so; None where it does not: silence is no answer."""
    found = _REMOTE_FIRST.finditer(text)
    is_said = any(
        not _NOT_REMOTE.search(text[max(0, one.start() - 40) : one.start()]) for one in found
    )
    return True if is_said else None


def offices_in(text: str) -> list[str]:
    """The lines that speak of an office or a seat."""
    return [line[:300] for line in text.split("\n") if _OFFICE.search(line)][:50]


def _found(page: CompanyPage) -> Iterator[tuple[str, str | int]]:
    yield from _headed_sentences(page)
    text = page.text
    if (mission := _MISSION.search(text)) is not None:
        yield "mission", mission[1].strip()
    if page.role is Role.CULTURE and (said := _paragraphs(text)):
        yield "culture", said
    if page.role is Role.ABOUT and (said := _paragraphs(text)):
        yield "about", said
    for rule in _SIZES:
        yield from (("size", size) for one in rule.finditer(text) if (size := _size(one)))
    for rule in _SEATS:
        yield from (("headquarters", match[1]) for match in rule.finditer(text))
    if (industry := _INDUSTRY.search(text)) is not None:
        yield "industry", industry[1]
    if (founded := _FOUNDED.search(text)) is not None:
        yield "founded", int(founded[1])


def _headed_sentences(page: CompanyPage) -> Iterator[tuple[str, str]]:
    """What stands under headings; of the careers page too, where culture is often told."""
    for heading, below in page.headed:
        for name, rule in _HEADINGS.items():
            is_there = name != "about" or page.role in {Role.ABOUT, Role.HOME}
            if is_there and rule.fullmatch(heading.strip(" .:!?")) and (said := _paragraphs(below)):
                yield name, said


def _paragraphs(text: str) -> str | None:
    """The first lines that are sentences, together; None if there is none."""
    told = [
        line
        for line in text.split("\n")
        if len(line) >= LEAST_PARAGRAPH and not _LEGAL.search(line)
    ]
    return "\n".join(told[:MOST_PARAGRAPHS]) or None


def _size(found: re.Match[str]) -> str | None:
    """The phrase, if its number can be a head count; a year before "employees" is none."""
    employees = employees_in(found[1])
    is_year = bool(re.fullmatch(r"(?:19|20)[0-9]{2}", found[1]))
    return " ".join(found[0].split()) if employees and not is_year else None


_ORDER = {Role.ABOUT: 0, Role.HOME: 1, Role.CULTURE: 2, Role.CAREERS: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the pages state, before anybody judges it."""

    name: str | None
    website: str
    facts: Facts
    tech_stack: Mapping[str, list[str]]
    is_remote_first: bool | None
    places: tuple[str, ...]
    boards: tuple[FoundBoard, ...]
    pages: tuple[CompanyPage, ...]
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:  # noqa: ANN401 - text or a year
        """The field's value; None if nobody states it."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    @property
    def missing(self) -> list[str]:
        """The fields that nobody states."""
        return [name for name in FIELDS if name not in self.facts]

    def with_more(self, facts: Facts, *notes: str) -> Findings:
        """The same with facts for what was missing."""
        return replace(self, facts={**facts, **self.facts}, notes=(*self.notes, *notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the findings are worth."""

    completeness: Completeness
    size_category: str | None
    employees_low: int | None
    employees_high: int | None
    score: Score
    scored_as: str
    quality: Mapping[str, Any]


def find(pages: Sequence[CompanyPage], *, website: str, known_name: str | None = None) -> Findings:
    """What the pages state of the company; `known_name` is what others call it."""
    ordered = sorted(pages, key=lambda page: _ORDER[page.role])
    said = company_name(sorted(pages, key=lambda page: page.role is not Role.HOME), website)
    name = known_name or (clean_company_name(said[0]) if said else None)
    text = "\n".join(page.text for page in ordered)
    names = [one for one in (name, said[0] if said else None) if one]
    offices = [place for page in ordered for place in places_of(page, website)]
    facts = _facts(ordered, website)
    seat = facts.get("headquarters")
    return Findings(
        name=name,
        website=website,
        facts=facts,
        tech_stack=technologies_in(text),
        is_remote_first=is_remote_first(text),
        places=(*([str(seat.value)] if seat else []), *offices, *offices_in(text)),
        boards=tuple(boards_in(pages, home=website, names=names)),
        pages=tuple(ordered),
    )


def judge(findings: Findings, *, ranks: Mapping[str, int], rules: Company) -> Judgement:
    """Completeness, size, points and flags, by the settings."""
    employees = employees_in(findings.value("size"))
    level = completeness(
        name=findings.name,
        website=findings.website,
        about=findings.value("about"),
        culture=findings.value("culture"),
        rules=rules,
    )
    return Judgement(
        completeness=level,
        size_category=size_category(employees, rules),
        employees_low=employees.low if employees else None,
        employees_high=employees.high if employees else None,
        score=score(
            tech_stack=findings.tech_stack,
            is_remote_first=findings.is_remote_first,
            places=findings.places,
            ranks=ranks,
            rules=rules,
        ),
        scored_as=scored_as(ranks, rules),
        quality=_quality(findings, level),
    )


def _facts(pages: Iterable[CompanyPage], website: str) -> dict[str, Fact]:
    """The first fact of each field, by rung and then by page."""
    pages = list(pages)
    found: dict[str, Fact] = {}
    for name, fact in (one for page in pages for one in embedded_facts(page, website)):
        found.setdefault(name, fact)
    told = [one for page in pages for one in text_facts(page)]
    described = [one for page in pages for one in head_facts(page)]
    # The head is written for search engines: what an about page says to people is better.
    for name, fact in (*told, *described):
        found.setdefault(name, fact)
    return found


def _quality(findings: Findings, level: Completeness) -> dict[str, Any]:
    missing = [*([] if findings.name else ["name"]), *findings.missing]
    flags = {"level": level.value, "missing": missing}
    return flags | ({"notes": list(findings.notes)} if findings.notes else {})


MAX_ADDRESSES = 2_000
MAX_SCRIPT_CHARACTERS = 300_000
_SOURCES = "iframe[src], iframe[data-src], script[src], embed[src], object[data], form[action]"
_IN_SCRIPTS = re.compile(r"https?:\\?/\\?/[\w.-]+\\?/[^\s\"'<>`)\]}]{1,300}")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_MARKDOWN = re.compile(
    r"!\[[^\[\]]*+\]\([^)\[]*+\)|\[([^\[\]]*+)\]\([^)\[]*+\)|[*_`]{1,3}|^\s*(?:[-*+>]|\d+\.)\s+"
)


def see_page(html: str, *, url: str, role: Role) -> CompanyPage:
    """What the page says, shows and leads to.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    return CompanyPage(
        url=url,
        role=role,
        title=title_of(tree),
        embedded=embedded_of(tree),
        anchors=tuple(anchors_of(tree, url)),
        embedded_urls=tuple(_embedded_urls(tree, url)),
        script_urls=tuple(_script_urls(tree)),
        feeds=tuple(one.url for one in feeds_of(tree, url)),
        text=visible_page(html, url=url).text,
        headed=tuple(_headed(to_markdown(html, url=url))),
    )


def _embedded_urls(tree: LexborHTMLParser, url: str) -> list[str]:
    """Return what the page embeds, each address once."""
    base = base_of(tree, url)
    urls: dict[str, None] = {}
    for node in tree.css(_SOURCES):
        stated = next(filter(None, map(node.attrs.get, ("src", "data-src", "data", "action"))), "")
        if address := linked_page(base, stated):
            urls[address] = None
    return list(urls)[:MAX_ADDRESSES]


def _script_urls(tree: LexborHTMLParser) -> list[str]:
    """Return what inline scripts mention: boards are often put in by a script."""
    urls: dict[str, None] = {}
    for script in tree.css("script:not([src])"):
        for match in _IN_SCRIPTS.finditer(script.text()[:MAX_SCRIPT_CHARACTERS]):
            urls[match[0].replace("\\/", "/")] = None
    return list(urls)[:MAX_ADDRESSES]


def _headed(markdown: str) -> Iterator[tuple[str, str]]:
    """Each heading with the text below it, up to the next heading; first what stands before any."""
    heading, lines = "", list[str]()
    for line in markdown.split("\n"):
        found = _HEADING.match(line)
        if found is None:
            if plain := _plain(line):
                lines.append(plain)
            continue
        if heading or lines:
            yield heading, "\n".join(lines)
        heading, lines = _plain(found[2]), []
    if heading or lines:
        yield heading, "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(_MARKDOWN.sub(lambda found: found[1] or "", line).replace("\\", "").split())
