"""Groups of settings, each with default, bounds and description: first those of all systems, then those of each one."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

DAY = 86_400
HOUR = 3_600


class Group(BaseModel):
    """Settings that belong together; `group.name` is a key of the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def setting(default: Any, meaning: str, **bounds: Any) -> Any:  # noqa: ANN401 - of the setting's type
    """Return the field of a setting with its default, its meaning for people, and its bounds."""
    return Field(default=default, description=meaning, **bounds)


class Work(Group):
    """Claims, leases and retries of every task."""

    max_attempts: int = setting(3, "attempts of a task, the first included", ge=1, le=100)
    lease_seconds: int = setting(120, "a claim without a heartbeat expires after this", ge=1, le=3_600)
    backoff_base_seconds: float = setting(5, "delay before the first retry; doubles each time", gt=0)
    spawn_depth: int = setting(10, "longest chain of tasks that start each other", ge=1, le=100)


class Hosts(Group):
    """Politeness towards one host."""

    delay_seconds: float = setting(1.0, "seconds between two requests to a host", ge=0, le=3_600)
    lease_seconds: int = setting(60, "a host lease that is not renewed expires after this", ge=1, le=3_600)
    longest_crawl_delay_seconds: int = setting(
        600, "a longer Crawl-delay in robots.txt counts as this", ge=0, le=6 * HOUR
    )


class Crawl(Group):
    """How a run crawls catalogues, and how far."""

    delay_seconds: float = setting(3.0, "seconds between two requests to a catalogue's host", ge=0, le=3_600)
    backoff_base_seconds: float = setting(
        1, "first delay after a page, its reading or a detection failed; doubles", gt=0
    )
    max_pages: int = setting(100_000, "maximum number of pages of one extraction; further links are not followed", ge=1)


class Fetch(Group):
    """Limits of one exchange with a foreign server."""

    deadline_seconds: float = setting(30.0, "time limit of a whole exchange, redirects included", gt=0, le=600)
    max_bytes: int = setting(10_000_000, "size limit of a body, both compressed and decompressed", ge=1)
    blocked_wait_seconds: int = setting(4 * HOUR, "wait before the retry after a 403 or a 407", ge=1)
    max_pages: int = setting(50, "pages of one feed in one poll", ge=1, le=1_000)
    canary: str = setting(
        "",
        "host:port that answers whenever our network works; if set, it alone decides"
        " whether failed connections are an outage of ours",
        pattern=r"^(|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4})$",
    )

    @property
    def blocked_for(self) -> timedelta:
        """Return how long to wait before the retry after a 403 or a 407."""
        return timedelta(seconds=self.blocked_wait_seconds)


class Identity(Group):
    """How sites recognise our requests."""

    agent_url: str = Field(
        default="",
        pattern=r"^(https://[^\s\"\\@/]+)?$",
        description="https address of the site that serves the directory of `ingest identity`; if set, and a key was"
        " created, requests are signed (Web Bot Auth)",
    )


class Rights(Group):
    """What sites say about the use of their text by machines."""

    honour: bool = Field(
        default=True,
        description="send no text to a model and export none whose use is reserved (TDMRep, noai, noml), nor send text"
        " whose Content-Signal refuses it as input of a model",
    )


class Snapshots(Group):
    """What is stored of a fetched page, and when it is fetched again."""

    markdown: bool = setting(default=True, meaning="store each new page as Markdown, too")
    render_again_seconds: int = setting(DAY, "a page whose served HTML is unchanged is rendered again after this", ge=0)


