"""How many records a page says it has, and whether as many were found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.reading.pagination import following_pages

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser

EXACT_UP_TO = 5
TOLERANCE = 0.1
MOST_ANNOUNCED = 100_000
_NUMBER = r"([0-9]{1,3}(?:[,.][0-9]{3})+|[0-9]{1,6})"
# "Showing 1-20 of 42 courses": on this page there are 20.
_SHOWN = re.compile(
    r"\b(?:showing|displaying|results?|records?)\s+([0-9]{1,6})\s*(?:-|\u2013|\u2014|to)\s*([0-9]{1,6})"
    r"(?:\s+(?:of|from)\b|\s|$)",
    re.IGNORECASE,
)


def is_count(found: int, expected: int) -> bool:
    """Whether so many are as many as expected: exactly if they are few, else nearly."""
    if expected <= EXACT_UP_TO:
        return found == expected
    return abs(found - expected) <= expected * TOLERANCE


def announced_count(
    kind: EntityType, text: str, tree: LexborHTMLParser | None = None, url: str | None = None
) -> int | None:
    """How many records the page says that it holds; None if it does not, or tells several numbers.

    Where the list goes on elsewhere (`tree`, not cleaned), the number is that of the whole list.
    """
    shown = {(int(one[1]), int(one[2])) for one in _SHOWN.finditer(text)}
    if len(shown) == 1:
        first, last = shown.pop()
        return last - first + 1 if 0 < first <= last else None
    if not kind.announced_as or (tree is not None and any(following_pages(tree, url))):
        return None
    words = "|".join(re.escape(word) for word in kind.announced_as)
    said = re.compile(
        rf"(?:^|[^\w.,-]){_NUMBER}\s+(?:{words})\b(?!\s+(?:from|in each|per|required|must|at|of))",
        re.IGNORECASE | re.MULTILINE,
    )
    numbers = {int(re.sub(r"[,.]", "", one[1])) for one in said.finditer(text)}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if number and number <= MOST_ANNOUNCED else None
