"""What a website is the website of: a business, what is known of it, and how sure that is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from ingestion_pipeline.urls import canonical_url, checked_url
from ingestion_pipeline.websites.naming import Names

MOST_KEYWORDS = 5
MOST_COMPETITORS = 10


class NamedBy(StrEnum):
    """Who said what the business is called, the most believable first."""

    OPERATOR = "operator"
    EMBEDDED = "embedded"
    META = "meta"
    TITLE = "title"
    TEXT = "text"
    MODEL = "model"
    DOMAIN = "domain"


# What a name is worth by where it was found. A name of the text or of a model that nothing else
# supports is the spec's 50; a name made from the domain is 20, whatever else is known.
_NAME_POINTS = {
    NamedBy.OPERATOR: 100,
    NamedBy.EMBEDDED: 70,
    NamedBy.META: 60,
    NamedBy.TITLE: 50,
    NamedBy.TEXT: 50,
    NamedBy.MODEL: 50,
    NamedBy.DOMAIN: 20,
}
_FACT_POINTS = 4  # for each of industry, description, location, keywords, language
_DOMAIN_POINTS = 10  # the domain says the same name
_ENOUGH_KEYWORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """A business as its website states it; `evidence` says by field where, and how it is proved."""

    url: str
    name: str
    aliases: tuple[str, ...] = ()
    industry: str | None = None
    description: str | None = None
    location: str | None = None
    keywords: tuple[str, ...] = ()
    language: str | None = None
    competitors: tuple[str, ...] = ()
    confidence: int = 0
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def key(self) -> str:
        """The same for every spelling of its address."""
        return business_key(self.url)

    @property
    def names(self) -> Names:
        """By what it may be mentioned."""
        return Names.of(self.name, aliases=self.aliases, url=self.url)

    def as_json(self) -> dict[str, Any]:
        """As `website_analyses.info` keeps it."""
        return {
            "url": self.url,
            "name": self.name,
            "aliases": list(self.aliases),
            "industry": self.industry,
            "description": self.description,
            "location": self.location,
            "keywords": list(self.keywords),
            "language": self.language,
            "competitors": list(self.competitors),
            "confidence": self.confidence,
            "evidence": {name: dict(one) for name, one in self.evidence.items()},
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Business:
        """The business that `as_json` kept."""
        return cls(
            url=kept["url"],
            name=kept["name"],
            aliases=tuple(kept["aliases"]),
            industry=kept["industry"],
            description=kept["description"],
            location=kept["location"],
            keywords=tuple(kept["keywords"]),
            language=kept["language"],
            competitors=tuple(kept["competitors"]),
            confidence=kept["confidence"],
            evidence=kept["evidence"],
        )


def home_url(url: str) -> str:
    """The address of a website as it was given, https where it has no scheme.

    Raises:
        BadUrl: it is none; the message names the cure.
    """
    given = url.strip()
    return checked_url(given if "://" in given else f"https://{given.lstrip('/')}")


def business_key(url: str) -> str:
    """The same for http and https, with and without `www`, with and without a last slash."""
    parts = urlsplit(canonical_url(home_url(url)))
    host = parts.netloc.removeprefix("www.")
    query = f"?{parts.query}" if parts.query else ""
    return hashlib.sha256(f"{host}{parts.path.rstrip('/')}{query}".encode()).hexdigest()


def confidence_of(
    *,
    named_by: NamedBy,
    agrees_with_domain: bool = False,
    facts: Sequence[object] = (),
    keywords: int = 0,
) -> int:
    """0 to 100: what the name is worth by where it was found, and a little for each further fact.

    `facts` are the industry, the description, the location and the language, None where unknown.
    Whoever operates this is believed (100); a name made from the domain stays at 20.
    """
    points = _NAME_POINTS[named_by]
    if named_by in {NamedBy.OPERATOR, NamedBy.DOMAIN}:
        return points
    points += _DOMAIN_POINTS if agrees_with_domain else 0
    points += _FACT_POINTS * sum(fact is not None for fact in facts)
    points += _FACT_POINTS if keywords >= _ENOUGH_KEYWORDS else 0
    return min(points, 100)
