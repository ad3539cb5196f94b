"""Every variable and every constant: typed, frozen, read once per run and handed over.

A setting is found in the environment, else in the `settings` table, else at its default. Its name
in the table is `group.name`; its variable is `INGESTION_GROUP__NAME`. What is needed to reach the
table (`INGESTION_DATABASE_URL`, `INGESTION_HOME`, ...) comes from the environment alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

PREFIX = "INGESTION_"
DAY = 86_400
HOUR = 3_600
LAST_PORT = 65_535
# As the guard writes it: a name or an IPv4 address, or an IPv6 address in brackets.
_HOST_AND_PORT = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\]):(?P<port>[1-9][0-9]{0,4})")


class BadSetting(ValueError):
    """A value that is not accepted; the message names the variable, the value and what is."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Polling(_Group):
    """How a run drains due sources."""

    shards: int = Field(
        default=2, ge=1, le=256, description="runs per tier and tick, by hash of the host"
    )
    batch_size: int = Field(default=500, ge=1, le=5_000, description="sources claimed at a time")
    slice_seconds: int = Field(
        default=300, ge=1, le=800, description="a run claims no more after this"
    )
    concurrency: int = Field(
        default=32, ge=1, le=256, description="hosts fetched from at the same time"
    )
    jitter_share: float = Field(
        default=0.1, ge=0, le=0.5, description="next check moves by up to this share"
    )
    partition_limit: int = Field(
        default=25_000, ge=1, le=100_000, description="partitions of a kind; Dagster's ceiling"
    )
    reported_events: int = Field(
        default=200, ge=1, le=5_000, description="materializations logged per run"
    )


class Interval(_Group):
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


class Tiers(_Group):
    """When an `auto` source warms and cools; age is counted from the last new record."""

    hot_for_seconds: int = Field(default=DAY, ge=1, description="HOT this long after a new record")
    warm_for_seconds: int = Field(
        default=7 * DAY, ge=1, description="then WARM this long, then COLD"
    )


class Breaker(_Group):
    """When a failing source is left alone."""

    failures: int = Field(
        default=5, ge=1, description="failed polls in a row that open the breaker"
    )
    probe_after_seconds: int = Field(
        default=DAY, ge=1, description="one probe this long after it opened"
    )


class Work(_Group):
    """Claims, leases and retries of every task."""

    max_attempts: int = Field(
        default=3, ge=1, le=100, description="attempts in all, first one included"
    )
    lease_seconds: int = Field(
        default=120, ge=1, le=3_600, description="a claim ends without a heartbeat"
    )
    backoff_base_seconds: float = Field(
        default=5, gt=0, description="first delay; doubles each time"
    )
    backoff_cap_seconds: float = Field(default=HOUR, gt=0, description="no delay is longer")
    backoff_jitter_share: float = Field(
        default=0.1, ge=0, le=1, description="delays grow by up to this"
    )
    spawn_depth: int = Field(
        default=10, ge=1, le=100, description="generations a root task may have"
    )
    queue_limit: int = Field(
        default=1_000, ge=1, description="active tasks of a kind before queue_full"
    )


class Hosts(_Group):
    """Manners towards one host."""

    delay_seconds: float = Field(default=1.0, ge=0, le=3_600, description="between two requests")
    lease_seconds: int = Field(
        default=60, ge=1, le=3_600, description="one run owns a host this long"
    )
    yield_after_seconds: int = Field(default=60, ge=1, description="given up then, if others wait")


class Fetch(_Group):
    """Limits of one exchange with a stranger's server."""

    deadline_seconds: float = Field(
        default=30.0, gt=0, le=600, description="whole exchange, redirects too"
    )
    connect_seconds: float = Field(default=10.0, gt=0, le=120, description="until connected")
    max_bytes: int = Field(default=10_000_000, ge=1, description="on the wire, and inflated")
    max_ratio: int = Field(default=100, ge=1, description="inflated bytes per byte on the wire")
    max_redirects: int = Field(
        default=5, ge=0, le=20, description="followed by hand, each one checked"
    )
    blocked_wait_seconds: int = Field(default=4 * HOUR, ge=1, description="after a 403 or a 407")
    rate_limit_wait_seconds: int = Field(
        default=60, ge=1, description="after a 429 that names no time"
    )
    longest_wait_seconds: int = Field(
        default=DAY, ge=1, description="a Retry-After beyond this is cut to it"
    )
    max_pages: int = Field(
        default=50, ge=1, le=1_000, description="pages of one listing in one poll"
    )


class Ingest(_Group):
    """When a listing is too strange to be believed."""

    drop_share: float = Field(
        default=0.5, gt=0, le=1, description="quarantined if more than this vanished"
    )
    drop_floor: int = Field(default=5, ge=1, description="and at least this many records vanished")
    missing_listings: int = Field(
        default=2, ge=1, description="complete listings that must lack a record before it is gone"
    )
    stale_factor: float = Field(
        default=3.0, ge=1, description="stale after this many missed intervals"
    )


class Retention(_Group):
    """How long finished things are kept, in seconds."""

    finished_seconds: int = Field(default=HOUR, ge=0, description="finished tasks")
    failed_seconds: int = Field(default=7 * DAY, ge=0, description="failed tasks")
    finished_rows: int = Field(default=1_000, ge=0, description="finished tasks kept at the most")
    failed_rows: int = Field(default=5_000, ge=0, description="failed tasks kept at the most")
    dead_letters_seconds: int = Field(
        default=30 * DAY, ge=0, description="dead letters, once replayed"
    )
    snapshots_seconds: int = Field(
        default=30 * DAY, ge=0, description="snapshots no source points at"
    )
    content_seconds: int = Field(
        default=6 * HOUR, ge=0, description="bodies and readings that nothing points at"
    )
    runs_seconds: int = Field(default=7 * DAY, ge=0, description="heartbeats of ended runs")


