"""What holds for the analysis of websites: its phases, its prompts, and the providers it asks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from pydantic import Field, ValidationError, field_validator

from ingestion_pipeline.settings.groups import Group


class Provider(Group):
    """A server that speaks OpenAI's protocol, as one of those whose answers are compared."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,59}$")
    base_url: str = Field(pattern=r"^https?://[^\s@]+$")
    # The name of the variable that holds the key, never the key: this text stands in the table.
    key_env: str = Field(default="", pattern=r"^([A-Z_][A-Z0-9_]*)?$")
    model: str = Field(pattern=r"^\S+$")
    concurrency: int = Field(default=4, ge=1, le=64)
    budget_usd: Decimal | None = Field(default=None, ge=0)  # a month (UTC); None for no limit
    # Asked only about websites of this host and of those under it; empty: about all.
    host: str = Field(default="", pattern=r"^([a-z0-9-]+(\.[a-z0-9-]+)*)?$")


class Website(Group):
    """How a website is analysed, how many at a time, and who is asked about it."""

    prompts: int = Field(
        default=7, ge=1, le=50, description="questions in all; the last names the business"
    )
    slots: int = Field(default=10, ge=1, le=128, description="analyses at work in each phase")
    claimed_at_once: int = Field(
        default=3, ge=1, le=128, description="analyses that a phase takes in a cycle"
    )
    queue_limit: int = Field(
        default=1_000, ge=1, description="active tasks of a phase before queue_full"
    )
    backoff_base_seconds: float = Field(
        default=30, gt=0, description="first delay after a failed phase; doubles each time"
    )
    telling_pages: int = Field(
        default=3, ge=0, le=10, description="pages read besides the home page, such as about"
    )
    text_chars: int = Field(
        default=2_000, ge=200, le=50_000, description="of each page's text that a model is shown"
    )
    fuzzy_threshold: float = Field(
        default=88, ge=50, le=100, description="likeness in percent from which a name is one"
    )
    providers: str = Field(
        default="",
        description="JSON list of name, base_url, key_env, model, concurrency, budget_usd, host; or"
        " the path of a file with one; by default the one of OPENAI_BASE_URL",
    )
    answer_seconds: float = Field(
        default=60, gt=0, le=2_000, description="for one answer of a provider, retries included"
    )
    answer_tokens: int = Field(
        default=1_024, ge=16, le=100_000, description="an answer of a provider is cut there"
    )
    answer_bytes: int = Field(
        default=1_000_000, ge=1_000, description="a longer answer of a provider is refused"
    )
    low_confidence: int = Field(
        default=40, ge=0, le=100, description="below it a check warns about the information"
    )
    visibility_drop: float = Field(
        default=0.3, ge=0, le=1, description="less visible than before by this: a check warns"
    )

    @field_validator("providers")
    @classmethod
    def _each_is_a_provider(cls, providers: str) -> str:
        if is_provider_list(providers):
            provider_list(providers)
        return providers


def is_provider_list(text: str) -> bool:
    """Whether the text is the list itself, and not the path of a file."""
    return text.lstrip().startswith("[")


def provider_list(text: str) -> tuple[Provider, ...]:
    """The providers of a JSON list; ValueError names all that is wrong with it."""
    try:
        found: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return providers_of(found)


def providers_of(found: object) -> tuple[Provider, ...]:
    """The providers that a document lists; ValueError names all that is wrong with it."""
    if not isinstance(found, list):
        raise ValueError(  # noqa: TRY004 - one type of error, as pydantic's validators raise it
            "it is not a list of providers; write [{name: ..., base_url: ..., model: ...}, ...]"
        )
    problems: list[str] = []
    providers = [
        _provider(entry, number, problems)
        for number, entry in enumerate(cast("list[object]", found), 1)
    ]
    problems += _twice([one.name for one in providers if one is not None])
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(one for one in providers if one is not None)


def _provider(entry: object, number: int, problems: list[str]) -> Provider | None:
    try:
        return Provider.model_validate(entry)
    except ValidationError as error:
        name = cast("dict[str, object]", entry).get("name") if isinstance(entry, dict) else None
        shown = f"provider {number}" + (f" ({name})" if isinstance(name, str) else "")
        for one in error.errors(include_url=False, include_input=False):
            field = ".".join(str(part) for part in one["loc"])
            said = one["msg"][:1].lower() + one["msg"][1:]
            problems.append(f"{shown}: {field}: {said}" if field else f"{shown}: {said}")
        return None


def _twice(names: Sequence[str]) -> list[str]:
    counts = Counter(name.lower() for name in names)
    return [
        f"provider {name} is there {count} times" for name, count in counts.items() if count > 1
    ]
