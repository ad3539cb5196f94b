"""A page that is about one thing: its title names it, its first paragraphs describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, Titled
from ingestion_pipeline.catalogs.entities.page_lines import Line, lines_of
from ingestion_pipeline.catalogs.entities.phrases import choice_by_phrase, has_phrase
from ingestion_pipeline.catalogs.entities.record import RecordField

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

CONFIDENCE = 0.7
MAX_TITLE_WORDS = 20
LEAST_TITLE_WORDS = 2  # "Programs" is a list's title
LEAST_PARAGRAPH_WORDS = 8
FIRST_PARAGRAPHS = 3
ASIDE = "nav, header nav, footer, aside, [role=navigation], [role=contentinfo], .breadcrumb"


def thing_by_title(kind: EntityType, tree: LexborHTMLParser, url: str | None) -> list[RecordField]:
    """The one thing that the page is about, if that is evident; the tree is a cleaned one."""
    titled = kind.titled
    for node in tree.css(ASIDE):
        node.decompose()
    headings = [" ".join(node.text().split()) for node in tree.css("h1")]
    if titled is None or tree.body is None or len(headings) != 1:
        return []
    title = headings[0]
    words = len(title.split())
    if not LEAST_TITLE_WORDS <= words <= MAX_TITLE_WORDS or not _is_evident(titled, title, url):
        return []
    text = _first_paragraphs(list(lines_of(tree.body)), title)
    chosen = choice_by_phrase(title, titled.choices)
    if not text or (titled.choice and chosen is None):
        return []
    fields = {titled.name: title, titled.text: text}
    if titled.choice is None:
        return [RecordField(fields=fields, confidence=CONFIDENCE)]
    return [
        RecordField(
            fields=fields | {titled.choice: chosen},
            quotes={titled.choice: title},
            confidence=CONFIDENCE,
        )
    ]


def _is_evident(titled: Titled, title: str, url: str | None) -> bool:
    phrases = [*titled.phrases, *(one for found in titled.choices.values() for one in found)]
    folders = urlsplit(url or "").path.casefold().strip("/").split("/")[:-1]
    return has_phrase(title, phrases) or bool(set(folders) & set(titled.paths))


def _first_paragraphs(lines: list[Line], title: str) -> str | None:
    """Prose between the title and the next heading; its first paragraphs."""
    start = next((number for number, line in enumerate(lines) if line.text == title), None)
    if start is None:
        return None
    found: list[str] = []
    for line in lines[start + 1 :]:
        if line.is_heading and found:
            break
        if not line.is_heading and len(line.text.split()) >= LEAST_PARAGRAPH_WORDS:
            found.append(line.text)
        if len(found) == FIRST_PARAGRAPHS:
            break
    return "\n".join(found) or None
