"""Recipients of notifications as declared, in a source file or on the command line.

They are declared here, beside sources, because the same files hold both; what is sent to whom is
decided in `notices`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from ingestion_pipeline.sources.definition import BadField
from ingestion_pipeline.sources.source import BY_HAND, SERIES_ID
from ingestion_pipeline.urls import BadUrl, checked_url

RECIPIENT_ID = SERIES_ID  # the same characters
# Alerts for operators; `alerts` means all of them.
SOURCE_ALERTS = ("source_degraded", "source_recovered", "breaker_opened", "source_disabled")
SYSTEM_ALERTS = ("budget", "run_failures", "daemon_silent")
ALERTS = (*SOURCE_ALERTS, *SYSTEM_ALERTS)
ALL_ALERTS = "alerts"
SUBJECT_KINDS = ("chapter", "extraction", "recipe", "job_match", *ALERTS)
DEFAULT_KINDS = ("chapter",)  # followers of a series did not subscribe to catalogues
KEYS = ("id", "address", "mode", "language", "kinds", "follows")
FOLLOW_KEYS = ("series", "mode", "language")
LANGUAGE_LENGTH = 20  # the width of the column
OWN_SERVICES = "notify:"
_MAIL = re.compile(r"mailto:[^@\s?&,;/<>\"]+@[A-Za-z0-9.-]+\.?[A-Za-z0-9]")
_LANGUAGE = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*")
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what every such secret begins with
_SECRET_BYTES = range(24, 65)  # by the Standard Webhooks convention


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


def recipient_of(raw: Mapping[str, Any]) -> tuple[Recipient | None, list[BadField]]:
    """Return the recipient, or None and everything that is wrong with it."""
    bad = [BadField(str(key), f"unknown key; there are: {', '.join(KEYS)}") for key in raw if key not in KEYS]
    bad += [BadField(key, "is missing") for key in ("id", "address") if raw.get(key) is None]
    if raw.get("id") is not None:
        bad += bad_id("id", raw["id"])
    if raw.get("address") is not None:
        bad += bad_address(raw["address"])
    bad += [*bad_mode(raw.get("mode")), *bad_language(raw.get("language"))]
    bad += _bad_kinds(raw.get("kinds"))
    follows, wrong = _follows(raw.get("follows"))
    bad += wrong
    if bad:
        return None, bad
    return Recipient(
        id=raw["id"],
        address=raw["address"],
        mode=Mode(raw.get("mode") or Mode.IMMEDIATE),
        language=_lower(raw.get("language")),
        kinds=_kinds(raw.get("kinds") or DEFAULT_KINDS),
        follows=follows,
    ), []


def bad_id(field: str, value: object) -> list[BadField]:
    """Return what is wrong with the id of a recipient or a series."""
    if isinstance(value, str) and RECIPIENT_ID.fullmatch(value):
        return []
    message = f"{str(value)[:130]!r} is no id: use a-z 0-9 : . _ - (at most 120)"
    return [BadField(field, message)]


def bad_address(address: object) -> list[BadField]:
    """Return what is wrong with an address; its scheme selects the channel."""
    if not isinstance(address, str):
        return [BadField("address", f"must be text, not {type(address).__name__}")]
    if address == OWN_SERVICES or _MAIL.fullmatch(address):
        return []
    if address.lower().startswith(("http://", "https://")):
        try:
            checked_url(address)
        except BadUrl as error:
            return [BadField("address", str(error))]
        return []
    scheme = address.partition(":")[0][:20]
    cure = (
        "write https://... (a signed webhook), mailto:name@host, or notify: for the services"
        " that INGESTION_NOTIFY_URLS names; other services belong there"
    )
    return [BadField("address", f"{scheme!r} leads to no recipient; {cure}")]


def bad_mode(mode: object) -> list[BadField]:
    """Return what is wrong with a mode; None is accepted."""
    if mode is None or mode in list(Mode):
        return []
    return [BadField("mode", f"{str(mode)[:130]!r} is no mode; there are: {', '.join(Mode)}")]


def bad_language(language: object) -> list[BadField]:
    """Return what is wrong with a language; None is accepted, and means any."""
    if language is None or (isinstance(language, str) and _is_language(language.lower())):
        return []
    return [BadField("language", f"{str(language)[:130]!r} is no language; write en, pt-br, ...")]


def _is_language(text: str) -> bool:
    return len(text) <= LANGUAGE_LENGTH and _LANGUAGE.fullmatch(text) is not None


def bad_secret(secret: str) -> list[BadField]:
    """Return what is wrong with a webhook's secret."""
    try:
        size = len(base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if secret.startswith(_SECRET_PREFIX) and size in _SECRET_BYTES:
        return []
    message = f"must be {_SECRET_PREFIX} and the base64 of 24 to 64 bytes; left out, one is made"
    return [BadField("secret", message)]


def is_webhook(address: str) -> bool:
    """Return whether messages to the address are signed."""
    return address.lower().startswith(("http://", "https://"))


def _bad_kinds(value: object) -> list[BadField]:
    if value is None:
        return []
    kinds = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    accepted = (*SUBJECT_KINDS, ALL_ALERTS)
    if kinds and all(kind in accepted for kind in kinds):
        return []
    message = f"must be a list of: {', '.join(SUBJECT_KINDS)}; {ALL_ALERTS} is the last {len(ALERTS)}"
    return [BadField("kinds", message)]


def _kinds(requested: Sequence[str]) -> tuple[str, ...]:
    """Return each kind once, with `alerts` expanded."""
    named = [name for kind in requested for name in (ALERTS if kind == ALL_ALERTS else (kind,))]
    return tuple(dict.fromkeys(named))


def _follows(value: object) -> tuple[tuple[Follow, ...], list[BadField]]:
    if value is None:
        return (), []
    if not isinstance(value, list):
        return (), [BadField("follows", "must be a list of series ids")]
    raws = [
        cast("dict[str, Any]", follow) if isinstance(follow, dict) else {"series": follow}
        for follow in cast("list[object]", value)
    ]
    bad = [problem for follow in raws for problem in _bad_follow(follow)]
    if bad:
        return (), bad
    follows = [_follow(follow) for follow in raws]
    names = [follow.series for follow in follows]
    twice = sorted({name for name in names if names.count(name) > 1})
    return tuple(follows), [BadField("follows", f"{name!r} is listed twice") for name in twice]


def _bad_follow(raw: Mapping[str, Any]) -> list[BadField]:
    unknown = [
        BadField("follows", f"unknown key {key!r}; there are: {', '.join(FOLLOW_KEYS)}")
        for key in raw
        if key not in FOLLOW_KEYS
    ]
    wrong = [*bad_id("series", raw.get("series")), *bad_mode(raw.get("mode")), *bad_language(raw.get("language"))]
    return unknown + [BadField("follows", f"{problem.field}: {problem.message}") for problem in wrong]


def _follow(raw: Mapping[str, Any]) -> Follow:
    mode = raw.get("mode")
    return Follow(series=raw["series"], mode=None if mode is None else Mode(mode), language=_lower(raw.get("language")))


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
