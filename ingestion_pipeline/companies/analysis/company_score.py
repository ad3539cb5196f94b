"""Company size, completeness, score and tier. Pure functions; numbers come from the settings.

What is not stated is null with a flag, and neither adds nor removes points.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ingestion_pipeline.companies.company_states import Completeness
from ingestion_pipeline.companies.technologies import MACHINE_LEARNING, canonical_name
from ingestion_pipeline.settings.systems import Company

TECH_CAP = 100  # points that technologies come to at most
REMOTE_BONUS = 15
MACHINE_LEARNING_BONUS = 10
TIER_FLOORS = {"S": 150, "A": 100, "B": 70, "C": 50}  # points; fewer are tier D
# A company's texts must be longer, in characters.
ABOUT_MINIMAL, CULTURE_MINIMAL = 50, 25
ABOUT_GOOD, CULTURE_GOOD = 100, 50
LARGE_EMPLOYEES = 10_000
SMALL_EMPLOYEES = 100  # below this it is small
POINTS_PER_RANK = 5  # skills are ranked 1 to 10: two of rank 10 reach the cap
MAX_EMPLOYEES = 10_000_000  # a larger number is not a head count


@dataclass(frozen=True, slots=True, kw_only=True)
class Employees:
    """A head count range; `high` is None where only "more than" is stated."""

    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The points, their parts, and the resulting tier."""

    points: int
    parts: Mapping[str, int]
    tier: str


def completeness(*, name: str | None, website: str | None, about: str | None, culture: str | None) -> Completeness:
    """Return the level: texts must be longer than the thresholds."""
    about_length, culture_length = len(about or ""), len(culture or "")
    if not (name and website):
        return Completeness.THIN
    if about_length > ABOUT_GOOD and culture_length > CULTURE_GOOD:
        return Completeness.GOOD
    is_minimal = about_length > ABOUT_MINIMAL or culture_length > CULTURE_MINIMAL
    return Completeness.MINIMAL if is_minimal else Completeness.THIN


def size_category(employees: Employees | None) -> str | None:
    """Return large, medium or small; None if the head count is unknown."""
    if employees is None:
        return None
    if employees.low >= LARGE_EMPLOYEES:
        return "large"
    most = employees.low if employees.high is None else employees.high
    return "small" if most < SMALL_EMPLOYEES else "medium"


_SEPARATED = r"[0-9]{1,3}(?:[.,'\u2019\u00a0\u202f ][0-9]{3})+(?![0-9])"
_RANGE = re.compile(
    rf"(?P<low>{_SEPARATED}|[0-9]+)\s?(?P<low_k>[kK]\b)?\s*"
    rf"(?:(?P<to>-|\u2013|\u2014|to|bis)\s*(?P<high>{_SEPARATED}|[0-9]+)\s?(?P<high_k>[kK]\b)?"
    r"|(?P<more>\+))?"
)
_FEWER = re.compile(r"\b(?:under|up to|fewer than|less than|unter|bis zu)\s*$", re.IGNORECASE)


def employees_in(stated: str | None) -> Employees | None:
    """Parse a phrase such as "51-200 employees" or "10,000+"; None if it has no head count."""
    match = _RANGE.search(stated or "")
    if stated is None or match is None:
        return None
    low = _whole(match["low"], match["low_k"] or (match["high_k"] if match["to"] else None))
    high = _whole(match["high"], match["high_k"]) if match["high"] else None
    if match["more"] is None and high is None:
        high = low
    if _FEWER.search(stated[: match.start()]):
        low = 1
    if not 0 < low <= MAX_EMPLOYEES or (high is not None and not low <= high <= MAX_EMPLOYEES):
        return None
    return Employees(low=low, high=high)


def _whole(digits: str, thousands: str | None) -> int:
    number = int(re.sub("[^0-9]", "", digits)[:12])
    return number * 1_000 if thousands else number


def scoring_hash(ranks: Mapping[str, int], rules: Company) -> str:
    """Return a hash of ranks and rules: equal hashes give a company equal scores."""
    constants = [TECH_CAP, REMOTE_BONUS, MACHINE_LEARNING_BONUS, TIER_FLOORS]
    serialised = json.dumps([sorted(ranks.items()), rules.model_dump(mode="json"), constants], sort_keys=True)
    return sha256(serialised.encode()).hexdigest()


def rank_points(skills: Mapping[str, int]) -> dict[str, int]:
    """Return the points of each skill of a profile, by its rank."""
    return {skill: rank * POINTS_PER_RANK for skill, rank in skills.items()}


def tech_alignment(tech_stack: Mapping[str, Sequence[str]], ranks: Mapping[str, int], *, cap: int) -> int:
    """Return the points of the profile's skills that the company uses, at most `cap`; spellings count once."""
    used = {canonical_name(name) for names in tech_stack.values() for name in names}
    best: dict[str, int] = {}
    for skill, points in ranks.items():
        best[canonical_name(skill)] = max(points, best.get(canonical_name(skill), 0))
    points = sum(points for skill, points in best.items() if skill in used)
    return max(0, min(cap, points))


def score(
    *,
    tech_stack: Mapping[str, Sequence[str]],
    is_remote_first: bool | None,
    places: Iterable[str],
    ranks: Mapping[str, int],
    rules: Company,
) -> Score:
    """Return the points by the settings; only stated facts count."""
    city = re.compile(rf"(?<!\w){re.escape(rules.bonus_city)}(?!\w)", re.IGNORECASE)
    is_there = bool(rules.bonus_city) and any(city.search(place) for place in places)
    parts = {
        "city": rules.portland_bonus if is_there else 0,
        "tech": tech_alignment(tech_stack, ranks, cap=TECH_CAP),
        "remote": REMOTE_BONUS if is_remote_first else 0,
        "machine_learning": MACHINE_LEARNING_BONUS if tech_stack.get(MACHINE_LEARNING) else 0,
    }
    points = sum(parts.values())
    return Score(points=points, parts=parts, tier=tier_of(points))


def tier_of(points: int) -> str:
    """Return the tier: S, A, B, C or D."""
    return next((tier for tier, floor in TIER_FLOORS.items() if points >= floor), "D")
