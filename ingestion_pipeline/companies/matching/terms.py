"""Words of a profile in the words of a listing: whole words only, and no "go" in "go to market".

A term is looked for as plain text first, which takes a microsecond a page; only where it stands its
surroundings are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ingestion_pipeline.companies.vocabulary import OTHER_NAMES

# Names that are words of every day, too, as is every single letter: they count where the spelling
# is the name's own and what stands around them is a list, or speaks of the trade.
_EVERYDAY = frozenset({"go", "swift", "rust", "dart", "express", "spring", "julia"})
_LISTED = re.compile(
    r"(?:[,/(;:|&+\u2022]|(?<!\*)\*|^[^\S\n]*+[-\u2013]"
    r"|\b(?:in|with|and|or|using|like|know|of|write|e\.g\.))[^\S\n]*+\**+$",
    re.IGNORECASE | re.MULTILINE,
)
_LINE_BEGINS = re.compile(r"^[\s#>*]*$", re.MULTILINE)
_GOES_ON = re.compile(
    r"\s*(?:to|beyond|above|the|for|on|ahead|through|into|with|where|home|live|out|back|over|along"
    r"|all|further|deep|big|far|an?|your|our)\b",
    re.IGNORECASE,
)
_TRADE = re.compile(
    r"\**\s*(?:[,/);|]|$|(?:and|or|developer|engineer|programm|lang|code|service|microservice"
    r"|backend|experience|stack|boot|framework|is)\w*)",
    re.IGNORECASE | re.MULTILINE,
)
_TARGET = re.compile(r"\]\((?:[^()\s]|\([^()\s]*+\))*+\)")
_JOINED = re.compile(r"[^\s,/;|)*]\w")  # as in C•CURE
_AROUND = 30  # characters that say whether an everyday word is a name


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its small letters, made once for many terms; targets of links are not words."""

    text: str
    lower: str

    @classmethod
    def of(cls, *parts: str | None) -> Text:
        """The parts that are there, a line each."""
        text = "\n".join(part for part in parts if part)
        lower = text.lower()
        if len(lower) != len(text):  # a few letters (İ) are two: places would not be the same
            lower = text
        if "](" in text:
            lower = _TARGET.sub(lambda link: " " * len(link[0]), lower)
        return cls(text, lower)


def find(term: str, text: Text) -> tuple[int, int] | None:
    """Where the term or another name of it first stands as a word of its own."""
    wanted = term.lower()
    for one in (wanted, *OTHER_NAMES.get(wanted, ())):
        if _may_hold(one, text) and (found := next(_places(one, text), None)):
            return found
    return None


def first_of(terms: Iterable[str], text: Text) -> str | None:
    """The first of the terms, in their own order, that stands in the text."""
    return next((term for term in terms if find(term, text) is not None), None)


def find_phrase(keyword: str, text: Text) -> bool:
    """Several words as they stand, anywhere; a single word only as a whole word."""
    wanted = " ".join(keyword.lower().split())
    return wanted in text.lower if " " in wanted else find(keyword, text) is not None


def places(term: str, text: Text) -> Iterator[tuple[int, int]]:
    """Everywhere that the term itself stands as a word of its own."""
    wanted = term.lower()
    if _may_hold(wanted, text):
        yield from _places(wanted, text)


def _may_hold(wanted: str, text: Text) -> bool:
    """Cheaply; several words may stand on two lines."""
    return wanted in text.lower or (
        " " in wanted and all(one in text.lower for one in wanted.split())
    )


def _places(wanted: str, text: Text) -> Iterator[tuple[int, int]]:
    for found in _pattern(wanted).finditer(text.lower):
        start, end = found.span()
        is_everyday = len(wanted) == 1 or wanted in _EVERYDAY
        if not is_everyday or _is_a_name(text.text, start, end):
            yield start, end


@lru_cache(maxsize=4_096)
def _pattern(wanted: str) -> re.Pattern[str]:
    """Not inside a word; nor "c" in "c++", "java" in "java.script" or "net" in "asp.net"."""
    before = r"(?<!\w)(?<!\w[.&])" if wanted[:1].isalnum() else ""
    after = r"(?![\w+#])(?!\.\w|&\w)" if wanted[-1:].isalnum() else r"(?![\w+#])"
    return re.compile(before + r"\s+".join(map(re.escape, wanted.split())) + after)


def _is_a_name(text: str, start: int, end: int) -> bool:
    written = text[start:end]
    if written != written.capitalize():
        return False
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    if _JOINED.match(after) or _GOES_ON.match(after):
        return False
    if _LISTED.search(before) is not None:
        return True
    begins = start <= _AROUND or "\n" in before
    line = before.rpartition("\n")[2]
    return begins and _LINE_BEGINS.search(line) is not None and _TRADE.match(after) is not None
