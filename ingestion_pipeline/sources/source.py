"""The types of sources and recipients: what files declare, and the row of a source.

Recipients are declared beside sources because the same files hold both; what is sent to whom is decided in `notices`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar


class _KindSet(type):
    def __iter__(cls) -> Iterator[Kind]:
        return iter(_REGISTERED)


class Kind(str, metaclass=_KindSet):
    """A kind of source; each belongs to one system.

    Equal kinds are the same object. The set is open: iterating over `Kind` gives those of this package,
    then those of installed ones (`register`). A row may have a kind whose package was removed.
    """

    CATALOG: ClassVar[Kind]
    WEBSITE: ClassVar[Kind]
    COMPANY: ClassVar[Kind]
    JOB_BOARD: ClassVar[Kind]
    SERIES: ClassVar[Kind]

    def __new__(cls, value: str) -> Kind:
        """Return the kind of that name."""
        return INTERNED_KINDS[value]

    @property
    def value(self) -> str:
        """Return its name as plain text."""
        return str(self)

    @classmethod
    def register(cls, value: str) -> Kind:
        """Return the kind of that name, and have it listed among the kinds there are."""
        kind = cls(value)
        if kind not in _REGISTERED:
            _REGISTERED.append(kind)
        return kind


class _InternedKinds(dict[str, Kind]):
    def __missing__(self, value: str) -> Kind:
        kind = self[value] = str.__new__(Kind, value)
        return kind


# Looking one up is quicker than the constructor, and there may be 100,000 rows.
INTERNED_KINDS = _InternedKinds()
_REGISTERED: list[Kind] = []
Kind.CATALOG, Kind.WEBSITE, Kind.COMPANY, Kind.JOB_BOARD, Kind.SERIES = map(
    Kind.register, ("catalog", "website", "company", "job_board", "series")
)


class Tier(StrEnum):
    """How often a source is checked."""

    HOT = "hot"
    WARM = "warm"
    COLD = "cold"

    @property
    def priority(self) -> int:
        """Return the priority of its poll task: smaller first."""
        return {Tier.HOT: 1, Tier.WARM: 2, Tier.COLD: 3}[self]


class SourceStatus(StrEnum):
    """Whether a source is polled; `open` is the breaker's: one probe at its next check."""

    ACTIVE = "active"
    PENDING_VALIDATION = "pending_validation"
    OPEN = "open"
    DISABLED = "disabled"


QUARANTINED = "quarantined"  # first word of the outcome of a poll whose feed is not accepted
IGNORE_ROBOTS = "ignore_robots"  # the key of `config` that overrides robots.txt
WEIGHT = "weight"  # the key of `config` that says how much a change of the source counts

BY_HAND = "row"  # the origin of a source that no file declares
BUNDLED = "bundled:"  # prefix of the origin of sources whose file is part of this package

# A partition key: no comma (it breaks Dagster's UI), never a URL.
SOURCE_ID = re.compile(r"(?=.{3,120}\Z)(?P<kind>[a-z_]+):[a-z0-9:._-]+")
SERIES_ID = re.compile(r"[a-z0-9:._-]{1,120}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A declaration by a source file or an operator; `tier` None means automatic."""

    id: str
    kind: Kind
    url: str
    name: str | None = None
    platform: str | None = None
    tier: Tier | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    enabled: bool = True
    series: str | None = None
    company: str | None = None
    max_delay_seconds: int | None = None
    origin: str = BY_HAND


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A row of `sources`: its definition, its status, and the results of the last ingestion."""

    id: str
    kind: Kind
    url: str
    name: str | None
    platform: str | None
    config: Mapping[str, Any]
    series_id: str | None
    company_id: str | None
    max_delay_seconds: int | None
    origin: str
    host: str
    shard: int
    tier: Tier
    tier_pinned: bool
    status: SourceStatus
    status_reason: str | None
    failure_count: int
    next_check_at: datetime | None
    last_checked_at: datetime | None
    last_success_at: datetime | None
    last_changed_at: datetime | None
    last_new_at: datetime | None
    synced_at: datetime | None
    last_outcome: str | None
    last_error_class: str | None
    content_hash: str | None
    parser_version: str | None
    etag: str | None
    last_modified: str | None
    needs_full_read: bool
    accepts_drop: bool
    record_count: int
    change_model: Mapping[str, Any] | None
    changes_per_day: float | None
    checks_per_day: float | None
    tracking_id: str
    created_at: datetime
    config_version: int = 1
    synced_version: int | None = None

    @property
    def is_redirected(self) -> bool:
        """Return whether it was synced, but not since its address or configuration changed."""
        is_current = self.synced_version in (None, self.config_version)
        return self.synced_at is not None and not is_current

    @property
    def ignores_robots(self) -> bool:
        """Return whether an operator answers for fetching it against robots.txt."""
        return self.config.get(IGNORE_ROBOTS) is True

    @property
    def weight(self) -> float:
        """Return how much a change counts, compared with one of other sources of the kind."""
        weight = self.config.get(WEIGHT)
        return float(weight) if isinstance(weight, int | float) and weight > 0 else 1.0


# Alerts for operators; `alerts` means all of them.
SOURCE_ALERTS = ("source_degraded", "source_recovered", "breaker_opened", "source_disabled")
FRESHNESS_BUDGET = "freshness_budget"  # of a source with a freshness objective: used up
SYSTEM_ALERTS = ("budget", "run_failures", "daemon_silent")
ALERTS = (*SOURCE_ALERTS, FRESHNESS_BUDGET, *SYSTEM_ALERTS)
NOTICE_KINDS: list[str] = []  # of the systems, which `registry.systems` adds; a recipient may subscribe to each
DEFAULT_KINDS = ("chapter",)  # followers of a series did not subscribe to catalogues
OWN_SERVICES = "notify:"
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret of a webhook begins with


class Mode(StrEnum):
    """When a recipient is notified: at once, once a day, or never."""

    IMMEDIATE = "immediate"
    DIGEST = "digest"
    MUTED = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """One followed series; None means the recipient's own value."""

    series: str
    mode: Mode | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """Somebody to notify; `origin` is the file that declares them."""

    id: str
    address: str
    mode: Mode = Mode.IMMEDIATE
    language: str | None = None
    kinds: tuple[str, ...] = DEFAULT_KINDS
    follows: tuple[Follow, ...] = ()
    origin: str = BY_HAND


def is_webhook(address: str) -> bool:
    """Return whether messages to the address are signed."""
    return address.lower().startswith(("http://", "https://"))


def shard_of(host: str) -> int:
    """Return a stable hash of the host; modulo the number of shards it is the host's shard."""
    return zlib.crc32(host.encode()) & 0x7FFF


class UnknownPlatform(ValueError):
    """No adapter has that name."""


class BadConfig(ValueError):
    """A source's config cannot be used; the message names every key that is wrong, and the cure."""
