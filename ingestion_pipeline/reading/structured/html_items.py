"""Read HTML items by CSS selectors of a source's config: `li.row`, `a`, `a@href`, `@data-id`.

A field's selector searches inside the item and returns the text of the first match that has any;
`@name` at its end returns an attribute instead, and alone it means the item's own. Scripts are no
text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, cast

from ingestion_pipeline.reading.html.links import linked_page, stated_base
from ingestion_pipeline.reading.html.parsing import refuse_bombs
from ingestion_pipeline.reading.structured.items import MAX_RECORDS, Item, ItemPage, Problem, named_items
from ingestion_pipeline.reading.text.decoding import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient

MAX_BYTES = 5_000_000  # a list of 3,000 rows has 1 MB
MAX_SELECTOR_CHARACTERS = 500
MAX_TEXT_CHARACTERS = 2_000  # of one field; more is a selector that took the whole page

_ATTRIBUTE = re.compile(r"(.*?)@([A-Za-z_][\w:.-]*)", re.DOTALL)
_TAG = re.compile(r"<(?:!--|/?[a-z][^<>]*+>)", re.IGNORECASE)
_UNSEEN = frozenset({"script", "style", "template"})
# Only templates have elements inside; to ask every text for all its ancestors takes its time.
_VISIBLE = "descendant::text()[not(parent::script or parent::style or ancestor::template)]"


class Element(Protocol):
    """The interface of an lxml element that we use; lxml has no annotations."""

    tag: str
    text: str | None

    def get(self, key: str) -> str | None:
        """Return the attribute of that name."""
        ...

    def __len__(self) -> int: ...


class BadSelector(ValueError):
    """A selector that cannot be used; the message holds it and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Where in an item a field is: an element's text, or its attribute."""

    css: str
    attribute: str | None

    @classmethod
    def of(cls, text: str) -> FieldSelector:
        """Parse the selector.

        Raises:
            BadSelector: it is no CSS.
        """
        match = _ATTRIBUTE.fullmatch(text.strip())
        css, attribute = (match[1].strip(), match[2]) if match else (text.strip(), None)
        try:
            return cls(checked_css(css) if css else "", attribute)
        except BadSelector as error:
            raise BadSelector(f"{text[:MAX_SELECTOR_CHARACTERS]!r}: {error}") from error

    def find(self, item: Element) -> str | None:
        """Return the first text that is not blank; None if there is none."""
        matches = _finder(self.css)(item) if self.css else [item]
        texts = (clean_text(self._text(match)) for match in matches)
        return next((text[:MAX_TEXT_CHARACTERS] for text in texts if text), None)

    def _text(self, match: Element | str) -> str | None:
        if isinstance(match, str):  # of `::text` or `::attr(name)`
            return match
        return match.get(self.attribute) if self.attribute else _visible_text(match)


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A page, parsed once for several queries."""

    text: str
    root: Element

    @classmethod
    def of(cls, body: bytes, content_type: str | None = None) -> HtmlPage:
        """Parse the page of the body.

        Raises:
            Permanent: `not_html`, `too_large`, `too_deep` or `too_many_attributes`.
            Transient: `truncated`; the body is empty.
        """
        text = _checked_text(body, content_type)
        return cls(text, _parsed(text))

    def has(self, css: str) -> bool:
        """Return whether anything on the page matches."""
        return bool(_finder(css)(self.root))

    def base_url(self, url: str) -> str:
        """Return the base of the page's links: its `base` if it has one, else its URL."""
        bases = cast("list[Element]", _finder("base[href]")(self.root))
        return stated_base(url, (base.get("href") for base in bases)) or url

    def described(self) -> str:
        """Return the page's title and text, for people who expected another page."""
        title = FieldSelector("title", None).find(self.root) or "none"
        heading = FieldSelector("h1", None).find(self.root)
        headed = f", headed {heading[:100]!r}" if heading else ""
        return f"its title: {title[:200]!r}{headed}, links: {len(_finder('a[href]')(self.root))}"


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
        matches = _finder(self.items)(page.root)
        elements = [element for element in matches if not isinstance(element, str)]
        if not elements and not self.may_be_empty:
            raise self._no_items(page)
        items = [self._item(element) for element in elements[: MAX_RECORDS + 1]]
        reading = named_items(items, self.required, cure="check fields in the config")
        return ItemPage(
            reading=replace(reading, problems=[*reading.problems, *_cut_off(page.text)]),
            base_url=page.base_url(url),
            next_url=self.next_url_of(page, url=url),
        )

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the target of the first element that `next` matches."""
        return self.next_url_of(HtmlPage.of(body), url=url) if self.next else None

    def next_url_of(self, page: HtmlPage, *, url: str) -> str | None:
        """Return the target of `next` on a parsed page."""
        if self.next is None:
            return None
        link = FieldSelector(self.next, "href").find(page.root)
        return linked_page(page.base_url(url), link)

    def _item(self, element: Element) -> Item:
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

    def _no_items(self, page: HtmlPage) -> Permanent:
        return Permanent(
            f"nothing on the page matches {self.items!r} ({page.described()}); if the list may be"
            " empty, set may_be_empty, else the layout changed or this is another page",
            code="no_items",
        )


def checked_css(css: str) -> str:
    """Return the selector if it can be used.

    Raises:
        BadSelector: it is no CSS, or too long to be meant.
    """
    excerpt = css[:MAX_SELECTOR_CHARACTERS]
    if len(css) > MAX_SELECTOR_CHARACTERS:
        raise BadSelector(f"{excerpt!r}... has more than {MAX_SELECTOR_CHARACTERS} characters")
    try:
        _finder(css)
    except Exception as error:  # cssselect raises SyntaxError, RuntimeError; lxml ValueError
        raise BadSelector(f"{excerpt!r} is no CSS selector: {error}") from error
    return css


@lru_cache(maxsize=1_000)
def _finder(css: str) -> Callable[[Element], list[Element | str]]:
    """Return a function that finds the selector's matches, compiled once for all sources."""
    from parsel import css2xpath

    return _compiled(css2xpath(css))


