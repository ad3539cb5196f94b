"""Which element of a page is around each of its records, guessed from where their fields stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.entity_type import (
    EntityType,
    FieldKind,
    SingleGoesToMax,
)
from ingestion_pipeline.catalogs.extraction.record import FieldValue
from ingestion_pipeline.catalogs.extraction.selectors import (
    AFTER_LABEL,
    Selectors,
    found_by_words,
    found_in,
    is_labelled,
)
from ingestion_pipeline.catalogs.learning.learned_selectors import (
    found_by_learned,
    is_alone,
    without_proof,
)
from ingestion_pipeline.catalogs.learning.page_elements import (
    PageElement,
    elements_of,
    squeezed,
    ways_to,
)
from ingestion_pipeline.reading.html.cleaning import fragment_text, visible_tree

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


MAX_CONTAINERS = 12
MAX_STRANGE_BLOCKS = 20  # that match and hold no record: heads of tables
_LASTING = {0, 2, 3, 4}  # ranks of `ways_to` that neither count nor depend on a label

Values = Mapping[str, FieldValue | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A page that is learned from, and what is known to be on it."""

    tree: LexborHTMLParser
    elements: Sequence[PageElement]
    records: Sequence[Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A record and the element around it."""

    block: PageElement
    inside: Sequence[PageElement]
    values: Values


def containers(sheets: Sequence[Sheet], required: Sequence[str]) -> Iterator[str | None]:
    """CSS of what may be around a record, the likeliest first; None is the whole page."""
    several = next((one for one in sheets if len(one.records) > 1), None)
    if several is None:
        yield None
        return
    homes = [_home(several.elements, values, required) for values in several.records]
    known = [home for home in homes if home is not None]
    if len(known) < len(homes):
        return
    ways: dict[str, list[tuple[int, int]]] = {}
    for home in known:
        for css, worth in _ways_around(home, known, several.elements[0]).items():
            ways.setdefault(css, []).append(worth)
    shared = [(max(worths), css) for css, worths in ways.items() if len(worths) == len(known)]
    yield from (css for _, css in sorted(shared)[:MAX_CONTAINERS])


def examples(
    sheets: Sequence[Sheet], css: str | None, required: Sequence[str]
) -> list[Example] | None:
    """Each record with the element around it; None if one has none of its own."""
    found: list[Example] = []
    for sheet in sheets:
        blocks = _blocks(sheet, css)
        if len(blocks) > len(sheet.records) * 2 + MAX_STRANGE_BLOCKS:
            return None
        taken: set[int] = set()
        for values in sheet.records:
            block = _block_of(blocks, values, required) if css else blocks[0]
            if block is None or block.place in taken:
                return None
            taken.add(block.place)
            inside = sheet.elements[block.place : block.end]
            found.append(Example(block=block, inside=inside, values=values))
    return found


def _blocks(sheet: Sheet, css: str | None) -> list[PageElement]:
    if css is None:
        return [sheet.elements[0]]
    places = {one.node.mem_id: one for one in sheet.elements}
    return [places[node.mem_id] for node in sheet.tree.css(css) if node.mem_id in places]


def _block_of(
    blocks: Sequence[PageElement], values: Values, required: Sequence[str]
) -> PageElement | None:
    """The smallest that says all that is required."""
    words = [squeezed(value) for name in required if isinstance(value := values[name], str)]
    saying = [one for one in blocks if all(word in one.text for word in words)]
    return min(saying, key=lambda one: (len(one.text), one.place), default=None)


def _home(
    elements: Sequence[PageElement], values: Values, required: Sequence[str]
) -> PageElement | None:
    """The smallest element that states all that is required."""
    words = {squeezed(value) for name in required if isinstance(value := values[name], str)}
    stating = [_saying(elements, word) for word in sorted(words)]
    if not stating or not all(stating):
        return None
    rarest = min(stating, key=len)
    homes = [_first_holding(one, stating) for one in rarest]
    whole = [one for one in homes if one is not None]
    return min(whole, key=lambda one: (one.end - one.place, one.place), default=None)


def _saying(elements: Sequence[PageElement], word: str) -> list[PageElement]:
    """The elements that say nothing else; for want of them, those that say it after a label."""
    alone = [one for one in elements if one.text == word]
    return alone or [one for one in elements if is_labelled(one.text, word)]


def _first_holding(
    anchor: PageElement, stating: Sequence[Sequence[PageElement]]
) -> PageElement | None:
    around = (anchor, *anchor.ancestors())
    return next(
        (one for one in around if all(any(map(one.holds, saying)) for saying in stating)), None
    )


def _ways_around(
    home: PageElement, homes: Sequence[PageElement], top: PageElement
) -> dict[str, tuple[int, int]]:
    """CSS of the element and of all around it that hold no other record: the widest first."""
    others = [one for one in homes if one is not home]
    above = (home, *home.ancestors())
    own = list(takewhile(lambda one: not any(map(one.holds, others)), above))
    found: dict[str, tuple[int, int]] = {}
    for level, one in enumerate(reversed(own)):
        for rank, css in ways_to(one, top):
            if rank in _LASTING:
                found.setdefault(css, (rank, level))
    return found


LEAST_EXAMPLES = 3  # pages, or records of one page
LEAST_OPTIONAL_SHARE = 0.9
MAX_BODY_CHARACTERS = 1_000_000
MAX_TRIED = 40  # ways to one field
MAX_COMPARED = 30  # records while guessing; in the end all are
_SHOWN_BY = 3  # records whose elements are looked at
_SHORT = 120  # a number or a choice is stated by few words
_MOST_STATING = 12  # elements with one text, mostly inside each other


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPage:
    """A page and the records that are known to be on it, all of them.

    A field that a record does not name is not known; None is known to be absent.
    """

    body: str
    records: Sequence[Values]


def learn_selectors(kind: EntityType, lessons: Sequence[TrainingPage]) -> Selectors | None:
    """Selectors that find these records on these pages and no others; None if none do.

    All required fields are found, and nearly all values of the others. The same lessons teach the
    same.

    Raises:
        Permanent: a page is a bomb (see `parse_html`).
    """
    sheets = _sheets(kind, lessons)
    if not _are_enough(sheets):
        return None
    for css in containers(sheets, _required(kind)):
        shown = examples(sheets, css, _required(kind))
        fields = _fields(kind, shown[:MAX_COMPARED]) if shown else None
        if fields:
            learned = Selectors(record=css, fields=tuple(fields.items()))
            if _is_learned(kind, learned, sheets):
                return learned
    return None


def _required(kind: EntityType) -> tuple[str, ...]:
    return kind.required or kind.key_fields


def _sheets(kind: EntityType, lessons: Sequence[TrainingPage]) -> list[Sheet]:
    """The pages as they are seen; none if one of them cannot be learned from."""
    found: list[Sheet] = []
    for lesson in lessons:
        if len(lesson.body) > MAX_BODY_CHARACTERS or not _are_whole(kind, lesson.records):
            return []
        tree = visible_tree(lesson.body)
        found.append(Sheet(tree=tree, elements=elements_of(tree), records=lesson.records))
    return found if all(sheet.elements for sheet in found) else []


def _are_whole(kind: EntityType, records: Sequence[Values]) -> bool:
    names = _required(kind)
    return bool(records) and all(one.get(name) is not None for one in records for name in names)


def _are_enough(sheets: Sequence[Sheet]) -> bool:
    most = max((len(sheet.records) for sheet in sheets), default=0)
    return max(len(sheets), most) >= LEAST_EXAMPLES


def _fields(kind: EntityType, shown: Sequence[Example]) -> dict[str, str] | None:
    """For each field the best way to it that there is; None if there is none to a required one."""
    chosen: dict[str, str] = {}
    for name in _in_order(kind):
        if all(_agrees(kind, chosen, name, one) for one in shown):
            continue  # never said, or a rule of the type fills it
        css = next(
            (css for css in _ways(kind, name, shown) if _leads(kind, chosen, name, css, shown)),
            None,
        )
        if css is not None:
            chosen[name] = css
        elif name in _required(kind):
            return None
    return chosen


def _in_order(kind: EntityType) -> list[str]:
    """Required fields first, then those by which a rule fills others."""
    upper = {rule.to for rule in kind.rules if isinstance(rule, SingleGoesToMax)}
    names = [field.name for field in kind.fields]
    required = _required(kind)
    return sorted(names, key=lambda name: (name not in required, name not in upper))


def _ways(kind: EntityType, name: str, shown: Sequence[Example]) -> list[str]:
    """CSS that leads to the field in some records: that of most of them first, then by rank."""
    found: dict[str, tuple[int, int]] = {}
    for example in _telling(name, shown):
        for css, rank in _ways_in(kind, name, example).items():
            count, least = found.get(css, (0, rank))
            found[css] = (count - 1, min(rank, least))
    return sorted(found, key=lambda css: (*found[css], len(css), css))[:MAX_TRIED]


def _telling(name: str, shown: Sequence[Example]) -> list[Example]:
    """Records that have the field, each with another value: those tell its place apart."""
    different: dict[FieldValue, Example] = {}
    for one in shown:
        value = one.values.get(name)
        if value is not None:
            different.setdefault(value, one)
    return list(different.values())[:_SHOWN_BY]


def _ways_in(kind: EntityType, name: str, example: Example) -> dict[str, int]:
    value = example.values[name]
    stating = _stating(kind, name, value, example.inside)
    labelled = _labelled(kind, name, value, example.inside) if not stating else []
    ways: dict[str, int] = {}
    for element, ending in [
        *((one, "") for one in stating),
        *((one, AFTER_LABEL) for one in labelled),
    ]:
        for rank, css in ways_to(element, example.block):
            ways[css + ending] = min(rank, ways.get(css + ending, rank))
    return ways


def _stating(
    kind: EntityType, name: str, value: FieldValue | None, inside: Sequence[PageElement]
) -> list[PageElement]:
    """The elements that say the value and little else, those with the fewest words first."""
    if isinstance(value, bool):
        return []
    if kind.field(name).kind in {FieldKind.TEXT, FieldKind.LANGUAGE}:
        wanted = squeezed(str(value))
        saying = [one for one in inside if one.text == wanted]
    else:
        short = (one for one in inside if 0 < len(one.text) <= _SHORT)
        saying = [one for one in short if _says(kind, name, one) == value]
    return sorted(saying, key=lambda one: (len(one.text), one.place))[:_MOST_STATING]


def _labelled(
    kind: EntityType, name: str, value: FieldValue | None, inside: Sequence[PageElement]
) -> list[PageElement]:
    """The elements that say the value after a label of their own, where none says it alone."""
    if kind.field(name).kind is not FieldKind.TEXT or not isinstance(value, str):
        return []
    wanted = squeezed(value)
    saying = [one for one in inside if is_labelled(one.text, wanted)]
    return sorted(saying, key=lambda one: (len(one.text), one.place))[:_MOST_STATING]


def _says(kind: EntityType, name: str, element: PageElement) -> FieldValue | None:
    return found_by_words(kind, {name: fragment_text(element.node.html or "")}).fields.get(name)


def _leads(
    kind: EntityType, chosen: dict[str, str], name: str, css: str, shown: Sequence[Example]
) -> bool:
    """Whether the way leads to the field: always to a required one, nearly always to another."""
    if name in kind.key_fields and not all(is_alone(one.block.node, css) for one in shown):
        return False
    allowed = (
        0
        if name in _required(kind)
        else _allowed(sum(one.values.get(name) is not None for one in shown))
    )
    wrong = 0
    for one in shown:
        wrong += not _agrees(kind, chosen | {name: css}, name, one)
        if wrong > allowed:
            return False
    return True


def _allowed(count: int) -> int:
    return int(count * (1 - LEAST_OPTIONAL_SHARE) + 1e-9)


def _agrees(kind: EntityType, chosen: dict[str, str], name: str, example: Example) -> bool:
    if name not in example.values:
        return True
    selectors = Selectors(record=None, fields=tuple(chosen.items()))
    [found] = without_proof(kind, [found_in(kind, selectors, example.block.node)])
    return _same(found.fields[name], example.values[name])


def _is_learned(kind: EntityType, learned: Selectors, sheets: Sequence[Sheet]) -> bool:
    """Whether every page gives its records again, and all together nearly all other values."""
    others = [field.name for field in kind.fields if field.name not in _required(kind)]
    right = said = 0
    for sheet in sheets:
        records = without_proof(kind, found_by_learned(kind, learned, sheet.tree))
        found = {_key(kind, one.fields): one.fields for one in records}
        known = {_key(kind, one): one for one in sheet.records}
        if found.keys() != known.keys():
            return False
        for key, values in known.items():
            told = [(found[key][name], values[name]) for name in others if name in values]
            either = [pair for pair in told if pair != (None, None)]
            said += len(either)
            right += sum(_same(one, other) for one, other in either)
    return right >= LEAST_OPTIONAL_SHARE * said


def _key(kind: EntityType, values: Values) -> tuple[object, ...]:
    return tuple(_normal(values[name]) for name in _required(kind))


def _same(one: FieldValue | None, other: FieldValue | None) -> bool:
    return _normal(one) == _normal(other)


def _normal(value: FieldValue | None) -> object:
    return " ".join(value.split()) if isinstance(value, str) else value
