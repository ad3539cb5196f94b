"""An operator's description of a website in its source's `config`; it overrides what is extracted.

```yaml
config:
  business: {name: Acme, aliases: [ACME Tools], industry: ..., competitors: [Globex]}
  prompts: [Which tool is best for ...?]
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ingestion_pipeline.sources.definition import BadField
from ingestion_pipeline.sources.source import IGNORE_ROBOTS

KEYS = ("business", "prompts", IGNORE_ROBOTS)
TEXTS = ("name", "industry", "description", "location", "language")
LISTS = ("aliases", "keywords", "competitors")
MAX_PROMPTS = 50
MAX_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WebsiteConfig:
    """The operator's statements; with a name nothing is extracted, with prompts none are formed."""

    name: str | None = None
    aliases: tuple[str, ...] = ()
    industry: str | None = None
    description: str | None = None
    location: str | None = None
    keywords: tuple[str, ...] = ()
    language: str | None = None
    competitors: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()

    @property
    def is_manual(self) -> bool:
        """Return whether the operator states what the business is."""
        return self.name is not None


def parse_website_config(config: Mapping[str, Any]) -> tuple[WebsiteConfig, list[BadField]]:
    """Return the parsed config and all its problems."""
    bad = [BadField(f"config.{key}", f"unknown key; there are: {', '.join(KEYS)}") for key in config if key not in KEYS]
    if not isinstance(config.get(IGNORE_ROBOTS, False), bool):
        bad.append(BadField(f"config.{IGNORE_ROBOTS}", "must be true or false"))
    business: object = config.get("business") or {}
    if not isinstance(business, Mapping):
        bad.append(BadField("config.business", "must be a mapping such as {name: Acme}"))
        return WebsiteConfig(), bad
    stated = cast("Mapping[str, object]", business)
    allowed = (*TEXTS, *LISTS)
    bad += [
        BadField(f"config.business.{key}", f"unknown key; there are: {', '.join(allowed)}")
        for key in stated
        if key not in allowed
    ]
    texts = {name: _text(stated.get(name), f"business.{name}", bad) for name in TEXTS}
    lists = {name: _listed(stated.get(name), f"business.{name}", bad) for name in LISTS}
    prompts = _listed(config.get("prompts"), "prompts", bad)
    if len(prompts) > MAX_PROMPTS:
        bad.append(BadField("config.prompts", f"has {len(prompts)}; at most {MAX_PROMPTS}"))
    return (
        WebsiteConfig(
            name=texts["name"],
            aliases=lists["aliases"],
            industry=texts["industry"],
            description=texts["description"],
            location=texts["location"],
            keywords=lists["keywords"],
            language=texts["language"],
            competitors=lists["competitors"],
            prompts=prompts,
        ),
        bad,
    )


def _text(value: object, name: str, bad: list[BadField]) -> str | None:
    if value is None:
        return None
    text = " ".join(value.split()) if isinstance(value, str) else ""
    if not text or len(text) > MAX_CHARACTERS:
        bad.append(BadField(f"config.{name}", f"must be a text of up to {MAX_CHARACTERS} characters"))
        return None
    return text


def _listed(value: object, name: str, bad: list[BadField]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        bad.append(BadField(f"config.{name}", "must be a list of texts"))
        return ()
    numbered = enumerate(cast("list[object]", value))
    texts = [_text(item, f"{name}[{number}]", bad) for number, item in numbered]
    return tuple(dict.fromkeys(item for item in texts if item))
