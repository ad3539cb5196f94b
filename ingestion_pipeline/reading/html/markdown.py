"""A page as its visitor sees it: its visible content as Markdown with links, for people and for models.

`visible_page` reads addresses, links, text and Markdown from one parse.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape, unescape
from typing import TYPE_CHECKING, NamedTuple

from ingestion_pipeline.reading.html.cleaning import (
    MAY_BE_UNSEEN,
    OFTEN_UNSEEN,
    SELDOM_THERE,
    body_html,
    is_printable_utf8,
    remove_unseen,
    utf8_text,
    visible_tree,
    without_invisible,
)
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import (
    ADDRESS_SELECTOR,
    FeedLink,
    PageAddresses,
    PageLink,
    Refresh,
    base_of,
    canonical_or_none,
    feeds_of,
    folder_of,
    following_pages,
    language_of,
    linked_page,
    links_from,
    origin_of,
    page_addresses,
    title_of,
)
from ingestion_pipeline.reading.text.plain_text import re2_pattern

if TYPE_CHECKING:
    from html_to_markdown._html_to_markdown import ConversionOptions
    from selectolax.lexbor import LexborHTMLParser

# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK = re.compile(rb'(<a(?: (?!href=)[^ >][^ =>]*+="[^"]*+")*+) href="([^"]*+)"([^>]*+)')
_PLAIN_PLACE = re.compile(rb"[\w-]++", re.ASCII)
_KEPT_SCHEMES = ("mailto:", "tel:", "#")
_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*:")

# Leads to the same page, or to none, from everywhere, from every page of a site, or of a folder; nothing odd.
_WHOLE = re.compile(rb"https?://[^/?#\\\s]|(?:javascript|mailto|tel):")
_ROOTED = re.compile(rb"/(?:\Z|[\w.~%?-])", re.ASCII)
_OF_FOLDER = re.compile(rb"(?!\.\.)[\w.-][^:\s]*+", re.ASCII)
_PLAIN_FOLDER = re.compile(rb"/(?:[\w~%-][\w.~%-]*+/)*+", re.ASCII)

_REMEMBERED_BYTES = 200
_MOST_REMEMBERED = 8_192  # some megabytes


class LinkTarget(NamedTuple):
    """The target of a link: the canonical URL if it is a page, and the attribute for the converter if it has any."""

    page: str | None
    attribute: bytes


class _Memory:
    """A cache of link targets, by the site or folder whose pages contain them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._places: dict[str, dict[bytes, LinkTarget]] = {}

    def of(self, place: str) -> dict[bytes, LinkTarget]:
        """Return the cached targets of a place; they may be dropped, but are never wrong."""
        if (targets := self._places.get(place)) is None:
            self._make_room()
            targets = self._places[place] = {}
        return targets

    def keep(self, place: str, written: bytes, target: LinkTarget) -> LinkTarget:
        """Cache the target."""
        self._make_room()
        self.of(place)[written] = target
        return target

    def _make_room(self) -> None:
        """Make room for one more; when full, everything is dropped."""
        if self._count >= self._most:
            self._places, self._count = {}, 0
        self._count += 1


_FROM_EVERYWHERE = ""
_memory = _Memory(_MOST_REMEMBERED)


