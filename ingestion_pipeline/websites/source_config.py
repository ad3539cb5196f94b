"""What an operator says of a website in its source's `config`: it is believed, and nothing asked.

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
class Given:
    """The operator's words; with a name nothing is extracted, with prompts none are formed."""

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
        """Whether the operator says what the business is."""
        return self.name is not None


def given_of(config: Mapping[str, Any]) -> tuple[Given, list[BadField]]:
    """What the configuration says, and everything that is wrong with it."""
    bad = [
        BadField(f"config.{key}", f"unknown key; there are: {', '.join(KEYS)}")
        for key in config
        if key not in KEYS
    ]
    if not isinstance(config.get(IGNORE_ROBOTS, False), bool):
        bad.append(BadField(f"config.{IGNORE_ROBOTS}", "must be true or false"))
    business: object = config.get("business") or {}
    if not isinstance(business, Mapping):
        bad.append(BadField("config.business", "must be a mapping such as {name: Acme}"))
        return Given(), bad
    stated = cast("Mapping[str, object]", business)
    known = (*TEXTS, *LISTS)
    bad += [
        BadField(f"config.business.{key}", f"unknown key; there are: {', '.join(known)}")
        for key in stated
        if key not in known
    ]
    texts = {name: _text(stated.get(name), f"business.{name}", bad) for name in TEXTS}
    lists = {name: _listed(stated.get(name), f"business.{name}", bad) for name in LISTS}
    prompts = _listed(config.get("prompts"), "prompts", bad)
    if len(prompts) > MAX_PROMPTS:
        bad.append(BadField("config.prompts", f"has {len(prompts)}; {MAX_PROMPTS} are the most"))
    return (
        Given(
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
        bad.append(BadField(f"config.{name}", f"must be a text of up to {MAX_CHARACTERS} letters"))
        return None
    return text


def _listed(value: object, name: str, bad: list[BadField]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        bad.append(BadField(f"config.{name}", "must be a list of texts"))
        return ()
    numbered = enumerate(cast("list[object]", value))
    found = [_text(one, f"{name}[{number}]", bad) for number, one in numbered]
    return tuple(dict.fromkeys(one for one in found if one))
