"""The types of sources and recipients: what files declare, the row of a source, and the reader of its config.

Recipients are declared beside sources because the same files hold both; what is sent to whom is decided in `notices`.
The reader takes a config key by key, and reports all problems at once, each with its cure.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

from ingestion_pipeline.urls import secret_parameter, without_credentials


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


# Alerts for operators; `alerts` means all of them.
SOURCE_ALERTS = ("source_degraded", "source_recovered", "breaker_opened", "source_disabled")
SYSTEM_ALERTS = ("budget", "run_failures", "daemon_silent")
ALERTS = (*SOURCE_ALERTS, *SYSTEM_ALERTS)
SUBJECT_KINDS = ("chapter", "extraction", "recipe", "job_match", *ALERTS)
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


_SECRET_KEY = re.compile(r"token|key|secret|passw|pwd|auth|credential", re.IGNORECASE)


class UnknownPlatform(ValueError):
    """No adapter has that name."""


class BadConfig(ValueError):
    """A source's config cannot be used; the message names every key that is wrong, and the cure."""


class ConfigReader:
    """Reads a source's config key by key and collects all that is wrong with it."""

    def __init__(self, platform: str, config: Mapping[str, object]) -> None:
        self._platform = platform
        self._config = config
        self._read_keys: set[str] = set()
        self._problems: list[str] = []
        self._sections: dict[str, ConfigReader] = {}

    def refuse(self, key: str, value: object, accepted: str) -> None:
        """Record that the key's value is not accepted; the value of a secret is not repeated."""
        safe_value = without_credentials(value) if isinstance(value, str) else value
        description = "not accepted" if _SECRET_KEY.search(key) else repr(safe_value)
        self._problems.append(f"{key} is {description}; accepted: {accepted}")

    def reject(self, key: str, reason: str) -> None:
        """Record that the key cannot be used, and why."""
        self._problems.append(f"{key}: {reason}")

    def text(self, key: str) -> str | None:
        """Return the stripped text under the key; None if there is none."""
        value = self._value(key)
        if value is None or isinstance(value, str):
            return (value or "").strip() or None
        self.refuse(key, value, "text")
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the truth value under the key."""
        return bool(self.optional_flag(key, default=default))

    def optional_flag(self, key: str, *, default: bool | None) -> bool | None:
        """Return the truth value under the key; the default where it is not stated."""
        value = self._value(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.refuse(key, value, "true or false")
        return default

    def integer(self, key: str, *, default: int, allowed: range) -> int:
        """Return the whole number under the key."""
        value = self._value(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and value in allowed:
            return value
        self.refuse(key, value, f"a whole number from {allowed[0]} to {allowed[-1]}")
        return default

    def words(self, key: str, *, default: tuple[str, ...], allowed: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the list of words under the key, each once and in lower case."""
        value = self._value(key)
        if value is None:
            return default
        items: list[object] = cast("list[object]", value) if isinstance(value, list) else [None]
        words = [item.strip().lower() for item in items if isinstance(item, str) and item.strip()]
        if len(words) < len(items) or (allowed and not set(words) <= set(allowed)):
            rejected = cast("object", value)
            self.refuse(key, rejected, "a list of " + (", ".join(allowed) if allowed else "words"))
        return tuple(dict.fromkeys(words))

    def text_lists(self, key: str, *, allowed: Collection[str]) -> dict[str, tuple[str, ...]]:
        """Return the map under the key: for each name a text, or texts to be tried in turn."""
        value = self._value(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.refuse(key, value, "a map from field to text")
            return {}
        fields = {f"{k}": _texts(texts) for k, texts in cast("dict[object, object]", value).items()}
        for name, texts in fields.items():
            if name not in allowed:
                # without its value, as for an unknown key
                self.reject(f"{key}.{name}", f"no field of it; there are: {', '.join(allowed)}")
            elif not texts:
                self.reject(f"{key}.{name}", "accepted: text, or a list of texts to try in turn")
        return {name: texts for name, texts in fields.items() if name in allowed and texts}

    def choice(self, key: str, *, allowed: Sequence[str], default: str) -> str:
        """Return the word under the key, one of those allowed."""
        value = self.text(key)
        if value is None or value in allowed:
            return value or default
        self.refuse(key, value, ", ".join(allowed))
        return default

    def mapping(self, key: str) -> Mapping[str, object] | None:
        """Return the map under the key, whatever it holds."""
        value = self._value(key)
        if value is None or isinstance(value, dict):
            return cast("Mapping[str, object] | None", value)
        self.refuse(key, value, "a map")
        return None

    def section(self, key: str) -> ConfigReader | None:
        """Return a reader of the map under the key; `finish` reports its problems too."""
        value = self.mapping(key)
        if value is not None:
            self._sections[key] = ConfigReader(self._platform, value)
        return self._sections.get(key)

    def address(self, key: str, *, default: str | None = None) -> str | None:
        """Return the web address under the key."""
        value = self.text(key)
        return self.checked_address(key, value) if value else default

    def checked_address(self, key: str, address: str) -> str:
        """Return the address; record a problem unless it is http(s) without credentials."""
        try:
            parts = urlsplit(address)
            has_credentials = "@" in parts.netloc
            is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
        except ValueError:
            has_credentials, is_web = "@" in address, False
        if has_credentials:
            self._problems.append(f"{key} holds credentials; accepted: an address without them")
        elif name := secret_parameter(address):
            self._problems.append(
                f"{key} holds a secret, {name}; take it out, put it into a variable and write"
                f" auth: {{place: query, name: {name}, env: VARIABLE}}"
            )
        elif not is_web:
            self.refuse(key, address, "an http or https address")
        return address

    def finish(self) -> None:
        """Raise if anything was wrong, unknown keys included."""
        self.flag(IGNORE_ROBOTS, default=False)  # every platform's, since the engine reads it
        problems = self._all_problems()
        if problems:
            raise BadConfig(f"config of platform {self._platform!r}: " + "; ".join(problems))

    def _all_problems(self) -> list[str]:
        valid_keys = ", ".join(sorted(self._read_keys))
        unknown = [
            # without its value: a key of no meaning here may hold another program's secret
            f"{key} is no key of it; there are: {valid_keys}"
            for key in self._config
            if key not in self._read_keys
        ]
        inner = [
            f"{name}.{problem}"
            for name, section in self._sections.items()
            for problem in section._all_problems()  # noqa: SLF001  of its own class
        ]
        return [*self._problems, *unknown, *inner]

    def _value(self, key: str) -> object:
        self._read_keys.add(key)
        return self._config.get(key)


def _texts(value: object) -> tuple[str, ...]:
    """Return one text or several as a tuple; empty if the value is neither."""
    items: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
    texts = tuple(item.strip() for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else ()