class Rendering(Group):
    """Limits of one page in a browser."""

    pages: int = setting(4, "browser pages open at the same time in a run", ge=1, le=64)
    deadline_seconds: float = setting(
        60.0, "time limit of one page, besides the waits that its source configures", gt=0, le=600
    )
    discovery_seconds: float = setting(600.0, "time limit of one click discovery", gt=0, le=6 * HOUR)
    patience_seconds: float = setting(
        10.0, "longest wait for a page to become idle or for a selector to appear", gt=0, le=120
    )
    max_bytes: int = setting(50_000_000, "size limit of all that a page loads, both compressed and decompressed", ge=1)
    screenshot_height: int = setting(
        4_000, "height of a screenshot in pixels; a longer page is cropped", ge=100, le=16_000
    )
    blocked_resources: str = setting(
        "image,media,font",
        "comma-separated types that are never loaded: image, media, font, stylesheet",
        pattern=r"^(|(image|media|font|stylesheet)(,(image|media|font|stylesheet))*)$",
    )
    sandbox: str = setting(
        "auto",
        "auto: use Chromium's sandbox, which root has not; off: for systems where it cannot start",
        pattern=r"^(auto|off)$",
    )

    @property
    def blocked_types(self) -> frozenset[str]:
        """Return the resource types that no page may load."""
        return frozenset(part for part in self.blocked_resources.split(",") if part)


class Retention(Group):
    """How long finished rows are kept, in seconds."""

    snapshots_seconds: int = setting(30 * DAY, "snapshots of a page, except its last successful one", ge=0)
    snapshots_per_page: int = setting(20, "maximum number of snapshots of a page", ge=1)
    ingestions_seconds: int = setting(30 * DAY, "polls with changes, once no row refers to them", ge=0)
    dagster_runs_seconds: int = setting(
        14 * DAY, "ended Dagster runs with their events, except those that an asset page shows", ge=0
    )
    dagster_runs_at_once: int = setting(500, "Dagster runs deleted by one run of maintain", ge=1)
    alerts_seconds: int = setting(90 * DAY, "notices of alerts, after they were sent or muted", ge=62 * DAY)
    changes_seconds: int = setting(
        365 * DAY, "changes of rows one by one; older ones are merged into the row's first", ge=DAY
    )
    extractions_per_source: int = setting(5, "extractions kept per source, with their pages", ge=1)


class Notices(Group):
    """How often recipients are notified, and how long a dead endpoint is paused."""

    grouping_seconds: float = setting(15, "chapters of a series that appear within this time share a message", ge=0)
    series_seconds: int = setting(HOUR, "seconds between two messages about one series to one recipient", ge=0)
    per_hour: int = setting(100, "messages to one recipient in any hour", ge=1)
    per_day: int = setting(50, "messages to one recipient in any 24 hours", ge=1)
    digest_seconds: int = setting(DAY, "seconds between two digests", ge=0)
    max_attempts: int = setting(5, "attempts to send one message, the first included", ge=1, le=100)
    pause_seconds: int = setting(HOUR, "pause of a recipient whose message failed; doubles each time", ge=1)
    longest_pause_seconds: int = setting(DAY, "longest pause of a recipient", ge=1)
    text_chapters: int = setting(20, "chapters named in a message's text; the JSON has all", ge=1)


class Runs(Group):
    """Heartbeats of Dagster runs."""

    lease_seconds: int = setting(90, "a run without a heartbeat for this long counts as lost", ge=5)


# Dollars, or `none` for no limit; 0 allows nothing.
LIMIT = r"^(none|[0-9]{1,9}(\.[0-9]{1,9})?)$"
_AMOUNT = r"[0-9]{1,6}(?:\.[0-9]{1,6})?"
_PRICE = re.compile(rf"([^=]*[^=\s])\s*=\s*({_AMOUNT})\s*/\s*({_AMOUNT})\s*/\s*({_AMOUNT})")


class Price(Group):
    """Dollars per million tokens; cached input is input that the provider had read before."""

    input_usd: Decimal
    cached_input_usd: Decimal
    output_usd: Decimal


