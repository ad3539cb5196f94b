"""Sitemaps, and small XML documents: the pages a site lists, with the time of their last change.

Sitemaps are read by patterns, not by an XML parser: a sitemap needs none, and what is not used
cannot be attacked. A document type is refused all the same.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import unescape
from xml.parsers import expat

from ingestion_pipeline.reading.html.links import linked_page
from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient

MAX_BYTES = 20_000_000  # inflated; 50,000 addresses of 200 characters are half of that
MAX_ENTRIES = 50_000  # sitemaps.org, protocol
MAX_INDEX_DEPTH = 2  # the protocol allows one index over sitemaps; some sites nest one more
MAX_MEMBERS = 1_000  # of a gzip file; tools that write many make one of each 64 kB or more

_CHUNK_BYTES = 65_536
_GZIP = b"\x1f\x8b"
_PROLOG = re.compile(r"\s*<(?:(\?)|(!--)|(!)|(?:([\w.-]+):)?([\w.-]+))")
_ASIDE = re.compile(r"<!(?:--|\[CDATA\[)")
_DAY = re.compile(r"([0-9]{4})(?:-([0-9]{2}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SitemapEntry:
    """A page, or, in an index, a further sitemap."""

    url: str
    last_modified: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitemap:
    """The entries of a sitemap; of an index, the sitemaps to read next."""

    is_index: bool
    entries: tuple[SitemapEntry, ...]
    problems: tuple[Problem, ...] = ()


def read_sitemap(body: bytes, *, url: str, content_type: str | None = None, depth: int = 0) -> Sitemap:
    """Read the sitemap at `url`, plain or gzipped; `depth` is how many indexes led to it.

    Raises:
        Permanent: `not_a_sitemap`, `xml_entity`, `too_large`, `decompression_bomb` or
            `sitemap_too_deep`; the same body can never be read.
        Transient: `truncated`; the gzip stream stops early.
    """
    if body.startswith(_GZIP):
        body, content_type = _inflated(body), None
    if len(body) > MAX_BYTES:
        raise Permanent(f"the sitemap has more than {MAX_BYTES} bytes", code="too_large")
    text = decode(body, content_type).lstrip("\ufeff")
    root = _root(text)
    if root is None:
        return _plain(text, url)
    prefix, name = root
    if name not in {"urlset", "sitemapindex"}:
        raise _not_a_sitemap(f"a document of <{name[:60]}>")
    is_index = name == "sitemapindex"
    if is_index and depth >= MAX_INDEX_DEPTH:
        raise Permanent(
            f"an index under {depth} other indexes of sitemaps; give the inner one as source", code="sitemap_too_deep"
        )
    return _read(_without_comments(text), prefix, url, is_index=is_index)


def _inflated(body: bytes) -> bytes:
    """Return all members of the gzip file, joined; what follows the last is dropped."""
    whole = b""
    for _ in range(MAX_MEMBERS):
        member, body = _member(body, room=MAX_BYTES - len(whole))
        whole += member
        if not body.startswith(_GZIP):
            return whole
    raise Permanent(f"the sitemap is a gzip file of more than {MAX_MEMBERS} members", code="decompression_bomb")


def _member(body: bytes, *, room: int) -> tuple[bytes, bytes]:
    inflate = zlib.decompressobj(31)
    whole = bytearray()
    try:
        chunk = inflate.decompress(body, _CHUNK_BYTES)
        while chunk:
            whole += chunk
            if len(whole) > room:
                raise Permanent(f"the sitemap inflates to more than {MAX_BYTES} bytes", code="decompression_bomb")
            chunk = inflate.decompress(inflate.unconsumed_tail, _CHUNK_BYTES)
    except zlib.error as error:
        raise Permanent(f"the sitemap is no gzip after all: {error}", code="not_a_sitemap") from error
    if not inflate.eof:
        raise Transient("the gzipped sitemap stops early; it is fetched again", code="truncated")
    return bytes(whole), inflate.unused_data


def _root(text: str) -> tuple[str, str] | None:
    """Return prefix and name of the root element; None if the text is no markup."""
    position = 0
    while match := _PROLOG.match(text, position):
        declaration, _, refused, prefix, name = match.groups()
        if refused:
            raise Permanent(
                "the sitemap declares a document type or an entity, which none needs and attacks use; it is not read",
                code="xml_entity",
            )
        if name:
            return f"{prefix}:" if prefix else "", name.lower()
        end = "?>" if declaration else "-->"
        close = text.find(end, match.end())
        position = len(text) if close < 0 else close + len(end)
    if text.lstrip()[:1] == "<":
        raise _not_a_sitemap("markup that breaks off")
    return None


def _without_comments(text: str) -> str:
    """Remove comments; one that is never closed extends to the end, as for any parser."""
    parts: list[str] = []
    copied = position = 0
    while match := _ASIDE.search(text, position):
        is_comment = match[0] == "<!--"
        close = text.find("-->" if is_comment else "]]>", match.end())
        position = len(text) if close < 0 else close + len("-->")
        if is_comment:
            parts.append(text[copied : match.start()])
            copied = position
    return "".join([*parts, text[copied:]])


def _read(text: str, prefix: str, url: str, *, is_index: bool) -> Sitemap:
    mark = re.escape(prefix)
    item = "sitemap" if is_index else "url"
    loc, changed = _field(mark, "loc"), _field(mark, "lastmod")
    entries: dict[str, SitemapEntry] = {}
    problems: list[Problem] = []
    # One entry precedes each end tag; what follows the last is none.
    for block in re.compile(rf"</{mark}{item}\s*>", re.IGNORECASE).split(text)[:-1]:
        if (location := loc.search(block)) is None:
            problems.append(Problem(where=f"<{item}>", message="it has no <loc>"))
            continue
        stated = unescape(location[1] or location[2] or "").strip()
        if (address := linked_page(url, stated)) is None:
            problems.append(Problem(where=f"<{item}>", message=f"{stated[:200]!r} is no address"))
            continue
        when = changed.search(block)
        moment = _moment((when[1] or when[2] or "").strip()) if when else None
        entries.setdefault(address, SitemapEntry(url=address, last_modified=moment))
        if len(entries) >= MAX_ENTRIES:
            problems.append(Problem(where="sitemap", message=f"read up to {MAX_ENTRIES} entries"))
            break
    if not re.search(rf"</{mark}(?:urlset|sitemapindex)\s*>\s*\Z", text[-2000:], re.IGNORECASE):
        problems.append(Problem(where="sitemap", message="its root element is never closed"))
    return Sitemap(is_index=is_index, entries=tuple(entries.values()), problems=tuple(problems[:100]))


def _field(mark: str, name: str) -> re.Pattern[str]:
    return re.compile(rf"<{mark}{name}(?:\s[^<>]*)?>\s*(?:<!\[CDATA\[([^\]]*)\]\]>|([^<]*))", re.IGNORECASE)


def _plain(text: str, url: str) -> Sitemap:
    """Read a sitemap in plain text: one address in each line, and nothing else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or not all(line.startswith(("http://", "https://")) for line in lines):
        raise _not_a_sitemap("an empty body" if not lines else f"text that begins {lines[0][:60]!r}")
    addresses = dict.fromkeys(filter(None, (linked_page(url, line) for line in lines[:MAX_ENTRIES])))
    entries = tuple(SitemapEntry(url=address, last_modified=None) for address in addresses)
    return Sitemap(is_index=False, entries=entries)


