"""Who wants to be told of what, as it is declared: in a source file or on the command line.

It stands here, beside a source's declaration, because the same files hold both; what is sent to
whom is decided in `notices`.
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
# What an operator may want to hear of; `alerts` stands for all of them.
OF_A_SOURCE = ("source_degraded", "source_recovered", "breaker_opened", "source_disabled")
OF_THE_HOUSE = ("budget", "run_failures", "daemon_silent")
ALERTS = (*OF_A_SOURCE, *OF_THE_HOUSE)
ALL_ALERTS = "alerts"
SUBJECT_KINDS = ("chapter", "extraction", "recipe", "job_match", *ALERTS)
USUAL_KINDS = ("chapter",)  # whoever follows a series did not ask how catalogues fare
KEYS = ("id", "address", "mode", "language", "kinds", "follows")
FOLLOW_KEYS = ("series", "mode", "language")
LANGUAGE_LENGTH = 20  # the width of the column
OWN_SERVICES = "notify:"
_MAIL = re.compile(r"mailto:[^@\s?&,;/<>\"]+@[A-Za-z0-9.-]+\.?[A-Za-z0-9]")
_LANGUAGE = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*")
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what every such secret begins with
_SECRET_BYTES = range(24, 65)  # by the Standard Webhooks convention


class Mode(StrEnum):
    """When a recipient is told: at once, once a day, or never."""

    IMMEDIATE = "immediate"
    DIGEST = "digest"
    MUTED = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """One series somebody follows; None means as the recipient has it."""

    series: str
    mode: Mode | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """Somebody to tell; `origin` is the file that declares them."""

    id: str
    address: str
    mode: Mode = Mode.IMMEDIATE
    language: str | None = None
    kinds: tuple[str, ...] = USUAL_KINDS
    follows: tuple[Follow, ...] = ()
    origin: str = BY_HAND


def recipient_of(raw: Mapping[str, Any]) -> tuple[Recipient | None, list[BadField]]:
    """The recipient, or None and everything that is wrong with it."""
    bad = [
        BadField(str(key), f"unknown key; there are: {', '.join(KEYS)}")
        for key in raw
        if key not in KEYS
    ]
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
        kinds=_kinds(raw.get("kinds") or USUAL_KINDS),
        follows=follows,
    ), []


def bad_id(field: str, given: object) -> list[BadField]:
    """What is wrong with the id of a recipient or a series."""
    if isinstance(given, str) and RECIPIENT_ID.fullmatch(given):
        return []
    said = f"{str(given)[:130]!r} is no id: use a-z 0-9 : . _ - (at most 120)"
    return [BadField(field, said)]


def bad_address(given: object) -> list[BadField]:
    """What is wrong with an address; its scheme says by which way the message goes."""
    if not isinstance(given, str):
        return [BadField("address", f"must be text, not {type(given).__name__}")]
    if given == OWN_SERVICES or _MAIL.fullmatch(given):
        return []
    if given.lower().startswith(("http://", "https://")):
        try:
            checked_url(given)
        except BadUrl as error:
            return [BadField("address", str(error))]
        return []
    scheme = given.partition(":")[0][:20]
    cure = (
        "write https://... (a signed webhook), mailto:name@host, or notify: for the services"
        " that INGESTION_NOTIFY_URLS names; other services belong there"
    )
    return [BadField("address", f"{scheme!r} leads to no recipient; {cure}")]


def bad_mode(given: object) -> list[BadField]:
    """What is wrong with a mode; none is fine."""
    if given is None or given in list(Mode):
        return []
    return [BadField("mode", f"{str(given)[:130]!r} is no mode; there are: {', '.join(Mode)}")]


def bad_language(given: object) -> list[BadField]:
    """What is wrong with a language; none is fine, and means any."""
    if given is None or (isinstance(given, str) and _is_language(given.lower())):
        return []
    return [BadField("language", f"{str(given)[:130]!r} is no language; write en, pt-br, ...")]


def _is_language(text: str) -> bool:
    return len(text) <= LANGUAGE_LENGTH and _LANGUAGE.fullmatch(text) is not None


def bad_secret(given: str) -> list[BadField]:
    """What is wrong with a webhook's secret."""
    try:
        size = len(base64.b64decode(given.removeprefix(_SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if given.startswith(_SECRET_PREFIX) and size in _SECRET_BYTES:
        return []
    said = f"must be {_SECRET_PREFIX} and the base64 of 24 to 64 bytes; left out, one is made"
    return [BadField("secret", said)]


def is_webhook(address: str) -> bool:
    """Whether messages to the address are signed."""
    return address.lower().startswith(("http://", "https://"))


def _bad_kinds(given: object) -> list[BadField]:
    if given is None:
        return []
    kinds = cast("Sequence[object]", given) if isinstance(given, list | tuple) else ()
    known = (*SUBJECT_KINDS, ALL_ALERTS)
    if kinds and all(kind in known for kind in kinds):
        return []
    said = f"must be a list of: {', '.join(SUBJECT_KINDS)}; {ALL_ALERTS} is the last {len(ALERTS)}"
    return [BadField("kinds", said)]


def _kinds(given: Sequence[str]) -> tuple[str, ...]:
    """Each kind once, and what `alerts` stands for."""
    named = [one for kind in given for one in (ALERTS if kind == ALL_ALERTS else (kind,))]
    return tuple(dict.fromkeys(named))


def _follows(given: object) -> tuple[tuple[Follow, ...], list[BadField]]:
    if given is None:
        return (), []
    if not isinstance(given, list):
        return (), [BadField("follows", "must be a list of series ids")]
    raws = [
        cast("dict[str, Any]", one) if isinstance(one, dict) else {"series": one}
        for one in cast("list[object]", given)
    ]
    bad = [problem for one in raws for problem in _bad_follow(one)]
    if bad:
        return (), bad
    follows = [_follow(one) for one in raws]
    names = [one.series for one in follows]
    twice = sorted({name for name in names if names.count(name) > 1})
    return tuple(follows), [BadField("follows", f"{name!r} stands twice") for name in twice]


def _bad_follow(raw: Mapping[str, Any]) -> list[BadField]:
    found = [
        BadField("follows", f"unknown key {key!r}; there are: {', '.join(FOLLOW_KEYS)}")
        for key in raw
        if key not in FOLLOW_KEYS
    ]
    wrong = [
        *bad_id("series", raw.get("series")),
        *bad_mode(raw.get("mode")),
        *bad_language(raw.get("language")),
    ]
    return found + [BadField("follows", f"{one.field}: {one.message}") for one in wrong]


def _follow(raw: Mapping[str, Any]) -> Follow:
    mode = raw.get("mode")
    return Follow(
        series=raw["series"],
        mode=None if mode is None else Mode(mode),
        language=_lower(raw.get("language")),
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
