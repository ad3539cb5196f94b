"""RSS and Atom: read the entries of a feed from untrusted bytes.

The body is decoded and checked here, so that feedparser gets plain UTF-8 that begins with the root
element: no document type, no entity, no path that it could take for a file to open.
"""

import io
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import cast

from ingestion_pipeline.reading.html.links import feeds_named
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.reading.text.plain_text import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient

_HEAD_CHARACTERS = 100_000  # of a page in a feed's place: it names its feeds at its beginning
MAX_DEPTH = 200  # the deepest of our sample feeds has 6 levels, with embedded XHTML about 30
MAX_TAGS = 200_000  # feedparser needs up to 40 microseconds for each; 10,000 entries have half
MAX_TERMS = 1_000  # of one entry; feedparser compares each with all others, 20,000 took 6 seconds
MAX_ATTRIBUTES = 500  # of one tag, for the same reason: Python's reader of XML looks for each by name

FEED_ROOTS = frozenset({"rss", "feed", "rdf"})

_DECLARATION = "<?xml version='1.0' encoding='utf-8'?>\n"
_HEADERS = {"content-type": "application/xml; charset=utf-8"}
_PROLOG = re.compile(r"[\s\ufeff]*+<(?:(!--|\?)|!(doctype|entity)\b|([a-z_][^\s/<>]*+))", re.IGNORECASE)
_HTML_DOCTYPE = re.compile(r"\s+html\b[^\[<>]*+>", re.IGNORECASE)
_CHARACTER = re.compile(r"&#(?:([0-9]{1,9})|x([0-9a-f]{1,8}))?(?![0-9a-z]);?", re.IGNORECASE)
_XML_CODES = (range(9, 11), range(13, 14), range(0x20, 0xD800), range(0xE000, 0x110000))
_TAG = re.compile(r"<(?:(!\[CDATA\[|!--)|(/?)([A-Za-z_:][^\s/<>]*+)[^<>]*?(/?)>|)")
_ENTRIES = frozenset({"item", "entry"})
_LISTS = frozenset({"keywords", "tags"})
_TERMS = _LISTS | {"category", "subject"}
# Characters of text in an element: a person has a name, an address of mail and one of the web.
_PERSONS = ("author", "contributor", "creator", "managingeditor", "owner", "publisher", "webmaster")
_DATES = ("created", "date", "expirationdate", "issued", "lastbuilddate", "modified", "pubdate")
_LIMITS: Mapping[str, int] = {**dict.fromkeys(_PERSONS, 500), **dict.fromkeys((*_DATES, "published", "updated"), 100)}
_MANY_ATTRIBUTES_LENGTH = 5 * MAX_ATTRIBUTES  # ` a=""`


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    """One entry; `summary` may hold markup as the feed states it, so it is never shown as HTML."""

    id: str | None
    title: str | None
    url: str | None
    published_at: datetime | None
    author: str | None
    summary: str | None
    categories: tuple[str, ...]
    elements: Mapping[str, str] = field(default_factory=dict[str, str])


def read_feed(body: bytes, *, content_type: str | None = None, elements: Collection[str] = ()) -> ParsedFeed[FeedEntry]:
    """Read every entry of the feed, in its order; a feed is a window, never complete.

    Each with the text of its own `elements`, named as in the feed: `job:company`, `region`.

    Raises:
        Permanent: `not_a_feed`, `xml_entity` or `too_deep`; the same body can never be read.
        Transient: `truncated_feed`; half a feed is not accepted.
    """
    text = decode(body, content_type)
    text = text[_root_position(text) :]
    parsed = _parse(_checked(text))
    entries = [_entry(entry, elements) for entry in cast("list[_Fields]", parsed["entries"])]
    if not entries and not parsed.get("version"):
        raise _not_a_feed(text)
    return ParsedFeed(records=entries, problems=_problems(parsed))


_Fields = Mapping[str, object]


def _root_position(text: str) -> int:
    """Return where the feed's root element begins; what may precede it is dropped."""
    position, is_html = 0, False
    while opening := _PROLOG.match(text, position):
        skipped, declaration, root = opening.groups()
        if root:
            if root.lower().rpartition(":")[2] not in FEED_ROOTS:
                raise _not_a_feed(text)
            if is_html:
                raise _entity_refused()
            return opening.start(3) - 1
        if declaration:
            # Only the doctype of HTML is harmless, and only before a page in a feed's place.
            html = _HTML_DOCTYPE.match(text, opening.end())
            if html is None or declaration.lower() != "doctype":
                raise _entity_refused()
            is_html, position = True, html.end()
        else:
            end = text.find("-->" if skipped == "!--" else "?>", opening.end())
            position = text.find(">", end) + 1 if end >= 0 else len(text)
    raise _not_a_feed(text)


