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

    max_attempts: int = Field(default=3, ge=1, le=100, description="attempts in all, first one included")
    lease_seconds: int = Field(default=120, ge=1, le=3_600, description="a claim ends without a heartbeat")
    backoff_base_seconds: float = Field(default=5, gt=0, description="first delay; doubles each time")
    spawn_depth: int = Field(default=10, ge=1, le=100, description="generations a root task may have")


class Hosts(Group):
    """Politeness towards one host."""

    delay_seconds: float = Field(default=1.0, ge=0, le=3_600, description="between two requests")
    lease_seconds: int = Field(default=60, ge=1, le=3_600, description="one run owns a host this long")
    yield_after_seconds: int = Field(default=60, ge=1, description="given up then, if others wait")
    longest_crawl_delay_seconds: int = Field(
        default=600, ge=0, le=6 * HOUR, description="a longer Crawl-delay of robots.txt is cut to it"
    )


class Crawl(Group):
    """How a run crawls catalogues, and how far."""

    delay_seconds: float = Field(default=3.0, ge=0, le=3_600, description="between two requests to a catalogue's host")
    backoff_base_seconds: float = Field(
        default=1, gt=0, description="first delay after a page, its reading or a detection failed; doubles"
    )
    max_pages: int = Field(default=100_000, ge=1, description="pages of one extraction; the rest is not followed")
    longest_wait_seconds: int = Field(
        default=3 * DAY, ge=1, description="a page put off for longer is given up, if its host gave no page meanwhile"
    )


class Fetch(Group):
    """Limits of one exchange with a foreign server."""

    deadline_seconds: float = Field(default=30.0, gt=0, le=600, description="whole exchange, redirects too")
    max_bytes: int = Field(default=10_000_000, ge=1, description="on the wire, and inflated")
    max_redirects: int = Field(default=5, ge=0, le=20, description="followed by hand, each one checked")
    blocked_wait_seconds: int = Field(default=4 * HOUR, ge=1, description="after a 403 or a 407")
    max_pages: int = Field(default=50, ge=1, le=1_000, description="pages of one listing in one poll")
    canary: str = Field(
        default="",
        pattern=r"^(|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4})$",
        description="host:port that answers whenever our network works; if set, it alone decides"
        " whether failed connections are an outage of ours",
    )


class Snapshots(Group):
    """What is stored of a fetched page, and when it is fetched again."""

    markdown: bool = Field(default=True, description="each new page as Markdown, too")
    render_again_seconds: int = Field(
        default=DAY, ge=0, description="a rendered page whose served bytes stay the same is rendered again after this"
    )


class Rendering(Group):
    """Limits of one page in a browser."""

    pages: int = Field(default=4, ge=1, le=64, description="open at the same time in a run")
    deadline_seconds: float = Field(
        default=60.0, gt=0, le=600, description="one page, besides the waits its source asks for"
    )
    discovery_seconds: float = Field(default=600.0, gt=0, le=6 * HOUR, description="all clicks of one click discovery")
    patience_seconds: float = Field(
        default=10.0, gt=0, le=120, description="until a page is quiet, or a selector is there"
    )
    max_bytes: int = Field(default=50_000_000, ge=1, description="all that a page loads, on the wire, and inflated")
    screenshot_height: int = Field(default=4_000, ge=100, le=16_000, description="pixels; a longer page is cut")
    blocked_resources: str = Field(
        default="image,media,font",
        pattern=r"^(|(image|media|font|stylesheet)(,(image|media|font|stylesheet))*)$",
        description="image, media, font, stylesheet, by comma: never loaded",
    )
    sandbox: str = Field(
        default="auto",
        pattern=r"^(auto|off)$",
        description="auto: Chromium's own unless root, who has none; off: where it cannot start",
    )

    @property
    def blocked_types(self) -> frozenset[str]:
        """Return the resource types that no page may load."""
        return frozenset(part for part in self.blocked_resources.split(",") if part)


