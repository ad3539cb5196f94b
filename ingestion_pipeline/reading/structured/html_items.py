"""Read HTML items by CSS selectors of a source's config: `li.row`, `a`, `a@href`, `@data-id`.

A field's selector searches inside the item and returns the text of the first match that has any;
`@name` at its end returns an attribute instead, and alone it means the item's own. `a::attr(href)` is
`a@href`, and `a::text` the first text of the element itself. Scripts are no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.html.links import base_of, linked_page
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.structured.items import MAX_RECORDS, Item, ItemPage, Problem, named_items
from ingestion_pipeline.reading.text.decoding import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

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
        return cls(text, parse_html(text))

    def has(self, css: str) -> bool:
        """Return whether anything on the page matches."""
        return self.tree.css_first(css) is not None

    def described(self) -> str:
        """Return the page's title and text, for people who expected another page."""
        title, heading = (self._first_text(css) for css in ("title", "h1"))
        headed = f", headed {heading[:100]!r}" if heading else ""
        return f"its title: {(title or 'none')[:200]!r}{headed}, links: {len(self.tree.css('a[href]'))}"

    def _first_text(self, css: str) -> str | None:
        return next(filter(None, (clean_text(_visible_text(node)) for node in self.tree.css(css))), None)


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