class Models(Group):
    """Limits of model calls, and what they may cost."""

    prices: str = setting(
        # Published list prices of 2025; a provider may change its own at any time.
        "gpt-5=1.25/0.125/10, gpt-5-mini=0.25/0.025/2, gpt-5-nano=0.05/0.005/0.4,"
        " gpt-4.1=2/0.5/8, gpt-4.1-mini=0.4/0.1/1.6, gpt-4.1-nano=0.1/0.025/0.4,"
        " gpt-4o=2.5/1.25/10, gpt-4o-mini=0.15/0.075/0.6",
        "comma-separated model=input/cached input/output in dollars per million tokens",
    )
    source_day_usd: str = setting("none", "dollars for one source in a day (UTC), or none", pattern=LIMIT)
    deadline_seconds: float = setting(
        90, "time limit of one question, retries included; at most three quarters of a lease", gt=0, le=2_000
    )
    max_attempts: int = setting(4, "attempts of one request to a model, the first included", ge=1, le=10)
    backoff_base_seconds: float = setting(0.5, "delay before the first retry; doubles each time", gt=0)

    batch: str = setting(
        "off",
        "auto: first extractions, reruns and the prompts of websites are sent in batches, at half the price and"
        " answered within a day, where the server has them; off: every question is sent at once",
        pattern=r"^(off|auto)$",
    )
    batch_seconds: float = setting(60, "how long questions are collected for a batch, at the least", ge=0, le=HOUR)

    @field_validator("prices")
    @classmethod
    def _each_is_a_price(cls, prices: str) -> str:
        price_table(prices)
        return prices


def price_table(text: str) -> dict[str, Price]:
    """Return each model with its price; ValueError names the entry that is none."""
    entries = [part.strip() for part in text.split(",")]
    return dict(_price(entry) for entry in entries if entry)


def limit_usd(text: str) -> Decimal | None:
    """Return the amount of a limit, None for no limit."""
    return None if text == "none" else Decimal(text)


def _price(entry: str) -> tuple[str, Price]:
    match = _PRICE.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not model=input/cached input/output, such as m=2/0.5/8")
    model, *amounts = match.groups()
    paid = [Decimal(amount) for amount in amounts]
    return model, Price(input_usd=paid[0], cached_input_usd=paid[1], output_usd=paid[2])


class Polling(Group):
    """How a run polls the due sources."""

    shards: int = setting(
        2, "usual number of runs per tier and tick; hosts are distributed over them by hash", ge=1, le=256
    )
    most_shards: int = setting(16, "maximum number of runs per tier and tick", ge=1, le=256)
    run_seconds: int = setting(60, "target duration of a run; sets the number of shards", ge=1, le=800)
    aged_seconds: int = setting(
        2 * HOUR, "a due poll is treated as one tier more urgent each time it has waited this long", ge=60
    )
    backlog_limit: int = setting(
        50_000, "polling pauses while more fetched feeds and pages than this wait to be ingested", ge=1
    )
    batch_size: int = setting(500, "sources claimed at a time", ge=1, le=5_000)
    slice_seconds: int = setting(300, "a run claims no more tasks after this", ge=1, le=800)
    concurrency: int = setting(32, "hosts that one run fetches from at the same time", ge=1, le=256)
    jitter_share: float = setting(0.1, "random shift of the next poll, as a share of its interval", ge=0, le=0.5)
    adaptive: bool = setting(default=True, meaning="poll `auto` sources when a change is expected")
    adaptive_gaps: float = setting(0, "known gaps between changes that a source needs before that", ge=0, le=20)
    budget_share: float = setting(
        1.0, "polls of such sources in total, as a share of what their tiers would make", gt=0, le=10
    )
    shortest_share: float = setting(
        1 / 3, "shortest interval of such a source, as a share of HOT's interval", gt=0, le=1
    )
    longest_share: float = setting(2.0, "longest interval of such a source, as a share of COLD's interval", ge=1, le=10)
    partition_limit: int = setting(25_000, "maximum number of partitions per kind; Dagster's limit", ge=1, le=100_000)


def _between_polls(seconds: int, of: str) -> Any:  # noqa: ANN401 - as above
    return setting(seconds, f"seconds between two polls of a {of}", ge=1)