@lru_cache(maxsize=1_000)
def _compiled(xpath: str) -> Callable[[Element], list[Element | str]]:
    from lxml.etree import XPath  # pyright: ignore  lxml has no annotations

    return cast("Callable[[Element], list[Element | str]]", XPath(xpath, smart_strings=False))


def _visible_text(element: Element) -> str:
    if not len(element) and element.tag not in _UNSEEN:
        return element.text or ""
    return " ".join(cast("list[str]", _compiled(_VISIBLE)(element)))


def _parsed(text: str) -> Element:
    """Return the tree of the whole text; if the parser would give up, nothing is read."""
    from lxml.etree import HTMLParser, fromstring  # pyright: ignore  lxml has no annotations

    # huge_tree is 2,048 levels instead of 256: pages forget to close what is inline
    parser = cast("Any", HTMLParser(recover=True, encoding="utf-8", huge_tree=True))
    root = cast("Any", fromstring(text.replace("\0", "").strip().encode() or b"<html/>", parser))
    if any(error.type_name == "ERR_RESOURCE_LIMIT" for error in parser.error_log):
        raise Permanent("the page nests more elements than the parser takes; it is not read", code="too_deep")
    return cast("Element", fromstring(b"<html/>", parser) if root is None else root)


def _checked_text(body: bytes, content_type: str | None) -> str:
    """Return the page's text, if it is safe to parse."""
    if len(body) > MAX_BYTES:
        raise Permanent(f"the page has {len(body)} bytes, more than {MAX_BYTES}; it is not read", code="too_large")
    text = decode(body, content_type)
    if not text.strip():
        raise Transient("the page is empty; it is fetched again", code="truncated")
    if not _TAG.search(text):
        begins = clean_text(text[:60])
        raise Permanent(f"not HTML but text that begins {begins!r}", code="not_html")
    refuse_bombs(text)
    return text


def _cut_off(text: str) -> list[Problem]:
    """Return a problem if the page opens `html` and never closes it: it may be cut off."""
    if not re.search(r"<html[\s>]", text, re.IGNORECASE) or re.search(r"</(?:html|body)\s*>", text, re.IGNORECASE):
        return []
    return [Problem(where="page", message="it has no </html>: perhaps the rest was cut off")]
