"""Groups of settings, each with default, bounds and description: first those of all systems, then those of each one."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

DAY = 86_400
HOUR = 3_600


class Group(BaseModel):
    """Settings that belong together; `group.name` is a key of the table."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Work(Group):
    """Claims, leases and retries of every task."""

    max_attempts: int = Field(default=3, ge=1, le=100, description="attempts of a task, the first included")
    lease_seconds: int = Field(
        default=120, ge=1, le=3_600, description="a claim without a heartbeat expires after this"
    )
    backoff_base_seconds: float = Field(default=5, gt=0, description="delay before the first retry; doubles each time")
    spawn_depth: int = Field(default=10, ge=1, le=100, description="longest chain of tasks that start each other")


class Hosts(Group):
    """Politeness towards one host."""

    delay_seconds: float = Field(default=1.0, ge=0, le=3_600, description="seconds between two requests to a host")
    lease_seconds: int = Field(
        default=60, ge=1, le=3_600, description="a host lease that is not renewed expires after this"
    )
    longest_crawl_delay_seconds: int = Field(
        default=600, ge=0, le=6 * HOUR, description="a longer Crawl-delay in robots.txt counts as this"
    )


class Crawl(Group):
    """How a run crawls catalogues, and how far."""

    delay_seconds: float = Field(
        default=3.0, ge=0, le=3_600, description="seconds between two requests to a catalogue's host"
    )
    backoff_base_seconds: float = Field(
        default=1, gt=0, description="first delay after a page, its reading or a detection failed; doubles"
    )
    max_pages: int = Field(
        default=100_000, ge=1, description="maximum number of pages of one extraction; further links are not followed"
    )


class Fetch(Group):
    """Limits of one exchange with a foreign server."""

    deadline_seconds: float = Field(
        default=30.0, gt=0, le=600, description="time limit of a whole exchange, redirects included"
    )
    max_bytes: int = Field(
        default=10_000_000, ge=1, description="size limit of a body, both compressed and decompressed"
    )
    blocked_wait_seconds: int = Field(default=4 * HOUR, ge=1, description="wait before the retry after a 403 or a 407")
    max_pages: int = Field(default=50, ge=1, le=1_000, description="pages of one feed in one poll")
    canary: str = Field(
        default="",
        pattern=r"^(|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4})$",
        description="host:port that answers whenever our network works; if set, it alone decides"
        " whether failed connections are an outage of ours",
    )


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

    markdown: bool = Field(default=True, description="store each new page as Markdown, too")
    render_again_seconds: int = Field(
        default=DAY, ge=0, description="a page whose served HTML is unchanged is rendered again after this"
    )


class Rendering(Group):
    """Limits of one page in a browser."""

    pages: int = Field(default=4, ge=1, le=64, description="browser pages open at the same time in a run")
    deadline_seconds: float = Field(
        default=60.0, gt=0, le=600, description="time limit of one page, besides the waits that its source configures"
    )
    discovery_seconds: float = Field(default=600.0, gt=0, le=6 * HOUR, description="time limit of one click discovery")
    patience_seconds: float = Field(
        default=10.0, gt=0, le=120, description="longest wait for a page to become idle or for a selector to appear"
    )
    max_bytes: int = Field(
        default=50_000_000, ge=1, description="size limit of all that a page loads, both compressed and decompressed"
    )
    screenshot_height: int = Field(
        default=4_000, ge=100, le=16_000, description="height of a screenshot in pixels; a longer page is cropped"
    )
    blocked_resources: str = Field(
        default="image,media,font",
        pattern=r"^(|(image|media|font|stylesheet)(,(image|media|font|stylesheet))*)$",
        description="comma-separated types that are never loaded: image, media, font, stylesheet",
    )
    sandbox: str = Field(
        default="auto",
        pattern=r"^(auto|off)$",
        description="auto: use Chromium's sandbox, which root has not; off: for systems where it cannot start",
    )

    @property
    def blocked_types(self) -> frozenset[str]:
        """Return the resource types that no page may load."""
        return frozenset(part for part in self.blocked_resources.split(",") if part)


class Retention(Group):
    """How long finished rows are kept, in seconds."""

    snapshots_seconds: int = Field(
        default=30 * DAY, ge=0, description="snapshots of a page, except its last successful one"
    )
    snapshots_per_page: int = Field(default=20, ge=1, description="maximum number of snapshots of a page")
    ingestions_seconds: int = Field(
        default=30 * DAY, ge=0, description="polls with changes, once no row refers to them"
    )
    dagster_runs_seconds: int = Field(
        default=14 * DAY,
        ge=0,
        description="ended Dagster runs with their events, except those that an asset page shows",
    )
    dagster_runs_at_once: int = Field(default=500, ge=1, description="Dagster runs deleted by one run of maintain")
    alerts_seconds: int = Field(
        default=90 * DAY, ge=62 * DAY, description="notices of alerts, after they were sent or muted"
    )
    extractions_per_source: int = Field(default=5, ge=1, description="extractions kept per source, with their pages")


