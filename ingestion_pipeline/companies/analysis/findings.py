"""Findings about a company: its pages are parsed, text rules applied, and the result scored and given a tier.

Pure functions; the numbers come from the settings. What is not stated is null with a flag, and neither adds nor
removes points.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.companies.analysis.company_pages import (
    FIELDS,
    CompanyPage,
    Fact,
    FactMethod,
    Facts,
    Role,
    anchors_of,
    company_name,
    embedded_facts,
    head_facts,
    make_fact,
    places_of,
    technologies_in,
)
from ingestion_pipeline.companies.board_discovery import FoundBoard, boards_in
from ingestion_pipeline.companies.job_listing import MACHINE_LEARNING, canonical_name, clean_company_name
from ingestion_pipeline.companies.records import Completeness
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import base_of, feeds_of, linked_page, title_of
from ingestion_pipeline.reading.html.markdown import markdown_of
from ingestion_pipeline.settings.groups import Company

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

TECH_CAP = 100  # points that technologies come to at most
REMOTE_BONUS = 15
MACHINE_LEARNING_BONUS = 10
TIER_FLOORS = {"S": 150, "A": 100, "B": 70, "C": 50}  # points; fewer are tier D
# A company's texts must be longer, in characters.
ABOUT_MINIMAL, CULTURE_MINIMAL = 50, 25
ABOUT_GOOD, CULTURE_GOOD = 100, 50
LARGE_EMPLOYEES = 10_000
SMALL_EMPLOYEES = 100  # below this it is small
POINTS_PER_RANK = 5  # skills are ranked 1 to 10: two of rank 10 reach the cap
MAX_EMPLOYEES = 10_000_000  # a larger number is not a head count


@dataclass(frozen=True, slots=True, kw_only=True)
class Employees:
    """A head count range; `high` is None where only "more than" is stated."""

    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The points, their parts, and the resulting tier."""

    points: int
    parts: Mapping[str, int]
    tier: str


def completeness(*, name: str | None, website: str | None, about: str | None, culture: str | None) -> Completeness:
    """Return the level: texts must be longer than the thresholds."""
    about_length, culture_length = len(about or ""), len(culture or "")
    if not (name and website):
        return Completeness.THIN
    if about_length > ABOUT_GOOD and culture_length > CULTURE_GOOD:
        return Completeness.GOOD
    is_minimal = about_length > ABOUT_MINIMAL or culture_length > CULTURE_MINIMAL
    return Completeness.MINIMAL if is_minimal else Completeness.THIN


def size_category(employees: Employees | None) -> str | None:
    """Return large, medium or small; None if the head count is unknown."""
    if employees is None:
        return None
    if employees.low >= LARGE_EMPLOYEES:
        return "large"
    most = employees.low if employees.high is None else employees.high
    return "small" if most < SMALL_EMPLOYEES else "medium"


_SEPARATED = r"[0-9]{1,3}(?:[.,'\u2019\u00a0\u202f ][0-9]{3})+(?![0-9])"
_RANGE = re.compile(
    rf"(?P<low>{_SEPARATED}|[0-9]+)\s?(?P<low_k>[kK]\b)?\s*"
    rf"(?:(?P<to>-|\u2013|\u2014|to|bis)\s*(?P<high>{_SEPARATED}|[0-9]+)\s?(?P<high_k>[kK]\b)?"
    r"|(?P<more>\+))?"
)
_FEWER = re.compile(r"\b(?:under|up to|fewer than|less than|unter|bis zu)\s*$", re.IGNORECASE)


def employees_in(stated: str | None) -> Employees | None:
    """Parse a phrase such as "51-200 employees" or "10,000+"; None if it has no head count."""
    match = _RANGE.search(stated or "")
    if stated is None or match is None:
        return None
    low = _whole(match["low"], match["low_k"] or (match["high_k"] if match["to"] else None))
    high = _whole(match["high"], match["high_k"]) if match["high"] else None
    if match["more"] is None and high is None:
        high = low
    if _FEWER.search(stated[: match.start()]):
        low = 1
    if not 0 < low <= MAX_EMPLOYEES or (high is not None and not low <= high <= MAX_EMPLOYEES):
        return None
    return Employees(low=low, high=high)


def _whole(digits: str, thousands: str | None) -> int:
    number = int(re.sub("[^0-9]", "", digits)[:12])
    return number * 1_000 if thousands else number