class Runs(_Group):
    """Heartbeats of Dagster runs."""

    lease_seconds: int = Field(
        default=90, ge=5, description="a STARTED run silent this long is dead"
    )


class Settings(_Group):
    """All settings of one run; build it with `load_settings` and hand it over."""

    database_url: str = Field(
        default="", description="SQLAlchemy URL; SQLite in INGESTION_HOME by default"
    )
    home: Path = Field(default=Path(".ingestion"), description="database, snapshots, exports")
    sources: Path = Field(default=Path("sources"), description="folder of source files")
    allow_hosts: str = Field(
        default="", description="host:port,... exempt from the private-address guard"
    )
    user_agent: str = Field(
        default="ingestion_pipeline/0.1 (+https://github.com/ingestion-pipeline)",
        pattern=r"^[\x20-\x7e]+$",
        description="printable ASCII, sent with every request; put a way to reach you into it",
    )
    log_level: str = Field(
        default="INFO",
        pattern=r"^(DEBUG|INFO|WARNING|ERROR|CRITICAL)$",
        description="DEBUG, INFO, WARNING, ERROR or CRITICAL",
    )
    polling: Polling = Polling()
    interval: Interval = Interval()
    tiers: Tiers = Tiers()
    breaker: Breaker = Breaker()
    work: Work = Work()
    hosts: Hosts = Hosts()
    fetch: Fetch = Fetch()
    ingest: Ingest = Ingest()
    retention: Retention = Retention()
    runs: Runs = Runs()

    @field_validator("allow_hosts")
    @classmethod
    def _each_has_a_port(cls, allow_hosts: str) -> str:
        wrong = [one for one in _entries(allow_hosts) if not _is_host_and_port(one)]
        if wrong:
            raise ValueError(
                f"{', '.join(map(repr, wrong))} is not host:port;"
                f" write name:port, address:port or [IPv6]:port, port 1 to {LAST_PORT}"
            )
        return allow_hosts

    @property
    def store_url(self) -> str:
        """The database to open: the given one with an installed driver, else SQLite under home."""
        url = self.database_url or f"sqlite:///{self.home.absolute() / 'ingestion.db'}"
        for scheme in ("postgresql://", "postgres://"):
            if url.startswith(scheme):
                return "postgresql+psycopg2://" + url.removeprefix(scheme)
        return url

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """The `host:port` pairs that may be private addresses."""
        return frozenset(_entries(self.allow_hosts))

    def interval_seconds(self, kind: str, tier: str) -> int:
        """Seconds between two checks of a source of this kind in this tier."""
        return int(getattr(self.interval, f"{kind}_{tier}"))


OTHER_VARIABLES = frozenset({"INGESTION_SAMPLES"})  # read by the tests alone


def load_settings(
    environment: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None
) -> Settings:
    """The settings of this run; every bad value is named in one `BadSetting`."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    for key, text in (overrides or {}).items():
        if key in setting_fields():  # a row of another version is left alone; `doctor` names it
            _place(values, key.split("."), text)
    for variable, key in variables().items():
        if (text := environment.get(variable, "")) != "":
            _place(values, key.split("."), text)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise BadSetting(_explain(error, environment)) from None


def variables() -> dict[str, str]:
    """Each environment variable with the key of its setting."""
    return {PREFIX + key.replace(".", "__").upper(): key for key in setting_fields()}


def setting_fields() -> dict[str, tuple[Any, str]]:
    """Each setting's key with its default and what it means."""
    found: dict[str, tuple[Any, str]] = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, _Group):
            for inner, inner_field in type(field.default).model_fields.items():
                found[f"{name}.{inner}"] = (inner_field.default, inner_field.description or "")
        else:
            found[name] = (field.default, field.description or "")
    return found


def check_override(key: str, text: str) -> str:
    """The same text if the settings table may hold it under `key`, else `BadSetting`."""
    fields = setting_fields()
    if "." not in key or key not in fields:
        known = ", ".join(sorted(name for name in fields if "." in name))
        raise BadSetting(f"{key!r} is not a setting of the table; there are: {known}")
    load_settings({}, {key: text})
    return text


def value_type(key: str) -> str:
    """int, float or string: how the table names the type of a setting."""
    group, _, name = key.partition(".")
    owner = cast("type[BaseModel]", type(getattr(Settings(), group)) if name else Settings)
    annotation = owner.model_fields[name or group].annotation
    return {int: "int", float: "float"}.get(cast("type[Any]", annotation), "string")


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Variables with our prefix that no setting reads: most likely a typo."""
    environment = os.environ if environment is None else environment
    known = variables().keys() | OTHER_VARIABLES
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in known)


def _entries(comma_list: str) -> list[str]:
    parts = (part.strip().lower() for part in comma_list.split(","))
    return [part for part in parts if part]


def _is_host_and_port(entry: str) -> bool:
    found = _HOST_AND_PORT.fullmatch(entry)
    return found is not None and int(found["port"]) <= LAST_PORT


def _place(values: dict[str, Any], path: list[str], text: str) -> None:
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = text


def _explain(error: ValidationError, environment: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        variable = PREFIX + key.replace(".", "__").upper()
        name = variable if environment.get(variable, "") != "" else f"setting {key}"
        meaning = setting_fields().get(key, (None, "no such setting"))[1]
        message = problem["msg"].removeprefix("Value error, ")
        said = message[:1].lower() + message[1:]
        lines.append(f"{name}={problem['input']!r}: {said} ({meaning})")
    return "\n".join(lines)
