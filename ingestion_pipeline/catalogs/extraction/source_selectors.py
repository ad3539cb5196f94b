"""The entity and selectors of a source, configured or learned: extract records by them, and hash what reads its pages.

`record` is the element around one record (the whole page without it); every other key is a field, with a selector or
a list of selectors that vote. A selector is CSS for an element, or for a part of its text by one of these ends:
`::after-label` is the text after its first colon (of `Code: X`, X), `::text(2)` its second text that no tag divides
(`-1`: the last), `::text-after("Phone")` the text that follows this label. The result of learned selectors is all or
nothing, since nobody has checked the page that they read.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Discriminator, Field, Tag
from sqlalchemy import Connection, delete, literal, select, update

from ingestion_pipeline.catalogs.extraction.entity_type import (
    COURSE,
    BadEntityType,
    DefaultsTo,
    EntityField,
    EntityType,
    FieldKind,
    SingleGoesToMax,
    UnknownEntityType,
    entity_type,
    entity_types,
)
from ingestion_pipeline.catalogs.extraction.model_methods import prompt_labels
from ingestion_pipeline.catalogs.extraction.record import (
    MAX_PAGE_RECORDS,
    READER_VERSION,
    CandidateRecord,
    ExtractionMethod,
    FieldValue,
    Record,
    record_of,
)
from ingestion_pipeline.catalogs.extraction.rules.course_words import choice_in_words
from ingestion_pipeline.catalogs.extraction.rules.structured_records import value_of
from ingestion_pipeline.catalogs.recipes.recipe import ConfigText, checked_css
from ingestion_pipeline.reading.html.cleaning import fragment_text
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import FileModel, as_mapping, field_path, model_of, stated_keys, validated
from ingestion_pipeline.store.statements import insert_into
from ingestion_pipeline.store.tables import learned_selectors

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

RECORD = "record"
AFTER_LABEL = "::after-label"
MAX_VOTERS = 5  # selectors of a field: more cost time and change no result (measured on the sites of SWDE)
_PART = re.compile(r'(.*?)::(?:(after-label)|text\((-?[1-9][0-9]?)\)|text-after\("([^"]{1,60})"\))')
_LABEL = re.compile(r"[^:\uff1a\n]{1,40}[:\uff1a]\s*")
_RANGE = re.compile(r"(?<![0-9])([0-9]++(?:\.[0-9]++)?+)\s*+(?:-|\u2013|\u2014|to|or)\s*+([0-9]++(?:\.[0-9]++)?+)")


class BadSelectors(ValueError):
    """Error: selectors that cannot be used; `problems` names every key with its problem."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """The selector of the element around a record, and of each field inside it those that vote on its text."""

    record: str | None
    fields: tuple[tuple[str, tuple[str, ...]], ...]

    def as_config(self) -> dict[str, str | list[str]]:
        """Return the selectors in the form of a source's `config.selectors`."""
        fields = {name: voters[0] if len(voters) == 1 else list(voters) for name, voters in self.fields}
        return ({RECORD: self.record} if self.record else {}) | fields


def selectors_of(config: Mapping[str, Any], kind: EntityType) -> Selectors | None:
    """Return the selectors of a source's configuration; None if it has none.

    Raises:
        BadSelectors: with every problem there is.
    """
    configured = config.get("selectors")
    if configured is None:
        return None
    entry, bad = validated(_selector_model(kind), configured)
    problems = [f"{field_path(['selectors', *filter(None, [problem.field])])}: {problem.message}" for problem in bad]
    defaults = {rule.field for rule in kind.rules if isinstance(rule, DefaultsTo)}
    if lacking := [name for name in kind.required if name not in as_mapping(configured) and name not in defaults]:
        problems.append(f"selectors: {', '.join(lacking)} is missing and required for a {kind.name}")
    if entry is None or problems:
        raise BadSelectors(problems)
    stated: dict[str, Any] = stated_keys(entry)
    record: str | None = stated.pop(RECORD, None)
    fields = ((name, (voters,) if isinstance(voters, str) else tuple(voters)) for name, voters in stated.items())
    return Selectors(record=record, fields=tuple(fields))


