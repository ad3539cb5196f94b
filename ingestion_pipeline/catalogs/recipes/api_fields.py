"""A recipe's `api` as people write it: which provider's API is read, and what of it."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import cast

from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE, CoursedogApi
from ingestion_pipeline.catalogs.recipes.fields import ConfigFields
from ingestion_pipeline.urls import BadUrl, checked_url

MAX_CATALOGS = 100
_KEYS = ("provider", "school_id", "catalog_ids", "api_base", "effective_from", "effective_until")
_SCHOOL = re.compile(r"[A-Za-z0-9_.-]{1,120}")


class ApiProvider(StrEnum):
    """The providers whose API is known."""

    COURSEDOG = "coursedog"


def api_of(given: ConfigFields | None) -> CoursedogApi | None:
    """What is asked of which API; every problem goes to the fields."""
    if given is None:
        return None
    given.refuse_unknown(_KEYS)
    given.choice("provider", ApiProvider)
    school = given.text("school_id")
    if school is None and not given.has("school_id"):
        given.refuse("school_id", "is missing: the school's id in the API's addresses")
    if school is not None and not _SCHOOL.fullmatch(school):
        given.refuse("school_id", f"{school!r} is no id: letters, digits, _ . and -")
    catalogs = _catalogs(given)
    return CoursedogApi(
        school_id=school or "?",
        catalog_ids=catalogs or ("?",),
        api_base=_base(given),
        effective_from=_day(given, "effective_from"),
        effective_until=_day(given, "effective_until"),
    )


def _catalogs(given: ConfigFields) -> tuple[str, ...]:
    raw = given.value("catalog_ids")
    if raw is None:
        given.refuse("catalog_ids", "is missing: a list of the catalogues' ids")
        return ()
    named = cast("list[object]", raw) if isinstance(raw, list) else []
    ids = [one.strip() for one in named if isinstance(one, str) and one.strip()]
    if len(ids) != len(named) or not 0 < len(ids) <= MAX_CATALOGS:
        given.refuse("catalog_ids", f"must be a list of 1 to {MAX_CATALOGS} ids")
        return ()
    return tuple(dict.fromkeys(ids))


def _base(given: ConfigFields) -> str:
    text = given.text("api_base")
    if text is None:
        return API_BASE
    try:
        return checked_url(text).rstrip("/")
    except BadUrl as error:
        given.refuse("api_base", str(error))
        return API_BASE


def _day(given: ConfigFields, key: str) -> str | None:
    text = given.text(key)
    if text is None:
        return None
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        given.refuse(key, f"{text!r} is no day; write it as 2026-08-31, in quotes")
        return None
