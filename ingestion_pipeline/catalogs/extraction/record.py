"""Records: their fields and keys, the page they were read from, how many it announces, and the evidence of each.

The evidence of a record is found in its own part of the page.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any, Protocol, assert_never

from ingestion_pipeline.catalogs.extraction.entity_type import (
    DefaultsTo,
    EntityField,
    EntityType,
    Excludes,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.reading.evidence.grounding import ABSENT, BY_SOURCE, Evidence, Grounding, Value
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import following_pages
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import QuickCheck, clean_text, folded
from ingestion_pipeline.tasks.errors import Resource

LEARNED = "learned"  # `reason` of a record found by learned selectors
MAX_PAGE_RECORDS = 20_000  # per page, read in 6 s; more are refused
MAX_TEXT_CHARACTERS = 20_000  # the longest description seen has 6,000

FieldValue = str | Decimal | bool


class Prover(Protocol):
    """Source of evidence for values."""

    def ground(self, value: Value) -> Grounding:
        """Return the evidence for the value."""
        ...


class ExtractionMethod(StrEnum):
    """How a record was extracted, the cheapest method first."""

    API = "api"
    EMBEDDED = "embedded"
    SELECTORS = "selectors"
    LAYOUT = "layout"
    CHEAP_MODEL = "cheap_model"
    STRONG_MODEL = "strong_model"


MODEL_METHODS = frozenset({ExtractionMethod.CHEAP_MODEL.value, ExtractionMethod.STRONG_MODEL.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """Unchecked values of an entity that a rule or model found; `quotes` prove derived fields."""

    fields: Mapping[str, FieldValue | None]
    quotes: Mapping[str, str] = field(default_factory=dict[str, str])
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An entity with evidence for each field that has a value.

    `is_flagged` where a required field is not proved, or where people should review it for another
    reason: then it is stored and not exported. `reason` is why this method was used.
    """

    entity: str
    fields: Mapping[str, FieldValue | None]
    evidence: Mapping[str, Grounding]
    method: ExtractionMethod
    confidence: float
    missing_fields: tuple[str, ...] = ()
    is_flagged: bool = False
    model: str | None = None
    reason: str = ""

    def start_of(self, names: Iterable[str]) -> int | None:
        """Return where on the page the first of these fields begins; None if none is on it."""
        spans = (self.evidence[name].start for name in names if name in self.evidence)
        return next((start for start in spans if start is not None), None)

    def unproved(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of the fields that have a value without proof."""
        return tuple(name for name in names if name in self.evidence and not self.evidence[name].is_proof)

    def as_dict(self) -> dict[str, Any]:
        """Return the record as plain values: every field of the type, then its evidence."""
        return {
            **{name: _json_value(value) for name, value in self.fields.items()},
            "evidence": {
                name: {"status": str(grounding.status), "start": grounding.start, "end": grounding.end}
                for name, grounding in self.evidence.items()
            },
            "extraction_method": str(self.method),
            "confidence": self.confidence,
        }


def record_of(
    kind: EntityType,
    candidate: CandidateRecord,
    *,
    method: ExtractionMethod,
    evidence: Prover | None = None,
    model: str | None = None,
) -> Record:
    """Return the checked record of a candidate, after applying the rules of its type.

    Without a text, the evidence is that the source itself states the values.
    """
    fields = {
        definition.name: _checked(definition, candidate.fields.get(definition.name)) for definition in kind.fields
    }
    _apply_rules(kind, fields)
    proofs: dict[str, Grounding] = {}
    for definition in kind.fields:
        if (value := fields[definition.name]) is not None:
            is_quoted = definition.derived or definition.name in candidate.quotes
            stated = candidate.quotes.get(definition.name) if is_quoted else value
            proofs[definition.name] = BY_SOURCE if evidence is None else evidence.ground(stated)
    return Record(
        entity=kind.name,
        fields=fields,
        evidence=proofs,
        method=method,
        confidence=candidate.confidence,
        missing_fields=tuple(name for name in kind.required if fields[name] is None),
        is_flagged=any(name in proofs and not proofs[name].is_proof for name in kind.required),
        model=model,
    )


def _checked(kind: EntityField, value: FieldValue | None) -> FieldValue | None:
    """Return the value if the field can hold it; a value outside a closed list is dropped."""
    match kind.kind:
        case FieldKind.TEXT | FieldKind.LANGUAGE:
            text = clean_text(value) if isinstance(value, str) else None
            return text[:MAX_TEXT_CHARACTERS] if text else None
        case FieldKind.NUMBER:
            is_number = isinstance(value, Decimal) and value.is_finite() and value >= 0
            return value if is_number else None
        case FieldKind.FLAG:
            return value if isinstance(value, bool) else None
        case FieldKind.CHOICE:
            return value if value in kind.choices else None
        case _:
            assert_never(kind.kind)


def _apply_rules(kind: EntityType, fields: dict[str, FieldValue | None]) -> None:
    for rule in kind.rules:
        match rule:
            case SingleGoesToMax(field=lower, to=upper):
                low, high = fields[lower], fields[upper]
                if high is None or low == high:
                    fields[lower], fields[upper] = None, high if low is None else low
            case DefaultsTo(field=name, to=other):
                fields[name] = fields[other] if fields[name] is None else fields[name]
            case Excludes(when=flag, drops=name):
                fields[name] = None if fields[flag] else fields[name]
            case _:
                assert_never(rule)


def _json_value(value: FieldValue | None) -> Any:  # noqa: ANN401 - what JSON can hold
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


MAX_KEY_CHARACTERS = 200  # a PostgreSQL index entry holds 2,700 bytes
READER_VERSION = 4  # increase when rules or answer parsing change, so that pages are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A stored page, and the cleaned text that evidence refers to.

    Where a part of the page was cut out, both are of that part, and `starts_at` is its offset in
    the stored text. The text of a JSON document is the document.
    """

    document: Document
    text: str
    content_type: str | None = None
    starts_at: int = 0
    may_ask_models: bool = True  # as far as its site allows it

    @property
    def url(self) -> str:
        """Return its URL; empty if unknown."""
        return self.document.url or ""

    @property
    def body(self) -> str:
        """Return its decoded body."""
        return self.document.html


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionResult:
    """Every record of a page, in page order, each with all required fields.

    `method` and `model` are those of the costliest record; both None where there is no record and
    no model was asked. `reason` is why rules did not suffice, empty where they did. `explored` are
    canonical URLs to visit. Problems and notes are for people.
    """

    records: tuple[Record, ...]
    method: ExtractionMethod | None = None
    model: str | None = None
    reason: str = ""
    explored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class ExtractionOverBudget(Resource):
    """Error: the extraction's budget allows no further call; `over` has the amounts.

    The extraction is to be cancelled. Code that only handles `Resource` postpones the page, which
    is harmless.
    """

    over: OverBudget


def item_key(kind: EntityType, record: Record) -> str:
    """Return the record's readable natural key: equal for the same entity, whatever its spacing."""
    values = [str(record.fields.get(name) or "") for name in kind.key_fields]
    key = " | ".join(dict.fromkeys(" ".join(value.casefold().split()) for value in values if value.strip()))
    if len(key) <= MAX_KEY_CHARACTERS:
        return key
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"{key[: MAX_KEY_CHARACTERS - 17]}~{digest}"


def item_keys(kind: EntityType, records: Sequence[Record]) -> list[str]:
    """Return the keys of a page's records, in order; duplicates get the suffix #2, #3 and so on."""
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for record in records:
        key = item_key(kind, record)
        seen[key] += 1
        keys.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return keys


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


def announced_count(kind: EntityType, text: str, document: Document | None = None) -> int | None:
    """Return how many records the page says it has; None if it does not, or is ambiguous.

    None as well where the page links to more of the list: the number is that of the whole list.
    """
    if _MAY_SHOW_RANGE.sees(text):
        ranges = {(int(match[1]), int(match[2])) for match in _SHOWN_RANGE.finditer(text)}
        if len(ranges) == 1:
            first, last = ranges.pop()
            return last - first + 1 if 0 < first <= last else None
    number = _stated_count(kind.announced_as, text)
    if number is None or (document is not None and any(following_pages(document.tree, document.url))):
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
        self, text: str, span: tuple[int, int], wider: Evidence, *, wider_start: int = 0, only_own_numbers: bool = False
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
