"""Where on a page each record stands, so that its own words prove it and not its neighbour's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingestion_pipeline.catalogs.entities.record import Found, Prover
from ingestion_pipeline.reading.grounding import ABSENT, BY_SOURCE, Evidence, Grounding, Value

LEAST_SHOWN_WORDS = 60  # a page with fewer is a frame whose content comes by script
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


class EmbeddedEvidence:
    """What a page shows, asked for what it says to machines.

    A record that the page shows by name is believed on its source's word; one that nobody sees is
    not, unless the page shows nothing at all and is drawn by scripts.
    """

    def __init__(self, page: Evidence, *, is_believed: bool) -> None:
        self._page = page
        self._otherwise = BY_SOURCE if is_believed else ABSENT

    def ground(self, value: Value) -> Grounding:
        """What proves the value on the page, else the word of the source."""
        shown = self._page.ground(value)
        return shown if shown.is_proof else self._otherwise


def embedded(found: Sequence[Found], text: str) -> list[Prover]:
    """The evidence for records that the page states for machines."""
    page = Evidence(text)
    is_shell = len(text.split()) < LEAST_SHOWN_WORDS
    return [
        EmbeddedEvidence(
            page, is_believed=is_shell or page.ground(one.fields.get("course_name")).is_proof
        )
        for one in found
    ]


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
