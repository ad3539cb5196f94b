"""Where on a source's pages the parts of a record are, as its `config.selectors` says: CSS.

`record` is the element around one record (the whole page without it); every other key is a field.
CSS that ends with `::after-label` stands for what follows the first colon: of `Code: X`, X.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ingestion_pipeline.catalogs.extraction.entity_type import (
    EntityField,
    EntityType,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.catalogs.extraction.record import MAX_PAGE_RECORDS, FieldValue, RecordField
from ingestion_pipeline.catalogs.extraction.rules.embedded import value_of
from ingestion_pipeline.catalogs.extraction.rules.vocabulary import choice_in_words
from ingestion_pipeline.catalogs.recipes.config_fields import ConfigFields, as_mapping
from ingestion_pipeline.reading.html.cleaning import fragment_text

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


RECORD = "record"
AFTER_LABEL = "::after-label"
_LABEL = re.compile(r"[^:\uff1a\n]{1,40}[:\uff1a]\s*")
_RANGE = re.compile(
    r"(?<![0-9])([0-9]++(?:\.[0-9]++)?+)\s*+(?:-|\u2013|\u2014|to|or)\s*+([0-9]++(?:\.[0-9]++)?+)"
)


class BadSelectors(ValueError):
    """Selectors that cannot be used; `problems` names every key with what is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """CSS for the element around a record, and for each field inside it."""

    record: str | None
    fields: tuple[tuple[str, str], ...]

    def as_config(self) -> dict[str, str]:
        """As a source's `config.selectors` would say it."""
        return ({RECORD: self.record} if self.record else {}) | dict(self.fields)


def selectors_of(config: Mapping[str, Any], kind: EntityType) -> Selectors | None:
    """The selectors of a source's configuration; None if it gives none.

    Raises:
        BadSelectors: with every problem there is.
    """
    given = config.get("selectors")
    if given is None:
        return None
    raw = as_mapping(given)
    if raw is None:
        raise BadSelectors(["selectors: must be a mapping from a field to its CSS selector"])
    problems: list[str] = []
    names = [field.name for field in kind.fields]
    read = ConfigFields(
        {name: _without_label(css) for name, css in raw.items()}, "selectors", problems
    )
    read.refuse_unknown([RECORD, *names])
    found = {name: str(raw[name]) for name in [RECORD, *names] if read.selector(name)}
    if lacking := [name for name in kind.required if name not in raw and not _is_given(kind, name)]:
        problems.append(f"selectors: {', '.join(lacking)} is missing, which a {kind.name} requires")
    if problems:
        raise BadSelectors(problems)
    fields = tuple((name, css) for name, css in found.items() if name != RECORD)
    return Selectors(record=found.get(RECORD), fields=fields)


def records_by_selectors(
    kind: EntityType, selectors: Selectors, tree: LexborHTMLParser
) -> list[RecordField]:
    """What the selectors find, in page order; the tree is a cleaned one."""
    if tree.body is None:
        return []
    blocks = tree.css(selectors.record)[: MAX_PAGE_RECORDS + 1] if selectors.record else [tree.body]
    found = [found_in(kind, selectors, block) for block in blocks]
    return [one for one in found if any(value is not None for value in one.fields.values())]


def found_in(kind: EntityType, selectors: Selectors, block: LexborNode) -> RecordField:
    """What the selectors find in the element around one record."""
    texts = ((name, next(texts_at(block, css), None)) for name, css in selectors.fields)
    return found_by_words(kind, {name: text for name, text in texts if text})


def found_by_words(kind: EntityType, said: Mapping[str, str]) -> RecordField:
    """What the words in the place of each field say of it."""
    fields: dict[str, FieldValue | None] = {}
    for name, text in said.items():
        fields[name] = _value(kind, kind.field(name), text)
    fields |= _ranges(kind, said)
    quotes = {name: text for name, text in said.items() if kind.field(name).derived}
    return RecordField(fields=fields, quotes=quotes)


def texts_at(block: LexborNode, css: str) -> Iterator[str]:
    """The text of each element that matches and has any, one line for each block in it."""
    place = css.removesuffix(AFTER_LABEL)
    texts = (fragment_text(node.html or "") for node in block.css(place))
    if place != css:
        texts = (_LABEL.sub("", text, count=1) for text in texts if _LABEL.match(text))
    return (text for text in texts if text)


def is_labelled(squeezed: str, wanted: str) -> bool:
    """Whether a text without blanks is the wanted one after a label: Code:X."""
    label = squeezed.removesuffix(wanted)
    return label != squeezed and _LABEL.fullmatch(label) is not None


def _without_label(css: object) -> object:
    return css.removesuffix(AFTER_LABEL) if isinstance(css, str) else css


def _is_given(kind: EntityType, name: str) -> bool:
    """Whether a rule of the type fills the field."""
    return any(rule.rule == "defaults_to" and rule.field == name for rule in kind.rules)


def _value(kind: EntityType, field: EntityField, text: str) -> FieldValue | None:
    value = value_of(kind, field, text)
    if field.kind is FieldKind.CHOICE and value is None:
        return choice_in_words(text, field.choices)
    # An element that only stands where the thing is so: <span class=noncredit>Non-credit</span>.
    return True if field.kind is FieldKind.FLAG and value is None else value


def _ranges(kind: EntityType, said: Mapping[str, str]) -> dict[str, FieldValue | None]:
    """Of "3-4 credits" in the place of the upper value, the lower one as well."""
    found: dict[str, FieldValue | None] = {}
    for rule in kind.rules:
        if isinstance(rule, SingleGoesToMax) and (both := _RANGE.search(said.get(rule.to, ""))):
            found[rule.field], found[rule.to] = Decimal(both[1]), Decimal(both[2])
    return found
