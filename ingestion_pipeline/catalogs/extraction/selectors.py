"""Extract records by the CSS selectors of a source's `config.selectors`.

`record` is the element around one record (the whole page without it); every other key is a field. A
selector that ends with `::after-label` takes the text after the first colon: of `Code: X`, X.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.catalogs.extraction.entity_type import (
    DefaultsTo,
    EntityField,
    EntityType,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, CandidateRecord, FieldValue
from ingestion_pipeline.catalogs.extraction.rules.course_words import choice_in_words
from ingestion_pipeline.catalogs.extraction.rules.schema_org import value_of
from ingestion_pipeline.catalogs.recipes.recipe import ConfigFields, as_mapping
from ingestion_pipeline.reading.html.cleaning import fragment_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


RECORD = "record"
AFTER_LABEL = "::after-label"
_LABEL = re.compile(r"[^:\uff1a\n]{1,40}[:\uff1a]\s*")
_RANGE = re.compile(r"(?<![0-9])([0-9]++(?:\.[0-9]++)?+)\s*+(?:-|\u2013|\u2014|to|or)\s*+([0-9]++(?:\.[0-9]++)?+)")


class BadSelectors(ValueError):
    """Error: selectors that cannot be used; `problems` names every key with its problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """CSS selectors of the element around a record, and of each field inside it."""

    record: str | None
    fields: tuple[tuple[str, str], ...]

    def as_config(self) -> dict[str, str]:
        """Return the selectors in the form of a source's `config.selectors`."""
        return ({RECORD: self.record} if self.record else {}) | dict(self.fields)


def selectors_of(config: Mapping[str, Any], kind: EntityType) -> Selectors | None:
    """Return the selectors of a source's configuration; None if it has none.

    Raises:
        BadSelectors: with every problem there is.
    """
    configured = config.get("selectors")
    if configured is None:
        return None
    raw = as_mapping(configured)
    if raw is None:
        raise BadSelectors(["selectors: must be a mapping from a field to its CSS selector"])
    problems: list[str] = []
    names = [field.name for field in kind.fields]
    bare = {name: css.removesuffix(AFTER_LABEL) if isinstance(css, str) else css for name, css in raw.items()}
    fields_ = ConfigFields(bare, "selectors", problems)
    fields_.refuse_unknown([RECORD, *names])
    css_by_name = {name: str(raw[name]) for name in [RECORD, *names] if fields_.selector(name)}
    defaults = {rule.field for rule in kind.rules if isinstance(rule, DefaultsTo)}
    if lacking := [name for name in kind.required if name not in raw and name not in defaults]:
        problems.append(f"selectors: {', '.join(lacking)} is missing and required for a {kind.name}")
    if problems:
        raise BadSelectors(problems)
    fields = tuple((name, css) for name, css in css_by_name.items() if name != RECORD)
    return Selectors(record=css_by_name.get(RECORD), fields=fields)


def records_by_selectors(kind: EntityType, selectors: Selectors, tree: "LexborHTMLParser") -> list[CandidateRecord]:
    """Return what the selectors find, in page order; the tree is a cleaned one."""
    if tree.body is None:
        return []
    blocks = tree.css(selectors.record)[: MAX_PAGE_RECORDS + 1] if selectors.record else [tree.body]
    candidates = [candidate_in(kind, selectors, block) for block in blocks]
    return [candidate for candidate in candidates if any(value is not None for value in candidate.fields.values())]


def candidate_in(kind: EntityType, selectors: Selectors, block: "LexborNode") -> CandidateRecord:
    """Return what the selectors find in the element around one record."""
    texts = ((name, next(texts_at(block, css), None)) for name, css in selectors.fields)
    return candidate_from_texts(kind, {name: text for name, text in texts if text})


def candidate_from_texts(kind: EntityType, texts: Mapping[str, str]) -> CandidateRecord:
    """Return the candidate with these texts at the places of its fields."""
    fields = {name: _value(kind, kind.field(name), text) for name, text in texts.items()} | _ranges(kind, texts)
    quotes = {name: text for name, text in texts.items() if kind.field(name).derived}
    return CandidateRecord(fields=fields, quotes=quotes)


def texts_at(block: "LexborNode", css: str) -> Iterator[str]:
    """Yield the text of each matching element that has any, one line for each block in it."""
    place = css.removesuffix(AFTER_LABEL)
    texts = (fragment_text(node.html or "") for node in block.css(place))
    if place != css:
        texts = (_LABEL.sub("", text, count=1) for text in texts if _LABEL.match(text))
    return (text for text in texts if text)


def is_labelled(squeezed: str, value: str) -> bool:
    """Return whether a text without blanks is the value after a label: Code:X."""
    label = squeezed.removesuffix(value)
    return label != squeezed and _LABEL.fullmatch(label) is not None


def _value(kind: EntityType, field: EntityField, text: str) -> FieldValue | None:
    value = value_of(kind, field, text)
    if field.kind is FieldKind.CHOICE and value is None:
        return choice_in_words(text, field.choices)
    # An element that is only there if it is true: <span class=noncredit>Non-credit</span>.
    return True if field.kind is FieldKind.FLAG and value is None else value


def _ranges(kind: EntityType, texts: Mapping[str, str]) -> dict[str, FieldValue | None]:
    """Return both values of "3-4 credits" in the place of the upper one."""
    values: dict[str, FieldValue | None] = {}
    for rule in kind.rules:
        if isinstance(rule, SingleGoesToMax) and (both := _RANGE.search(texts.get(rule.to, ""))):
            values[rule.field], values[rule.to] = Decimal(both[1]), Decimal(both[2])
    return values