class _SelectorEntry(FileModel):
    not_a_mapping: ClassVar[str] = "must be a mapping from a field to its CSS selector"


def _css(text: str) -> str:
    if place := split_part(text)[0]:
        checked_css(place)
    return text


_Selector = Annotated[ConfigText, AfterValidator(_css)]
_Voters = Annotated[
    Annotated[_Selector, Tag("<selector>")]
    | Annotated[list[_Selector], Field(min_length=1, max_length=MAX_VOTERS), Tag("<selectors>")],
    Discriminator(lambda stated: "<selectors>" if isinstance(stated, list) else "<selector>"),
]


@lru_cache(maxsize=100)
def _selector_model(kind: EntityType) -> type[_SelectorEntry]:
    fields = dict.fromkeys((field.name for field in kind.fields), _Voters)
    return model_of(_SelectorEntry, {RECORD: _Selector, **fields})


def records_by_selectors(kind: EntityType, selectors: Selectors, tree: "LexborHTMLParser") -> list[CandidateRecord]:
    """Return what the selectors find, in page order; the tree is a cleaned one."""
    candidates = [candidate_in(kind, selectors, block) for block in _blocks(selectors, tree)]
    return [candidate for candidate in candidates if any(value is not None for value in candidate.fields.values())]


def _blocks(selectors: Selectors, tree: "LexborHTMLParser") -> "list[LexborNode]":
    if tree.body is None:
        return []
    return tree.css(selectors.record)[: MAX_PAGE_RECORDS + 1] if selectors.record else [tree.body]


def candidate_in(kind: EntityType, selectors: Selectors, block: "LexborNode") -> CandidateRecord:
    """Return what the selectors find in the element around one record."""
    texts = {name: _elected_text(kind, kind.field(name), block, voters) for name, voters in selectors.fields}
    return candidate_from_texts(kind, {name: text for name, text in texts.items() if text})


def _elected_text(kind: EntityType, field: EntityField, block: "LexborNode", voters: Sequence[str]) -> str | None:
    """Return the text of the value that more than half of the selectors find; None if they disagree."""
    texts = [next(texts_at(block, css), None) for css in voters]
    if len(texts) == 1:
        return texts[0]
    values = [text and _value(kind, field, text) for text in texts]
    value, votes = Counter(values).most_common(1)[0]
    return texts[values.index(value)] if votes * 2 > len(voters) else None


def candidate_from_texts(kind: EntityType, texts: Mapping[str, str]) -> CandidateRecord:
    """Return the candidate with these texts at the places of its fields."""
    fields = {name: _value(kind, kind.field(name), text) for name, text in texts.items()} | _ranges(kind, texts)
    quotes = {name: text for name, text in texts.items() if kind.field(name).derived}
    return CandidateRecord(fields=fields, quotes=quotes)


def split_part(css: str) -> tuple[str, re.Match[str] | None]:
    """Return the CSS of the element, and the match of the part of its text, if one is named."""
    part = _PART.fullmatch(css)
    return (css, None) if part is None else (part[1], part)


def texts_at(block: "LexborNode", css: str) -> Iterator[str]:
    """Yield the text of each matching element that has any, one line for each block in it, or the named part of it."""
    place, part = split_part(css)
    nodes = block.css(place) if place else [block]
    if part is None or part[2]:
        texts = (fragment_text(node.html or "") for node in nodes)
        if part is not None:
            texts = (_LABEL.sub("", text, count=1) for text in texts if _LABEL.match(text))
    else:
        texts = (_part_of(node_texts(node), part) for node in nodes)
    return (text for text in texts if text)


def node_texts(node: "LexborNode") -> list[str]:
    """Return the texts inside the element that no tag divides, in page order."""
    texts = (
        " ".join((text.text_content or "").split()) for text in node.traverse(include_text=True) if text.is_text_node
    )
    return [text for text in texts if text]


