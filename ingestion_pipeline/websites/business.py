"""The business of a website: its facts, the confidence in them, and the operator's own description.

The description is in the source's `config` and overrides what is extracted:

```yaml
config:
  business: {name: Acme, aliases: [ACME Tools], industry: ..., competitors: [Globex]}
  prompts: [Which tool is best for ...?]
```
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, cast
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from ingestion_pipeline.sources.file_model import BadField, FileModel, Flag, validated
from ingestion_pipeline.urls import canonical_url, checked_url
from ingestion_pipeline.websites.name_forms import Names

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
    def names(self) -> Names:
        """Return the names by which it may be mentioned."""
        return Names.of(self.name, aliases=self.aliases, url=self.url)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON for `website_analyses.info`."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Business":
        """Return the business that `as_json` wrote."""
        facts: dict[str, Any] = {column.name: stored[column.name] for column in fields(cls)}
        facts |= {name: tuple(stored[name]) for name in ("aliases", "keywords", "competitors")}
        return cls(**facts)


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


MAX_PROMPTS = 50
MAX_CHARACTERS = 1_000


def _text(value: object) -> str:
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text or len(text) > MAX_CHARACTERS:
        raise ValueError(f"must be a text of up to {MAX_CHARACTERS} characters")
    return text


def _listed(value: object) -> list[object]:
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list of texts")  # noqa: TRY004 - pydantic's kind of error
    return list(cast("Sequence[object]", value))


def _each_once(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _within_limit(prompts: tuple[str, ...]) -> tuple[str, ...]:
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"has {len(prompts)}; at most {MAX_PROMPTS}")
    return prompts


_Text = Annotated[str, BeforeValidator(_text)]
_Texts = Annotated[tuple[_Text, ...], BeforeValidator(_listed), AfterValidator(_each_once)]


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