class Retention(Group):
    """How long finished rows are kept, in seconds."""

    snapshots_seconds: int = Field(default=30 * DAY, ge=0, description="snapshots of a page, but for its last good one")
    snapshots_per_page: int = Field(default=20, ge=1, description="snapshots of a page kept at the most")
    ingestions_seconds: int = Field(default=30 * DAY, ge=0, description="polls that had news, once no row names them")
    dagster_runs_seconds: int = Field(
        default=14 * DAY, ge=0, description="Dagster's ended runs with their events, but for what an asset's page shows"
    )
    dagster_runs_at_once: int = Field(default=500, ge=1, description="Dagster's runs that one maintenance takes away")
    alerts_seconds: int = Field(default=90 * DAY, ge=62 * DAY, description="notices of alerts, once sent or muted")
    extractions_per_source: int = Field(default=5, ge=1, description="extractions of a source, with their pages")


class Notices(Group):
    """How often recipients are notified, and how long a dead endpoint is paused."""

    grouping_seconds: float = Field(default=15, ge=0, description="chapters of a series within this go in one message")
    series_seconds: int = Field(default=HOUR, ge=0, description="between two messages of one series to one recipient")
    per_hour: int = Field(default=100, ge=1, description="messages to one recipient, any hour")
    per_day: int = Field(default=50, ge=1, description="messages to one recipient, any 24 hours")
    digest_seconds: int = Field(default=DAY, ge=0, description="between two digests")
    max_attempts: int = Field(default=5, ge=1, le=100, description="of one message, first one included")
    pause_seconds: int = Field(
        default=HOUR, ge=1, description="for a recipient whose message failed; doubles each time"
    )
    longest_pause_seconds: int = Field(default=DAY, ge=1, description="no pause is longer")
    text_chapters: int = Field(default=20, ge=1, description="chapters named in a message's text; the JSON has all")


class Runs(Group):
    """Heartbeats of Dagster runs."""

    lease_seconds: int = Field(default=90, ge=5, description="a STARTED run silent this long is dead")


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
        description="model=input/cached input/output, in dollars per million tokens, by comma",
    )
    source_day_usd: str = Field(
        default="none", pattern=LIMIT, description="dollars for one source in a day (UTC), or none"
    )
    deadline_seconds: float = Field(
        default=90,
        gt=0,
        le=2_000,
        description="for one question, retries included; three quarters of a lease at the most",
    )
    max_attempts: int = Field(default=4, ge=1, le=10, description="of one request to a model, first one included")
    backoff_base_seconds: float = Field(
        default=0.5, gt=0, description="first delay between two attempts; doubles each time"
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
        default=2, ge=1, le=256, description="runs per tier and tick, by hash of the host, unless more are due"
    )
    most_shards: int = Field(default=16, ge=1, le=256, description="runs per tier and tick, however many are due")
    run_seconds: int = Field(
        default=60, ge=1, le=800, description="how long a run should last: so many shards are made"
    )
    aged_seconds: int = Field(
        default=2 * HOUR, ge=60, description="after so long, and again, a due poll moves up a tier"
    )
    backlog_limit: int = Field(
        default=50_000, ge=1, description="polling pauses while more readings than this wait to be ingested"
    )
    batch_size: int = Field(default=500, ge=1, le=5_000, description="sources claimed at a time")
    slice_seconds: int = Field(default=300, ge=1, le=800, description="a run claims no more after this")
    concurrency: int = Field(default=32, ge=1, le=256, description="hosts that one run fetches from at the same time")
    jitter_share: float = Field(default=0.1, ge=0, le=0.5, description="next check moves by up to this share")
    adaptive: bool = Field(default=True, description="`auto` sources are checked when a change is expected of them")
    adaptive_gaps: float = Field(
        default=0, ge=0, le=20, description="gaps between changes that must be known before that"
    )
    budget_share: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="checks of such sources together, as a share of what their tiers would make",
    )
    shortest_share: float = Field(
        default=1 / 3, gt=0, le=1, description="no wait of theirs is below this share of HOT's"
    )
    longest_share: float = Field(
        default=2.0, ge=1, le=10, description="no wait of theirs is above this share of COLD's"
    )
    partition_limit: int = Field(
        default=25_000, ge=1, le=100_000, description="partitions of a kind; Dagster's ceiling"
    )


