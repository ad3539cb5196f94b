"""The business of a website, and the states and phases of its analysis, each with the queue that serves it.

The operator's description is in the source's `config` and overrides what is extracted.

The states of an analysis, and the queues:

```
 not-started ──website_info──> prompt-forming ──website_prompts──> model-analysis
      │                              │                                 │ website_analysis
      └────────── failed <───────────┴────────────── failed <──────────┴──> completed
```

There is no "running" state: a running analysis is in the state of its phase, and its task says
which worker has it, so that whatever a crash leaves is found by the same query.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.structured.organizations import OrganizationFacts, organization_facts
from ingestion_pipeline.sources.declarations import BadField, FileModel, Flag, Weight, listed, validated
from ingestion_pipeline.urls import canonical_url, checked_url
from ingestion_pipeline.websites.mentions import Names

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
    unsure: tuple[str, ...] = ()  # facts of which no rule is sure enough to ask about them
    evidence: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    @property
    def names(self) -> Names:
        """Return the names by which it may be mentioned."""
        return Names.of(self.name, aliases=self.aliases, url=self.url)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for `website_analyses.info`."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Business":
        """Return the business that `as_json` wrote."""
        facts: dict[str, Any] = {column.name: stored[column.name] for column in fields(cls) if column.name in stored}
        facts |= {name: tuple(facts.get(name, ())) for name in ("aliases", "keywords", "competitors", "unsure")}
        return cls(**facts)


def home_url(url: str) -> str:
    """Return the address as it was given, with https if it has no scheme; BadUrl names the cure if it is none."""
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


MAX_PROMPTS = 50
MAX_CHARACTERS = 1_000


def _text(value: object) -> str:
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text or len(text) > MAX_CHARACTERS:
        raise ValueError(f"must be a text of up to {MAX_CHARACTERS} characters")
    return text


def _each_once(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _within_limit(prompts: tuple[str, ...]) -> tuple[str, ...]:
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"has {len(prompts)}; at most {MAX_PROMPTS}")
    return prompts


_Text = Annotated[str, BeforeValidator(_text)]
_Texts = Annotated[tuple[_Text, ...], listed("must be a list of texts"), AfterValidator(_each_once)]


class _BusinessEntry(FileModel):
    not_a_mapping: ClassVar[str] = "must be a mapping such as {name: Acme}"

    name: _Text | None = None
    industry: _Text | None = None
    description: _Text | None = None
    location: _Text | None = None
    language: _Text | None = None
    aliases: _Texts = ()
    keywords: _Texts = ()
    competitors: _Texts = ()


class WebsiteConfigEntry(FileModel):
    """The `config` of a website as it is written."""

    business: _BusinessEntry = _BusinessEntry()
    prompts: Annotated[_Texts, AfterValidator(_within_limit)] = ()
    ignore_robots: Flag = Field(default=False, description="read it although its robots.txt forbids it")
    weight: Weight = Field(default=1.0, description="how much a change of it counts, compared with other websites")


class WebsiteConfig(_BusinessEntry):
    """The operator's statements; with a name nothing is extracted, with prompts none are formed."""

    prompts: tuple[str, ...] = ()

    @property
    def is_manual(self) -> bool:
        """Return whether the operator states what the business is."""
        return self.name is not None


def parse_website_config(config: Mapping[str, Any]) -> tuple[WebsiteConfig, list[BadField]]:
    """Return the parsed config, an empty one where it has problems, and all problems."""
    entry, bad = validated(WebsiteConfigEntry, config)
    if entry is None:
        return WebsiteConfig(), [BadField(f"config.{problem.field}", problem.message) for problem in bad]
    return WebsiteConfig(**dict(entry.business), prompts=entry.prompts), []


@dataclass(frozen=True, kw_only=True)
class FetchedPage:
    """A page as a phase needs it: final address, markup, links, and the facts that it states."""

    url: str
    html: str
    links: tuple[str, ...] = ()
    may_ask_models: bool = True

    @cached_property
    def facts(self) -> OrganizationFacts:
        """The facts of the organization, parsed when they are first read."""
        return organization_facts(Document(self.html))


# Fetches a page within its host's limits, in a browser if necessary; raises a `WorkError`.
Visit = Callable[[str], Awaitable[FetchedPage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Informed:
    """The business of the website, the pages used, and the problems met."""

    business: Business
    pages: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class PromptedBy(StrEnum):
    """Who wrote the prompts."""

    OPERATOR = "operator"
    MODEL = "model"
    TEMPLATES = "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One question for all providers; a direct one names the business."""

    text: str
    is_direct: bool
    by: PromptedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """The prompts in the order in which they are asked."""

    prompts: tuple[AskedPrompt, ...]

    def as_json(self) -> list[dict[str, str | bool]]:
        """Return the JSON for `website_analyses.prompts`."""
        return [{"text": prompt.text, "is_direct": prompt.is_direct, "by": prompt.by.value} for prompt in self.prompts]