class Notices(Group):
    """How often recipients are notified, and how long a dead endpoint is paused."""

    grouping_seconds: float = Field(
        default=15, ge=0, description="chapters of a series that appear within this time share a message"
    )
    series_seconds: int = Field(
        default=HOUR, ge=0, description="seconds between two messages about one series to one recipient"
    )
    per_hour: int = Field(default=100, ge=1, description="messages to one recipient in any hour")
    per_day: int = Field(default=50, ge=1, description="messages to one recipient in any 24 hours")
    digest_seconds: int = Field(default=DAY, ge=0, description="seconds between two digests")
    max_attempts: int = Field(default=5, ge=1, le=100, description="attempts to send one message, the first included")
    pause_seconds: int = Field(
        default=HOUR, ge=1, description="pause of a recipient whose message failed; doubles each time"
    )
    longest_pause_seconds: int = Field(default=DAY, ge=1, description="longest pause of a recipient")
    text_chapters: int = Field(default=20, ge=1, description="chapters named in a message's text; the JSON has all")


class Runs(Group):
    """Heartbeats of Dagster runs."""

    lease_seconds: int = Field(default=90, ge=5, description="a run without a heartbeat for this long counts as lost")


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

    prices: str = Field(
        # Published list prices of 2025; a provider may change its own at any time.
        default=(
            "gpt-5=1.25/0.125/10, gpt-5-mini=0.25/0.025/2, gpt-5-nano=0.05/0.005/0.4,"
            " gpt-4.1=2/0.5/8, gpt-4.1-mini=0.4/0.1/1.6, gpt-4.1-nano=0.1/0.025/0.4,"
            " gpt-4o=2.5/1.25/10, gpt-4o-mini=0.15/0.075/0.6"
        ),
        description="comma-separated model=input/cached input/output in dollars per million tokens",
    )
    source_day_usd: str = Field(
        default="none", pattern=LIMIT, description="dollars for one source in a day (UTC), or none"
    )
    deadline_seconds: float = Field(
        default=90,
        gt=0,
        le=2_000,
        description="time limit of one question, retries included; at most three quarters of a lease",
    )
    max_attempts: int = Field(
        default=4, ge=1, le=10, description="attempts of one request to a model, the first included"
    )
    backoff_base_seconds: float = Field(
        default=0.5, gt=0, description="delay before the first retry; doubles each time"
    )

    batch: str = Field(
        default="off",
        pattern=r"^(off|auto)$",
        description="auto: first extractions, reruns and the prompts of websites are sent in batches, at half the"
        " price and answered within a day, where the server has them; off: every question is sent at once",
    )
    batch_seconds: float = Field(
        default=60, ge=0, le=HOUR, description="how long questions are collected for a batch, at the least"
    )

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

    shards: int = Field(
        default=2,
        ge=1,
        le=256,
        description="usual number of runs per tier and tick; hosts are distributed over them by hash",
    )
    most_shards: int = Field(default=16, ge=1, le=256, description="maximum number of runs per tier and tick")
    run_seconds: int = Field(
        default=60, ge=1, le=800, description="target duration of a run; sets the number of shards"
    )
    aged_seconds: int = Field(
        default=2 * HOUR,
        ge=60,
        description="a due poll is treated as one tier more urgent each time it has waited this long",
    )
    backlog_limit: int = Field(
        default=50_000,
        ge=1,
        description="polling pauses while more fetched feeds and pages than this wait to be ingested",
    )
    batch_size: int = Field(default=500, ge=1, le=5_000, description="sources claimed at a time")
    slice_seconds: int = Field(default=300, ge=1, le=800, description="a run claims no more tasks after this")
    concurrency: int = Field(default=32, ge=1, le=256, description="hosts that one run fetches from at the same time")
    jitter_share: float = Field(
        default=0.1, ge=0, le=0.5, description="random shift of the next poll, as a share of its interval"
    )
    adaptive: bool = Field(default=True, description="poll `auto` sources when a change is expected")
    adaptive_gaps: float = Field(
        default=0, ge=0, le=20, description="known gaps between changes that a source needs before that"
    )
    budget_share: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="polls of such sources in total, as a share of what their tiers would make",
    )
    shortest_share: float = Field(
        default=1 / 3, gt=0, le=1, description="shortest interval of such a source, as a share of HOT's interval"
    )
    longest_share: float = Field(
        default=2.0, ge=1, le=10, description="longest interval of such a source, as a share of COLD's interval"
    )
    partition_limit: int = Field(
        default=25_000, ge=1, le=100_000, description="maximum number of partitions per kind; Dagster's limit"
    )