class LinkedHtml:
    """The result of `body_html`, split at its links.

    `parts` come in fours: what precedes a link's tag, the tag up to its address, the address, the
    rest of the tag; the last one is what follows. `targets` are of the links, in that order.
    """

    __slots__ = ("_base", "_folder", "_known", "_origin", "_path", "_whole", "parts", "targets")

    def __init__(self, html: bytes, base: str | None) -> None:
        self._base = base
        self._origin = f"{origin}/" if (origin := origin_of(base)) else _FROM_EVERYWHERE
        self._folder = folder_of(base or "")
        path = self._folder[len(self._origin) - 1 :].encode() if self._origin else b""
        self._path = path if _PLAIN_FOLDER.fullmatch(path) else b""
        self._known, self._whole = _memory.of(self._origin), _memory.of(_FROM_EVERYWHERE)
        self.parts = _LINK.split(html)
        self.targets = self._targets(self.parts[2::4])

    def pages(self, others: Iterable[str | None] = ()) -> tuple[str, ...]:
        """Return the linked pages, each once in page order, then those of `others`, links that the HTML lacks."""
        written = [(href or "").replace("&", "&amp;").encode() for href in others]
        targets = [*self.targets, *self._targets(written)]
        return tuple(filter(None, dict.fromkeys([lead.page for lead in targets])))

    def _targets(self, written: Iterable[bytes]) -> list[LinkTarget]:
        return [self._known.get(href) or self._whole.get(href) or self._target(href) for href in written]

    def _target(self, written: bytes) -> LinkTarget:
        """Return the target; cached without its fragment: those are many and seldom repeat."""
        page, mark, place = written.partition(b"#")
        if page and mark and _PLAIN_PLACE.fullmatch(place):
            lead = self._known.get(page) or self._whole.get(page) or self._remembered(page)
            return LinkTarget(lead.page, lead.attribute and b'%b#%b"' % (lead.attribute[:-1], place))
        return self._remembered(written)

    def _remembered(self, written: bytes) -> LinkTarget:
        if self._path and written.startswith(b"../") and _OF_FOLDER.fullmatch(written, len(b"../")):
            # Remembered as the root would write it, since each page is at another place.
            return self._target(self._path[: self._path.rfind(b"/", 0, -1) + 1 or 1] + written[len(b"../") :])
        href = unescape(written.decode())
        if len(written) <= _REMEMBERED_BYTES:
            if self._origin and _ROOTED.match(written):
                return _memory.keep(self._origin, written, _new(self._origin, href))
            if _WHOLE.match(written):
                return _memory.keep(_FROM_EVERYWHERE, written, _new(None, href))
            if self._folder and _OF_FOLDER.fullmatch(written):
                # The root's folder is written like the site: what its pages lead to by such a
                # link is not what every page of the site does.
                place = f"folder {self._folder}"
                remembered = _memory.of(place).get(written)
                return remembered or _memory.keep(place, written, _new(self._folder, href))
        return _new(self._base, href)


def _new(base: str | None, href: str) -> LinkTarget:
    if (address := linked_page(base, href)) is None:
        other = href.replace("\xa0", " ").strip()
        # Mail and phone are kept; scripts, data and the like are not.
        is_kept = other.lower().startswith(_KEPT_SCHEMES) or not (base or _SCHEME.match(other))
        return LinkTarget(None, _attribute(other if is_kept else None))
    place = href.partition("#")[2]
    target = f"{address}#{place}" if place else address
    return LinkTarget(canonical_or_none(address), _attribute(target.replace("\xa0", " ").strip()))


def _attribute(target: str | None) -> bytes:
    return b"" if target is None else f' href="{escape(target)}"'.encode()


# Stored with each snapshot: another release or another cleaning makes other Markdown of a page.
MARKDOWN_VERSION = "html-to-markdown 3.19.0, cleaning 4"

# Markdown has more characters than text; where it has far fewer, the converter lost a part.
_LEAST_SHARE = 0.7

# Kept is Markdown of at most so many times its HTML, and this much more. The samples stay below
# theirs; quotes inside of quotes and wide rows can make several hundred times as much.
_MOST_TIMES = 4
_MORE_BYTES = 100_000

# What the converter may write on its way: a quarter of a second, and three times these bytes.
_MOST_WRITTEN = 20_000_000
# Without quotes a page of this size is written in half a second whatever it holds, the worst being
# 250 lists that each start at a number of 20 digits; so few are looked into.
_SMALL_BYTES = 40_000
_MOST_COLUMNS = 1_000  # the converter fills no row further, and takes no `colspan` for more
_COLUMN_BYTES = 4
_LEVEL_BYTES = 4  # what a line in a list is moved to the right by: the width of `10. `
_NUMBERED_LEVEL_BYTES = 24  # where the page says where to start, a number may have 20 digits
_SURELY_NARROW_BYTES = 1_000_000