def _part_of(texts: Sequence[str], part: re.Match[str]) -> str:
    if part[3]:
        place = int(part[3])
        return "".join(texts[place - 1 : place] if place > 0 else texts[place : place + 1 or None])
    label = label_of(part[4])
    for at, text in enumerate(texts):
        if label_of(text) == label:
            return "".join(texts[at + 1 : at + 2])
        own_label, own_text = labelled_text(text)
        if label_of(own_label) == label:
            return own_text
    return ""


def labelled_text(text: str) -> tuple[str, str]:
    """Return the label at the start of the text and what follows it; two empty texts without a label."""
    label = _LABEL.match(text)
    return ("", "") if label is None else (label[0], text[label.end() :])


def label_of(text: str) -> str:
    """Return the label as it is compared: without its colon, case and blanks around."""
    return text.strip().rstrip(":\uff1a").rstrip().casefold()


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


ENTITIES = "entities"  # folder of schema files beside the source files


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityConfig:
    """The entity type that a source's pages are read for, with configured or learned selectors."""

    kind: EntityType
    selectors: Selectors | None = None
    learned: Selectors | None = None

    def reader_hash(self, settings: Settings) -> str:
        """Return the hash of all that determines a page's records: an equal hash needs no new reading.

        Model names count only where a model is configured: without a key they change nothing. Learned
        selectors are no reason to read a page again.
        """
        parts = [self.kind.model_dump_json(), f"reader {READER_VERSION}", repr(self.selectors)]
        if settings.has_model:
            parts += [settings.model_cheap, settings.model_strong, *prompt_labels(self.kind)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    @property
    def can_finish_by_rules(self) -> bool:
        """Whether rules alone may decide without a model; else the pages wait for one."""
        return self.kind.name == COURSE or self.selectors is not None


def load_entity_config(config: Mapping[str, Any], settings: Settings, *, entity: str | None = None) -> EntityConfig:
    """Return the configured entity; `entity` is the name from the start of an extraction.

    Raises:
        UnknownEntityType: no schema file of the package or of `entities/` has that name.
        BadEntityType: a schema file describes no valid type.
        BadSelectors: the selectors cannot be used.
    """
    kind = entity_type(entity or entity_name(config), folder=entity_folder(settings))
    return EntityConfig(kind=kind, selectors=selectors_of(config, kind))


def entity_name(config: Mapping[str, Any]) -> str:
    """Return the configured entity name; courses if there is none."""
    return str(config.get("entity") or COURSE)


def entity_folder(settings: Settings) -> Path:
    """Return the folder of the user's schema files: `entities` beside the source files."""
    return settings.sources / ENTITIES


def entity_config_problems(config: Mapping[str, Any], folder: Path | None = None) -> Iterator[str]:
    """Yield every problem of `entity` and `selectors`; the folder has the user's own types."""
    name = config.get("entity")
    if name is not None and not isinstance(name, str):
        known_types = ", ".join(entity_types(folder))
        yield f"entity: must be the name of an entity, not {name!r}; there are: {known_types}"
        return
    try:
        kind = entity_type(entity_name(config), folder=folder)
        selectors_of(config, kind)
    except (UnknownEntityType, BadEntityType) as error:
        yield f"entity: {error}"
    except BadSelectors as error:
        yield from error.problems


def schema_hash(kind: EntityType) -> str:
    """Return the hash of the entity type that selectors were learned for."""
    return hashlib.sha256(kind.model_dump_json().encode()).hexdigest()


def records_by_learned(kind: EntityType, selectors: Selectors, tree: "LexborHTMLParser") -> list[CandidateRecord]:
    """Return the records in page order; none if one lacks a required field or is ambiguous.

    Two names in the place of one record mean that the page has another layout.
    """
    candidates = records_by_selectors(kind, selectors, tree)
    if any(record.missing_fields for record in unproved_records(kind, candidates)):
        return []
    keys = [css for name, voters in selectors.fields if name in kind.key_fields for css in voters]
    is_single = all(has_single_text(block, css) for block in _blocks(selectors, tree) for css in keys)
    return candidates if is_single else []


def unproved_records(kind: EntityType, candidates: list[CandidateRecord]) -> list[Record]:
    """Return the records of the candidates, after applying the rules of the type, without proof."""
    return [record_of(kind, candidate, method=ExtractionMethod.SELECTORS) for candidate in candidates]


def has_single_text(block: "LexborNode", css: str) -> bool:
    """Return whether the element around a record has one distinct text at that selector; a part of a text is single."""
    return split_part(css)[1] is not None or len(set(texts_at(block, css))) <= 1


MAX_FAILED_IN_A_ROW = 3
MAX_FAILED_SHARE = 0.2
MIN_FAILED = 3  # before a share is meaningful


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorScope:
    """The source and entity type that selectors are learned for."""

    source_id: str
    entity_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedSelectors:
    """Stored selectors; `learned_at` distinguishes them from those learned later."""

    schema_hash: str
    selectors: Mapping[str, str | list[str]]
    learned_at: datetime

    def for_kind(self, kind: EntityType) -> Selectors | None:
        """Return the selectors; None if they were learned for an earlier version of the type."""
        if self.schema_hash != schema_hash(kind):
            return None
        try:
            return selectors_of({"selectors": dict(self.selectors)}, kind)
        except BadSelectors:  # stored by a version with other rules
            return None


def is_outdated(*, confirmed: int, failed: int, in_row: int) -> bool:
    """Return whether the selectors fail so often that the layout must have changed."""
    is_often = failed >= MIN_FAILED and failed > MAX_FAILED_SHARE * (confirmed + failed)
    return in_row >= MAX_FAILED_IN_A_ROW or is_often


def save_learned(
    connection: Connection,
    scope: SelectorScope,
    kind: EntityType,
    selectors: Selectors,
    *,
    learned_from: int,
    now: datetime,
) -> LearnedSelectors:
    """Store the selectors in the place of any before, with all counts at zero."""
    learned = LearnedSelectors(schema_hash=schema_hash(kind), selectors=selectors.as_config(), learned_at=now)
    values = {
        "schema_hash": learned.schema_hash,
        "selectors": dict(learned.selectors),
        "learned_from": learned_from,
        "confirmed": 0,
        "failed": 0,
        "failed_in_row": 0,
        "created_at": now,
        "updated_at": now,
    }
    statement = insert_into(connection, learned_selectors).values(
        source_id=scope.source_id, entity_type=scope.entity_type, **values
    )
    keys = ["source_id", "entity_type"]
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))
    return learned


