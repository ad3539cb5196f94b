"""A record: the fields of an entity, each with its evidence, and how it was come by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from ingestion_pipeline.reading.text.decoding import clean_text

LEARNED = "learned"  # the reason of a record that learned selectors found
MAX_PAGE_RECORDS = 20_000  # of one page, read in 6 s; more are refused
MAX_TEXT_CHARACTERS = 20_000  # the longest description seen has 6,000

FieldValue = str | Decimal | bool


class Prover(Protocol):
    """What is asked for the evidence of a value."""

    def ground(self, value: Value) -> Grounding:
        """What proves the value."""
        ...


class ExtractionMethod(StrEnum):
    """How a record was come by, the cheapest way first."""

    API = "api"
    EMBEDDED = "embedded"
    SELECTORS = "selectors"
    LAYOUT = "layout"
    CHEAP_MODEL = "cheap_model"
    STRONG_MODEL = "strong_model"


MODEL_RUNGS = frozenset({ExtractionMethod.CHEAP_MODEL.value, ExtractionMethod.STRONG_MODEL.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordField:
    """What a rule found of an entity, unchecked; `quotes` prove the fields that are derived."""

    fields: Mapping[str, FieldValue | None]
    quotes: Mapping[str, str] = field(default_factory=dict[str, str])
    confidence: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An entity with evidence for each field that has a value.

    `is_flagged` where a required field is not proved, or where people should look at it for another
    reason: then it is kept and not exported. `reason` says why it was come by on this rung.
    """

    entity: str
    fields: Mapping[str, FieldValue | None]
    evidence: Mapping[str, Grounding]
    rung: ExtractionMethod
    confidence: float
    lacks: tuple[str, ...] = ()
    is_flagged: bool = False
    model: str | None = None
    reason: str = ""

    def start_of(self, names: Iterable[str]) -> int | None:
        """Where on the page the first of the fields that stand on it does."""
        spans = (self.evidence[name].start for name in names if name in self.evidence)
        return next((start for start in spans if start is not None), None)

    def unproved(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the fields that have a value which nothing proves."""
        return tuple(
            name for name in names if name in self.evidence and not self.evidence[name].is_proof
        )

    def as_dict(self) -> dict[str, Any]:
        """The record in plain values: every field of the type, then how each is proved."""
        return {
            **{name: _plain(value) for name, value in self.fields.items()},
            "evidence": {
                name: {"status": str(one.status), "start": one.start, "end": one.end}
                for name, one in self.evidence.items()
            },
            "rung": str(self.rung),
            "confidence": self.confidence,
        }


def record_of(
    kind: EntityType,
    found: RecordField,
    *,
    rung: ExtractionMethod,
    evidence: Prover | None = None,
    model: str | None = None,
) -> Record:
    """The record that the rules of its type make of what was found.

    Without a text, the evidence is that the source itself said so.
    """
    fields = {one.name: _checked(one, found.fields.get(one.name)) for one in kind.fields}
    _apply_rules(kind, fields)
    proofs = {
        name: _proof(kind.field(name), value, found, evidence)
        for name, value in fields.items()
        if value is not None
    }
    return Record(
        entity=kind.name,
        fields=fields,
        evidence=proofs,
        rung=rung,
        confidence=found.confidence,
        lacks=tuple(name for name in kind.required if fields[name] is None),
        is_flagged=any(name in proofs and not proofs[name].is_proof for name in kind.required),
        model=model,
    )


def _checked(kind: EntityField, value: FieldValue | None) -> FieldValue | None:
    """The value if the field can hold it; what is not in a closed list is dropped."""
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


def _proof(
    kind: EntityField, value: FieldValue, found: RecordField, evidence: Prover | None
) -> Grounding:
    if evidence is None:
        return BY_SOURCE
    if kind.derived or kind.name in found.quotes:
        return evidence.ground(found.quotes.get(kind.name))
    return evidence.ground(value)


def _plain(value: FieldValue | None) -> Any:  # noqa: ANN401 - what JSON can hold
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == value.to_integral_value() else float(value)
