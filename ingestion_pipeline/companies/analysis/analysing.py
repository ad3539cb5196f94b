"""The pages of a company put together: facts, technologies, boards, score. Pure.

Data for machines come first, then the page's head, then rules on the text; what none of them finds
a model may be asked for (`asking`), and is believed only where the text proves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ingestion_pipeline.companies.analysis.boards import FoundBoard, boards_in
from ingestion_pipeline.companies.analysis.fact import FIELDS, CompanyPage, Fact, Facts
from ingestion_pipeline.companies.analysis.organization import (
    company_name,
    embedded_facts,
    head_facts,
    places_of,
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
from ingestion_pipeline.companies.analysis.sentences import (
    is_remote_first,
    offices_in,
    text_facts,
)
from ingestion_pipeline.companies.analysis.site import Role
from ingestion_pipeline.companies.analysis.technologies import technologies_in
from ingestion_pipeline.companies.names import clean_company_name
from ingestion_pipeline.settings.jobs import Company

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
    notes: tuple[str, ...] = field(default=())

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
