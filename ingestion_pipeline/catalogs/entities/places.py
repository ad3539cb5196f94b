"""Where on a page each record stands, so that its own words prove it and not its neighbour's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingestion_pipeline.catalogs.entities.record import Found, Prover
from ingestion_pipeline.reading.grounding import Evidence, Grounding, Value

NEAR_CHARACTERS = 200  # between a course's code and its title; credits may stand there


class PlacedEvidence:
    """A page's text, asked first where the record stands."""

    def __init__(self, page: Evidence, text: str, start: int, end: int) -> None:
        self._page = page
        self._near = Evidence(text[start:end])
        self._start = start

    def ground(self, value: Value) -> Grounding:
        """What proves the value, near the record if anything does."""
        near = self._near.ground(value)
        if near.start is None or near.end is None:
            return self._page.ground(value)
        return replace(near, start=near.start + self._start, end=near.end + self._start)


def placed(found: Sequence[Found], text: str) -> list[Prover]:
    """The evidence for each record, in page order: from its first line to the next one's."""
    page = Evidence(text)
    starts = _starts(found, text)
    evidence: list[Prover] = []
    for place, start in enumerate(starts):
        if start is None:
            evidence.append(page)
            continue
        end = next((later for later in starts[place + 1 :] if later is not None), len(text))
        evidence.append(PlacedEvidence(page, text, start, end))
    return evidence


def _starts(found: Sequence[Found], text: str) -> list[int | None]:
    starts: list[int | None] = []
    after = 0
    for one in found:
        start = _first_line(one, text, after)
        starts.append(start)
        after = after if start is None else start + 1
    return starts


def _first_line(found: Found, text: str, after: int) -> int | None:
    """Where the record's code stands, with its name close by."""
    code, name = str(found.fields.get("course_id")), str(found.fields.get("course_name"))
    start = text.find(code, after)
    while start >= 0:
        if name in text[start : start + len(code) + NEAR_CHARACTERS + len(name)]:
            return start
        start = text.find(code, start + 1)
    return None
