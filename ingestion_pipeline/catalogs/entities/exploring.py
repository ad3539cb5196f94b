"""Which links of a page are worth a visit, for entities on pages that nobody listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.catalogs.entities.page_reading import PageContent
from ingestion_pipeline.catalogs.entities.phrases import has_phrase
from ingestion_pipeline.catalogs.entities.record import Record
from ingestion_pipeline.reading.cleaning import visible_tree
from ingestion_pipeline.reading.links import base_of, canonical_or_none, linked_page

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

MOST_LINKS = 20  # of one page; the crawl has its own bounds of depth and pages


def explored_links(
    kind: EntityType,
    page: PageContent,
    records: Sequence[Record],
    *,
    proposed: Iterable[str] = (),
    most: int = MOST_LINKS,
) -> tuple[str, ...]:
    """Canonical URLs that may lead to more of the entity, those a model proposed first.

    Only where the page had records and the type explores; only links that a visitor sees on the
    page, of the same host, and not the page itself; each once.
    """
    if not kind.explores or not records:
        return ()
    here, own = _host(page.url), canonical_or_none(page.url)
    links = {
        address: said
        for address, said in _links(visible_tree(page.body), page.url)
        if _host(address) == here and address != own
    }
    asked = [found for one in proposed if (found := canonical_or_none(one)) in links]
    alike = [address for address, said in links.items() if has_phrase(said, kind.link_phrases)]
    return tuple(dict.fromkeys([*asked, *alike]))[:most]


def _links(tree: LexborHTMLParser, url: str) -> Iterable[tuple[str, str]]:
    """Each link's canonical URL, with its words and those of its address."""
    base = base_of(tree, url)
    for node in tree.css("a[href], area[href]"):
        address = canonical_or_none(linked_page(base, node.attrs.get("href")) or "")
        if address is not None:
            parts = urlsplit(address)
            yield address, f"{node.text()} {unquote(parts.path)} {unquote(parts.query)}"


def _host(url: str) -> str:
    return urlsplit(url).netloc.casefold()