class Interval(Group):
    """Seconds between two polls, by kind and tier."""

    series_hot: int = Field(default=15 * 60, ge=1, description="seconds between two polls of a HOT series")
    series_warm: int = Field(default=4 * HOUR, ge=1, description="seconds between two polls of a WARM series")
    series_cold: int = Field(default=DAY, ge=1, description="seconds between two polls of a COLD series")
    job_board_hot: int = Field(default=HOUR, ge=1, description="seconds between two polls of a HOT job board")
    job_board_warm: int = Field(default=6 * HOUR, ge=1, description="seconds between two polls of a WARM job board")
    job_board_cold: int = Field(default=DAY, ge=1, description="seconds between two polls of a COLD job board")
    catalog_hot: int = Field(default=DAY, ge=1, description="seconds between two polls of a HOT catalogue")
    catalog_warm: int = Field(default=7 * DAY, ge=1, description="seconds between two polls of a WARM catalogue")
    catalog_cold: int = Field(default=30 * DAY, ge=1, description="seconds between two polls of a COLD catalogue")
    website_hot: int = Field(default=DAY, ge=1, description="seconds between two polls of a HOT website")
    website_warm: int = Field(default=7 * DAY, ge=1, description="seconds between two polls of a WARM website")
    website_cold: int = Field(default=30 * DAY, ge=1, description="seconds between two polls of a COLD website")
    company_hot: int = Field(default=7 * DAY, ge=1, description="seconds between two polls of a HOT company")
    company_warm: int = Field(default=30 * DAY, ge=1, description="seconds between two polls of a WARM company")
    company_cold: int = Field(default=90 * DAY, ge=1, description="seconds between two polls of a COLD company")
    other_hot: int = Field(
        default=HOUR, ge=1, description="seconds between two polls of a HOT source of another package's kind"
    )
    other_warm: int = Field(
        default=6 * HOUR, ge=1, description="seconds between two polls of a WARM source of another package's kind"
    )
    other_cold: int = Field(
        default=DAY, ge=1, description="seconds between two polls of a COLD source of another package's kind"
    )


class Tiers(Group):
    """When an `auto` source changes its tier; age is counted from the last new record."""

    hot_readers: int = Field(default=100, ge=0, description="a series with more followers than this is always HOT")


class HealthLimits(Group):
    """When a source is called degraded or late, and a daemon silent."""

    degraded_failures: int = Field(
        default=2,
        ge=1,
        description="failed polls in a row after which a source is degraded; one is enough if a retry cannot help",
    )
    late_seconds: int = Field(
        default=2 * HOUR, ge=60, description="a source overdue by this, or by its interval if that is shorter, is late"
    )
    daemon_silent_seconds: int = Field(
        default=180, ge=60, description="the daemon is silent after this long without a tick"
    )


class Extraction(Group):
    """How pages become a dataset, and when it is complete."""

    quiet_seconds: float = Field(
        default=0, ge=0, description="an extraction without waiting tasks is complete after this long without a change"
    )
    stale_seconds: float = Field(
        default=4 * HOUR, gt=0, description="an incomplete extraction without a change for this long is stale"
    )


class Company(Group):
    """When a company is known well, and how its score is computed."""

    fresh_seconds: float = Field(
        default=30 * DAY, ge=0, description="a good record younger than this is not analysed again"
    )
    bonus_city: str = Field(
        default="Portland", description="an office in this city adds bonus_points to a company's score"
    )
    bonus_points: int = Field(default=50, ge=0, description="points for an office in bonus_city")


class Filter(Group):
    """What rejects a listing before a model is called."""

    strike_threshold: int = Field(default=5, ge=1, description="a listing with this many strikes is rejected")
    salary_floor: int = Field(
        default=100_000, ge=0, description="per year in the currency of the profile; a lower salary is rejected"
    )
    strike_salary: int = Field(
        default=150_000, ge=0, description="per year in the currency of the profile; a lower salary is two strikes"
    )
    strike_experience_years: int = Field(
        default=6, ge=0, description="fewer required years of experience are one strike"
    )
    short_description: int = Field(default=200, ge=0, description="a description with fewer characters is one strike")
    max_age_days: float = Field(default=7, gt=0, description="an older listing is rejected")
    strike_age_days: float = Field(default=1, gt=0, description="an older listing is one strike")


class Match(Group):
    """How well a listing must fit the profile."""

    profile: str = Field(default="profile.yaml", description="the file that describes which jobs match")
    min_score: int = Field(default=80, ge=0, le=100, description="a listing with at least this score is a match")
    home_city_score: int = Field(default=65, ge=0, le=100, description="minimum score in the profile's home city")
    home_city_bonus: int = Field(default=15, description="points added in the profile's home city")
    company_waits: int = Field(default=3, ge=0, le=10, description="how often a listing waits for its company's data")


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

    prompts: int = Field(default=7, ge=1, le=50, description="questions per website; the last one names the business")
    slots: int = Field(default=10, ge=1, le=128, description="analyses processed at the same time in each phase")
    queue_limit: int = Field(
        default=1_000, ge=1, description="active tasks of a phase after which new ones are refused with queue_full"
    )
    backoff_base_seconds: float = Field(
        default=30, gt=0, description="first delay after a failed phase; doubles each time"
    )
    providers: str = Field(
        default="",
        description="JSON list of objects with name, base_url, key_env, model, concurrency, budget_usd and host;"
        " or the path of a file with such a list; by default the server of OPENAI_BASE_URL",
    )
    answer_seconds: float = Field(
        default=60, gt=0, le=2_000, description="time limit of one answer of a provider, retries included"
    )

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
