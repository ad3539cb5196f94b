"""A web page read as a whole: what it says of itself, where it leads, and its content."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.reading.cleaning import (
    body_html,
    cleaned_text,
    has_text,
    remove_unseen,
    utf8_text,
)
from ingestion_pipeline.reading.head import (
    FeedLink,
    Refresh,
    canonical_of,
    feeds_of,
    language_of,
    refresh_of,
    title_of,
)
from ingestion_pipeline.reading.linked_html import LinkedHtml
from ingestion_pipeline.reading.links import base_of, page_links
from ingestion_pipeline.reading.markdown import to_markdown, utf8_markdown
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.pagination import PageLink, following_pages


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """What a page states; `links` are canonical URLs in page order."""

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
    """Everything the page states, from one parse; relative addresses need the page's `url`.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    title, language = title_of(tree), language_of(tree)
    canonical, refresh = canonical_of(tree, url), refresh_of(tree, url)
    links, feeds = tuple(page_links(tree, url)), tuple(feeds_of(tree, url))
    following = tuple(following_pages(tree, url))
    remove_unseen(tree)
    if has_text(tree):
        body = body_html(tree)
        utf8 = utf8_text(body)
        text = utf8.decode()
        linked = LinkedHtml(body, base_of(tree, url))
        markdown = utf8_markdown(linked, text=utf8).decode()
    else:
        text, markdown = cleaned_text(html), to_markdown(html, url=url)
    return WebPage(
        title=title,
        canonical_url=canonical,
        language=language,
        links=links,
        markdown=markdown,
        text=text,
        refresh=refresh,
        feeds=feeds,
        following=following,
    )