# As the parser serialises them.
_CELL = re.compile(rb"<t[dh](?=[ >])([^>]*+)>?")
_COLUMNS = re.compile(rb' colspan="[ +0]*+([0-9]++)')

_NO_BREAK = re.compile(b"&(?=n)nbsp;")  # the quickest search: for its first character alone
_EMPTY_LINES = re.compile(b"\n{3,}")
_UNTIDY = re.compile(b"\n(?:(?<= \n)|\n\n)")
_LONG_LABEL = 2_000
_MANY_LINES = 1_000  # of the label of a link in a list: 60,000 took the converter 1.3 s
_LINE_ENDS = re.compile(rb"\n[ \t\r\f\n]++")
# As the parser serialises them: no `>` in an attribute, each value in quotation marks.
_LINK_OR_IMAGE = re.compile(rb"<(/?a|img)(?=[ >])([^>]*+)>?")
_TITLE = re.compile(rb' title="[^"]*+"')
_ALT = re.compile(rb' alt="([^"]*+)"')
# The converter sets these apart from what is beside them, and takes the slow way for a page that
# has any. A box in a list is an item of it that is done, or not. Each way begins with a letter of
# its own: most tags are passed over a third quicker.
_CONTROL = re.compile(
    rb"<(?:button(?=[ >])[^>]*+|label(?=[ >])[^>]*+|opt(?:group|ion)(?=[ >])[^>]*+"
    rb"|select(?=[ >])[^>]*+|input(?![^>]*checkbox)[^>]*+"
    rb"|/(?:button|label|opt(?:group|ion)|select))>"
)

# The converter drops elements of such styles, whatever their content is styled with. What is hidden
# is decided before it (`cleaning`); few pages are left with any.
_HIDING_STYLE = re.compile(rb"font-size:\s?0|visibility:|display:\s?none")
_STYLED = re.compile(rb'(<[a-z][^<>]*?) style="[^"<>]*+"')

# A table begins with a line of names and one of dashes; the quick way pads its columns.
_DASHES = re.compile(rb"\|(?= -) ---")  # the quickest search: for its first character alone
_TABLE = re.compile(rb"\n(([> ]*+)\|.*\n)(\2\|(?: -{3,}+ \|)++\n)((?:\2\|.*\n)*+)")
_PADDED = re.compile(rb"(?<=[^| ])  +\|")
_PADDED_EMPTY = re.compile(rb"\|   +(?=\|)")
_LONG_DASHES = re.compile(b"-{4,}")


_MARKDOWN_LINK = re.compile(
    r"\[([^\[\]]*+)\]"
    r"\((?:<[^<>\n]*+>|[^\s()]*+(?:\([^\s()]*+\)[^\s()]*+)*+)(?:[ \t]++\"[^\"\n]*+\")?+\)"
)
_NO_WORDS = re.compile(r"\s*+(?:[0-9]++\.)?+[\W_]*+")
_MENU_LINES = 3  # fewer lines of links in a row may be what the page is about


def to_markdown(html: str, *, url: str | None = None) -> str:
    """Return the page as Markdown, its links absolute if `url` is given; a bomb is `Permanent` (see `parse_html`)."""
    return markdown_of(visible_tree(html), url)


def markdown_of(tree: "LexborHTMLParser", url: str | None = None) -> str:
    """Return a visible tree as Markdown, its links absolute if `url` is given."""
    body = body_html(tree)
    return utf8_markdown(LinkedHtml(body, base_of(tree, url)), text=utf8_text(body)).decode()


def without_link_targets(markdown: str) -> str:
    """Return Markdown with links as their words, and without menus: runs of lines that are nothing but links.

    Addresses are half of the tokens of a page, and menus a twentieth (docs/adr).
    """
    lines: list[str] = []
    links: list[str] = []
    for line in markdown.split("\n"):
        if _is_link_alone(line) or (links and not line.strip()):
            links.append(line)
            continue
        lines += _unless_menu(links)
        links = []
        lines.append(line)
    lines += _unless_menu(links)
    return _MARKDOWN_LINK.sub(r"\1", "\n".join(lines)).strip()


