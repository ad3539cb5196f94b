"""Which element of a page is around each of its records, guessed from where their fields stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.page_elements import PageElement, squeezed, ways_to
from ingestion_pipeline.catalogs.entities.record import FieldValue
from ingestion_pipeline.catalogs.entities.selectors import is_labelled

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
