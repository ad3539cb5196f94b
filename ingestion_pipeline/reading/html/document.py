"""A page on its way through one step of work: decoded and parsed once, whatever is read of it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Self

from ingestion_pipeline.reading.html.cleaning import body_html, parse_html, refuse_bombs, utf8_text, visible_tree
from ingestion_pipeline.reading.html.links import base_of, canonical_or_none, linked_page, page_links
from ingestion_pipeline.reading.text.plain_text import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from selectolax.lexbor import LexborHTMLParser

    from ingestion_pipeline.reading.structured.embedded import EmbeddedData

_MAIN_PARTS = ("main", "[role=main]", "article")
MIN_MAIN_CHARACTERS = 100  # a part with less text is not what the page is about


class Document:
    """A page whose parts are read when first asked for, and kept; a bomb is `Permanent` (see `parse_html`).

    There is one tree: `visible_tree` is `tree` without what no visitor sees. What is asked of `tree` after that costs
    a second parse, so read links and embedded data first. Trees are large: call `release` before a wait.
    """

    def __init__(self, html: str, *, url: str | None = None, utf8: bytes | None = None) -> None:
        self.html = html
        self.utf8 = utf8  # the same, if available
        self.url = url
        self._tree: LexborHTMLParser | None = None
        self._visible_tree: LexborHTMLParser | None = None
        self._is_accepted = False

    @classmethod
    def of(cls, body: bytes, content_type: str | None = None, *, url: str | None = None) -> Self:
        """Return the document of a body as it was served or stored."""
        html, utf8 = decoded(body, content_type)
        return cls(html, url=url, utf8=utf8)

    def refuse_bomb(self) -> None:
        """Raise what the first use of the tree would raise."""
        if not self._is_accepted:
            refuse_bombs(self.html, utf8=self.utf8)
            self._is_accepted = True

    @property
    def tree(self) -> LexborHTMLParser:
        """The page as served, to be left as it is."""
        if self._tree is None:
            self._tree = parse_html(self.html, utf8=self.utf8)
            self._is_accepted = True
        return self._tree

    @property
    def visible_tree(self) -> LexborHTMLParser:
        """The page without scripts and hidden elements (with these if all is hidden), to be left as it is."""
        if self._visible_tree is None:
            self._visible_tree = visible_tree(self.html, self.take_tree())
        return self._visible_tree

    def take_tree(self) -> LexborHTMLParser:
        """Return `tree` to a caller that changes it."""
        tree, self._tree = self.tree, None
        return tree

    def take_visible_tree(self) -> LexborHTMLParser:
        """Return `visible_tree` to a caller that changes it."""
        tree, self._visible_tree = self.visible_tree, None
        return tree

    def preload(self, *names: str) -> None:
        """Read these parts now, before another one takes over their tree."""
        for name in names:
            getattr(self, name)

    def release(self) -> None:
        """Free the trees; what was read of them stays."""
        self._tree = self._visible_tree = self.utf8 = None

    @cached_property
    def embedded(self) -> EmbeddedData:
        """The page's machine-readable data; broken parts are problems."""
        from ingestion_pipeline.reading.structured.embedded import embedded_of  # few steps need it

        return embedded_of(self.tree)

    @cached_property
    def links(self) -> Mapping[str, str]:
        """Each linked page: its canonical URL, and the address as the page gives it."""
        return page_links(self.tree, self.url)

    @cached_property
    def visible_links(self) -> tuple[tuple[str, str], ...]:
        """The canonical URL and the text of each link that a visitor sees."""
        tree = self.visible_tree
        base = base_of(tree, self.url)
        return tuple(
            (url, node.text())
            for node in tree.css("a[href], area[href]")
            if (url := canonical_or_none(linked_page(base, node.attrs.get("href")) or "")) is not None
        )

    @cached_property
    def visible_utf8(self) -> bytes:
        """The text that a visitor sees, a line for each block."""
        return utf8_text(body_html(self.visible_tree))

    @cached_property
    def main_content(self) -> str:
        """What the page is about, as Markdown without addresses and menus: what a model is sent.

        It is the one part that the page marks as its main one, else all of it.
        """
        from ingestion_pipeline.reading.html.markdown import (  # it imports this module
            markdown_of,
            to_markdown,
            without_link_targets,
        )

        for selector in _MAIN_PARTS:
            nodes = self.tree.css(selector)
            if len(nodes) == 1 and (part := nodes[0].html):
                text = without_link_targets(to_markdown(part))
                if len(text) >= MIN_MAIN_CHARACTERS:
                    return text
        return without_link_targets(markdown_of(self.visible_tree))
