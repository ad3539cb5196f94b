"""Where a listing is: in the home city or not, and how many hours away by the clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache, lru_cache
from importlib import resources
from typing import Any
from zoneinfo import ZoneInfo

from ingestion_pipeline.companies.matching.terms import Text, find

FILE = "places.yaml"
_DAY_HOURS = 24


def is_home(home_city: str | None, locations: Iterable[str]) -> bool:
    """Whether one of the locations is the home city; "Portland, OR" is not in Maine."""
    if not home_city:
        return False
    city, _, region = (part.strip() for part in home_city.partition(","))
    return any(_is_there(city, region, one) for one in locations)


def _is_there(city: str, region: str, location: str) -> bool:
    found = find(city, Text.of(location))
    if found is None:
        return False
    named = re.match(r"\s*[,(]\s*([^,;()|/]+)", location[found[1] :])
    if named is None or not region:
        return True
    said, wanted = _region(named[1]), _region(region)
    return said == wanted or said not in _states().values()


def _region(name: str) -> str:
    """The state's code, else the name itself; "OR 97201" is OR."""
    plain = " ".join(re.sub("[0-9]+", " ", name).lower().split())
    return _states().get(plain, plain)


def hours_apart(time_zone: str | None, locations: Iterable[str], *, at: datetime) -> float | None:
    """The least hours between the zone and those of the locations; None if none is known."""
    if time_zone is None:
        return None
    mine = at.astimezone(ZoneInfo(time_zone)).utcoffset()
    zones = {zone for one in locations for zone in zones_of(one)}
    if mine is None or not zones:
        return None
    apart = [_apart(mine.total_seconds(), zone, at) for zone in zones]
    return min(apart)


def _apart(mine: float, zone: str, at: datetime) -> float:
    theirs = at.astimezone(ZoneInfo(zone)).utcoffset()
    hours = abs(mine - (theirs.total_seconds() if theirs else 0)) / 3_600
    return min(hours, _DAY_HOURS - hours)


@lru_cache(maxsize=4_096)
def zones_of(location: str) -> frozenset[str]:
    """The time zones of a location by city, else by state, else by country; empty if unknown."""
    text = Text.of(location)
    for kind in ("abbreviations", "cities", "regions", "countries"):
        names: Mapping[str, str] = _known()[kind]
        found = frozenset(zone for name, zone in names.items() if _names(name, text))
        if found:
            return found
    return frozenset()


def _names(name: str, text: Text) -> bool:
    place = find(name.lower(), text)
    if place is None:
        return False
    is_code = name.isupper() and len(name) <= 4  # noqa: PLR2004 - OR is a state, or is a word
    return not is_code or text.text[slice(*place)] == name


@cache
def _known() -> Mapping[str, Any]:
    import yaml

    body = resources.files(__package__ or "").joinpath(FILE).read_text()
    raw: dict[str, Any] = yaml.safe_load(body)
    flat = {
        kind: {name: zone for zone, names in raw[kind].items() for name in names}
        for kind in ("abbreviations", "cities", "regions", "countries")
    }
    return flat | {"states": {name.lower(): code for code, name in raw["states"].items()}}


@cache
def _states() -> Mapping[str, str]:
    """Code in small letters by name, and by itself."""
    codes = {name: code.lower() for name, code in _known()["states"].items()}
    return codes | {code: code for code in codes.values()}
