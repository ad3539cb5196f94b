"""Records that are the items of a list, told by the heading above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, FieldKind, ListedRule
from ingestion_pipeline.catalogs.entities.phrases import choice_by_phrase
from ingestion_pipeline.catalogs.entities.record import MAX_PAGE_RECORDS, FieldValue, RecordField
from ingestion_pipeline.catalogs.entities.titled_rules import ASIDE
from ingestion_pipeline.reading.cleaning import fragment_text
from ingestion_pipeline.reading.head import language_of

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

CONFIDENCE = 0.8
MAX_HEADING_WORDS = 12
LEAST_ITEM_WORDS = 3
_HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6", "dt", "summary", "caption", "legend"})
_LOOKED_AT = "h1, h2, h3, h4, h5, h6, dt, summary, caption, legend, p, strong, b, li"


def items_by_list(kind: EntityType, tree: LexborHTMLParser) -> list[RecordField]:
    """The items of every list made for the entity; the tree is a cleaned one."""
    listed = kind.listed
    if listed is None:
        return []
    language = language_of(tree)
    for node in tree.css(ASIDE):
        node.decompose()
    found: dict[str, RecordField] = {}
    choice, heading = None, ""
    for node in tree.css(_LOOKED_AT):
        text = _own_text(node)
        if node.tag == "li":
            if choice and len(found) <= MAX_PAGE_RECORDS and _is_item(node, text):
                item = _item(kind, listed, text, choice, heading, language)
                found.setdefault(text, item)
        elif _is_heading(node, text):
            choice, heading = choice_by_phrase(text, listed.under), text
    return list(found.values())


def has_list(kind: EntityType, tree: LexborHTMLParser) -> bool:
    """Whether the page has a list made for the entity."""
    return bool(items_by_list(kind, tree))


def _item(
    kind: EntityType, listed: ListedRule, text: str, choice: str, heading: str, language: str | None
) -> RecordField:
    fields: dict[str, FieldValue | None] = {listed.field: text, listed.choice: choice}
    quotes = {listed.choice: heading}
    for field in kind.fields:
        if field.kind is FieldKind.LANGUAGE and language:
            # the page says which it is, and the item's words are in it
            fields[field.name], quotes[field.name] = language.split("-")[0].lower(), text
    return RecordField(fields=fields, quotes=quotes, confidence=CONFIDENCE)


def _is_heading(node: LexborNode, text: str) -> bool:
    """Headings, and short lines that lead to a list: in bold, or with a colon at their end."""
    if not text or (node.tag not in _HEADINGS and len(text.split()) > MAX_HEADING_WORDS):
        return False
    if node.tag in _HEADINGS:
        return True
    stands_alone = node.parent is not None and _own_text(node.parent) == text
    return text.endswith(":") or (node.tag in {"strong", "b"} and stands_alone)


def _is_item(node: LexborNode, text: str) -> bool:
    is_link = any(_own_text(link) == text for link in node.css("a"))
    return len(text.split()) >= LEAST_ITEM_WORDS and not is_link


def _own_text(node: LexborNode) -> str:
    """The element's text without that of lists inside it."""
    html = node.html or ""
    for inner in node.css("ul, ol"):
        html = html.replace(inner.html or "", " ", 1)
    return " ".join(fragment_text(html).split())
