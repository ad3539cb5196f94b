"""Records: the fields of an entity with their evidence, their keys, and the page they were read from."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol, assert_never

from ingestion_pipeline.catalogs.extraction.entity_type import (
    DefaultsTo,
    EntityField,
    EntityType,
    Excludes,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.reading.evidence.grounding import BY_SOURCE, Grounding, Value
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.decoding import clean_text
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
    proofs = {
        name: _proof(kind.field(name), value, candidate, evidence)
        for name, value in fields.items()
        if value is not None
    }
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


def _proof(kind: EntityField, value: FieldValue, candidate: CandidateRecord, evidence: Prover | None) -> Grounding:
    if evidence is None:
        return BY_SOURCE
    is_quoted = kind.derived or kind.name in candidate.quotes
    return evidence.ground(candidate.quotes.get(kind.name) if is_quoted else value)


def _json_value(value: FieldValue | None) -> Any:  # noqa: ANN401 - what JSON can hold
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)


MAX_KEY_CHARACTERS = 200  # a PostgreSQL index entry holds 2,700 bytes
READER_VERSION = 3  # increase when rules or answer parsing change, so that pages are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A stored page: its decoded body, and the cleaned text that evidence refers to.

    Where a part of the page was cut out, both are of that part, and `starts_at` is its offset in
    the stored text. The text of a JSON document is the document.
    """

    url: str
    body: str
    text: str
    content_type: str | None = None
    starts_at: int = 0


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
    key = " | ".join(dict.fromkeys(_normal(value) for value in values if value.strip()))
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


def _normal(value: str) -> str:
    return " ".join(value.casefold().split())
