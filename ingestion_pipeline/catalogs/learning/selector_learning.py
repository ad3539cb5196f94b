"""Learn CSS selectors of records and fields from pages whose records are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind, SingleGoesToMax
from ingestion_pipeline.catalogs.extraction.record import FieldValue
from ingestion_pipeline.catalogs.extraction.selectors import (
    AFTER_LABEL,
    Selectors,
    candidate_from_texts,
    candidate_in,
    is_labelled,
)
from ingestion_pipeline.catalogs.learning.learned_selectors import has_single_text, records_by_learned, unproved_records
from ingestion_pipeline.catalogs.learning.page_elements import (
    PageElement,
    elements_of,
    selectors_for,
    without_whitespace,
)
from ingestion_pipeline.reading.html.cleaning import fragment_text, visible_tree

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


MAX_CONTAINERS = 12
MAX_BLOCKS_WITHOUT_RECORD = 20  # matching blocks such as table heads
_STABLE_RANKS = {0, 2, 3, 4}  # ranks of `selectors_for` without position or label

Values = Mapping[str, FieldValue | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTrainingPage:
    """A parsed training page, and the records that are known to be on it."""

    tree: LexborHTMLParser
    elements: Sequence[PageElement]
    records: Sequence[Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A record and the element around it."""

    block: PageElement
    inside: Sequence[PageElement]
    values: Values


def containers(parsed_pages: Sequence[ParsedTrainingPage], required: Sequence[str]) -> Iterator[str | None]:
    """Yield CSS of elements that may surround a record, the likeliest first; None: whole page."""
    multi_record_page = next((page for page in parsed_pages if len(page.records) > 1), None)
    if multi_record_page is None:
        yield None
        return
    enclosing_or_none = [
        _enclosing_element(multi_record_page.elements, values, required) for values in multi_record_page.records
    ]
    enclosing = [element for element in enclosing_or_none if element is not None]
    if len(enclosing) < len(enclosing_or_none):
        return
    ranks_by_css: dict[str, list[tuple[int, int]]] = {}
    for element in enclosing:
        for css, rank in _selectors_around(element, enclosing, multi_record_page.elements[0]).items():
            ranks_by_css.setdefault(css, []).append(rank)
    shared = [(max(ranks), css) for css, ranks in ranks_by_css.items() if len(ranks) == len(enclosing)]
    yield from (css for _, css in sorted(shared)[:MAX_CONTAINERS])


def examples(
    parsed_pages: Sequence[ParsedTrainingPage], css: str | None, required: Sequence[str]
) -> list[Example] | None:
    """Return each record with the element around it; None if a record has none of its own."""
    result: list[Example] = []
    for page in parsed_pages:
        blocks = _blocks(page, css)
        if len(blocks) > len(page.records) * 2 + MAX_BLOCKS_WITHOUT_RECORD:
            return None
        taken: set[int] = set()
        for values in page.records:
            block = _block_of(blocks, values, required) if css else blocks[0]
            if block is None or block.place in taken:
                return None
            taken.add(block.place)
            inside = page.elements[block.place : block.end]
            result.append(Example(block=block, inside=inside, values=values))
    return result


def _blocks(page: ParsedTrainingPage, css: str | None) -> list[PageElement]:
    if css is None:
        return [page.elements[0]]
    elements_by_id = {element.node.mem_id: element for element in page.elements}
    return [elements_by_id[node.mem_id] for node in page.tree.css(css) if node.mem_id in elements_by_id]


def _block_of(blocks: Sequence[PageElement], values: Values, required: Sequence[str]) -> PageElement | None:
    """Return the smallest block that contains all required texts."""
    words = [without_whitespace(value) for name in required if isinstance(value := values[name], str)]
    matching = [block for block in blocks if all(word in block.text for word in words)]
    return min(matching, key=lambda block: (len(block.text), block.place), default=None)


def _enclosing_element(elements: Sequence[PageElement], values: Values, required: Sequence[str]) -> PageElement | None:
    """Return the smallest element that contains an element for each required value."""
    words = {without_whitespace(value) for name in required if isinstance(value := values[name], str)}
    stating = [_elements_stating(elements, word) for word in sorted(words)]
    if not stating or not all(stating):
        return None
    rarest = min(stating, key=len)
    candidates = [_first_enclosing(element, stating) for element in rarest]
    whole = [element for element in candidates if element is not None]
    return min(whole, key=lambda element: (element.end - element.place, element.place), default=None)


def _elements_stating(elements: Sequence[PageElement], word: str) -> list[PageElement]:
    """Return the elements with exactly this text; else those with only a label before it."""
    alone = [element for element in elements if element.text == word]
    return alone or [element for element in elements if is_labelled(element.text, word)]


