"""Learn CSS selectors of records and fields from pages whose records are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.entity_type import EntityType, FieldKind, SingleGoesToMax
from ingestion_pipeline.catalogs.extraction.record import FieldValue
from ingestion_pipeline.catalogs.extraction.source_selectors import (
    AFTER_LABEL,
    MAX_VOTERS,
    Selectors,
    candidate_from_texts,
    candidate_in,
    has_single_text,
    is_labelled,
    label_of,
    labelled_text,
    node_texts,
    records_by_learned,
    unproved_records,
)
from ingestion_pipeline.reading.html.cleaning import fragment_text, visible_tree, without_invisible

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_ELEMENTS = 5_000  # of a training page; a catalogue's pages have 300 to 3,000
MAX_TEXT = 20_000
MAX_ANCESTORS = 5
MAX_LABEL = 40
MAX_NAMES = 4  # per element; utility style sheets give an element thirty classes
_TAG = re.compile(r"[a-z][a-z0-9-]{0,40}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,60}")
_NUMBERED = re.compile(r"[0-9]{2}")
# No quotation mark and no backslash: the label becomes part of the CSS.
_LABEL = re.compile(r"[^\W\d_][\w &/().-]{1,40}")


@dataclass(slots=True, kw_only=True, eq=False)
class PageElement:
    """An element with its position; `text` has no blanks, and is empty if it is long."""

    node: LexborNode
    tag: str
    place: int
    parent: PageElement | None = None
    before: PageElement | None = None
    nth: int = 1
    end: int = 0
    text: str = ""

    def holds(self, other: PageElement) -> bool:
        """Return whether the other element is inside it, or is the same."""
        return self.place <= other.place < self.end

    def ancestors(self) -> Iterator[PageElement]:
        """Yield its ancestors, from the parent upwards."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent


@dataclass(slots=True, kw_only=True)
class _Open:
    """An element whose end has not been seen yet."""

    element: PageElement
    parts: list[str] = field(default_factory=list[str])
    tags: Counter[str] = field(default_factory=Counter[str])
    last: PageElement | None = None
    is_long: bool = False


def without_whitespace(text: str) -> str:
    """Return the text without blanks and invisible characters: equal whatever its layout."""
    return "".join(without_invisible(text).split())


def elements_of(tree: LexborHTMLParser) -> list[PageElement]:
    """Return the body and every element in it, in page order; none if there are too many."""
    elements: list[PageElement] = []
    if tree.body is None:
        return elements
    open_: list[_Open] = []
    for node in tree.body.traverse(include_text=True):
        above = node.parent.mem_id if node.parent is not None else None
        while open_ and open_[-1].element.node.mem_id != above:
            _close(open_, len(elements))
        tag = node.tag or "-"
        if tag == "-text" and open_:
            open_[-1].parts.append(without_whitespace(node.text_content or ""))
        elif not tag.startswith("-"):
            elements.append(_opened(open_, node, tag, len(elements)))
        if len(elements) > MAX_ELEMENTS:
            return []
    while open_:
        _close(open_, len(elements))
    return elements


def _opened(open_: list[_Open], node: LexborNode, tag: str, place: int) -> PageElement:
    element = PageElement(node=node, tag=tag, place=place)
    if open_:
        above = open_[-1]
        above.tags[tag] += 1
        element.parent, element.before, element.nth = above.element, above.last, above.tags[tag]
        above.last = element
    open_.append(_Open(element=element))
    return element


def _close(open_: list[_Open], end: int) -> None:
    closing = open_.pop()
    is_long = closing.is_long or sum(map(len, closing.parts)) > MAX_TEXT
    closing.element.end, closing.element.text = end, "" if is_long else "".join(closing.parts)
    if open_:
        open_[-1].is_long |= is_long
        open_[-1].parts.append(closing.element.text)