def _moment(stated: str) -> datetime | None:
    """Parse a W3C date: a year, a month, a day or a moment; None if it is none."""
    try:
        if short := _DAY.fullmatch(stated):
            return datetime(int(short[1]), int(short[2] or 1), 1, tzinfo=UTC)
        moment = datetime.fromisoformat(stated)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _not_a_sitemap(content: str) -> Permanent:
    return Permanent(f"not a sitemap but {content}; robots.txt names the sitemaps of a site", code="not_a_sitemap")


MAX_DEPTH = 100
MAX_ELEMENTS = 500_000  # 10,000 jobs of 40 elements

# What expat says of a document whose only fault is that it ends.
_CUT_OFF = {
    expat.errors.codes[message]
    for message in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    )
}


@dataclass(slots=True)
class XmlElement:
    """An element with its own text and its children, in their order; names are without prefix."""

    name: str
    text: str = ""
    children: "list[XmlElement]" = field(default_factory=list["XmlElement"])
    attributes: dict[str, str] = field(default_factory=dict[str, str])

    def each(self, name: str) -> "Iterator[XmlElement]":
        """Return the children of that name."""
        return (child for child in self.children if child.name == name)

    def text_of(self, name: str) -> str | None:
        """Return the text of the first child of that name that has any."""
        texts = (child.text.strip() for child in self.each(name))
        return next(filter(None, texts), None)


def read_xml(body: bytes, content_type: str | None = None) -> XmlElement:
    """Return the root element of the document.

    Raises:
        Permanent: `not_xml`, `xml_entity` or `too_deep`; the same body can never be read.
        Transient: `truncated`; half a document is not accepted.
    """
    text = decode(body, content_type).lstrip("\ufeff \t\r\n")
    tree = _Tree()
    try:
        tree.parse(text)
    except expat.ExpatError as error:
        if error.code in _CUT_OFF and (not text or tree.root is not None):
            raise Transient(
                f"the XML breaks off after {len(text)} characters; it is fetched again", code="truncated"
            ) from error
        begins = clean_text(text[:60])
        raise Permanent(
            f"not XML but text that begins {begins!r} ({error}); check the source's address", code="not_xml"
        ) from error
    if tree.root is None:
        raise Permanent("the document has no element", code="not_xml")
    return tree.root


class _Tree:
    """A tree under construction, fed by the parser's events."""

    def __init__(self) -> None:
        self.root: XmlElement | None = None
        self._open: list[tuple[XmlElement, list[str]]] = []
        self._count = 0

    def parse(self, text: str) -> None:
        parser = expat.ParserCreate("utf-8")  # whatever the declaration says: it is decoded
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(text.encode("utf-8", "replace"), True)  # noqa: FBT003  expat's own signature

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise Permanent(
                f"the document nests more than {MAX_DEPTH} elements or has more than {MAX_ELEMENTS}; it is not read",
                code="too_deep",
            )
        element = XmlElement(name.rpartition(":")[2], attributes=attributes)
        if self._open:
            self._open[-1][0].children.append(element)
        else:
            self.root = element
        self._open.append((element, []))

    def _end(self, _name: str) -> None:
        element, parts = self._open.pop()
        element.text = "".join(parts)

    def _text(self, text: str) -> None:
        self._open[-1][1].append(text)

    def _refuse(self, *_: object) -> None:
        raise Permanent(
            "the body declares a document type or an entity, which no list of jobs needs and"
            " attacks use; it is not read",
            code="xml_entity",
        )