def _is_link_alone(line: str) -> bool:
    rest, count = _MARKDOWN_LINK.subn("", line)
    return count > 0 and _NO_WORDS.fullmatch(rest) is not None


def _unless_menu(lines: Sequence[str]) -> Sequence[str]:
    return lines if sum(map(bool, map(str.strip, lines))) < _MENU_LINES else ()


def utf8_markdown(body: LinkedHtml, *, text: bytes) -> bytes:
    """Return the page's Markdown; its `utf8_text` if the converter loses some, or makes many times the page's size."""
    converted = _converted(_prepared(body))
    # Measured by the page as written: a long `base` lengthens its links.
    if len(converted) > _MORE_BYTES and len(converted) > _MOST_TIMES * sum(map(len, body.parts)) + _MORE_BYTES:
        return text
    if len(converted) >= _LEAST_SHARE * len(text):
        return converted
    letter_count = len(text) - text.count(b" ") - text.count(b"\n")
    return converted if len(converted) >= _LEAST_SHARE * letter_count else text


def _prepared(body: LinkedHtml) -> bytes:
    """Return the converter's input: absolute addresses; an image in a link is its description."""
    parts = body.parts.copy()
    parts[2::4] = [target.attribute for target in body.targets]
    for place, bare in (1, b"<a"), (3, b""):
        parts[place::4] = [
            part if part == bare or part.find(b" title=") < 0 else _TITLE.sub(b"", part, count=1)
            for part in parts[place::4]
        ]
    # To ask whether bytes are in bytes is slow: Python asks first whether they are a number.
    parts[4::4] = [part if part.find(b"<img") < 0 else _described(part) for part in parts[4::4]]
    parts[4::4] = [part if len(part) < _LONG_LABEL else _shortened(part) for part in parts[4::4]]
    if parts[0].find(b"<img") >= 0:
        parts[0] = _described(parts[0], is_in_link=False)
    html = _CONTROL.sub(b" ", _NO_BREAK.sub(b" ", b"".join(parts)))
    return _STYLED.sub(rb"\1", html) if _HIDING_STYLE.search(html) else html


def _shortened(html: bytes) -> bytes:
    """Return the label of a link with single line ends: the converter rescans each."""
    label, end, rest = html.partition(b"</a")
    if label.count(b"\n") > _MANY_LINES:
        label = _LINE_ENDS.sub(b"\n", label)
    return label + end + rest


def _described(html: bytes, *, is_in_link: bool = True) -> bytes:
    """Replace images in links by their descriptions; the converter skips the others."""
    if is_in_link and html.startswith(b"><img ") and html.rfind(b"<img") == 1:
        # Most are the first in their link, and alone. No attribute holds a bracket.
        match = _ALT.search(html, 0, end := html.index(b">", 1))
        return b">%b%b" % (match[1], html[end + 1 :]) if match else html

    def replaced(tag: re.Match[bytes]) -> bytes:
        nonlocal is_in_link
        name, attributes = tag.groups()
        if name == b"img":
            match = _ALT.search(attributes) if is_in_link else None
            return match[1] if match else tag[0]
        is_in_link = name == b"a"
        return tag[0]

    return _LINK_OR_IMAGE.sub(replaced, html)


def _converted(html: bytes) -> bytes:
    """Return the converter's output, tidied; empty where it fails or would write too much."""
    # Its Python side makes new options for each call, a twentieth of what a page takes.
    from html_to_markdown._html_to_markdown import convert

    if (options := _options_for(html)) is None:
        return b""
    try:
        page = html.decode()
        written = (convert(page, options).content or "").encode()
        if options is not _options(is_quick=False) and _DASHES.search(written):
            # What looks like a table in a listing of code is none: the slow way writes no other.
            is_sure = written.find(b"`") < 0 or written.find(b"```") < 0
            slow = "" if is_sure else convert(page, _options(is_quick=False)).content or ""
            written = _compact(written) if is_sure else slow.encode()
    except Exception:  # a panic of the library is one, too; the text is the fallback
        return b""
    return _tidy(written).strip()


