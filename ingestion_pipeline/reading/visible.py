"""A page as its visitor sees it, from one parse: where it leads, and its text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.cleaning import (
    body_html,
    body_text,
    remove_unseen,
    visible_tree,
)
from ingestion_pipeline.reading.head import Way, way_of
from ingestion_pipeline.reading.links import canonical_links
from ingestion_pipeline.reading.markdown import body_markdown
from ingestion_pipeline.reading.markup import parse_html

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser


@dataclass(frozen=True, slots=True, kw_only=True)
class VisiblePage:
    """`links` are canonical URLs in page order; `tree` and `body` are without what nobody sees."""

    html: str
    way: Way
    links: tuple[str, ...]
    body: str
    text: str
    tree: LexborHTMLParser

    def markdown(self) -> str:
        """The page as Markdown."""
        return body_markdown(self.body, text=self.text, base=self.way.base)


def visible_page(html: str, *, url: str) -> VisiblePage:
    """What a visit asks of a page; less than `read_page`, and in a third of its time.

    Raises:
        Permanent: the page is a bomb (see `parse_html`).
    """
    tree = parse_html(html)
    way = way_of(tree, url)
    links = canonical_links(tree, way.base)
    remove_unseen(tree)
    body = body_html(tree)
    if not (
        text := body_text(body)
    ):  # all is hidden, or there is none: rare, and worth a second parse
        tree = visible_tree(html)
        body = body_html(tree)
        text = body_text(body)
    return VisiblePage(html=html, way=way, links=links, body=body, text=text, tree=tree)
