"""A page as its visitor sees it, from one parse: addresses, links, text and Markdown."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.html.cleaning import (
    MAY_BE_UNSEEN,
    OFTEN_UNSEEN,
    SELDOM_THERE,
    body_html,
    cleaned_text,
    has_text,
    remove_unseen,
    utf8_text,
    visible_tree,
)
from ingestion_pipeline.reading.html.head import (
    ADDRESS_SELECTOR,
    FeedLink,
    PageAddresses,
    Refresh,
    feeds_of,
    language_of,
    page_addresses,
    title_of,
)
from ingestion_pipeline.reading.html.links import PageLink, following_pages, links_from, page_links
from ingestion_pipeline.reading.html.markdown import LinkedHtml, to_markdown, utf8_markdown
from ingestion_pipeline.reading.html.parsing import parse_html
from ingestion_pipeline.reading.text.fingerprint import re2_pattern

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


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


def visible_page(html: str, *, url: str, utf8: bytes | None = None) -> VisiblePage:
    """Return what a crawl needs of a page; less than `read_page`, in a third of its time.

    `utf8` is the same HTML in UTF-8, if available; a bomb is `Permanent` (see `parse_html`).
    """
    tree = parse_html(html, utf8=utf8)
    elements = tree.css(_ALL if utf8 is None or re2_pattern(_SELDOM).search(utf8) else _OFTEN)
    way = page_addresses(elements, url)
    others = [node.attrs.get("href") for node in elements if node.tag == "area"]
    is_read_from_html = all(node.tag != "plaintext" for node in elements)
    others += remove_unseen(tree, elements)
    body = body_html(tree)
    if not (text := utf8_text(body)):  # all is hidden, or there is no text: parse again
        tree = visible_tree(html)
        body = body_html(tree)
        text = utf8_text(body)
        is_read_from_html = False
    linked = LinkedHtml(body, way.base)
    return VisiblePage(
        html=html,
        way=way,
        links=linked.pages(others) if is_read_from_html else tuple(links_from(parse_html(html), way.base)),
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


def read_page(html: str, *, url: str | None = None) -> WebPage:
    """Read all the page states; relative addresses need its `url`; a bomb is `Permanent` (see `parse_html`)."""
    tree = parse_html(html)
    title, language = title_of(tree), language_of(tree)
    addresses = page_addresses(tree.css(ADDRESS_SELECTOR), url)
    links, feeds = tuple(page_links(tree, url)), tuple(feeds_of(tree, url))
    following = tuple(following_pages(tree, url))
    remove_unseen(tree)
    if has_text(tree):
        body = body_html(tree)
        utf8 = utf8_text(body)
        text = utf8.decode()
        linked = LinkedHtml(body, addresses.base)
        markdown = utf8_markdown(linked, text=utf8).decode()
    else:
        text, markdown = cleaned_text(html), to_markdown(html, url=url)
    return WebPage(
        title=title,
        canonical_url=addresses.canonical_url,
        language=language,
        links=links,
        markdown=markdown,
        text=text,
        refresh=addresses.refresh,
        feeds=feeds,
        following=following,
    )
