"""List the elements of a page, and the CSS selectors that find each of them on other pages.

Names of classes and ids are used only where they look like words: a name with digits in a row
belongs to one page, or to one build of its style sheet.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.html.cleaning import fragment_text, without_invisible

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
