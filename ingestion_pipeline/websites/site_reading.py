"""What the pages of a website state of its business, by rules alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingestion_pipeline.reading.business_names import bare_name
from ingestion_pipeline.reading.grounding import BY_SOURCE, ground
from ingestion_pipeline.reading.organization import OrganizationFacts, Stated
from ingestion_pipeline.reading.topics import MAX_KEYWORD_CHARACTERS, frequent_words
from ingestion_pipeline.websites.business import (
    MOST_COMPETITORS,
    MOST_KEYWORDS,
    Business,
    NamedBy,
    confidence_of,
)
from ingestion_pipeline.websites.competitors import named_competitors
from ingestion_pipeline.websites.naming import Names, find_mentions
from ingestion_pipeline.websites.naming.folding import folded_name
from ingestion_pipeline.websites.naming.names import domain_label, own_host

MAX_NAME_WORDS = 6  # a longer one is a slogan
FEW_KEYWORDS = 3
_LIKE_DOMAIN = 80  # percent
_NAMED_BY = {Stated.JSON_LD: NamedBy.EMBEDDED, Stated.MICRODATA: NamedBy.EMBEDDED}
_FIELDS = ("industry", "description", "location")


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePage:
    """A page of the site with what it states."""

    url: str
    links: tuple[str, ...]
    facts: OrganizationFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReading:
    """The business by rules, and who named it."""

    business: Business
    named_by: NamedBy


def read_site(url: str, pages: Sequence[SitePage]) -> SiteReading:
    """The business that the pages are of, the home page believed first."""
    name, named_by, page = site_name(url, pages)
    language = next((one.facts.language for one in pages if one.facts.language), None)
    bare = bare_name(name, language=language)
    facts, evidence = _first_facts(pages)
    evidence["name"] = _evidence(name, page, named_by.value)
    own = Names.of(bare, aliases=[name], url=url)
    competitors = site_competitors(pages, own)
    keywords = site_keywords(pages, [own, *map(Names.of, competitors)], language)
    business = Business(
        url=url,
        name=bare,
        aliases=_aliases(bare, name, pages),
        industry=facts.get("industry"),
        description=facts.get("description"),
        location=facts.get("location"),
        keywords=keywords,
        language=language.lower() if language else None,
        competitors=competitors,
        evidence=evidence,
    )
    return SiteReading(business=with_confidence(business, named_by), named_by=named_by)


def with_confidence(business: Business, named_by: NamedBy) -> Business:
    """The business with the confidence that its facts come to."""
    facts = (business.industry, business.description, business.location, business.language)
    sure = confidence_of(
        named_by=named_by,
        agrees_with_domain=is_like_domain(business.name, business.url),
        facts=facts,
        keywords=len(business.keywords),
    )
    return replace(business, confidence=sure)


def site_name(url: str, pages: Sequence[SitePage]) -> tuple[str, NamedBy, SitePage | None]:
    """What the business is called, who says so, and where; by its domain if nobody does."""
    for page in pages:
        stated = page.facts.stated.get("name")
        name = page.facts.name
        if name and stated and _is_name(name):
            return name, _NAMED_BY.get(stated, NamedBy.META), page
    for page in pages:
        for part in page.facts.title_parts:
            if is_like_domain(part, url) and _is_name(part):
                return part, NamedBy.TITLE, page
    for page in pages:
        name = page.facts.copyright_name or page.facts.legal_name
        if name and _is_name(name):
            return name, NamedBy.TEXT, page
    return domain_name(url), NamedBy.DOMAIN, None


def domain_name(url: str) -> str:
    """A name made from the domain: `Acme Tools` of `www.acme-tools.co.uk`."""
    host = own_host(url) or url
    label = domain_label(host) or host
    return " ".join(part.capitalize() for part in label.split("-") if part) or label


def is_like_domain(name: str, url: str) -> bool:
    """Whether the domain says the same name, or one begins with the other."""
    from rapidfuzz import fuzz

    label = "".join(domain_label(own_host(url) or "").split("-"))
    said = "".join(one for one in folded_name(bare_name(name)) if one.isalnum())
    if not label or not said:
        return False
    label = folded_name(label)
    return (
        said.startswith(label) or label.startswith(said) or fuzz.ratio(said, label) >= _LIKE_DOMAIN
    )


def site_keywords(
    pages: Sequence[SitePage], named: Sequence[Names], language: str | None
) -> tuple[str, ...]:
    """Three to five: those that are stated, else the words that the site uses most.

    Too few that are stated are filled up to three. Nobody who is named is one.
    """
    stated = [word for page in pages for word in page.facts.keywords]
    headings = [line for page in pages for line in page.facts.headings]
    text = "\n".join(page.facts.text for page in pages)
    counted = frequent_words(text, headings=headings, language=language, most=4 * MOST_KEYWORDS)
    kept: dict[str, str] = {}
    for word in stated:
        _take_keyword(kept, word, named, most=MOST_KEYWORDS)
    for word in counted:
        _take_keyword(kept, word, named, most=FEW_KEYWORDS if stated else MOST_KEYWORDS)
    return tuple(kept.values())


def _take_keyword(kept: dict[str, str], word: str, named: Sequence[Names], *, most: int) -> None:
    if len(kept) >= most or len(word) > MAX_KEYWORD_CHARACTERS:
        return
    is_known = any(word.lower() in one for one in kept)
    if not is_known and not any(find_mentions(word.title(), one) for one in named):
        kept[word.lower()] = word


def site_competitors(pages: Sequence[SitePage], own: Names) -> tuple[str, ...]:
    """Whom the site compares the business with."""
    texts = [text for page in pages for text in (*page.facts.title_parts, page.facts.text)]
    links = dict.fromkeys(link for page in pages for link in page.links)
    return named_competitors(texts, links, own, most=MOST_COMPETITORS)


def _is_name(text: str) -> bool:
    return 0 < len(text.split()) <= MAX_NAME_WORDS and any(one.isalpha() for one in text)


def _aliases(bare: str, name: str, pages: Sequence[SitePage]) -> tuple[str, ...]:
    stated = [
        one for page in pages for one in (page.facts.legal_name, *page.facts.other_names) if one
    ]
    fit = (one for one in (name, *stated) if _is_name(one))
    return tuple(one for one in dict.fromkeys(fit) if one != bare)


def _first_facts(pages: Sequence[SitePage]) -> tuple[dict[str, str], dict[str, Mapping[str, Any]]]:
    """Each fact from the first page that states it best, and where that is."""
    places = list(Stated)
    found: dict[str, str] = {}
    evidence: dict[str, Mapping[str, Any]] = {}
    for name in _FIELDS:
        stated = [
            (places.index(page.facts.stated[name]), number)
            for number, page in enumerate(pages)
            if name in page.facts.stated
        ]
        if stated:
            page = pages[min(stated)[1]]
            found[name] = str(getattr(page.facts, name))
            evidence[name] = _evidence(found[name], page, page.facts.stated[name].value)
    return found, evidence


def _evidence(value: str, page: SitePage | None, rung: str) -> Mapping[str, Any]:
    """Where the page shows the value; what it says to machines alone is proved by being there."""
    if page is None:
        return {"rung": rung}
    shown = ground(value, page.facts.text)
    proof = shown if shown.is_proof else BY_SOURCE
    return {
        "page": page.url,
        "rung": rung,
        "status": proof.status.value,
        "start": proof.start,
        "end": proof.end,
    }