def scoring_hash(ranks: Mapping[str, int], rules: Company) -> str:
    """Return a hash of ranks and rules: equal hashes give a company equal scores."""
    constants = [TECH_CAP, REMOTE_BONUS, MACHINE_LEARNING_BONUS, TIER_FLOORS]
    serialised = json.dumps([sorted(ranks.items()), rules.model_dump(mode="json"), constants], sort_keys=True)
    return sha256(serialised.encode()).hexdigest()


def rank_points(skills: Mapping[str, int]) -> dict[str, int]:
    """Return the points of each skill of a profile, by its rank."""
    return {skill: rank * POINTS_PER_RANK for skill, rank in skills.items()}


def tech_alignment(tech_stack: Mapping[str, Sequence[str]], ranks: Mapping[str, int], *, cap: int) -> int:
    """Return the points of the profile's skills that the company uses, at most `cap`; spellings count once."""
    used = {canonical_name(name) for names in tech_stack.values() for name in names}
    best: dict[str, int] = {}
    for skill, points in ranks.items():
        best[canonical_name(skill)] = max(points, best.get(canonical_name(skill), 0))
    points = sum(points for skill, points in best.items() if skill in used)
    return max(0, min(cap, points))


def score(
    *,
    tech_stack: Mapping[str, Sequence[str]],
    is_remote_first: bool | None,
    places: Iterable[str],
    ranks: Mapping[str, int],
    rules: Company,
) -> Score:
    """Return the points by the settings; only stated facts count."""
    city = re.compile(rf"(?<!\w){re.escape(rules.bonus_city)}(?!\w)", re.IGNORECASE)
    is_there = bool(rules.bonus_city) and any(city.search(place) for place in places)
    parts = {
        "city": rules.portland_bonus if is_there else 0,
        "tech": tech_alignment(tech_stack, ranks, cap=TECH_CAP),
        "remote": REMOTE_BONUS if is_remote_first else 0,
        "machine_learning": MACHINE_LEARNING_BONUS if tech_stack.get(MACHINE_LEARNING) else 0,
    }
    points = sum(parts.values())
    return Score(points=points, parts=parts, tier=tier_of(points))


def tier_of(points: int) -> str:
    """Return the tier: S, A, B, C or D."""
    return next((tier for tier, floor in TIER_FLOORS.items() if points >= floor), "D")


MIN_PARAGRAPH_CHARACTERS = 60  # characters; shorter lines are menus, buttons and captions
MAX_PARAGRAPHS = 4