class Interval(Group):
    """Seconds between two polls, by kind and tier."""

    series_hot: int = _between_polls(15 * 60, "HOT series")
    series_warm: int = _between_polls(4 * HOUR, "WARM series")
    series_cold: int = _between_polls(DAY, "COLD series")
    job_board_hot: int = _between_polls(HOUR, "HOT job board")
    job_board_warm: int = _between_polls(6 * HOUR, "WARM job board")
    job_board_cold: int = _between_polls(DAY, "COLD job board")
    catalog_hot: int = _between_polls(DAY, "HOT catalogue")
    catalog_warm: int = _between_polls(7 * DAY, "WARM catalogue")
    catalog_cold: int = _between_polls(30 * DAY, "COLD catalogue")
    website_hot: int = _between_polls(DAY, "HOT website")
    website_warm: int = _between_polls(7 * DAY, "WARM website")
    website_cold: int = _between_polls(30 * DAY, "COLD website")
    company_hot: int = _between_polls(7 * DAY, "HOT company")
    company_warm: int = _between_polls(30 * DAY, "WARM company")
    company_cold: int = _between_polls(90 * DAY, "COLD company")
    other_hot: int = _between_polls(HOUR, "HOT source of another package's kind")
    other_warm: int = _between_polls(6 * HOUR, "WARM source of another package's kind")
    other_cold: int = _between_polls(DAY, "COLD source of another package's kind")


class Tiers(Group):
    """When an `auto` source changes its tier; age is counted from the last new record."""

    hot_readers: int = setting(100, "a series with more followers than this is always HOT", ge=0)


class HealthLimits(Group):
    """When a source is called degraded or late, and a daemon silent."""

    degraded_failures: int = setting(
        2, "failed polls in a row after which a source is degraded; one is enough if a retry cannot help", ge=1
    )
    late_seconds: int = setting(
        2 * HOUR, "a source overdue by this, or by its interval if that is shorter, is late", ge=60
    )
    freshness_target: float = setting(
        0.99, "share of 30 days in which a source with max_delay must be fresh", gt=0, lt=1
    )
    daemon_silent_seconds: int = setting(180, "the daemon is silent after this long without a tick", ge=60)


class Extraction(Group):
    """How pages become a dataset, and when it is complete."""

    quiet_seconds: float = setting(
        0, "an extraction without waiting tasks is complete after this long without a change", ge=0
    )
    stale_seconds: float = setting(4 * HOUR, "an incomplete extraction without a change for this long is stale", gt=0)


class Company(Group):
    """When a company is known well, and how its score is computed."""

    fresh_seconds: float = setting(30 * DAY, "a good record younger than this is not analysed again", ge=0)
    bonus_city: str = setting("Portland", "an office in this city adds bonus_points to a company's score")
    bonus_points: int = setting(50, "points for an office in bonus_city", ge=0)


class Filter(Group):
    """What rejects a listing before a model is called."""

    strike_threshold: int = setting(5, "a listing with this many strikes is rejected", ge=1)
    salary_floor: int = setting(100_000, "per year in the currency of the profile; a lower salary is rejected", ge=0)
    strike_salary: int = setting(
        150_000, "per year in the currency of the profile; a lower salary is two strikes", ge=0
    )
    strike_experience_years: int = setting(6, "fewer required years of experience are one strike", ge=0)
    short_description: int = setting(200, "a description with fewer characters is one strike", ge=0)
    max_age_days: float = setting(7, "an older listing is rejected", gt=0)
    strike_age_days: float = setting(1, "an older listing is one strike", gt=0)


class Match(Group):
    """How well a listing must fit the profile."""

    profile: str = setting("profile.yaml", "the file that describes which jobs match")
    min_score: int = setting(80, "a listing with at least this score is a match", ge=0, le=100)
    home_city_score: int = setting(65, "minimum score in the profile's home city", ge=0, le=100)
    home_city_bonus: int = setting(15, "points added in the profile's home city")
    company_waits: int = setting(3, "how often a listing waits for its company's data", ge=0, le=10)


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

    prompts: int = setting(7, "questions per website; the last one names the business", ge=1, le=50)
    slots: int = setting(10, "analyses processed at the same time in each phase", ge=1, le=128)
    queue_limit: int = setting(1_000, "active tasks of a phase after which new ones are refused with queue_full", ge=1)
    backoff_base_seconds: float = setting(30, "first delay after a failed phase; doubles each time", gt=0)
    providers: str = setting(
        "",
        "JSON list of objects with name, base_url, key_env, model, concurrency, budget_usd and host;"
        " or the path of a file with such a list; by default the server of OPENAI_BASE_URL",
    )
    answer_seconds: float = setting(60, "time limit of one answer of a provider, retries included", gt=0, le=2_000)

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
