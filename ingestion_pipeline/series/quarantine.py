"""When a listing is too strange to be believed: the last good data stays. Pure."""

from __future__ import annotations

from ingestion_pipeline.settings import Ingest


def reason_to_quarantine(
    *, listed: int, known: int, vanished: int, accepts_drop: bool, limits: Ingest
) -> str | None:
    """Why a listing is not believed; an operator's word that it is right overrules it."""
    if accepts_drop or known == 0:
        return None
    if listed == 0:
        return f"lists nothing, {known} chapters are known"
    if vanished >= limits.drop_floor and vanished > known * limits.drop_share:
        return f"{vanished} of {known} known chapters are missing from it"
    return None