def _checked(text: str) -> str:
    """Return the feed without names and dates that are too long to be any.

    Raises:
        Permanent: `too_deep`; it exceeds the limits of depth and size.
        Transient: `truncated_feed`; its root element is not closed.
    """
    is_plain = "<!" not in text  # else an angle may be mere text
    if is_plain and text.count("<") > MAX_TAGS:
        raise _too_many(f"more than {MAX_TAGS} tags")
    elements, terms, fields = _OpenElements(), _Terms(text), _LongFields()
    position = tag_count = 0
    while tag := _TAG.search(text, position):
        position = tag.end()
        tag_count += 1
        if tag_count > MAX_TAGS:
            raise _too_many(f"more than {MAX_TAGS} tags")
        if tag[1]:
            position = text.find("-->" if tag[1] == "!--" else "]]>", position)
            if position < 0:
                break
        terms.take(tag)
        fields.take(tag)
        if elements.close_root(tag):
            return fields.without(text)
    raise Transient(
        f"the feed breaks off after {len(text)} characters, its root element is never closed; it is fetched again",
        code="truncated_feed",
    )


class _OpenElements:
    """The open elements of a document that need not be well formed."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._open_count: Counter[str] = Counter()

    def close_root(self, tag: re.Match[str]) -> bool:
        """Take the next tag; return whether nothing is open after it; too many open ones are `too_deep`."""
        _, is_end, written, is_empty = tag.groups()
        name = (written or "").lower()
        if name and is_end:
            self._close(name)
        elif name and not is_empty:
            self._names.append(name)
            self._open_count[name] += 1
        if len(self._names) > MAX_DEPTH:
            raise Permanent(f"the feed nests more than {MAX_DEPTH} elements; it is not read", code="too_deep")
        return bool(name) and not self._names

    def _close(self, name: str) -> None:
        """Close the innermost of that name and what it left open; a stray end means nothing."""
        closed = None
        while closed != name and self._open_count[name]:
            closed = self._names.pop()
            self._open_count[closed] -= 1


class _LongFields:
    """A check for overlong names and dates; feedparser's patterns for them are quadratic."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._name = ""
        self._depth = self._start = self._counted_to = self._length = 0

    def take(self, tag: re.Match[str]) -> None:
        """Measure the text up to this tag, if a name or date is open."""
        name = (tag[3] or "").lower().rpartition(":")[2]
        is_start = not tag[2] and not tag[4]
        if not self._name:
            if name in _LIMITS and is_start:
                self._name, self._depth, self._length = name, 1, 0
                self._start = self._counted_to = tag.end()
        elif name:
            self._length += tag.start() - self._counted_to
            self._counted_to = tag.end()
            if name == self._name:
                self._depth += is_start - bool(tag[2])
            if self._depth == 0 or (tag[2] and name in _ENTRIES):
                self._close(tag.start())

    def _close(self, end: int) -> None:
        if self._length > _LIMITS[self._name]:
            self._spans.append((self._start, end))
        self._name = ""

    def without(self, text: str) -> str:
        """Return the text without the content of these elements."""
        spans = [(0, 0), *self._spans, (len(text), len(text))]
        return "".join(text[end:start] for (_, end), (start, _) in pairwise(spans))