def _options_for(html: bytes) -> "ConversionOptions | None":
    """Return the fast options if they are safe, else the slow ones; None if neither is.

    The quick way pads the columns of tables. Both write a mark for each level of quotes and lists
    in each line, and build what is quoted again at each level.
    """
    is_quoted = html.find(b"<blockquote") >= 0
    if len(html) <= _SMALL_BYTES and not is_quoted:
        return _options()
    line_count = html.count(b"<") + html.count(b"\n")
    level_bytes = _LEVEL_BYTES if html.find(b' start="') < 0 else _NUMBERED_LEVEL_BYTES
    size = len(html) + _filled(html) + _depth(html, b"li") * level_bytes * line_count
    quotes = _depth(html, b"blockquote") if is_quoted else 0
    room = (_MOST_WRITTEN - quotes**2 * line_count) // max(quotes, 1) - size
    if room < 0:
        return None
    return _options() if _padding(html) <= room else _options(is_quick=False)


def _depth(html: bytes, name: bytes) -> int:
    depth = deepest = 0
    end = b"</%b>" % name
    for part in html.split(b"<%b" % name)[1:]:
        if part.startswith((b">", b" ")):  # others have a longer name
            depth += 1
            deepest = max(deepest, depth)
        depth -= part.count(end)
    return deepest


def _filled(html: bytes) -> int:
    """Return how large the cells can be that pad each row to the longest one."""
    rows = html.split(b"<tr")[1:]
    counts = [row.count(b"<td") + row.count(b"<th") + _spanned(row) for row in rows]
    widest = min(max(counts, default=0), _MOST_COLUMNS)
    return _COLUMN_BYTES * (sum(counts) + widest * len(rows))


def _spanned(html: bytes) -> int:
    """Return the columns that its cells span in addition to their own."""
    if html.find(b" colspan=") < 0:
        return 0
    return sum(min(int(columns[:5]), _MOST_COLUMNS) for columns in _COLUMNS.findall(html))


def _padding(html: bytes) -> int:
    """Return how large the tables can be if each column is as wide as its widest cell.

    A table in a table is not padded, so that each one ends before the next.
    """
    tables = [table.partition(b"</table>")[0] for table in html.split(b"<table")[1:]]
    return sum(table.count(b"<tr") * _width(table) for table in tables)


def _width(table: bytes) -> int:
    if table.count(b"<tr") * len(table) <= _SURELY_NARROW_BYTES:
        return len(table)
    widths: dict[int, int] = {}
    for row in table.split(b"<tr")[1:]:
        place = 0
        _, *cells = _CELL.split(row)
        for attributes, cell in zip(cells[::2], cells[1::2], strict=True):
            widths[place] = max(widths.get(place, 0), len(cell))
            place += _spanned(attributes) or 1
    return sum(widths.values())


def _compact(markdown: bytes) -> bytes:
    """Remove the padding that aligns the columns of tables, which may be most of a page."""
    markdown = b"\n" + markdown
    parts: list[bytes] = []
    copied = place = 0
    while dashes := _DASHES.search(markdown, place):
        # The line before the dashes has the names.
        line = markdown.rfind(b"\n", copied, dashes.start())
        start = markdown.rfind(b"\n", copied, max(line, 0))
        table = _TABLE.match(markdown, start) if start >= 0 else None
        if table:
            names, _, dash_line, rows = table.groups()
            padded = b"\n" + names + _LONG_DASHES.sub(b"---", dash_line) + rows
            parts += (markdown[copied:start], _PADDED_EMPTY.sub(b"|  ", _PADDED.sub(b" |", padded)))
            copied = place = table.end()
        elif (place := markdown.find(b"\n", dashes.end())) < 0:  # a line is looked at once
            break
    return b"".join([*parts, markdown[copied:]]) if parts else markdown


def _tidy(markdown: bytes) -> bytes:
    """Remove invisible characters, blanks at the end of lines, and repeated empty lines."""
    if not is_printable_utf8(markdown):
        lines = without_invisible(markdown.decode()).split("\n")
        markdown = "\n".join([line.rstrip() for line in lines]).encode()
    elif _UNTIDY.search(markdown):
        markdown = b"\n".join([line.rstrip() for line in markdown.split(b"\n")])
    else:
        return markdown
    return _EMPTY_LINES.sub(b"\n\n", markdown)


