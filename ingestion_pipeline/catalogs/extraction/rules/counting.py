"""How many records a page says it has, and whether as many were found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import Prover, RecordField
from ingestion_pipeline.reading.evidence.grounding import (
    ABSENT,
    BY_SOURCE,
    Evidence,
    Grounding,
    Value,
)
from ingestion_pipeline.reading.html.pagination import following_pages
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.fingerprint import QuickCheck, folded

EXACT_UP_TO = 5
TOLERANCE = 0.1
MOST_ANNOUNCED = 100_000
_NUMBER = r"([0-9]{1,3}(?:[,.][0-9]{3})+|[0-9]{1,6})"
# "Showing 1-20 of 42 courses": on this page there are 20.
_SHOWN = re.compile(
    r"\b(?:showing|displaying|results?|records?)\s+([0-9]{1,6})\s*(?:-|\u2013|\u2014|to)\s*([0-9]{1,6})"
    r"(?:\s+(?:of|from)\b|\s|$)",
    re.IGNORECASE,
)
_MAY_SHOW = QuickCheck(r"(?:showing|displaying|results?|records?)[^a-z0-9]+[0-9]")


def is_count(found: int, expected: int) -> bool:
    """Whether so many are as many as expected: exactly if they are few, else nearly."""
    if expected <= EXACT_UP_TO:
        return found == expected
    return abs(found - expected) <= expected * TOLERANCE


def announced_count(
    kind: EntityType, text: str, html: str | None = None, url: str | None = None
) -> int | None:
    """How many records the page says that it holds; None if it does not, or tells several numbers.

    Where the page links to more of the list, the number is that of the whole list.
    """
    if _MAY_SHOW.sees(text):
        shown = {(int(one[1]), int(one[2])) for one in _SHOWN.finditer(text)}
        if len(shown) == 1:
            first, last = shown.pop()
            return last - first + 1 if 0 < first <= last else None
    number = _stated_count(kind.announced_as, text)
    if number is None or (html is not None and any(following_pages(parse_html(html), url))):
        return None
    return number


def _stated_count(words: tuple[str, ...], text: str) -> int | None:
    """The one number that stands before one of the words; None if there are several."""
    if not words:
        return None
    may_say, said = _saying(words)
    if not may_say.sees(text):
        return None
    numbers = {int(re.sub(r"[,.]", "", one[1])) for one in said.finditer(text)}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if number and number <= MOST_ANNOUNCED else None


@cache
def _saying(words: tuple[str, ...]) -> tuple[QuickCheck, re.Pattern[str]]:
    either = "|".join(re.escape(folded(word)) for word in words)
    any_word = "|".join(re.escape(word) for word in words)
    return QuickCheck(rf"[0-9][^a-z0-9]+(?:{either})"), re.compile(
        rf"(?:^|[^\w.,-]){_NUMBER}\s+(?:{any_word})\b"
        r"(?!\s+(?:from|in each|per|required|must|at|of))",
        re.IGNORECASE | re.MULTILINE,
    )


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
