"""Items of a list that a source's config names: by paths in JSON, by CSS selectors in HTML; and their problems.

A JSON path is keys with dots and positions in brackets: `data.list`, `links[0].url`; the empty path is the value.
A selector gives the first text inside the item; `a@href` an attribute, `@data-id` the item's own. Scripts are no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.reading.text.plain_text import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

Record = TypeVar("Record")

# Of one feed; the largest real ones have some thousand. Readers stop after the first that is
# too many, and `ParsedFeed` keeps no more.
MAX_RECORDS = 50_000
TOO_MANY = "too_many_records"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A part that could not be read; the rest of the body still counts.

    `hides_record` unless the part was a detail of a record that was read all the same; `code` names
    those that programs distinguish.
    """

    where: str
    message: str
    code: str | None = None
    hides_record: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedFeed(Generic[Record]):
    """Every record of the body, in its order; `is_complete` if a record it lacks does not exist.

    `notes` are for people: how it was read, where the config did not say so.
    """

    records: Sequence[Record]
    problems: Sequence[Problem] = ()
    is_complete: bool = False
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Keep the first `MAX_RECORDS`: what is cut off makes the listing a part of itself."""
        if len(self.records) <= MAX_RECORDS:
            return
        message = f"it states more than {MAX_RECORDS} records; the first {MAX_RECORDS} are kept"
        problem = Problem(where="listing", message=message, code=TOO_MANY)
        object.__setattr__(self, "records", self.records[:MAX_RECORDS])
        object.__setattr__(self, "problems", (*self.problems, problem))
        object.__setattr__(self, "is_complete", False)


MAX_PROBLEMS = 50  # enough for people; a wrong path makes one for every item

Item = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemPage:
    """The items of one page, the base of its links, and the page that follows it."""

    reading: ParsedFeed[Item]
    base_url: str
    next_url: str | None


class ItemReader(Protocol):
    """A reader of a page's items by paths or selectors of a source's config."""

    def read(self, body: bytes, *, url: str, content_type: str | None = None) -> ItemPage:
        """Read every item of the page that came from `url`, in its order; anything else raises."""
        ...

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the address of the following page, without the cost of reading its items."""
        ...


def named_items(items: Sequence[Item], required: Sequence[str], *, cure: str) -> ParsedFeed[Item]:
    """Return the items with every required field, a problem for each other; if all lack some it is `no_fields`."""
    complete = [item for item in items if all(name in item for name in required)]
    if items and not complete:
        raise Permanent(f"none of {len(items)} items has {', '.join(required)}; {cure}", code="no_fields")
    lacking = [(position, [name for name in required if name not in item]) for position, item in enumerate(items)]
    problems = [
        Problem(where=f"item {position}", message=f"it has no {', '.join(names)}; the rest counts")
        for position, names in lacking
        if names
    ]
    return ParsedFeed(records=complete, problems=problems[:MAX_PROBLEMS])


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBody:
    """A body, where it came from, and when; relative links and dates need the last two."""

    body: bytes
    url: str
    fetched_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBodyResult:
    """A reading as plain values; a body that could not be read at all is one problem."""

    records: Sequence[Mapping[str, Any]]
    problems: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    @classmethod
    def of(
        cls, read: Callable[[], ParsedFeed[Record]], as_dict: Callable[[Record], Mapping[str, Any]]
    ) -> SavedBodyResult:
        """Return the reader's result, or why it refused."""
        try:
            reading = read()
        except WorkError as error:
            return cls(records=[], problems=[_problem("body", error.text, code=error.code)])
        return cls(
            records=[as_dict(record) for record in reading.records],
            problems=[_problem(problem.where, problem.message, code=problem.code) for problem in reading.problems],
            notes=reading.notes,
        )


def _problem(where: str, message: str, *, code: str | None) -> Mapping[str, Any]:
    return {"where": where, "code": code, "message": message}


MAX_PATH_CHARACTERS = 500
MAX_KEYS_SHOWN = 10
LONGEST_WORD = len("-Infinity")  # of those that mean nothing when they are cut