@cache
def _options(*, is_quick: bool = True) -> "ConversionOptions":
    """Return the converter's options; the quick way takes half of the time for the same words."""
    from html_to_markdown._html_to_markdown import ConversionOptions, PreprocessingOptions, TierStrategy

    return ConversionOptions(
        # Its default drops forms and navigation, 18 % of the words of our samples.
        preprocessing=PreprocessingOptions(enabled=False),
        extract_metadata=False,
        skip_images=True,
        autolinks=False,
        expand_abbreviations=False,
        bullets="-",
        compact_tables=True,
        tier_strategy=TierStrategy.TIER1 if is_quick else TierStrategy.TIER2,
    )


# Links are read from the HTML that the parser writes, where they are found in a third of the time;
# but for those of maps, and on a page that ends in plain text.
_OFTEN = f"{OFTEN_UNSEEN}, {ADDRESS_SELECTOR}"
_ALL = f"{MAY_BE_UNSEEN}, {ADDRESS_SELECTOR}, area[href], plaintext"
_SELDOM = f"(?i)<(?:{'|'.join((*SELDOM_THERE, 'area', 'plaintext'))})".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class VisiblePage:
    """`tree` and `body` are without hidden elements; `utf8` is the text as hashed and stored.

    `links` are canonical URLs in page order, those that nobody sees at the end.
    """

    html: str
    way: PageAddresses
    links: tuple[str, ...]
    body: LinkedHtml
    utf8: bytes
    tree: "LexborHTMLParser"

    @property
    def text(self) -> str:
        """What a visitor reads, one line for each block."""
        return self.utf8.decode()

    def utf8_markdown(self) -> bytes:
        """Return the page as Markdown, as it is stored."""
        return utf8_markdown(self.body, text=self.utf8)


def visible_page(document: Document) -> VisiblePage:
    """Return what a crawl needs of a page; less than `read_page`, in a third of its time."""
    tree, utf8 = document.take_tree(), document.utf8
    elements = tree.css(_ALL if utf8 is None or re2_pattern(_SELDOM).search(utf8) else _OFTEN)
    way = page_addresses(elements, document.url)
    others = [node.attrs.get("href") for node in elements if node.tag == "area"]
    is_read_from_html = all(node.tag != "plaintext" for node in elements)
    others += remove_unseen(tree, elements)
    body = body_html(tree)
    if not (text := utf8_text(body)):  # all is hidden, or there is no text: parse again
        tree = document.visible_tree
        body = body_html(tree)
        text = utf8_text(body)
        is_read_from_html = False
    linked = LinkedHtml(body, way.base)
    return VisiblePage(
        html=document.html,
        way=way,
        links=linked.pages(others) if is_read_from_html else tuple(links_from(document.tree, way.base)),
        body=linked,
        utf8=text,
        tree=tree,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """The contents of a page; `links` are canonical URLs in page order."""

    title: str | None
    canonical_url: str | None
    language: str | None
    links: tuple[str, ...]
    markdown: str
    text: str
    refresh: Refresh | None
    feeds: tuple[FeedLink, ...]
    following: tuple[PageLink, ...]


def read_page(document: Document) -> WebPage:
    """Read all the page states; relative addresses need its `url`."""
    tree, url = document.tree, document.url
    title, language = title_of(tree), language_of(tree)
    addresses = page_addresses(tree.css(ADDRESS_SELECTOR), url)
    links, feeds = tuple(document.links), tuple(feeds_of(tree, url))
    following = tuple(following_pages(tree, url))
    utf8 = document.visible_utf8
    linked = LinkedHtml(body_html(document.visible_tree), addresses.base)
    return WebPage(
        title=title,
        canonical_url=addresses.canonical_url,
        language=language,
        links=links,
        markdown=utf8_markdown(linked, text=utf8).decode(),
        text=utf8.decode(),
        refresh=addresses.refresh,
        feeds=feeds,
        following=following,
    )
