"""An operator's description of a website in its source's `config`; it overrides what is extracted.

```yaml
config:
  business: {name: Acme, aliases: [ACME Tools], industry: ..., competitors: [Globex]}
  prompts: [Which tool is best for ...?]
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import AfterValidator, BeforeValidator, Field

from ingestion_pipeline.sources.file_model import BadField, FileModel, Flag, validated

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