def _first_enclosing(anchor: PageElement, stating: Sequence[Sequence[PageElement]]) -> PageElement | None:
    around = (anchor, *anchor.ancestors())
    return next((element for element in around if all(any(map(element.holds, matches)) for matches in stating)), None)


def _selectors_around(
    element: PageElement, enclosing: Sequence[PageElement], top: PageElement
) -> dict[str, tuple[int, int]]:
    """Return ranked CSS of the element and those around it that hold no other record."""
    others = [candidate for candidate in enclosing if candidate is not element]
    above = (element, *element.ancestors())
    own = list(takewhile(lambda candidate: not any(map(candidate.holds, others)), above))
    ranks: dict[str, tuple[int, int]] = {}
    for level, candidate in enumerate(reversed(own)):
        for rank, css in selectors_for(candidate, top):
            if rank in _STABLE_RANKS:
                ranks.setdefault(css, (rank, level))
    return ranks


MIN_EXAMPLES = 3  # pages, or records of one page
MIN_OPTIONAL_SHARE = 0.9
MAX_BODY_CHARACTERS = 1_000_000
MAX_TRIED = 40  # selectors of one field
MAX_COMPARED = 30  # records per candidate; the result is checked on all
_EXAMPLES_PER_FIELD = 3  # records whose elements are searched
_SHORT = 120  # characters; a number or a choice has a short text
_MAX_VALUE_ELEMENTS = 12  # elements with the same text, mostly nested


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPage:
    """A page and all records that are known to be on it.

    A field that a record does not name is unknown; None means known to be absent.
    """

    body: str
    records: Sequence[Values]


def learn_selectors(kind: EntityType, training_pages: Sequence[TrainingPage]) -> Selectors | None:
    """Return selectors that find exactly these records on these pages; None if there are none.

    All required fields are found, and nearly all values of the others. The result is deterministic.

    Raises:
        Permanent: a page is too large (see `parse_html`).
    """
    parsed_pages = _parse_pages(kind, training_pages)
    if not _are_enough(parsed_pages):
        return None
    for css in containers(parsed_pages, _required(kind)):
        found_examples = examples(parsed_pages, css, _required(kind))
        fields = _fields(kind, found_examples[:MAX_COMPARED]) if found_examples else None
        if fields:
            learned = Selectors(record=css, fields=tuple(fields.items()))
            if _reproduces(kind, learned, parsed_pages):
                return learned
    return None


def _required(kind: EntityType) -> tuple[str, ...]:
    return kind.required or kind.key_fields


def _parse_pages(kind: EntityType, training_pages: Sequence[TrainingPage]) -> list[ParsedTrainingPage]:
    """Return the parsed pages; empty if one of them is unsuitable."""
    parsed_pages: list[ParsedTrainingPage] = []
    for page in training_pages:
        if len(page.body) > MAX_BODY_CHARACTERS or not _are_complete(kind, page.records):
            return []
        tree = visible_tree(page.body)
        parsed_pages.append(ParsedTrainingPage(tree=tree, elements=elements_of(tree), records=page.records))
    return parsed_pages if all(parsed.elements for parsed in parsed_pages) else []


def _are_complete(kind: EntityType, records: Sequence[Values]) -> bool:
    names = _required(kind)
    return bool(records) and all(record.get(name) is not None for record in records for name in names)


def _are_enough(parsed_pages: Sequence[ParsedTrainingPage]) -> bool:
    most = max((len(page.records) for page in parsed_pages), default=0)
    return max(len(parsed_pages), most) >= MIN_EXAMPLES


def _fields(kind: EntityType, examples: Sequence[Example]) -> dict[str, str] | None:
    """Return the best selector of each field; None if a required one has none."""
    chosen: dict[str, str] = {}
    for name in _in_order(kind):
        if all(_agrees(kind, chosen, name, example) for example in examples):
            continue  # always absent, or filled by a rule of the type
        css = next(
            (css for css in _field_selectors(kind, name, examples) if _finds_field(kind, chosen, name, css, examples)),
            None,
        )
        if css is not None:
            chosen[name] = css
        elif name in _required(kind):
            return None
    return chosen


def _in_order(kind: EntityType) -> list[str]:
    """Return required fields first, then those from which a rule fills others."""
    upper = {rule.to for rule in kind.rules if isinstance(rule, SingleGoesToMax)}
    names = [field.name for field in kind.fields]
    required = _required(kind)
    return sorted(names, key=lambda name: (name not in required, name not in upper))


def _field_selectors(kind: EntityType, name: str, examples: Sequence[Example]) -> list[str]:
    """Return CSS that finds the field in some records: the most frequent first, then by rank."""
    ranks: dict[str, tuple[int, int]] = {}
    for example in _distinct_examples(name, examples):
        for css, rank in _field_selectors_in(kind, name, example).items():
            count, least = ranks.get(css, (0, rank))
            ranks[css] = (count - 1, min(rank, least))
    return sorted(ranks, key=lambda css: (*ranks[css], len(css), css))[:MAX_TRIED]