_STEP = re.compile(r"(?:(?<=.)\.|^)([^.\[\]\s][^.\[\]]*)|\[([0-9]{1,6})\]")

Step = str | int


class BadJsonPath(ValueError):
    """A path that cannot be followed; the message holds it."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path from a JSON value to one inside it."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, text: str) -> JsonPath:
        """Parse the path; raise `BadJsonPath` if it is not of the form `a.b[0].c`."""
        steps: list[Step] = []
        position = 0
        while position < len(text) <= MAX_PATH_CHARACTERS:
            step = _STEP.match(text, position)
            if step is None:
                break
            steps.append(step[1] if step[2] is None else int(step[2]))
            position = step.end()
        if position < len(text):
            raise BadJsonPath(f"{text[:MAX_PATH_CHARACTERS]!r} is no path such as data.items[0].name")
        return cls(text, tuple(steps))

    def follow(self, value: object) -> object:
        """Return the value at the path's end; None if the path does not exist."""
        for step in self.steps:
            value = _inside(value, step)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReader:
    """Paths of the items, and of the fields in an item: the first that is set."""

    items: JsonPath
    fields: Mapping[str, Sequence[JsonPath]]
    required: Sequence[str] = ()
    next: JsonPath | None = None

    def read(self, body: bytes, *, url: str = "", content_type: str | None = None) -> ItemPage:
        """Read every item of the document; an empty list is an empty feed.

        Raises:
            Permanent: `not_json`, `no_items` or `no_fields`; paths and document do not fit.
            Transient: `truncated`; half a document is not accepted.
        """
        document = read_document(body, content_type)
        values = self._values(document)
        items = [self._item(value) for value in values[: MAX_RECORDS + 1]]
        first = f"the first has {_shape(values[0])}" if values else ""
        reading = named_items(items, self.required, cure=f"{first}; check fields in the config")
        return ItemPage(reading=reading, base_url=url, next_url=self._next_url(document, url))

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the address at the path `next`; None if it is null, absent or no web address."""
        return self._next_url(read_document(body, None), url) if self.next else None

    def _next_url(self, document: object, url: str) -> str | None:
        return linked_page(url, _text(self.next.follow(document))) if self.next else None

    def _values(self, document: object) -> list[object]:
        values = self.items.follow(document)
        if isinstance(values, list):
            return cast("list[object]", values)
        where = f"items path {self.items.text!r}" if self.items.text else "the empty items path"
        raise Permanent(
            f"{where} leads to {_shape(values)}, not to a list; the document has {_shape(document)}", code="no_items"
        )

    def _item(self, value: object) -> Item:
        values = {
            name: next(filter(None, (_text(path.follow(value)) for path in paths)), None)
            for name, paths in self.fields.items()
        }
        return {name: text for name, text in values.items() if text is not None}


def _inside(value: object, step: Step) -> object:
    if isinstance(step, str):
        return cast("dict[str, object]", value).get(step) if isinstance(value, dict) else None
    items = cast("list[object]", value) if isinstance(value, list) else []
    return items[step] if step < len(items) else None


def read_document(body: bytes, content_type: str | None) -> object:
    """Parse the document, with numbers as they are written: 1.10 stays 1.10.

    Raises:
        Permanent: `not_json`; it is something else, or nested beyond reason.
        Transient: `truncated`; half a document is not accepted.
    """
    text = decode(body, content_type).lstrip("\ufeff")
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError as error:
        raise Permanent("JSON nested beyond reason; it is not read", code="not_json") from error
    except json.JSONDecodeError as error:
        if _is_cut_off(text.strip(), error):
            raise Transient(
                f"the JSON breaks off after {len(text)} characters; it is fetched again", code="truncated"
            ) from error
        begins = clean_text(text[:60])
        raise Permanent(
            f"not JSON but text that begins {begins!r}; check the source's address", code="not_json"
        ) from error


def _is_cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether the text is the beginning of JSON, and wrong only in that it ends."""
    if not text:
        return True
    is_json = text[0] in "{[" and not error.msg.startswith("Extra data")
    left = len(error.doc.rstrip()) - error.pos
    in_word = left <= LONGEST_WORD and text[-1] not in "}]"
    return is_json and (left <= 0 or in_word or error.msg.startswith("Unterminated string"))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return clean_text(value) if isinstance(value, str) else None


