"""Split a page into lines, one for each block of text, with marks of headings and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.rules.course_words import part_named
from ingestion_pipeline.reading.html.cleaning import fragment_text, readable

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_LINES = 200_000
MAX_TERM_CHARACTERS = 60
MAX_CELLS = 200  # per row of labels and values; more mean another layout
MIN_NAMED_ROWS = 2  # pairs with a known label, so that all such pairs count as rows

_ASIDE = (
    "nav, header:not(main header), footer, aside, [role=navigation], [role=banner],"
    " [role=contentinfo], .breadcrumb, .breadcrumbs, .footer, .site-footer, .page-footer, #footer,"
    " .copyright, .pager, .pagination"
)
# Names that elements around the content begin with, alone or after the first words.
_CHROME = re.compile(
    r"(?:(?:site|page|main|global|top|back|js|block|region|section|widget|l|c|o|m)[-_]{1,2})?(?:cookies?|consent|gdpr|onetrust"
    r"|filters?|facets?|side-?bar|breadcrumbs?|footer|nav|navbar|navigation|menu|newsletter|social|share|news|related"
    r"|alert|announcements?|contact|promo|advert\w*)(?![a-z])",
    re.IGNORECASE,
)
MAX_CHROME_SHARE = 0.3  # of the page's text in elements of one name; more is content
_OPENED = re.compile(r"""(?:open\(|location(?:\.href)?\s*=)\s*['"]([^'"]{2,500})['"]""")
_FIGURE = re.compile("[0-9]")
_STYLED_BOLD = "[style*='bold' i]"
_INLINE = frozenset(
    {
        *("a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn"),
        *("em", "font", "i", "ins", "kbd", "label", "mark", "nobr", "q", "s", "samp", "small"),
        *("span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"),
    }
)
_BOLD = frozenset({"b", "strong", "h1", "h2", "h3", "h4", "h5", "h6", "dt", "th", "caption", "summary"})
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_TERMS = frozenset({"dt", "th"})
_VERBATIM = frozenset({"pre", "listing", "plaintext"})
_TOUCHING = frozenset({"span", "time", "strong", "a", "b", "em", "i"})
_WHOLE = re.compile(r"(?:\w\w|[.:;,)])$")  # single letters are a text effect
_MARKS = _BOLD | _TERMS | _VERBATIM | {"a"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a page; `lead` is its bold beginning, `marked` its first words that are bold or a link.

    `links` are the addresses that it leads to, as the page states them; a link without words is a line of its own.

    `is_term` if it labels the next line: `<dt>Credits</dt><dd>3</dd>`.
    """

    text: str
    lead: str
    is_heading: bool
    is_term: bool = False
    marked: str = ""
    links: tuple[str, ...] = ()
    node: LexborNode | None = field(default=None, compare=False, repr=False)  # the text's parent

    @property
    def rest(self) -> str:
        """The text after the bold beginning."""
        return self.text.removeprefix(self.lead).strip()


@dataclass(slots=True)
class _Gathering:
    texts: list[str]
    lead: list[str]
    is_lead: bool
    is_heading: bool
    is_term: bool
    node: LexborNode | None = None
    marked: list[str] = field(default_factory=list[str])
    is_mark_over: bool = False
    links: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Depths:
    """How many elements of each kind are open around a text."""

    bold: int = 0
    link: int = 0
    heading: int = 0
    term: int = 0
    verbatim: int = 0

    def change(self, tag: str, by: int, *, is_term: bool, is_bold: bool) -> None:
        """Enter an element, or leave it."""
        self.bold += by * (is_bold or tag in _BOLD)
        self.link += by * (tag == "a")
        self.heading += by * (tag in _HEADINGS)
        self.term += by * (is_term or tag in _TERMS)
        self.verbatim += by * (tag in _VERBATIM)


def content_lines(tree: LexborHTMLParser, *, with_links: bool = False) -> list[Line]:
    """Return a cleaned page's lines without navigation and footer, which the tree loses."""
    for node in tree.css(_ASIDE):
        node.decompose()
    if tree.body is None:
        return []
    _remove_chrome(tree, tree.body)
    bold = {node.mem_id for node in tree.css(_STYLED_BOLD)}
    # Nodes that label what follows: by their class, or first of a row of two cells.
    named = tree.css("[class*='label' i]:not(:has(*))")
    rows = (cell for row in tree.css("tr") if (cell := _term(row)) is not None)
    terms = {node.mem_id for node in chain(named, rows, _terms_without_table(tree))}
    return list(islice(lines_of(tree.body, terms=terms, bold=bold, with_links=with_links), MAX_LINES))


def _remove_chrome(tree: LexborHTMLParser, body: LexborNode) -> None:
    """Remove elements that are named for chrome: without the page's title, and with a small part of its text."""
    named: dict[str, list[LexborNode]] = {}
    for node in tree.css("div, section, ul, form, p, table"):
        names = f"{node.attrs.get('id') or ''} {node.attrs.get('class') or ''}"
        if any(map(_CHROME.match, names.split())):
            named.setdefault(names, []).append(node)
    most = MAX_CHROME_SHARE * len(body.text()) if named else 0
    for nodes in named.values():
        is_small = sum(len(node.text()) for node in nodes) <= most
        if is_small and not any(node.css_first("h1") for node in nodes):
            for node in nodes:
                node.decompose()


def _terms_without_table(tree: LexborHTMLParser) -> Iterator[LexborNode]:
    """Yield the first of each pair of elements that is laid out like pairs with known labels.

    Of bold words before a text, only those that are not labels by themselves.
    """
    pairs: dict[object, list[LexborNode]] = {}
    leads: dict[object, list[LexborNode]] = {}
    for row in tree.css("div, li, p"):
        if (term := _term(row)) is not None:
            form = (row.tag, row.attrs.get("class"), term.tag, term.attrs.get("class"))
            pairs.setdefault(form, []).append(term)
        elif (term := _bold_term(row)) is not None:
            leads.setdefault((row.tag, row.attrs.get("class"), term.tag), []).append(term)
        elif terms := _terms_in_turns(row):
            pairs[row.mem_id] = terms
    for terms in filter(_are_labels, pairs.values()):
        yield from terms
    for terms in filter(_are_labels, leads.values()):
        yield from (term for term in terms if ":" not in term.text() and not _is_label(term))


def _are_labels(terms: Sequence[LexborNode]) -> bool:
    return sum(map(_is_label, terms)) >= MIN_NAMED_ROWS


def _terms_in_turns(row: LexborNode) -> list[LexborNode]:
    """Return every second element of a row in which labels and values alternate."""
    cells = [node for node in islice(row.iter(), MAX_CELLS) if node.is_element_node]
    is_even = len(cells) >= 2 * MIN_NAMED_ROWS and len(cells) % 2 == 0
    if not is_even or len({cell.tag for cell in cells}) > 1:
        return []
    has_labels_alone = not any(_is_label(cell) for cell in cells[1::2])
    short = all(len(cell.text().strip()) <= MAX_TERM_CHARACTERS for cell in cells[::2])
    return cells[::2] if has_labels_alone and short else []


def _is_label(term: LexborNode) -> bool:
    return part_named(readable(term.text()).strip(" :.*\uff1a")) is not None


def _term(row: LexborNode) -> LexborNode | None:
    match list(islice((node for node in row.iter() if node.is_element_node), 3)):
        case [name, _] if len(name.text().strip()) <= MAX_TERM_CHARACTERS:
            return name
        case _:
            return None


def _bold_term(row: LexborNode) -> LexborNode | None:
    """Return the bold start of a row of text, if it is short and has no digits."""
    elements = list(islice((node for node in row.iter() if node.is_element_node), 2))
    name = elements[0] if len(elements) == 1 and elements[0].tag in {"b", "strong"} else None
    if name is None or not row.text().lstrip().startswith(words := name.text().strip()):
        return None
    is_short = 0 < len(words) <= MAX_TERM_CHARACTERS and not _FIGURE.search(words)
    return name if is_short and len(row.text().strip()) > len(words) else None


def lines_of(
    root: LexborNode,
    *,
    without: Set[int] = frozenset(),
    terms: Set[int] = frozenset(),
    bold: Set[int] = frozenset(),
    with_links: bool = False,
) -> Iterator[Line]:
    """Yield the lines of a cleaned element, in page order, except those of the nodes in `without`.

    `terms` are the ids of nodes that label what follows them, besides `dt` and `th`; `bold` those
    of nodes that a style makes bold.
    """
    line = _Gathering([], [], is_lead=True, is_heading=False, is_term=False)
    # A page that is only text has no layout but its line ends.
    is_plain_text = root.tag == "body" and all(child.tag == "-text" for child in root.iter(include_text=True))
    depths = _Depths(verbatim=is_plain_text)
    waiting: list[tuple[LexborNode, bool]] = [(root, False)]
    while waiting:
        node, is_end = waiting.pop()
        tag = node.tag or ""
        if tag == "-text":
            yield from _read(line, node, depths)
            continue
        node_id = node.mem_id
        is_left_out, is_term = node_id in without, node_id in terms
        if tag not in _INLINE or is_left_out or is_term:
            yield from _finished(line)
        elif is_end and tag == "span":
            _part_from_next(line, node)
        if is_left_out:
            continue
        if is_term or tag in _MARKS or node_id in bold:
            is_bold = node_id in bold
            depths.change(tag, -1 if is_end else 1, is_term=is_term, is_bold=is_bold)
        if not is_end:
            _gather_link(line, node, with_links=with_links)
            waiting.append((node, True))
            children = list(node.iter(include_text=True))
            waiting.extend((child, False) for child in reversed(children))
    yield from _finished(line)


def _gather_link(line: _Gathering, node: LexborNode, *, with_links: bool) -> None:
    """Add where the element leads: by its link, or by a script that opens an address."""
    if not with_links or not node.is_element_node:
        return
    opened = _OPENED.search(node.attrs.get("onclick") or "")
    address = opened[1] if opened else node.attrs.get("href") if node.tag == "a" else None
    if address:
        line.links.append(address)
        line.node = line.node or node


def _read(line: _Gathering, node: LexborNode, depths: _Depths) -> Iterator[Line]:
    """Add a text; where line ends count, yield the lines that it finishes."""
    text, around = node.text_content or "", node.parent
    first, *others = text.split("\n") if depths.verbatim else [text]
    _gather(line, first, around, depths)
    for other in others:
        yield from _finished(line)
        _gather(line, other, around, depths)


def _gather(line: _Gathering, text: str, around: LexborNode | None, depths: _Depths) -> None:
    line.texts.append(text)
    if not text.strip():
        line.lead.append(text if line.is_lead else "")
        return
    line.node = line.node or around
    line.is_lead = line.is_lead and depths.bold > 0
    line.is_heading = line.is_heading or depths.heading > 0
    line.is_term = line.is_term or depths.term > 0
    if line.is_lead:
        line.lead.append(text)
    is_marked = depths.bold > 0 or depths.link > 0
    if is_marked and not line.is_mark_over:
        line.marked.append(text)
    line.is_mark_over = line.is_mark_over or (bool(line.marked) and not is_marked)


def _part_from_next(line: _Gathering, node: LexborNode) -> None:
    """Add a blank between elements that only a style sheet separates, as in the page's text."""
    if line.texts and _WHOLE.search(line.texts[-1]) and (after := node.next) is not None:
        line.texts.append(" " if after.tag in _TOUCHING else "")


def _finished(line: _Gathering) -> Iterator[Line]:
    text = readable("".join(line.texts).replace("\n", " ")) if line.texts else ""
    if text or line.links:
        lead = readable("".join(line.lead).replace("\n", " "))
        yield Line(
            text=text,
            lead=lead,
            is_heading=line.is_heading,
            is_term=line.is_term,
            marked=readable(" ".join(line.marked).replace("\n", " ")),
            links=tuple(line.links),
            node=line.node,
        )
    line.texts, line.lead, line.is_lead, line.node = [], [], True, None
    line.marked, line.links, line.is_mark_over = [], [], False
    line.is_heading = line.is_term = False


def text_in_line(node: LexborNode) -> str:
    """Return the element's visible text with single blanks."""
    return " ".join(fragment_text(node.html or "").split())
