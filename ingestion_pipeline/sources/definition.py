"""A declared source, checked: from a mapping (YAML, CLI, Launchpad) to a type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ingestion_pipeline.sources.platforms import READERS, recognize_platform
from ingestion_pipeline.sources.source import SERIES_ID, SOURCE_ID, Definition, Kind, Tier
from ingestion_pipeline.urls import BadUrl, checked_url

KEYS = ("id", "kind", "url", "name", "platform", "tier", "config", "enabled", "series", "company")
TIERS = ("hot", "warm", "cold", "auto")


@dataclass(frozen=True, slots=True)
class BadField:
    """One field that is not accepted, and what is."""

    field: str
    message: str


def definition_of(raw: Mapping[str, Any]) -> tuple[Definition | None, list[BadField]]:
    """The definition, or None and everything that is wrong with it."""
    bad = [
        BadField(str(key), f"unknown key; there are: {', '.join(KEYS)}")
        for key in raw
        if key not in KEYS
    ]
    bad += [BadField(key, "is missing") for key in ("id", "kind", "url") if raw.get(key) is None]
    bad += _bad_texts(raw)
    if bad:
        return None, bad
    bad = [*_bad_id(raw), *_bad_url(raw), *_bad_choices(raw), *_bad_config(raw)]
    if bad:
        return None, bad
    kind = Kind(raw["kind"])
    platform = raw.get("platform") or _recognized(kind, raw["url"])
    bad = _bad_platform(kind, platform)
    return (None, bad) if bad else (_definition(raw, kind, platform), [])


def _definition(raw: Mapping[str, Any], kind: Kind, platform: str | None) -> Definition:
    tier = raw.get("tier") or "auto"
    return Definition(
        id=raw["id"],
        kind=kind,
        url=checked_url(raw["url"]),
        name=raw.get("name"),
        platform=platform,
        tier=None if tier == "auto" else Tier(tier),
        config=dict(raw.get("config") or {}),
        enabled=raw.get("enabled", True),
        series=raw.get("series") or (raw["id"].split(":", 1)[1] if kind is Kind.SERIES else None),
        company=raw.get("company"),
    )


def _bad_texts(raw: Mapping[str, Any]) -> list[BadField]:
    texts = ("id", "kind", "url", "name", "platform", "tier", "series", "company")
    return [
        BadField(key, f"must be text, not {type(raw[key]).__name__}")
        for key in texts
        if raw.get(key) is not None and not isinstance(raw[key], str)
    ]


def _bad_id(raw: Mapping[str, Any]) -> list[BadField]:
    found = SOURCE_ID.fullmatch(raw["id"])
    if not found:
        said = f"{raw['id'][:130]!r} is no id: write kind:name with a-z 0-9 : . _ - (at most 120)"
        return [BadField("id", said)]
    if raw["kind"] in list(Kind) and found["kind"] != raw["kind"]:
        return [BadField("id", f"{raw['id']!r} must begin with its kind, {raw['kind']}:")]
    return []


def _bad_url(raw: Mapping[str, Any]) -> list[BadField]:
    try:
        checked_url(raw["url"])
    except BadUrl as error:
        return [BadField("url", str(error))]
    return []


def _bad_choices(raw: Mapping[str, Any]) -> list[BadField]:
    bad: list[BadField] = []
    if raw["kind"] not in list(Kind):
        bad.append(BadField("kind", f"{raw['kind']!r} is no kind; there are: {', '.join(Kind)}"))
    if raw.get("tier") is not None and raw["tier"] not in TIERS:
        bad.append(BadField("tier", f"{raw['tier']!r} is no tier; there are: {', '.join(TIERS)}"))
    if not isinstance(raw.get("enabled", True), bool):
        bad.append(BadField("enabled", f"must be true or false, not {raw['enabled']!r}"))
    if raw.get("series") is not None and not SERIES_ID.fullmatch(raw["series"]):
        said = f"{raw['series']!r} is no series id: use a-z 0-9 : . _ - (at most 120)"
        bad.append(BadField("series", said))
    return bad


def _bad_config(raw: Mapping[str, Any]) -> list[BadField]:
    config: object = raw.get("config")
    if config is None:
        return []
    if not isinstance(config, Mapping):
        return [BadField("config", f"must be a mapping, not {type(config).__name__}")]
    try:
        json.dumps(dict(cast("Mapping[str, object]", config)), allow_nan=False)
    except (TypeError, ValueError) as error:
        return [BadField("config", f"must be plain data (text, numbers, lists, mappings): {error}")]
    return []


def _bad_platform(kind: Kind, platform: str | None) -> list[BadField]:
    readers = READERS.get(kind, ())
    if platform in readers:
        return []
    there_are = f"for {kind} there are: {', '.join(readers) or 'none yet'}"
    if platform is None:
        said = f"is missing and the URL does not tell it; {there_are}"
        return [BadField("platform", said)]
    return [BadField("platform", f"{platform!r} is no platform; {there_are}")]


def _recognized(kind: Kind, url: str) -> str | None:
    found = recognize_platform(url)
    return found.name if found and found.name in READERS.get(kind, ()) else None