def _shape(value: object) -> str:
    """Return a description of a value, for people who look for the right path."""
    if isinstance(value, dict):
        keys = [key[:40] for key in list(cast("dict[str, object]", value))[:MAX_KEYS_SHOWN]]
        return f"the keys {keys}"
    if isinstance(value, list):
        return f"a list of {len(cast('list[object]', value))}"
    return "nothing" if value is None else f"the value {str(value)[:40]!r}"


MAX_BYTES = 5_000_000  # a list of 3,000 rows has 1 MB
MAX_SELECTOR_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 2_000  # of one field; more is a selector that took the whole page

_ATTRIBUTE = re.compile(r"(.*?)(?:@|::attr\((?=[^()]*\)\Z))([A-Za-z_][\w:.-]*)\)?", re.DOTALL)
_OWN_TEXT = "::text"
_TAG = re.compile(r"<(?:!--|/?[a-z][^<>]*+>)", re.IGNORECASE)
_UNSEEN = frozenset({"script", "style", "template"})


class BadSelector(ValueError):
    """A selector that cannot be used; the message holds it and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Where in an item a field is: an element's text, its own text alone, or its attribute."""

    css: str
    attribute: str | None
    is_own_text: bool = False

    @classmethod
    def of(cls, text: str) -> FieldSelector:
        """Parse the selector; raise `BadSelector` if it is no CSS."""
        match = _ATTRIBUTE.fullmatch(text.strip())
        css, attribute = (match[1].strip(), match[2]) if match else (text.strip(), None)
        is_own_text = attribute is None and css.endswith(_OWN_TEXT)
        css = css.removesuffix(_OWN_TEXT) or "*" if is_own_text else css
        try:
            return cls(checked_css(css) if css else "", attribute, is_own_text)
        except BadSelector as error:
            raise BadSelector(f"{text[:MAX_SELECTOR_CHARACTERS]!r}: {error}") from error

    def find(self, item: LexborNode) -> str | None:
        """Return the first text that is not blank; None if there is none."""
        matches = item.css(self.css) if self.css else [item]
        texts = (clean_text(text) for match in matches for text in self._texts(match))
        return next((text[:MAX_TEXT_CHARACTERS] for text in texts if text), None)

    def _texts(self, match: LexborNode) -> Iterator[str | None]:
        if self.attribute:
            yield match.attrs.get(self.attribute)
        elif self.is_own_text:
            yield from (child.text_content for child in match.iter(include_text=True) if child.is_text_node)
        else:
            yield _visible_text(match)


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A page, parsed once for several queries."""

    text: str
    tree: LexborHTMLParser

    @classmethod
    def of(cls, body: bytes, content_type: str | None = None) -> HtmlPage:
        """Parse the page of the body.

        Raises:
            Permanent: `not_html`, `too_large`, `too_deep` or `too_many_attributes`.
            Transient: `truncated`; the body is empty.
        """
        if len(body) > MAX_BYTES:
            raise Permanent(f"the page has {len(body)} bytes, more than {MAX_BYTES}; it is not read", code="too_large")
        text = decode(body, content_type)
        if not text.strip():
            raise Transient("the page is empty; it is fetched again", code="truncated")
        if not _TAG.search(text):
            raise Permanent(f"not HTML but text that begins {clean_text(text[:60])!r}", code="not_html")
        return cls(text, Document(text).tree)

    def has(self, css: str) -> bool:
        """Return whether anything on the page matches."""
        return self.tree.css_first(css) is not None

    def described(self) -> str:
        """Return the page's title and text, for people who expected another page."""
        texts = ((clean_text(_visible_text(node)) for node in self.tree.css(css)) for css in ("title", "h1"))
        title, heading = (next(filter(None, those), None) for those in texts)
        headed = f", headed {heading[:100]!r}" if heading else ""
        return f"its title: {(title or 'none')[:200]!r}{headed}, links: {len(self.tree.css('a[href]'))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlReader:
    """Selectors of items, and of the fields in an item: the first match that is set."""

    items: str
    fields: Mapping[str, Sequence[FieldSelector]]
    required: Sequence[str] = ()
    next: str | None = None
    may_be_empty: bool = False

    def read(self, body: bytes, *, url: str = "", content_type: str | None = None) -> ItemPage:
        """Read every item of the page; none is an error unless it may be empty.

        Raises:
            Permanent: `no_items` or `no_fields`; or there is no such page (see `HtmlPage.of`).
            Transient: `truncated`; the body is empty.
        """
        return self.read_page(HtmlPage.of(body, content_type), url=url)

    def read_page(self, page: HtmlPage, *, url: str) -> ItemPage:
        """Read every item of a parsed page."""
        elements = page.tree.css(self.items)
        if not elements and not self.may_be_empty:
            raise Permanent(
                f"nothing on the page matches {self.items!r} ({page.described()}); if the list may be"
                " empty, set may_be_empty, else the layout changed or this is another page",
                code="no_items",
            )
        items = [self._item(element) for element in elements[: MAX_RECORDS + 1]]
        reading = named_items(items, self.required, cure="check fields in the config")
        return ItemPage(
            reading=replace(reading, problems=[*reading.problems, *_cut_off(page.text)]),
            base_url=base_of(page.tree, url) or url,
            next_url=self.next_url_of(page, url=url),
        )

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the target of the first element that `next` matches."""
        return self.next_url_of(HtmlPage.of(body), url=url) if self.next else None

    def next_url_of(self, page: HtmlPage, *, url: str) -> str | None:
        """Return the target of `next` on a parsed page."""
        if self.next is None:
            return None
        addresses = (clean_text(node.attrs.get("href")) for node in page.tree.css(self.next))
        return linked_page(base_of(page.tree, url), next(filter(None, addresses), None))

    def _item(self, element: LexborNode) -> Item:
        values: dict[FieldSelector, str | None] = {}  # fields often share a selector
        item: dict[str, str] = {}
        for name, selectors in self.fields.items():
            for selector in selectors:
                if selector not in values:
                    values[selector] = selector.find(element)
                if text := values[selector]:
                    item[name] = text
                    break
        return item


@lru_cache(maxsize=1_000)
def checked_css(css: str) -> str:
    """Return the selector in the parser's own words; raise `BadSelector` if it is no CSS, or too long to be meant."""
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError

    excerpt = css[:MAX_SELECTOR_CHARACTERS]
    if len(css) > MAX_SELECTOR_CHARACTERS:
        raise BadSelector(f"{excerpt!r}... has more than {MAX_SELECTOR_CHARACTERS} characters")
    parsed = css.replace(":contains(", ":lexbor-contains(")
    try:
        LexborHTMLParser("").css(parsed)
    except SelectolaxError as error:
        raise BadSelector(f"{excerpt!r} is no CSS selector: {error}") from error
    return parsed


def _visible_text(element: LexborNode) -> str:
    if element.css_first(", ".join(_UNSEEN)) is None:
        return element.text(separator=" ")
    texts = (node for node in element.traverse(include_text=True) if node.is_text_node)
    return " ".join(node.text_content or "" for node in texts if node.parent and node.parent.tag not in _UNSEEN)


def _cut_off(text: str) -> list[Problem]:
    """Return a problem if the page opens `html` and never closes it: it may be cut off."""
    if not re.search(r"<html[\s>]", text, re.IGNORECASE) or re.search(r"</(?:html|body)\s*>", text, re.IGNORECASE):
        return []
    return [Problem(where="page", message="it has no </html>: perhaps the rest was cut off")]
