"""Where on a page each record stands, so that its own words prove it and not its neighbour's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.record import Prover, RecordField
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
        return _shifted(near, self._start) if near.is_proof else self._page.ground(value)


class SectionEvidence:
    """A part of a page that a model read, asked for what it says of one record.

    A number is proved by the record's own section alone: another record has the same ones. Spans
    are those of the whole page.
    """

    def __init__(self, text: str, span: tuple[int, int], part: tuple[int, int]) -> None:
        self._own, self._part = Evidence(text[slice(*span)]), Evidence(text[slice(*part)])
        self._starts = span[0], part[0]

    def ground(self, value: Value) -> Grounding:
        """What proves the value in the section, or words anywhere in the part."""
        near = self._own.ground(value)
        if near.is_proof or not isinstance(value, str):
            return _shifted(near, self._starts[0])
        return _shifted(self._part.ground(value), self._starts[1])


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


def embedded(kind: EntityType, found: Sequence[RecordField], text: str) -> list[Prover]:
    """The evidence for records that the page states for machines."""
    page = Evidence(text)
    is_shell = len(text.split()) < LEAST_SHOWN_WORDS
    name = kind.name_field
    return [
        EmbeddedEvidence(page, is_believed=is_shell or page.ground(one.fields.get(name)).is_proof)
        for one in found
    ]


def placed(kind: EntityType, found: Sequence[RecordField], text: str) -> list[Prover]:
    """The evidence for each record, in page order: from its first line to the next one's."""
    page = Evidence(text)
    starts = _starts(kind, found, text)
    evidence: list[Prover] = []
    for place, start in enumerate(starts):
        if start is None:
            evidence.append(page)
            continue
        end = next((later for later in starts[place + 1 :] if later is not None), len(text))
        evidence.append(PlacedEvidence(page, text, start, end))
    return evidence


def sections(
    kind: EntityType, found: Sequence[RecordField], text: str, part: tuple[int, int]
) -> list[tuple[int, int]]:
    """Where in a part of the text each record stands: up to the next, or the whole part."""
    starts = _starts(kind, found, text[slice(*part)])
    spans: list[tuple[int, int]] = []
    for place, start in enumerate(starts):
        if start is None:
            spans.append(part)
            continue
        later = (one for one in starts[place + 1 :] if one is not None)
        end = next(later, part[1] - part[0])
        spans.append((part[0] + start, part[0] + end))
    return spans


def _shifted(found: Grounding, start: int) -> Grounding:
    if found.start is None or found.end is None:
        return found
    return replace(found, start=found.start + start, end=found.end + start)


def _starts(kind: EntityType, found: Sequence[RecordField], text: str) -> list[int | None]:
    starts: list[int | None] = []
    after = 0
    for one in found:
        start = _first_line(kind, one, text, after)
        starts.append(start)
        after = after if start is None else start + 1
    return starts


def _first_line(kind: EntityType, found: RecordField, text: str, after: int) -> int | None:
    """Where the record begins: at its code with its name close by, whichever comes first."""
    name = str(found.fields.get(kind.name_field))
    code = str(found.fields.get(kind.key_fields[0]) or name)
    start = text.find(code, after)
    while start >= 0:
        if name in text[start : start + len(code) + NEAR_CHARACTERS + len(name)]:
            return start
        before = text.rfind(name, max(after, start - NEAR_CHARACTERS - len(name)), start)
        if before >= 0:
            return before
        start = text.find(code, start + 1)
    return None