def record_uses(
    connection: Connection, scope: SelectorScope, learned: LearnedSelectors, outcomes: Sequence[bool], *, now: datetime
) -> bool:
    """Count on which pages the selectors worked, in order; return whether they are still stored."""
    right = sum(outcomes)
    wrong = len(outcomes) - right
    trailing_failures = sum(1 for _ in takewhile(lambda is_right: not is_right, reversed(outcomes)))
    table = learned_selectors
    in_row = literal(trailing_failures) if right else table.c.failed_in_row + trailing_failures
    is_current = (
        (table.c.source_id == scope.source_id)
        & (table.c.entity_type == scope.entity_type)
        & (table.c.created_at == learned.learned_at)
    )
    counts = {"confirmed": table.c.confirmed + right, "failed": table.c.failed + wrong, "failed_in_row": in_row}
    statement = update(table).where(is_current).values(**counts, updated_at=now)
    row = connection.execute(statement.returning(*(table.c[name] for name in counts))).one_or_none()
    if row is not None and is_outdated(confirmed=row.confirmed, failed=row.failed, in_row=row.failed_in_row):
        connection.execute(delete(table).where(is_current))
        return False
    return row is not None


def learned_facts(connection: Connection, source_id: str) -> dict[str, object]:
    """Return a text about the selectors learned for the source; empty if there are none."""
    table = learned_selectors
    query = select(table).where(table.c.source_id == source_id).order_by(table.c.entity_type)
    lines = [
        f"{row.entity_type}: {len(row.selectors)} selectors from {row.learned_from} pages,"
        f" {row.confirmed} pages read by them, {row.failed} not"
        for row in connection.execute(query)
    ]
    return {"learned_selectors": "; ".join(lines)} if lines else {}