def _distinct_examples(name: str, examples: Sequence[Example]) -> list[Example]:
    """Return records with different values of the field, which tell its place from others."""
    different: dict[FieldValue, Example] = {}
    for example in examples:
        value = example.values.get(name)
        if value is not None:
            different.setdefault(value, example)
    return list(different.values())[:_EXAMPLES_PER_FIELD]


def _field_selectors_in(kind: EntityType, name: str, example: Example) -> dict[str, int]:
    value = example.values[name]
    stating = _value_elements(kind, name, value, example.inside)
    labelled = _labelled_elements(kind, name, value, example.inside) if not stating else []
    ranks: dict[str, int] = {}
    for element, suffix in [*((element, "") for element in stating), *((element, AFTER_LABEL) for element in labelled)]:
        for rank, css in selectors_for(element, example.block):
            ranks[css + suffix] = min(rank, ranks.get(css + suffix, rank))
    return ranks


def _value_elements(
    kind: EntityType, name: str, value: FieldValue | None, inside: Sequence[PageElement]
) -> list[PageElement]:
    """Return the elements with the value and little else, those with the shortest text first."""
    if isinstance(value, bool):
        return []
    if kind.field(name).kind in {FieldKind.TEXT, FieldKind.LANGUAGE}:
        text = without_whitespace(str(value))
        matching = [element for element in inside if element.text == text]
    else:
        short = (element for element in inside if 0 < len(element.text) <= _SHORT)
        matching = [element for element in short if _value_in(kind, name, element) == value]
    return sorted(matching, key=lambda element: (len(element.text), element.place))[:_MAX_VALUE_ELEMENTS]


def _labelled_elements(
    kind: EntityType, name: str, value: FieldValue | None, inside: Sequence[PageElement]
) -> list[PageElement]:
    """Return the elements with the value after a label, where no element has it alone."""
    if kind.field(name).kind is not FieldKind.TEXT or not isinstance(value, str):
        return []
    text = without_whitespace(value)
    matching = [element for element in inside if is_labelled(element.text, text)]
    return sorted(matching, key=lambda element: (len(element.text), element.place))[:_MAX_VALUE_ELEMENTS]


def _value_in(kind: EntityType, name: str, element: PageElement) -> FieldValue | None:
    return candidate_from_texts(kind, {name: fragment_text(element.node.html or "")}).fields.get(name)


def _finds_field(kind: EntityType, chosen: dict[str, str], name: str, css: str, examples: Sequence[Example]) -> bool:
    """Return whether the selector finds the field: always if required, else nearly always."""
    if name in kind.key_fields and not all(has_single_text(example.block.node, css) for example in examples):
        return False
    allowed = (
        0 if name in _required(kind) else _allowed(sum(example.values.get(name) is not None for example in examples))
    )
    wrong = 0
    for example in examples:
        wrong += not _agrees(kind, chosen | {name: css}, name, example)
        if wrong > allowed:
            return False
    return True


def _allowed(count: int) -> int:
    return int(count * (1 - MIN_OPTIONAL_SHARE) + 1e-9)


def _agrees(kind: EntityType, chosen: dict[str, str], name: str, example: Example) -> bool:
    if name not in example.values:
        return True
    selectors = Selectors(record=None, fields=tuple(chosen.items()))
    [record] = unproved_records(kind, [candidate_in(kind, selectors, example.block.node)])
    return _same(record.fields[name], example.values[name])


def _reproduces(kind: EntityType, learned: Selectors, parsed_pages: Sequence[ParsedTrainingPage]) -> bool:
    """Return whether every page gives its records again, and nearly all other values."""
    others = [field.name for field in kind.fields if field.name not in _required(kind)]
    right = stated = 0
    for page in parsed_pages:
        records = unproved_records(kind, records_by_learned(kind, learned, page.tree))
        found_values = {_key(kind, record.fields): record.fields for record in records}
        expected = {_key(kind, values): values for values in page.records}
        if found_values.keys() != expected.keys():
            return False
        for key, values in expected.items():
            pairs = [(found_values[key][name], values[name]) for name in others if name in values]
            either = [pair for pair in pairs if pair != (None, None)]
            stated += len(either)
            right += sum(_same(actual, correct) for actual, correct in either)
    return right >= MIN_OPTIONAL_SHARE * stated


def _key(kind: EntityType, values: Values) -> tuple[object, ...]:
    return tuple(_normal(values[name]) for name in _required(kind))


def _same(value: FieldValue | None, other: FieldValue | None) -> bool:
    return _normal(value) == _normal(other)


def _normal(value: FieldValue | None) -> object:
    return " ".join(value.split()) if isinstance(value, str) else value
