"""Validate a declared source: from a mapping (YAML, CLI, Launchpad) to a `Definition`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ingestion_pipeline.sources.platforms import DEFAULTS, READERS, recognize_platform
from ingestion_pipeline.sources.source import SERIES_ID, SOURCE_ID, Definition, Kind, Tier
from ingestion_pipeline.urls import BadUrl, checked_url, secret_parameter, without_credentials

KEYS = ("id", "kind", "url", "name", "platform", "tier", "config", "enabled", "series", "company")
TIERS = ("hot", "warm", "cold", "auto")
_TEXTS = ("id", "kind", "url", "name", "platform", "tier", "series", "company")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # no database stores NUL or half a character


@dataclass(frozen=True, slots=True)
class BadField:
    """One field that is not accepted, with the message for people."""

    field: str
    message: str


def definition_of(raw: Mapping[str, Any]) -> tuple[Definition | None, list[BadField]]:
    """Return the definition, or None and everything that is wrong with it.

    The URL of a website may be given without a scheme.
    """
    raw = _with_scheme(raw)
    bad = [BadField(str(key), f"unknown key; there are: {', '.join(KEYS)}") for key in raw if key not in KEYS]
    bad += [BadField(key, "is missing") for key in ("id", "kind", "url") if raw.get(key) is None]
    bad += _bad_texts(raw)
    unfit = {problem.field for problem in bad}
    texts = {key: raw[key] for key in _TEXTS if raw.get(key) is not None and key not in unfit}
    bad += [*_bad_id(texts), *_bad_url(texts), *_bad_choices(texts), *_bad_names(texts)]
    bad += [*_bad_enabled(raw), *_bad_config(raw)]
    if "platform" not in unfit:
        bad += _bad_platform(texts, bad)
    return (None, bad) if bad else (_definition(raw), [])


def _with_scheme(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    url: object = raw.get("url")
    if raw.get("kind") != Kind.WEBSITE.value or not isinstance(url, str) or "://" in url:
        return raw
    return {**raw, "url": f"https://{url.strip().lstrip('/')}"}


def _definition(raw: Mapping[str, Any]) -> Definition:
    kind = Kind(raw["kind"])
    tier = raw.get("tier") or "auto"
    return Definition(
        id=raw["id"],
        kind=kind,
        url=checked_url(raw["url"]),
        name=raw.get("name"),
        platform=raw.get("platform") or _recognized(kind, raw["url"]),
        tier=None if tier == "auto" else Tier(tier),
        config=dict(raw.get("config") or {}),
        enabled=raw.get("enabled", True),
        series=raw.get("series") or (raw["id"].split(":", 1)[1] if kind is Kind.SERIES else None),
        company=raw.get("company"),
    )


def _bad_texts(raw: Mapping[str, Any]) -> list[BadField]:
    texts = [(key, raw[key]) for key in _TEXTS if raw.get(key) is not None]
    return [
        BadField(key, f"must be text, not {type(value).__name__}")
        if not isinstance(value, str)
        else BadField(key, "holds NUL or half a character, which no database keeps; remove it")
        for key, value in texts
        if not isinstance(value, str) or _UNSTORABLE.search(value)
    ]


def _bad_id(texts: Mapping[str, str]) -> list[BadField]:
    if "id" not in texts:
        return []
    source_id, kind = texts["id"], texts.get("kind")
    match = SOURCE_ID.fullmatch(source_id)
    if not match:
        message = f"{source_id[:130]!r} is no id: write kind:name with a-z 0-9 : . _ - (at most 120)"
        return [BadField("id", message)]
    if kind in list(Kind) and match["kind"] != kind:
        return [BadField("id", f"{source_id!r} must begin with its kind, {kind}:")]
    return []


def _bad_url(texts: Mapping[str, str]) -> list[BadField]:
    if (url := texts.get("url")) is None:
        return []
    try:
        checked_url(url)
    except BadUrl as error:
        return [BadField("url", str(error))]
    return _bad_parameter(url)


def _bad_parameter(url: str) -> list[BadField]:
    if (name := secret_parameter(url)) is None:
        return []
    message = (
        f"URL {without_credentials(url)!r} has a secret, {name}, which would be stored and shown;"
        " take it out. Where a platform reads `auth`, put it into a variable and write"
        f" auth: {{place: query, name: {name}, env: VARIABLE}} into config"
    )
    return [BadField("url", message)]


def _bad_choices(texts: Mapping[str, str]) -> list[BadField]:
    choices: dict[str, Sequence[str]] = {"kind": list(Kind), "tier": TIERS}
    return [
        BadField(key, f"{texts[key][:130]!r} is no {key}; there are: {', '.join(choice)}")
        for key, choice in choices.items()
        if key in texts and texts[key] not in choice
    ]


def _bad_names(texts: Mapping[str, str]) -> list[BadField]:
    message = "is no {} id: use a-z 0-9 : . _ - (at most 120)"
    return [
        BadField(key, f"{texts[key][:130]!r} {message.format(key)}")
        for key in ("series", "company")
        if key in texts and not SERIES_ID.fullmatch(texts[key])
    ]


def _bad_enabled(raw: Mapping[str, Any]) -> list[BadField]:
    if isinstance(raw.get("enabled", True), bool):
        return []
    return [BadField("enabled", f"must be true or false, not {str(raw['enabled'])[:130]!r}")]


def _bad_config(raw: Mapping[str, Any]) -> list[BadField]:
    config: object = raw.get("config")
    if config is None:
        return []
    if not isinstance(config, Mapping):
        return [BadField("config", f"must be a mapping, not {type(config).__name__}")]
    plain = dict(cast("Mapping[str, object]", config))
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return [BadField("config", f"must be plain data (text, numbers, lists, mappings): {error}")]
    keys, texts = _texts_of(plain)
    if any(not isinstance(key, str) for key in keys):
        return [BadField("config", "its keys must be text; write them in quotes")]
    if any(_UNSTORABLE.search(text) for text in [*map(str, keys), *texts]):
        return [BadField("config", "holds NUL or half a character, which no database keeps")]
    return []


def _texts_of(config: object) -> tuple[list[object], list[str]]:
    """Return every key and every text in it, at whatever depth."""
    keys: list[object] = []
    texts: list[str] = []
    left = [config]
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            mapping = cast("dict[object, object]", value)
            keys += mapping
            left += mapping.values()
        elif isinstance(value, list | tuple):
            left += cast("Sequence[object]", value)
    return keys, texts


def _bad_platform(texts: Mapping[str, str], bad: Sequence[BadField]) -> list[BadField]:
    """Return the platform's problem; nothing if a bad kind or URL leaves the platform open."""
    platform, wrong = texts.get("platform"), {problem.field for problem in bad}
    if "kind" in wrong or (not platform and "url" in wrong):
        return []
    kind = Kind(texts["kind"])
    platforms = READERS.get(kind, ())
    if (platform or _recognized(kind, texts["url"])) in platforms:
        return []
    there_are = f"for {kind} there are: {', '.join(platforms) or 'none yet'}"
    if not platform:
        message = f"is missing and the URL does not show it; {there_are}"
        return [BadField("platform", message)]
    return [BadField("platform", f"{platform[:130]!r} is no platform; {there_are}")]


def _recognized(kind: Kind, url: str) -> str | None:
    recognized = recognize_platform(url)
    if recognized and recognized.name in READERS.get(kind, ()):
        return recognized.name
    return DEFAULTS.get(kind)