def names_of(element: PageElement) -> list[str]:
    """Return the element's selectors by each class, by pairs of classes, then by id."""
    if not _TAG.fullmatch(element.tag):
        return []
    attributes = element.node.attributes
    classes = [class_ for class_ in (attributes.get("class") or "").split() if _is_word(class_)]
    classes = list(dict.fromkeys(classes))[:MAX_NAMES]
    singles = [f"{element.tag}.{class_}" for class_ in classes]
    pairs = [f"{name}.{second}" for at, name in enumerate(singles) for second in classes[at + 1 :]]
    id_ = attributes.get("id") or ""
    by_id = [f"{element.tag}#{id_}"] if _is_word(id_) and not re.search("[0-9]", id_) else []
    return [*singles, *pairs, *by_id]


def _is_word(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not _NUMBERED.search(name)


def selectors_for(element: PageElement, top: PageElement) -> Iterator[tuple[int, str]]:
    """Yield CSS that finds the element inside `top`, with its rank: the lower, the more stable."""
    tag = element.tag
    if not _TAG.fullmatch(tag):
        return
    own = names_of(element)
    yield from ((0, name) for name in own)
    yield from ((1, css) for css in _by_label(element))
    place = f"{tag}:nth-of-type({element.nth})"
    for above, joint in _above(element, top):
        for name in names_of(above)[:MAX_NAMES]:
            yield from ((2, f"{name} {own_name}") for own_name in own[:1])
            yield 3, f"{name}{joint}{tag}"
            yield 5, f"{name}{joint}{place}"
    yield 4, tag
    yield 5, place
    if element.parent is not None and _TAG.fullmatch(element.parent.tag):
        parent = f"{element.parent.tag}:nth-of-type({element.parent.nth})"
        yield 6, f"{parent} > {place}"


def _above(element: PageElement, top: PageElement) -> Iterator[tuple[PageElement, str]]:
    """Yield the nearest ancestors up to `top`, each with the combinator to the element."""
    for depth, above in enumerate(element.ancestors()):
        if depth == MAX_ANCESTORS or not top.holds(above):
            return
        yield above, " " if depth else " > "


def _by_label(element: PageElement) -> Iterator[str]:
    """Yield selectors of the element after a label: `<dt>Credits</dt><dd>3</dd>`."""
    before = element.before
    if before is None or not 0 < len(before.text) <= MAX_LABEL or not _TAG.fullmatch(before.tag):
        return
    label = fragment_text(before.node.html or "").strip().rstrip(":").strip()
    if not _LABEL.fullmatch(label):
        return
    for name in (*names_of(before)[:1], before.tag):
        yield f'{name}:lexbor-contains("{label}") + {element.tag}'


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
    elements, records = multi_record_page.elements, multi_record_page.records
    enclosing = [element for values in records if (element := _enclosing_element(elements, values, required))]
    if len(enclosing) < len(records):
        return
    ranks_by_css: dict[str, list[tuple[int, int]]] = {}
    for element in enclosing:
        for css, rank in _selectors_around(element, enclosing, elements[0]).items():
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
    words = [without_whitespace(value) for name in required if isinstance(value := values[name], str)]
    matching = [block for block in blocks if all(word in block.text for word in words)]
    return min(matching, key=lambda block: (len(block.text), block.place), default=None)


def _enclosing_element(elements: Sequence[PageElement], values: Values, required: Sequence[str]) -> PageElement | None:
    """Return the smallest element that contains an element for each required value."""
    words = {without_whitespace(value) for name in required if isinstance(value := values[name], str)}
    # The elements with exactly this text; else those with only a label before it.
    stating = [
        [element for element in elements if element.text == word]
        or [element for element in elements if is_labelled(element.text, word)]
        for word in sorted(words)
    ]
    if not stating or not all(stating):
        return None
    whole = [around for element in min(stating, key=len) if (around := _first_enclosing(element, stating))]
    return min(whole, key=lambda element: (element.end - element.place, element.place), default=None)


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
MAX_TRIED = 80  # selectors of one field
MAX_COMPARED = 30  # records per candidate; the result is checked on all
_EXAMPLES_PER_FIELD = 3  # records whose elements are searched
_SHORT = 120  # characters; a number or a choice has a short text
_MAX_VALUE_ELEMENTS = 12  # elements with the same text, mostly nested
_MAX_PLACE, _MAX_PLACES = 8, 2  # of a text in its element


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
    most_records = max((len(page.records) for page in parsed_pages), default=0)
    if max(len(parsed_pages), most_records) < MIN_EXAMPLES:
        return None
    for css in containers(parsed_pages, _required(kind)):
        found_examples = examples(parsed_pages, css, _required(kind))
        voters = 1 if css else MAX_VOTERS  # the blocks of a list are alike
        fields = _fields(kind, found_examples[:MAX_COMPARED], voters) if found_examples else None
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
        required = [record.get(name) for record in page.records for name in _required(kind)]
        if len(page.body) > MAX_BODY_CHARACTERS or not page.records or None in required:
            return []
        tree = visible_tree(page.body)
        parsed_pages.append(ParsedTrainingPage(tree=tree, elements=elements_of(tree), records=page.records))
    return parsed_pages if all(parsed.elements for parsed in parsed_pages) else []


def _fields(kind: EntityType, examples: Sequence[Example], most: int) -> dict[str, tuple[str, ...]] | None:
    """Return the best selectors of each field; None if a required one has none."""
    chosen: dict[str, tuple[str, ...]] = {}
    for name in _in_order(kind):
        if all(_agrees(kind, chosen, name, example) for example in examples):
            continue  # always absent, or filled by a rule of the type
        candidates = _field_selectors(kind, name, examples, most)
        finding = (css for css in candidates if _finds_field(kind, chosen, name, css, examples))
        if voters := tuple(islice(finding, most)):
            chosen[name] = voters if len(voters) > 2 else voters[:1]  # noqa: PLR2004 - two cannot have a majority
        elif name in _required(kind):
            return None
    return chosen


def _in_order(kind: EntityType) -> list[str]:
    """Return required fields first, then those from which a rule fills others."""
    upper = {rule.to for rule in kind.rules if isinstance(rule, SingleGoesToMax)}
    names = [field.name for field in kind.fields]
    required = _required(kind)
    return sorted(names, key=lambda name: (name not in required, name not in upper))


def _field_selectors(kind: EntityType, name: str, examples: Sequence[Example], most: int) -> list[str]:
    """Return CSS that finds the field in some records: the most frequent first, then by rank."""
    different: dict[FieldValue, Example] = {}  # different values tell the field's place from others
    for example in examples:
        if (value := example.values.get(name)) is not None:
            different.setdefault(value, example)
    ranks: dict[str, tuple[int, int]] = {}
    for example in list(different.values())[:_EXAMPLES_PER_FIELD]:
        for css, rank in _field_selectors_in(kind, name, example, most).items():
            count, least = ranks.get(css, (0, rank))
            ranks[css] = (count - 1, min(rank, least))
    return sorted(ranks, key=lambda css: (*ranks[css], len(css), css))[:MAX_TRIED]


def _field_selectors_in(kind: EntityType, name: str, example: Example, most: int) -> dict[str, int]:
    elements, suffix = _value_elements(kind, name, example.values[name], example.inside)
    ranks: dict[str, int] = {}
    for element in elements:
        for rank, css in selectors_for(element, example.block):
            ranks[css + suffix] = min(rank, ranks.get(css + suffix, rank))
    for rank, css in _part_selectors(kind, name, example) if most > 1 or not ranks else ():
        ranks[css] = min(rank, ranks.get(css, rank))
    return ranks


def _value_elements(
    kind: EntityType, name: str, value: FieldValue | None, inside: Sequence[PageElement]
) -> tuple[list[PageElement], str]:
    """Return the elements with the value alone, else after a label; and the suffix of their selectors."""
    field_kind, text, suffix = kind.field(name).kind, without_whitespace(str(value)), ""
    if isinstance(value, bool):
        return [], suffix
    if field_kind in {FieldKind.TEXT, FieldKind.LANGUAGE}:
        matching = [element for element in inside if element.text == text]
    else:
        short = (element for element in inside if 0 < len(element.text) <= _SHORT)
        matching = [element for element in short if _states(kind, name, fragment_text(element.node.html or ""), value)]
    if not matching and field_kind is FieldKind.TEXT and isinstance(value, str):
        matching, suffix = [element for element in inside if is_labelled(element.text, text)], AFTER_LABEL
    shortest = sorted(matching, key=lambda element: (len(element.text), element.place))
    return shortest[:_MAX_VALUE_ELEMENTS], suffix


def _states(kind: EntityType, name: str, text: str, value: FieldValue | None) -> bool:
    return _normal(candidate_from_texts(kind, {name: text}).fields.get(name)) == _normal(value)


def _part_selectors(kind: EntityType, name: str, example: Example) -> Iterator[tuple[int, str]]:
    """Yield selectors of the value as a part of an element's text: after a label, or by its place among the others."""
    value = example.values[name]
    if isinstance(value, bool) or kind.field(name).derived:
        return
    texts = node_texts(example.block.node)
    stating = {text for text in set(texts) if len(text) <= MAX_TEXT and _states(kind, name, text, value)}
    for before, text in pairwise(["", *texts]):
        own_label, own_text = labelled_text(text)
        label = before if text in stating else own_label if _states(kind, name, own_text, value) else ""
        if _LABEL.fullmatch(label_of(label)):
            yield 1, f'::text-after("{label_of(label)}")'
    words = {without_whitespace(text) for text in stating}
    around = [element for element in example.inside if any(word in element.text for word in words)]
    for element in sorted(around, key=lambda element: (len(element.text), element.place))[:_MAX_VALUE_ELEMENTS]:
        yield from _placed(element, example.block, stating)


def _placed(element: PageElement, top: PageElement, stating: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield selectors of the places of these texts in the element, from its start and from its end."""
    texts = node_texts(element.node)
    places = [at for at, text in enumerate(texts) if text in stating]
    if len(texts) == 1:
        return  # the element's own selectors find it
    for rank, css in selectors_for(element, top):
        for at in places[:_MAX_PLACES]:
            for place in (at + 1, at - len(texts)):
                if abs(place) <= _MAX_PLACE:
                    yield rank + 2, f"{css}::text({place})"


def _finds_field(
    kind: EntityType, chosen: dict[str, tuple[str, ...]], name: str, css: str, examples: Sequence[Example]
) -> bool:
    """Return whether the selector finds the field: always if required, else nearly always."""
    if name in kind.key_fields and not all(has_single_text(example.block.node, css) for example in examples):
        return False
    stated = sum(example.values.get(name) is not None for example in examples)
    allowed = 0 if name in _required(kind) else int(stated * (1 - MIN_OPTIONAL_SHARE) + 1e-9)
    wrong = (example for example in examples if not _agrees(kind, chosen | {name: (css,)}, name, example))
    return next(islice(wrong, allowed, None), None) is None


def _agrees(kind: EntityType, chosen: dict[str, tuple[str, ...]], name: str, example: Example) -> bool:
    if name not in example.values:
        return True
    selectors = Selectors(record=None, fields=tuple(chosen.items()))
    [record] = unproved_records(kind, [candidate_in(kind, selectors, example.block.node)])
    return _normal(record.fields[name]) == _normal(example.values[name])


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
            right += sum(_normal(actual) == _normal(correct) for actual, correct in either)
    return right >= MIN_OPTIONAL_SHARE * stated


def _key(kind: EntityType, values: Values) -> tuple[object, ...]:
    return tuple(_normal(values[name]) for name in _required(kind))


def _normal(value: FieldValue | None) -> object:
    return " ".join(value.split()) if isinstance(value, str) else value
