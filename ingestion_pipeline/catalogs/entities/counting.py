"""How many records a page says it has, and whether as many were found."""

from __future__ import annotations

import re
from functools import cache

from ingestion_pipeline.catalogs.entities.entity_type import EntityType
from ingestion_pipeline.reading.first_look import QuickCheck, folded
from ingestion_pipeline.reading.markup import parse_html
from ingestion_pipeline.reading.pagination import following_pages

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
_MAY_SHOW = QuickCheck(r"(?:showing|displaying|results?|records?)[^a-z0-9]+[0-9]")


def is_count(found: int, expected: int) -> bool:
    """Whether so many are as many as expected: exactly if they are few, else nearly."""
    if expected <= EXACT_UP_TO:
        return found == expected
    return abs(found - expected) <= expected * TOLERANCE


def announced_count(
    kind: EntityType, text: str, html: str | None = None, url: str | None = None
) -> int | None:
    """How many records the page says that it holds; None if it does not, or tells several numbers.

    Where the page links to more of the list, the number is that of the whole list.
    """
    if _MAY_SHOW.sees(text):
        shown = {(int(one[1]), int(one[2])) for one in _SHOWN.finditer(text)}
        if len(shown) == 1:
            first, last = shown.pop()
            return last - first + 1 if 0 < first <= last else None
    number = _stated_count(kind.announced_as, text)
    if number is None or (html is not None and any(following_pages(parse_html(html), url))):
        return None
    return number


def _stated_count(words: tuple[str, ...], text: str) -> int | None:
    """The one number that stands before one of the words; None if there are several."""
    if not words:
        return None
    may_say, said = _saying(words)
    if not may_say.sees(text):
        return None
    numbers = {int(re.sub(r"[,.]", "", one[1])) for one in said.finditer(text)}
    number = numbers.pop() if len(numbers) == 1 else None
    return number if number and number <= MOST_ANNOUNCED else None


@cache
def _saying(words: tuple[str, ...]) -> tuple[QuickCheck, re.Pattern[str]]:
    either = "|".join(re.escape(folded(word)) for word in words)
    any_word = "|".join(re.escape(word) for word in words)
    return QuickCheck(rf"[0-9][^a-z0-9]+(?:{either})"), re.compile(
        rf"(?:^|[^\w.,-]){_NUMBER}\s+(?:{any_word})\b"
        r"(?!\s+(?:from|in each|per|required|must|at|of))",
        re.IGNORECASE | re.MULTILINE,
    )
