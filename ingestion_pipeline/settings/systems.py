"""Settings of the four systems: catalogues, companies and jobs, websites."""

import json
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from pydantic import Field, ValidationError, field_validator

from ingestion_pipeline.settings.groups import DAY, HOUR, Group


class Detection(Group):
    """How the layout of a catalogue is detected."""

    samples: int = Field(default=5, ge=1, le=50, description="linked pages that are looked at")
    category_levels: int = Field(default=3, ge=1, le=10, description="of lists that lead to lists")
    page_type_votes: int = Field(default=10, ge=1, le=51, description="answers of a model where rules cannot tell")
    pagination_votes: int = Field(default=10, ge=1, le=51, description="answers of a model")


class Extraction(Group):
    """How pages become a dataset, and when it is complete."""

    batch_size: int = Field(default=200, ge=1, le=2_000, description="pages read at a time")
    quiet_seconds: float = Field(default=300, ge=0, description="nothing pending and nothing changed: complete")
    stale_seconds: float = Field(default=4 * HOUR, gt=0, description="incomplete and nothing changed: stale")
    low_confidence: float = Field(
        default=0.5, ge=0, le=1, description="below this the next extraction method reads the page"
    )
    asked_again: int = Field(default=3, ge=0, le=10, description="a model, alone for a record, about what it left open")
    explore_depth: int = Field(default=8, ge=1, le=50, description="steps from the root")
    drop_share: float = Field(default=0.3, ge=0, le=1, description="fewer items than before by this: quarantined")
    kept_versions: int = Field(default=10, ge=1, description="of a source's datasets")


class Company(Group):
    """When a company is known well, and how its score is computed."""

    fresh_seconds: float = Field(
        default=30 * DAY, ge=0, description="a good record younger than this is not analysed again"
    )
    bonus_city: str = Field(default="Portland", description="an office there is worth the bonus")
    portland_bonus: int = Field(default=50, ge=0, description="points for an office in bonus_city")


class Boards(Group):
    """How boards are discovered, listed, and rotated."""

    missing_before_closed: int = Field(
        default=2, ge=1, le=10, description="complete listings without a job that close it"
    )
    target_matches: int = Field(default=5, ge=1, description="a rotation ends after so many")
    max_sources: int = Field(default=20, ge=1, description="boards that a rotation takes at most")
    drop_share: float = Field(default=0.5, ge=0, le=1, description="fewer listings than before by this: quarantined")
    lost_field_share: float = Field(
        default=0.5, ge=0, le=1, description="a field that so many listings lost: quarantined"
    )
    stale_seconds: float = Field(
        default=14 * DAY, gt=0, description="a board without a successful poll for so long is stale"
    )


class Filter(Group):
    """What rejects a listing before a model is called."""

    strike_threshold: int = Field(default=5, ge=1, description="so many strikes filter a listing")
    salary_floor: int = Field(default=100_000, ge=0, description="a year; below it is rejected")
    strike_salary: int = Field(default=150_000, ge=0, description="a year; below it is two strikes")
    strike_experience_years: int = Field(default=6, ge=0, description="fewer asked is one strike")
    short_description: int = Field(default=200, ge=0, description="fewer characters are one strike")
    max_age_days: float = Field(default=7, gt=0, description="older is rejected")
    strike_age_days: float = Field(default=1, gt=0, description="older is one strike")


class Match(Group):
    """How well a listing must fit the profile."""

    profile: str = Field(default="profile.yaml", description="the file that says what fits")
    min_score: int = Field(default=80, ge=0, le=100, description="from so many on it is a match")
    home_city_score: int = Field(
        default=65, ge=0, le=100, description="instead of min_score in the profile's home city"
    )
    high_score: int = Field(default=85, ge=0, le=100, description="from so many on: priority high")
    medium_score: int = Field(default=70, ge=0, le=100, description="from so many on: medium")
    home_city_bonus: int = Field(default=15, description="points in the profile's home city")
    batch_size: int = Field(default=200, ge=1, le=2_000, description="listings judged at a time")
    company_waits: int = Field(default=3, ge=0, le=10, description="how often a listing waits for its company's data")
    company_wait_seconds: float = Field(
        default=60, ge=0, description="how long it waits each time for its company's data"
    )


class Provider(Group):
    """An OpenAI-compatible server, one of those whose answers are compared."""

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
    """How a website is analysed, how many at a time, and which providers are asked."""

    prompts: int = Field(default=7, ge=1, le=50, description="questions in all; the last names the business")
    slots: int = Field(default=10, ge=1, le=128, description="analyses at work in each phase")
    claimed_at_once: int = Field(default=3, ge=1, le=128, description="analyses that a phase takes in a cycle")
    queue_limit: int = Field(default=1_000, ge=1, description="active tasks of a phase before queue_full")
    backoff_base_seconds: float = Field(
        default=30, gt=0, description="first delay after a failed phase; doubles each time"
    )
    telling_pages: int = Field(default=3, ge=0, le=10, description="pages read besides the home page, such as about")
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
    answer_bytes: int = Field(default=1_000_000, ge=1_000, description="a longer answer of a provider is refused")

    @field_validator("providers")
    @classmethod
    def _each_is_a_provider(cls, providers: str) -> str:
        if is_provider_list(providers):
            provider_list(providers)
        return providers


def is_provider_list(text: str) -> bool:
    """Return whether the text is the list itself, not the path of a file."""
    return text.lstrip().startswith("[")


def provider_list(text: str) -> tuple[Provider, ...]:
    """Return the providers of a JSON list; ValueError names all that is wrong with it."""
    try:
        document: object = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    return providers_of(document)


def providers_of(document: object) -> tuple[Provider, ...]:
    """Return the providers of a document; ValueError names all that is wrong with it."""
    if not isinstance(document, list):
        raise ValueError(  # noqa: TRY004 - one type of error, as pydantic's validators raise it
            "it is not a list of providers; write [{name: ..., base_url: ..., model: ...}, ...]"
        )
    problems: list[str] = []
    providers = [_provider(entry, number, problems) for number, entry in enumerate(cast("list[object]", document), 1)]
    problems += _twice([provider.name for provider in providers if provider is not None])
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(provider for provider in providers if provider is not None)


def _provider(entry: object, number: int, problems: list[str]) -> Provider | None:
    try:
        return Provider.model_validate(entry)
    except ValidationError as error:
        name = cast("dict[str, object]", entry).get("name") if isinstance(entry, dict) else None
        label = f"provider {number}" + (f" ({name})" if isinstance(name, str) else "")
        for problem in error.errors(include_url=False, include_input=False):
            field = ".".join(str(part) for part in problem["loc"])
            message = problem["msg"][:1].lower() + problem["msg"][1:]
            problems.append(f"{label}: {field}: {message}" if field else f"{label}: {message}")
        return None


def _twice(names: Sequence[str]) -> list[str]:
    counts = Counter(name.lower() for name in names)
    return [f"provider {name} is there {count} times" for name, count in counts.items() if count > 1]
