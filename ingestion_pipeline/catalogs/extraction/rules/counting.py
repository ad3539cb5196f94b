"""Read how many records a page announces, and find the evidence of each in its own part of the page."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.record import CandidateRecord, Prover
from ingestion_pipeline.reading.evidence.grounding import ABSENT, BY_SOURCE, Evidence, Grounding, Value
from ingestion_pipeline.reading.html.links import following_pages
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.fingerprint import QuickCheck, folded

EXACT_UP_TO = 5
TOLERANCE = 0.1
MOST_ANNOUNCED = 100_000
_NUMBER = r"([0-9]{1,3}(?:[,.][0-9]{3})+|[0-9]{1,6})"
# "Showing 1-20 of 42 courses": on this page there are 20.
_SHOWN_RANGE = re.compile(
    r"\b(?:showing|displaying|results?|records?)\s+([0-9]{1,6})\s*(?:-|\u2013|\u2014|to)\s*([0-9]{1,6})"
    r"(?:\s+(?:of|from)\b|\s|$)",
    re.IGNORECASE,
)
_MAY_SHOW_RANGE = QuickCheck(r"(?:showing|displaying|results?|records?)[^a-z0-9]+[0-9]")


def is_expected_count(count: int, expected: int) -> bool:
    """Return whether the count is as expected: exactly if they are few, else nearly."""
    if expected <= EXACT_UP_TO:
        return count == expected
    return abs(count - expected) <= expected * TOLERANCE


def announced_count(kind: EntityType, text: str, html: str | None = None, url: str | None = None) -> int | None:
    """Return how many records the page says it has; None if it does not, or is ambiguous.

    None as well where the page links to more of the list: the number is that of the whole list.
    """
    if _MAY_SHOW_RANGE.sees(text):
        ranges = {(int(match[1]), int(match[2])) for match in _SHOWN_RANGE.finditer(text)}
        if len(ranges) == 1:
            first, last = ranges.pop()
            return last - first + 1 if 0 < first <= last else None
    number = _stated_count(kind.announced_as, text)
    if number is None or (html is not None and any(following_pages(parse_html(html), url))):
        return None
    return number


def _stated_count(words: tuple[str, ...], text: str) -> int | None:
    """Return the one number before one of the words; None if there are several."""
    if not words:
        return None
    quick_check, pattern = _count_patterns(words)
    if not quick_check.sees(text):
        return None
    numbers = {int(re.sub(r"[,.]", "", match[1])) for match in pattern.finditer(text)}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if number and number <= MOST_ANNOUNCED else None


@cache
def _count_patterns(words: tuple[str, ...]) -> tuple[QuickCheck, re.Pattern[str]]:
    either = "|".join(re.escape(folded(word)) for word in words)
    any_word = "|".join(re.escape(word) for word in words)
    return QuickCheck(rf"[0-9][^a-z0-9]+(?:{either})"), re.compile(
        rf"(?:^|[^\w.,-]){_NUMBER}\s+(?:{any_word})\b"
        r"(?!\s+(?:from|in each|per|required|must|at|of))",
        re.IGNORECASE | re.MULTILINE,
    )


MIN_SHOWN_WORDS = 60  # a page with fewer is a shell whose content a script loads
NEAR_CHARACTERS = 200  # between a course's code and its title; credits may be there


class RecordEvidence:
    """Evidence of a text for one record: first in its own span, then in a wider part of the text.

    With `only_own_numbers` a number is proved by the record's span alone: another record may have
    the same one. Spans of evidence are those of the whole text.
    """

    def __init__(
        self,
        text: str,
        span: tuple[int, int],
        wider: Evidence,
        *,
        wider_start: int = 0,
        only_own_numbers: bool = False,
    ) -> None:
        self._own, self._own_start = Evidence(text[slice(*span)]), span[0]
        self._wider, self._wider_start = wider, wider_start
        self._only_own_numbers = only_own_numbers

    def ground(self, value: Value) -> Grounding:
        """Return the evidence of the value, in the record's span if there is any."""
        near = self._own.ground(value)
        if near.is_proof or (self._only_own_numbers and not isinstance(value, str)):
            return shifted(near, self._own_start)
        return shifted(self._wider.ground(value), self._wider_start)


class EmbeddedEvidence:
    """Evidence of a page's visible text for its embedded data.

    A record whose name the page shows is trusted; an invisible one is not, unless the page shows
    nothing at all and is rendered by scripts.
    """

    def __init__(self, page: Evidence, *, is_trusted: bool) -> None:
        self._page = page
        self._otherwise = BY_SOURCE if is_trusted else ABSENT

    def ground(self, value: Value) -> Grounding:
        """Return the evidence of the value on the page, else whether the source is trusted."""
        grounding = self._page.ground(value)
        return grounding if grounding.is_proof else self._otherwise


def embedded_evidence(kind: EntityType, candidates: Sequence[CandidateRecord], text: str) -> list[Prover]:
    """Return the evidence of each record of embedded data."""
    page = Evidence(text)
    is_shell = len(text.split()) < MIN_SHOWN_WORDS
    return [
        EmbeddedEvidence(page, is_trusted=is_shell or page.ground(candidate.fields.get(kind.name_field)).is_proof)
        for candidate in candidates
    ]


def placed_evidence(kind: EntityType, candidates: Sequence[CandidateRecord], text: str) -> list[Prover]:
    """Return the evidence of each record, in page order: from its first line to the next one's."""
    page = Evidence(text)
    spans = spans_between(_starts(kind, candidates, text), len(text))
    return [page if span is None else RecordEvidence(text, span, page) for span in spans]


def record_sections(
    kind: EntityType, candidates: Sequence[CandidateRecord], text: str, part: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return each record's span in a part of the text: up to the next, or the whole part."""
    starts = _starts(kind, candidates, text[slice(*part)])
    spans = spans_between([None if start is None else part[0] + start for start in starts], part[1])
    return [span or part for span in spans]


def spans_between(starts: Sequence[int | None], end: int) -> list[tuple[int, int] | None]:
    """Return the span from each start to the next greater one; None where the start is unknown."""
    spans: list[tuple[int, int] | None] = []
    for place, start in enumerate(starts):
        if start is None:
            spans.append(None)
        else:
            later = (other for other in starts[place + 1 :] if other is not None and other > start)
            spans.append((start, next(later, end)))
    return spans


def shifted(grounding: Grounding, offset: int) -> Grounding:
    """Return the evidence with its span moved by the offset of the text in which it was found."""
    if grounding.start is None or grounding.end is None:
        return grounding
    return replace(grounding, start=grounding.start + offset, end=grounding.end + offset)


def _starts(kind: EntityType, candidates: Sequence[CandidateRecord], text: str) -> list[int | None]:
    starts: list[int | None] = []
    after = 0
    for candidate in candidates:
        start = _first_line(kind, candidate, text, after)
        starts.append(start)
        after = after if start is None else start + 1
    return starts


def _first_line(kind: EntityType, candidate: CandidateRecord, text: str, after: int) -> int | None:
    """Return where the record begins: at its code or its name, if both are close together."""
    name = str(candidate.fields.get(kind.name_field))
    code = str(candidate.fields.get(kind.key_fields[0]) or name)
    start = text.find(code, after)
    while start >= 0:
        if name in text[start : start + len(code) + NEAR_CHARACTERS + len(name)]:
            return start
        before = text.rfind(name, max(after, start - NEAR_CHARACTERS - len(name)), start)
        if before >= 0:
            return before
        start = text.find(code, start + 1)
    return None