class Interval(Group):
    """Seconds between two checks, by kind and tier."""

    series_hot: int = Field(default=15 * 60, ge=1, description="seconds")
    series_warm: int = Field(default=4 * HOUR, ge=1, description="seconds")
    series_cold: int = Field(default=DAY, ge=1, description="seconds")
    job_board_hot: int = Field(default=HOUR, ge=1, description="seconds")
    job_board_warm: int = Field(default=6 * HOUR, ge=1, description="seconds")
    job_board_cold: int = Field(default=DAY, ge=1, description="seconds")
    catalog_hot: int = Field(default=DAY, ge=1, description="seconds")
    catalog_warm: int = Field(default=7 * DAY, ge=1, description="seconds")
    catalog_cold: int = Field(default=30 * DAY, ge=1, description="seconds")
    website_hot: int = Field(default=DAY, ge=1, description="seconds")
    website_warm: int = Field(default=7 * DAY, ge=1, description="seconds")
    website_cold: int = Field(default=30 * DAY, ge=1, description="seconds")
    company_hot: int = Field(default=7 * DAY, ge=1, description="seconds")
    company_warm: int = Field(default=30 * DAY, ge=1, description="seconds")
    company_cold: int = Field(default=90 * DAY, ge=1, description="seconds")
    other_hot: int = Field(default=HOUR, ge=1, description="seconds, for kinds of other packages")
    other_warm: int = Field(default=6 * HOUR, ge=1, description="seconds, for kinds of other packages")
    other_cold: int = Field(default=DAY, ge=1, description="seconds, for kinds of other packages")


class Tiers(Group):
    """When an `auto` source changes its tier; age is counted from the last new record."""

    hot_readers: int = Field(default=100, ge=0, description="HOT in any case with more followers than this")


class HealthLimits(Group):
    """When a source is called degraded or late, and a daemon silent."""

    degraded_failures: int = Field(
        default=2, ge=1, description="failed polls in a row that degrade a source; one, if waiting cannot help"
    )
    late_seconds: int = Field(
        default=2 * HOUR, ge=60, description="overdue by this, or by its interval if that is shorter: late"
    )
    daemon_silent_seconds: int = Field(
        default=180, ge=60, description="without a tick of the daemon for this long it is silent"
    )


class Detection(Group):
    """How the layout of a catalogue is detected."""

    samples: int = Field(default=5, ge=1, le=50, description="linked pages that are looked at")
    category_levels: int = Field(default=3, ge=1, le=10, description="of lists that lead to lists")
    page_type_votes: int = Field(default=10, ge=1, le=51, description="answers of a model where rules cannot tell")
    pagination_votes: int = Field(default=10, ge=1, le=51, description="answers of a model")


class Extraction(Group):
    """How pages become a dataset, and when it is complete."""

    batch_size: int = Field(default=200, ge=1, le=2_000, description="pages read at a time")
    quiet_seconds: float = Field(
        default=0, ge=0, description="an extraction without waiting tasks is complete after this long without a change"
    )
    stale_seconds: float = Field(default=4 * HOUR, gt=0, description="incomplete and nothing changed: stale")
    low_confidence: float = Field(
        default=0.5, ge=0, le=1, description="below this the next extraction method reads the page"
    )
    asked_again: int = Field(default=3, ge=0, le=10, description="a model, alone for a record, about what it left open")
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
    home_city_bonus: int = Field(default=15, description="points in the profile's home city")
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