_NUMBER = r"[0-9]{1,3}(?:[.,\u2019' ][0-9]{3}){1,4}+(?![0-9])|[0-9]++"
_MANY = rf"(?:{_NUMBER})(?:\s?[kK]\b)?(?:\s*+(?:-|\u2013|to|bis)\s*+(?:{_NUMBER})(?:\s?[kK]\b)?|\+)?"
_THEN = r"(?:\s*+:|[^\S\n]*+\n)\s*+"  # a colon or the end of the line
_PEOPLE = (
    r"employees|team ?members|staff members|colleagues|teammates|staff|Mitarbeiter(?:innen"
    r"|:innen|\*innen)?(?:nde)?|Mitarbeitende|collaborateurs|salari\u00e9s|empleados|dipendenti"
)
_SIZES = (
    # "250 people" may be anybody; "a team of 250 people" is a head count
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
# Words of a name have no dot, so that a name ends with its sentence; except "D.C." and "St.".
_WORD = r"(?:(?:St|Ft|Mt)\. )?[A-Z\u00c0-\u00de][\w'\u2019-]*+"
_PLACE = (
    r"((?:the )?(?:(?:[A-Z]\.){2,4}"
    rf"|{_WORD}(?:[ ](?:{_WORD}|of|de|la|am|an der|upon|do|del)(?![\w'\u2019-]))*+)"
    # after a comma "Acme builds" starts the next clause
    rf"(?:,[ ](?:(?:[A-Z]\.){{2,4}}|{_WORD}(?:[ ]{_WORD})*+)"
    r"(?![ ](?!(?:and|with|where|but|or|since|is|are|has|have|und|mit)\b)[a-z])){0,2})"
)
_SEATS = (
    re.compile(rf"\b[Hh]eadquarter(?:ed|s are|s is|s)?(?: is| are)?(?: located)? (?:in|at) {_PLACE}"),
    re.compile(
        rf"\b(?:[Hh]ead(?:quarters| office)|HQ|Hauptsitz|Firmensitz|Si\u00e8ge(?: social)?)"
        rf"{_THEN}{_PLACE}"
    ),
    re.compile(rf"\b(?:[Ww]e are|[Ww]e're|is|are|[Cc]ompany|[Ss]tart-?up|[Tt]eam) based in {_PLACE}"),
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
    r"\b(?:offices?|headquarter\w*|HQ|located|based|B\u00fcros?|Standorte?|Sitz|hubs?)\b", re.IGNORECASE
)


def text_facts(page: CompanyPage) -> Iterator[tuple[str, Fact]]:
    """Yield the fields that rules find in the page's text, the most reliable value first."""
    for name, value in _rule_values(page):
        fact = make_fact(name, value, page=page, method=FactMethod.TEXT)
        if fact is not None and fact.grounding.is_proof:
            yield name, fact


def is_remote_first(text: str) -> bool | None:
    """Return True if the text says that the company is remote first, None if it does not say."""
    matches = _REMOTE_FIRST.finditer(text)
    is_stated = any(not _NOT_REMOTE.search(text[max(0, match.start() - 40) : match.start()]) for match in matches)
    return True if is_stated else None


def offices_in(text: str) -> list[str]:
    """Return the lines that mention an office or a head office."""
    return [line[:300] for line in text.split("\n") if _OFFICE.search(line)][:50]


def _rule_values(page: CompanyPage) -> Iterator[tuple[str, str | int]]:
    yield from _section_values(page)
    text = page.text
    if (mission := _MISSION.search(text)) is not None:
        yield "mission", mission[1].strip()
    if page.role is Role.CULTURE and (paragraphs := _paragraphs(text)):
        yield "culture", paragraphs
    if page.role is Role.ABOUT and (paragraphs := _paragraphs(text)):
        yield "about", paragraphs
    for rule in _SIZES:
        yield from (("size", size) for match in rule.finditer(text) if (size := _size(match)))
    for rule in _SEATS:
        yield from (("headquarters", match[1]) for match in rule.finditer(text))
    if (industry := _INDUSTRY.search(text)) is not None:
        yield "industry", industry[1]
    if (founded := _FOUNDED.search(text)) is not None:
        yield "founded", int(founded[1])


def _section_values(page: CompanyPage) -> Iterator[tuple[str, str]]:
    """Yield fields from sections with known headings; careers pages often describe the culture."""
    for heading, below in page.headed:
        for name, rule in _HEADINGS.items():
            is_relevant = name != "about" or page.role in {Role.ABOUT, Role.HOME}
            if is_relevant and rule.fullmatch(heading.strip(" .:!?")) and (paragraphs := _paragraphs(below)):
                yield name, paragraphs


def _paragraphs(text: str) -> str | None:
    """Return the first lines that are full sentences, joined; None if there is none."""
    paragraphs = [
        line for line in text.split("\n") if len(line) >= MIN_PARAGRAPH_CHARACTERS and not _LEGAL.search(line)
    ]
    return "\n".join(paragraphs[:MAX_PARAGRAPHS]) or None


def _size(match: re.Match[str]) -> str | None:
    """Return the phrase if its number can be a head count; a year before "employees" is not one."""
    employees = employees_in(match[1])
    is_year = bool(re.fullmatch(r"(?:19|20)[0-9]{2}", match[1]))
    return " ".join(match[0].split()) if employees and not is_year else None


_ORDER = {Role.ABOUT: 0, Role.HOME: 1, Role.CULTURE: 2, Role.CAREERS: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a company's pages state, before evaluation."""

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
        """Return the field's value; None if no page states it."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    @property
    def missing(self) -> list[str]:
        """Return the fields that no page states."""
        return [name for name in FIELDS if name not in self.facts]

    def with_more(self, facts: Facts, *notes: str) -> "Findings":
        """Return a copy with facts added for missing fields."""
        return replace(self, facts={**facts, **self.facts}, notes=(*self.notes, *notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyEvaluation:
    """Completeness, size, score and quality flags of a company."""

    completeness: Completeness
    size_category: str | None
    employees_low: int | None
    employees_high: int | None
    score: Score
    scoring_hash: str
    quality: Mapping[str, Any]


def collect_findings(pages: Sequence[CompanyPage], *, website: str, known_name: str | None = None) -> Findings:
    """Return what the pages state about the company; `known_name` overrides the stated name."""
    ordered = sorted(pages, key=lambda page: _ORDER[page.role])
    stated_name = company_name(sorted(pages, key=lambda page: page.role is not Role.HOME), website)
    name = known_name or (clean_company_name(stated_name[0]) if stated_name else None)
    text = "\n".join(page.text for page in ordered)
    names = [candidate for candidate in (name, stated_name[0] if stated_name else None) if candidate]
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


def evaluate_company(findings: Findings, *, ranks: Mapping[str, int], rules: Company) -> CompanyEvaluation:
    """Return completeness, size, score and quality flags, computed with the settings."""
    employees = employees_in(findings.value("size"))
    level = completeness(
        name=findings.name,
        website=findings.website,
        about=findings.value("about"),
        culture=findings.value("culture"),
    )
    return CompanyEvaluation(
        completeness=level,
        size_category=size_category(employees),
        employees_low=employees.low if employees else None,
        employees_high=employees.high if employees else None,
        score=score(
            tech_stack=findings.tech_stack,
            is_remote_first=findings.is_remote_first,
            places=findings.places,
            ranks=ranks,
            rules=rules,
        ),
        scoring_hash=scoring_hash(ranks, rules),
        quality={
            "level": level.value,
            "missing": [*([] if findings.name else ["name"]), *findings.missing],
            **({"notes": list(findings.notes)} if findings.notes else {}),
        },
    )


def _facts(pages: Sequence[CompanyPage], website: str) -> dict[str, Fact]:
    """Return the first fact of each field, ordered by extraction method and then by page."""
    facts: dict[str, Fact] = {}
    from_data = [named_fact for page in pages for named_fact in embedded_facts(page, website)]
    from_text = [named_fact for page in pages for named_fact in text_facts(page)]
    from_head = [named_fact for page in pages for named_fact in head_facts(page)]
    # Meta tags are written for search engines: the visible text is better.
    for name, fact in (*from_data, *from_text, *from_head):
        facts.setdefault(name, fact)
    return facts


MAX_ADDRESSES = 2_000
MAX_SCRIPT_CHARACTERS = 300_000
_SOURCES = "iframe[src], iframe[data-src], script[src], embed[src], object[data], form[action]"
_IN_SCRIPTS = re.compile(r"https?:\\?/\\?/[\w.-]+\\?/[^\s\"'<>`)\]}]{1,300}")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_MARKDOWN = re.compile(r"!\[[^\[\]]*+\]\([^)\[]*+\)|\[([^\[\]]*+)\]\([^)\[]*+\)|[*_`]{1,3}|^\s*(?:[-*+>]|\d+\.)\s+")


def parse_company_page(html: str, *, url: str, role: Role) -> CompanyPage:
    """Parse the page into text, sections, embedded data, links and feeds."""
    document = Document(html, url=url)
    tree = document.tree
    return CompanyPage(
        url=url,
        role=role,
        title=title_of(tree),
        embedded=document.embedded,
        anchors=tuple(anchors_of(tree, url)),
        embedded_urls=tuple(_embedded_urls(tree, url)),
        script_urls=tuple(_script_urls(tree)),
        feeds=tuple(feed.url for feed in feeds_of(tree, url)),
        text=document.visible_utf8.decode(),  # takes the tree over
        headed=tuple(_sections(markdown_of(document.visible_tree, url))),
    )


def _embedded_urls(tree: "LexborHTMLParser", url: str) -> list[str]:
    """Return the URLs that the page embeds, each once."""
    base = base_of(tree, url)
    names = ("src", "data-src", "data", "action")
    stated = (next(filter(None, map(node.attrs.get, names)), "") for node in tree.css(_SOURCES))
    return list(dict.fromkeys(filter(None, (linked_page(base, url) for url in stated))))[:MAX_ADDRESSES]


def _script_urls(tree: "LexborHTMLParser") -> list[str]:
    """Return the URLs in inline scripts, which often insert the job board."""
    scripts = (script.text()[:MAX_SCRIPT_CHARACTERS] for script in tree.css("script:not([src])"))
    urls = (match[0].replace("\\/", "/") for text in scripts for match in _IN_SCRIPTS.finditer(text))
    return list(dict.fromkeys(urls))[:MAX_ADDRESSES]


def _sections(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield each heading with the text below it; text before the first heading comes first."""
    heading, lines = "", list[str]()
    for line in markdown.split("\n"):
        match = _HEADING.match(line)
        if match is None:
            if plain := _plain(line):
                lines.append(plain)
            continue
        if heading or lines:
            yield heading, "\n".join(lines)
        heading, lines = _plain(match[2]), []
    if heading or lines:
        yield heading, "\n".join(lines)


def _plain(line: str) -> str:
    return " ".join(_MARKDOWN.sub(lambda match: match[1] or "", line).replace("\\", "").split())
