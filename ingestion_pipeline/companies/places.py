"""Places of work as ads write them: town, region and country, in many languages."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache

from ingestion_pipeline.reading.text.plain_text import packaged_data

MAX_CHARACTERS = 500
_TOWN_AND_REST = 2

_FILE = packaged_data("ingestion_pipeline.companies", "countries.yaml")
_CODES = {code.lower(): code for code in _FILE["names"]} | dict(pair.split("=") for pair in _FILE["codes"].split())
_REGION_CODES = {code: country for country, codes in _FILE["regions"].items() for code in codes.split()}
_NO_PLACE = re.compile(rf"(?<!\w)(?:{_FILE['no_place'].replace(' |', '|')})(?!\w)", re.IGNORECASE)
_REMOTE = re.compile(_FILE["is_remote"], re.IGNORECASE)
# Several places are separated by these; the parts of one by the others.
_PLACES = re.compile(r"[;|•·]| / | (?:or|oder|ou|o|lub) ")
_PARTS = re.compile(r"[,()>/\[\]–—→]| - |: ")  # noqa: RUF001
_CODED = re.compile(r"([A-Z]{2})-([A-Z]{2,3})-(.+)")  # US-OH-Springfield
_POSTAL = re.compile(
    r"(?<![\w])(?:[A-Z]{1,2}[0-9][0-9A-Z]?\s?[0-9][A-Z]{2}|[A-Z][0-9][A-Z]\s?[0-9][A-Z][0-9]|(?:[A-Z]{1,2}-)?[0-9]{4,6}(?:-[0-9]{3,4})?(?:\s[A-Z]{2}(?=\s))?|[0-9]{3}\s[0-9]{2})(?![\w])"
)
_STATE_AFTER = re.compile(r"(.{1,80}) ([A-Z]{2})")  # Austin TX
_DETAIL = re.compile(
    r"^(?:greater|metro|area of|raum|großraum|région de|near|city of) "
    r"| (?:area|metropolitan area|metro area|region|und umgebung|office|hq|headquarters)$",
    re.IGNORECASE,
)
_MARKS = " .,:*-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of work; country as ISO code, None for what is not stated."""

    town: str | None = None
    region: str | None = None
    country: str | None = None
    is_remote: bool = False


def places_in(text: str) -> tuple[Place, ...]:
    """Return the places that the text states, in order; one without a town if it states no more."""
    text = " ".join(text[:MAX_CHARACTERS].replace("\n", ";").split())
    is_remote = _REMOTE.search(text) is not None
    places = [
        place
        for part in _PLACES.split(" ".join(_NO_PLACE.sub(" ", text).split()))
        if (place := _place(part, is_remote=is_remote))
    ]
    return tuple(dict.fromkeys(places)) or ((Place(is_remote=True),) if is_remote else ())


def places_as_dicts(*texts: str | None) -> list[dict[str, str | bool]]:
    """Return the places of all texts as plain values, each once, without what they do not state."""
    places = dict.fromkeys(place for text in texts if text for place in places_in(text))
    return [{name: value for name, value in asdict(place).items() if value} for place in places]


def country_of(name: str) -> str | None:
    """Return the ISO code of the country with that name or code, in any of its languages."""
    return _COUNTRIES.get(plain(name)) or (_CODES.get(name.lower()) if name.isupper() else None)


@lru_cache(maxsize=5_000)
def plain(text: str) -> str:
    """Return the text in lower case without marks: Österreich is osterreich."""
    folded = unicodedata.normalize("NFKD", text.casefold().replace("ß", "ss"))
    return unicodedata.normalize("NFC", "".join(sign for sign in folded if not unicodedata.combining(sign))).strip()


_COUNTRIES = {plain(name): code for code, names in _FILE["names"].items() for name in names.split("|")}
_REGIONS = {plain(name): country for country, names in _FILE["named_regions"].items() for name in names.split("|")}


def _place(text: str, *, is_remote: bool) -> Place | None:
    if coded := _CODED.fullmatch(text.strip()):
        return Place(town=coded[3].strip(), region=coded[2], country=_CODES.get(coded[1].lower()), is_remote=is_remote)
    parts = [part for raw in _PARTS.split(_POSTAL.sub(" ", text)) if (part := " ".join(raw.split()).strip(_MARKS))]
    parts = [raw if plain(raw) in _REGIONS else _DETAIL.sub("", raw).strip(_MARKS) for raw in parts]
    parts = list({plain(part): part for part in parts if part}.values())
    if not parts:
        return None
    country, parts = _with_country(parts)
    region, region_country, parts = _with_region(parts, country)
    country = country or region_country
    town = parts[0] if parts else None
    if town is None and region is None and country is None:
        return None
    return Place(town=town, region=region, country=country, is_remote=is_remote)


def _with_country(parts: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the country and the other parts; a code behind a town may be a region's."""
    for position in (len(parts) - 1, 0):
        name = parts[position]
        towns = _FILE["country_codes"].get(name)
        may_be_region = towns is None or plain(parts[0]) in towns.split("|")
        is_region = name in _REGION_CODES and len(parts) == _TOWN_AND_REST and position and may_be_region
        is_city_state = len(parts) == 1 and plain(name) in {"singapore", "hong kong", "luxembourg"}
        if (code := country_of(name)) and not is_region and not is_city_state:
            return code, [part for place, part in enumerate(parts) if place != position]
    if len(parts) == 1 and (code := country_of(parts[0])):
        return code, list(parts)
    return None, list(parts)


def _with_region(parts: Sequence[str], country: str | None) -> tuple[str | None, str | None, list[str]]:
    """Return the region, its country and the other parts; a region is stated behind a town, or in full."""
    state = _STATE_AFTER.fullmatch(parts[0]) if len(parts) == 1 else None
    if state and (owner := _REGION_CODES.get(state[2])) and country in {None, owner}:
        return state[2], owner, [state[1]]
    for position, name in enumerate(parts):
        region_country = _region_country(name, country, is_behind=position > 0)
        if region_country and (position or country or len(parts) > 1 or plain(name) not in {"new york", "washington"}):
            return name, region_country, [part for place, part in enumerate(parts) if place != position]
    if country is not None and len(parts) >= _TOWN_AND_REST:
        return parts[-1], country, list(parts[:-1])
    return None, None, list(parts)


def _region_country(name: str, country: str | None, *, is_behind: bool) -> str | None:
    codes: Mapping[str, str] = _REGION_CODES if is_behind else {}
    in_country = codes.get(name) or _REGIONS.get(plain(name))
    is_town = not is_behind and plain(name) in {"new york", "washington"}
    return in_country if in_country and country in {None, in_country} and not is_town else None
