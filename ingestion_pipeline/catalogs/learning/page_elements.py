"""The elements of a page in its order, and the CSS by which each can be found again elsewhere.

Names of classes and ids are taken only where they look like words: what has digits in a row is the
name of one page, or of one build of its style sheet.
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


MAX_ELEMENTS = 5_000  # of a page that is learned from; a catalogue's pages have 300 to 3,000
MAX_TEXT = 20_000
MAX_ANCESTORS = 5
MAX_LABEL = 40
MAX_NAMES = 4  # of one element; style sheets of small parts give an element thirty classes
_TAG = re.compile(r"[a-z][a-z0-9-]{0,40}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,60}")
_NUMBERED = re.compile(r"[0-9]{2}")
# Neither a quotation mark nor a backslash: a label becomes a part of the CSS.
_LABEL = re.compile(r"[^\W\d_][\w &/().-]{1,40}")


@dataclass(slots=True, kw_only=True, eq=False)
class PageElement:
    """An element with its place in the page; `text` has no blanks, and is empty if it is long."""

    node: LexborNode
    tag: str
    place: int
    parent: PageElement | None = None
    before: PageElement | None = None
    nth: int = 1
    end: int = 0
    text: str = ""

    def holds(self, other: PageElement) -> bool:
        """Whether the other one is in it, or is it."""
        return self.place <= other.place < self.end

    def ancestors(self) -> Iterator[PageElement]:
        """From its parent upwards."""
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


def squeezed(text: str) -> str:
    """The text without blanks and what nobody sees: equal however it is laid out."""
    return "".join(without_invisible(text).split())


def elements_of(tree: LexborHTMLParser) -> list[PageElement]:
    """The body and every element in it, in page order; none if there are too many."""
    found: list[PageElement] = []
    if tree.body is None:
        return found
    open_: list[_Open] = []
    for node in tree.body.traverse(include_text=True):
        above = node.parent.mem_id if node.parent is not None else None
        while open_ and open_[-1].element.node.mem_id != above:
            _close(open_, len(found))
        tag = node.tag or "-"
        if tag == "-text" and open_:
            open_[-1].parts.append(squeezed(node.text_content or ""))
        elif not tag.startswith("-"):
            found.append(_opened(open_, node, tag, len(found)))
        if len(found) > MAX_ELEMENTS:
            return []
    while open_:
        _close(open_, len(found))
    return found


def _opened(open_: list[_Open], node: LexborNode, tag: str, place: int) -> PageElement:
    made = PageElement(node=node, tag=tag, place=place)
    if open_:
        above = open_[-1]
        above.tags[tag] += 1
        made.parent, made.before, made.nth = above.element, above.last, above.tags[tag]
        above.last = made
    open_.append(_Open(element=made))
    return made


def _close(open_: list[_Open], end: int) -> None:
    one = open_.pop()
    is_long = one.is_long or sum(map(len, one.parts)) > MAX_TEXT
    one.element.end, one.element.text = end, "" if is_long else "".join(one.parts)
    if open_:
        open_[-1].is_long |= is_long
        open_[-1].parts.append(one.element.text)


def names_of(element: PageElement) -> list[str]:
    """The element by each of its classes, by pairs of them, then by its id."""
    if not _TAG.fullmatch(element.tag):
        return []
    attributes = element.node.attributes
    classes = [one for one in (attributes.get("class") or "").split() if _is_word(one)]
    classes = list(dict.fromkeys(classes))[:MAX_NAMES]
    singles = [f"{element.tag}.{one}" for one in classes]
    pairs = [f"{name}.{two}" for at, name in enumerate(singles) for two in classes[at + 1 :]]
    id_ = attributes.get("id") or ""
    by_id = [f"{element.tag}#{id_}"] if _is_word(id_) and not re.search("[0-9]", id_) else []
    return [*singles, *pairs, *by_id]


def _is_word(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not _NUMBERED.search(name)


def ways_to(element: PageElement, top: PageElement) -> Iterator[tuple[int, str]]:
    """CSS that finds the element inside `top`, each with its rank: the lower, the more lasting."""
    tag = element.tag
    if not _TAG.fullmatch(tag):
        return
    own = names_of(element)
    yield from ((0, name) for name in own)
    yield from ((1, css) for css in _by_label(element))
    place = f"{tag}:nth-of-type({element.nth})"
    for above, joint in _above(element, top):
        for name in names_of(above)[:MAX_NAMES]:
            yield from ((2, f"{name} {one}") for one in own[:1])
            yield 3, f"{name}{joint}{tag}"
            yield 5, f"{name}{joint}{place}"
    yield 4, tag
    yield 5, place
    if element.parent is not None and _TAG.fullmatch(element.parent.tag):
        parent = f"{element.parent.tag}:nth-of-type({element.parent.nth})"
        yield 6, f"{parent} > {place}"


def _above(element: PageElement, top: PageElement) -> Iterator[tuple[PageElement, str]]:
    """The nearest ancestors inside `top`, and it itself, with how they lead to the element."""
    for depth, above in enumerate(element.ancestors()):
        if depth == MAX_ANCESTORS or not top.holds(above):
            return
        yield above, " " if depth else " > "


def _by_label(element: PageElement) -> Iterator[str]:
    """The element as the one after a label: `<dt>Credits</dt><dd>3</dd>`."""
    before = element.before
    if before is None or not 0 < len(before.text) <= MAX_LABEL or not _TAG.fullmatch(before.tag):
        return
    label = fragment_text(before.node.html or "").strip().rstrip(":").strip()
    if not _LABEL.fullmatch(label):
        return
    for name in (*names_of(before)[:1], before.tag):
        yield f'{name}:lexbor-contains("{label}") + {element.tag}'
