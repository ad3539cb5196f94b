"""When a board's listing is too strange to be believed: the last good data stays. Pure."""

from __future__ import annotations

from collections.abc import Collection

from ingestion_pipeline.companies.boards.posting import WATCHED_FIELDS
from ingestion_pipeline.settings.jobs import Boards


def reason_to_quarantine(
    *,
    listed: int,
    known: int,
    vanished: int,
    stated: Collection[tuple[str, str]],
    accepts_drop: bool,
    limits: Boards,
) -> str | None:
    """Why a listing is not believed; an operator's word that it is right overrules it.

    `stated` has, for each posting that was known, the letters of its fields before and now.
    """
    if accepts_drop or known == 0:
        return None
    if listed == 0:
        return f"lists nothing, {known} jobs are known"
    if vanished >= limits.drop_floor and vanished > known * limits.drop_share:
        return f"{vanished} of {known} known jobs are missing from it"
    return _lost_field(stated, limits)


def _lost_field(stated: Collection[tuple[str, str]], limits: Boards) -> str | None:
    """A field that most postings had and have no more: it has another name now, or is gone."""
    for letter, name in WATCHED_FIELDS.items():
        had = [now for before, now in stated if letter in before]
        lost = sum(letter not in now for now in had)
        if lost and lost > len(had) * limits.lost_field_share:
            return f"{lost} of {len(had)} known jobs have lost their {name}"
    return None