class _Terms:
    """A count of categories, by entry or of the feed; a list has one for each comma."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._of_feed = self._of_entry = self._open_lists = self._counted_to = 0
        self._is_in_entry = False

    def take(self, tag: re.Match[str]) -> None:
        """Count up to the end of this tag; too many in an entry, or a tag of too many attributes, are `too_deep`."""
        if self._open_lists:  # what precedes may be a CDATA, and a comma may be `&#44;`
            place = self._counted_to, tag.start()
            self._add(self._text.count(",", *place) + self._text.count("&", *place))
        self._counted_to = tag.end()
        if tag[3]:
            self._take_named(tag, tag[3].lower().rpartition(":")[2])

    def _take_named(self, tag: re.Match[str], name: str) -> None:
        is_start, is_empty = not tag[2], bool(tag[4])
        if name in _ENTRIES:
            # One inside of another may be of another kind, so that it begins nothing.
            self._of_entry = self._of_entry if self._is_in_entry else 0
            self._is_in_entry = is_start and not is_empty
        elif name in _TERMS:
            self._add(is_start)
            if name in _LISTS and not is_empty:
                self._open_lists = max(self._open_lists + (1 if is_start else -1), 0)
        if tag.end() - tag.start() > _MANY_ATTRIBUTES_LENGTH and tag[0].count("=") > MAX_ATTRIBUTES:
            raise _too_many(f"a tag of more than {MAX_ATTRIBUTES} attributes")

    def _add(self, count: int) -> None:
        if self._is_in_entry:
            self._of_entry += count
        else:
            self._of_feed += count
        if max(self._of_entry, self._of_feed) > MAX_TERMS:
            raise _too_many(f"more than {MAX_TERMS} categories in one entry")


def _parse(text: str) -> _Fields:
    """Parse the text with feedparser; the only place that uses it."""
    import feedparser  # pyright: ignore[reportMissingTypeStubs]  it ships none

    stream = io.BytesIO((_DECLARATION + _CHARACTER.sub(_stated, text)).encode("utf-8"))
    try:
        return cast(
            "_Fields",
            feedparser.parse(  # pyright: ignore[reportUnknownMemberType]  it is not annotated
                stream, response_headers=_HEADERS, sanitize_html=False, resolve_relative_uris=False
            ),
        )
    except MemoryError:
        raise
    except Exception as error:  # its handlers raise KeyError, ValueError, ... on odd elements
        raise Permanent(
            f"feedparser gave up on the feed: {type(error).__name__}: {error}; report the body to"
            " the site, or read it with the platform html",
            code="unreadable_feed",
        ) from error


def _stated(reference: re.Match[str]) -> str:
    """Return the character reference if XML allows it, else the replacement character."""
    decimal, hexadecimal = reference.groups()
    code = int(decimal or hexadecimal or "0", 10 if decimal else 16)
    return reference[0] if any(code in codes for codes in _XML_CODES) else "\ufffd"


def _problems(parsed: _Fields) -> tuple[Problem, ...]:
    if not parsed.get("bozo"):
        return ()
    reason = clean_text(str(parsed.get("bozo_exception"))) or "unknown reason"
    return (Problem(where="feed", message=f"ill-formed, read as far as it goes: {reason[:200]}"),)


def _entry(entry: _Fields, elements: Collection[str]) -> FeedEntry:
    own = {name: text for name in elements if (text := _element(entry, name))}
    tags = cast("list[_Fields]", entry.get("tags") or [])
    terms = (_text(tag, "label") or _text(tag, "term") for tag in tags)
    return FeedEntry(
        id=_text(entry, "id"),
        title=_text(entry, "title"),
        url=_text(entry, "link"),
        published_at=_published_at(entry),
        author=_text(entry, "author"),
        summary=_text(entry, "summary"),
        categories=tuple(dict.fromkeys(filter(None, terms))),
        elements=own,
    )


def _element(entry: _Fields, name: str) -> str | None:
    """Return the text of an element; feedparser joins prefixes by `_`, and content is a list."""
    prefix, _, rest = name.lower().rpartition(":")
    if name.lower() in {"content:encoded", "content"}:
        parts = cast("list[_Fields]", entry.get("content") or [])
        return next(filter(None, (_text(part, "value") for part in parts)), None)
    return (_text(entry, f"{prefix}_{rest}") if prefix else None) or _text(entry, rest)


def _text(fields: _Fields, key: str) -> str | None:
    value = fields.get(key)
    return clean_text(value) if isinstance(value, str) else None


def _published_at(entry: _Fields) -> datetime | None:
    for key in ("published_parsed", "updated_parsed", "created_parsed"):
        # `in` first: to ask an entry for a missing `updated` makes feedparser warn.
        if key in entry and isinstance(moment := entry[key], time.struct_time):
            try:
                return datetime(*moment[:5], second=min(moment.tm_sec, 59), tzinfo=UTC)
            except ValueError:
                return None
    return None


def _too_many(excess: str) -> Permanent:
    return Permanent(f"the body has {excess}; no feed needs them, so it is not read", code="too_deep")


def _entity_refused() -> Permanent:
    return Permanent(
        "the body declares a document type or an entity, which no feed needs and attacks use;"
        " it is not read. Ask the site for a feed without DOCTYPE",
        code="xml_entity",
    )


def _not_a_feed(text: str) -> Permanent:
    named = feeds_named(text[:_HEAD_CHARACTERS])
    where = f": it names {' and '.join(named)}" if named else ""
    return Permanent(
        f"not a feed but {_looks_like(text)}{where}; give the address of the RSS or Atom feed"
        " itself (pages name theirs in <link rel=alternate>)",
        code="not_a_feed",
    )


def _looks_like(text: str) -> str:
    start = text.lstrip("\ufeff \t\r\n")[:2000]
    if not start:
        return "an empty body"
    if start[0] in "{[":
        return "JSON"
    if re.search(r"<!doctype\s+html|<(?:html|head|body)\b", start, re.IGNORECASE):
        title = re.search(r"<title[^<>]*+>([^<]*+)", text[:20_000], re.IGNORECASE)
        return f"an HTML page titled {clean_text(title[1])!r}" if title else "an HTML page"
    if start[0] == "<" and (root := re.search(r"<([A-Za-z_][^\s/<>]{0,60})", start)):
        return f"a document of <{root[1]}>"
    return f"text that begins {clean_text(start[:60])!r}"
