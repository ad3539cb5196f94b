"""Validate declared recipients: from a mapping (YAML, CLI) to a `Recipient`."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError

from ingestion_pipeline.sources.file_model import BadField, FileModel, expect, quoted, validated
from ingestion_pipeline.sources.recipients import (
    ALERTS,
    ALL_ALERTS,
    DEFAULT_KINDS,
    OWN_SERVICES,
    SUBJECT_KINDS,
    Follow,
    Mode,
    Recipient,
    is_webhook,
)
from ingestion_pipeline.sources.source import SERIES_ID
from ingestion_pipeline.urls import checked_url

LANGUAGE_LENGTH = 20  # the width of the column
_MAIL = re.compile(r"mailto:[^@\s?&,;/<>\"]+@[A-Za-z0-9.-]+\.?[A-Za-z0-9]")
_LANGUAGE = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*")
_SECRET_PREFIX = "whsec_"  # noqa: S105 - what every such secret begins with
_SECRET_BYTES = range(24, 65)  # by the Standard Webhooks convention


def _id(value: object) -> str:
    if isinstance(value, str) and SERIES_ID.fullmatch(value):
        return value
    raise ValueError(f"{quoted(value)} is no id: use a-z 0-9 : . _ - (at most 120)")


def _address(value: object) -> str:
    """Return the address; its scheme selects the channel."""
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {type(value).__name__}")  # noqa: TRY004 - pydantic's kind of error
    if value == OWN_SERVICES or _MAIL.fullmatch(value):
        return value
    if is_webhook(value):
        checked_url(value)
        return value
    raise ValueError(
        f"{value.partition(':')[0][:20]!r} leads to no recipient; write https://... (a signed webhook),"
        " mailto:name@host, or notify: for the services that INGESTION_NOTIFY_URLS names; other services belong there"
    )


def _language(value: object) -> str:
    text = value.lower() if isinstance(value, str) else ""
    if len(text) > LANGUAGE_LENGTH or not _LANGUAGE.fullmatch(text):
        raise ValueError(f"{quoted(value)} is no language; write en, pt-br, ...")
    return text


def _kinds(value: object) -> tuple[str, ...]:
    """Return each kind once, with `alerts` expanded."""
    kinds = cast("list[str]", value) if isinstance(value, list | tuple) else []
    if not kinds or not all(kind in (*SUBJECT_KINDS, ALL_ALERTS) for kind in kinds):
        message = f"must be a list of: {', '.join(SUBJECT_KINDS)}; {ALL_ALERTS} is the last {len(ALERTS)}"
        raise ValueError(message)
    named = [name for kind in kinds for name in (ALERTS if kind == ALL_ALERTS else (kind,))]
    return tuple(dict.fromkeys(named))


def _as_mapping(value: object) -> object:
    return {"series": value} if isinstance(value, str) else value


_Id = Annotated[str, BeforeValidator(_id)]
_Mode = Annotated[Mode, expect(f"{{value}} is no mode; there are: {', '.join(Mode)}")]
Language = Annotated[str, BeforeValidator(_language)]


class FollowEntry(FileModel):
    """An entry under `follows:`: the id of a series, alone or with its own mode and language."""

    series: _Id
    mode: _Mode | None = None
    language: Language | None = None


def _each_once(follows: tuple[FollowEntry, ...]) -> tuple[FollowEntry, ...]:
    names = [follow.series for follow in follows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError("; ".join(f"{name!r} is listed twice" for name in twice))
    return follows


def _listed(value: object) -> object:
    if isinstance(value, list | tuple):
        return cast("object", value)
    raise ValueError("must be a list of series ids")


_Follow = Annotated[FollowEntry, BeforeValidator(_as_mapping, json_schema_input_type=str | FollowEntry)]


class RecipientEntry(FileModel):
    """An entry under `recipients:`."""

    id: _Id
    address: Annotated[str, BeforeValidator(_address)]
    mode: _Mode = Mode.IMMEDIATE
    language: Language | None = None
    kinds: Annotated[tuple[str, ...], BeforeValidator(_kinds)] = DEFAULT_KINDS
    follows: Annotated[tuple[_Follow, ...], BeforeValidator(_listed), AfterValidator(_each_once)] = ()


def recipient_of(raw: Mapping[str, Any]) -> tuple[Recipient | None, list[BadField]]:
    """Return the recipient, or None and everything that is wrong with it."""
    entry, bad = validated(RecipientEntry, raw)
    if entry is None:
        return None, bad
    stated: dict[str, Any] = dict(entry)
    stated["follows"] = tuple(Follow(**dict(follow)) for follow in entry.follows)
    return Recipient(**stated), []


def bad_language(language: str | None) -> list[BadField]:
    """Return what is wrong with a language; None is accepted, and means any."""
    try:
        TypeAdapter(Language | None).validate_python(language)
    except ValidationError as error:
        return [BadField("language", str(error.errors()[0].get("ctx", {})["error"]))]
    return []


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
