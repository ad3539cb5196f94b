"""What a company says of itself in words: rules for sentences and for parts under a heading."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ingestion_pipeline.companies.analysis.fact import CompanyPage, Fact, FactMethod, stated
from ingestion_pipeline.companies.analysis.scoring import employees_in
from ingestion_pipeline.companies.analysis.site import Role

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
    for field, value in _found(page):
        fact = stated(field, value, page=page, rung=FactMethod.TEXT)
        if fact is not None and fact.grounding.is_proof:
            yield field, fact


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
    yield from _headed(page)
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


def _headed(page: CompanyPage) -> Iterator[tuple[str, str]]:
    """What stands under headings; of the careers page too, where culture is often told."""
    for heading, below in page.headed:
        for field, rule in _HEADINGS.items():
            is_there = field != "about" or page.role in {Role.ABOUT, Role.HOME}
            if is_there and rule.fullmatch(heading.strip(" .:!?")) and (said := _paragraphs(below)):
                yield field, said


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
