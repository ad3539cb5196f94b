"""The business of a website: its facts, and the confidence in them."""

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
    """Where the name of the business comes from, the most reliable first."""

    OPERATOR = "operator"
    EMBEDDED = "embedded"
    META = "meta"
    TITLE = "title"
    TEXT = "text"
    MODEL = "model"
    DOMAIN = "domain"


# Points of a name by its source. By the specification, a name from the text or a model without
# further support has 50, and a name made from the domain 20, whatever else is known.
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
_DOMAIN_POINTS = 10  # the domain agrees with the name
_ENOUGH_KEYWORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Business:
    """A business as its website states it; `evidence` gives place and proof by field."""

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
        """Return a key that is the same for every spelling of the address."""
        return business_key(self.url)

    @property
    def names(self) -> Names:
        """Return the names by which it may be mentioned."""
        return Names.of(self.name, aliases=self.aliases, url=self.url)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for `website_analyses.info`."""
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
            "evidence": {name: dict(proof) for name, proof in self.evidence.items()},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Business:
        """Return the business that `as_json` wrote."""
        return cls(
            url=stored["url"],
            name=stored["name"],
            aliases=tuple(stored["aliases"]),
            industry=stored["industry"],
            description=stored["description"],
            location=stored["location"],
            keywords=tuple(stored["keywords"]),
            language=stored["language"],
            competitors=tuple(stored["competitors"]),
            confidence=stored["confidence"],
            evidence=stored["evidence"],
        )


def home_url(url: str) -> str:
    """Return the address of a website as it was given, with https if it has no scheme.

    Raises:
        BadUrl: it is no URL; the message names the cure.
    """
    text = url.strip()
    return checked_url(text if "://" in text else f"https://{text.lstrip('/')}")


def business_key(url: str) -> str:
    """Return a hash that ignores scheme, `www` and a trailing slash."""
    parts = urlsplit(canonical_url(home_url(url)))
    host = parts.netloc.removeprefix("www.")
    query = f"?{parts.query}" if parts.query else ""
    return hashlib.sha256(f"{host}{parts.path.rstrip('/')}{query}".encode()).hexdigest()


def confidence_of(
    *, named_by: NamedBy, agrees_with_domain: bool = False, facts: Sequence[object] = (), keywords: int = 0
) -> int:
    """Return 0 to 100: points for the source of the name, and a few for each further fact.

    `facts` are the industry, the description, the location and the language, None where unknown.
    A name given by the operator is 100; a name made from the domain stays at 20.
    """
    points = _NAME_POINTS[named_by]
    if named_by in {NamedBy.OPERATOR, NamedBy.DOMAIN}:
        return points
    points += _DOMAIN_POINTS if agrees_with_domain else 0
    points += _FACT_POINTS * sum(fact is not None for fact in facts)
    points += _FACT_POINTS if keywords >= _ENOUGH_KEYWORDS else 0
    return min(points, 100)
