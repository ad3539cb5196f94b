"""Finds terms of a profile in a listing: whole words only, and no "go" in "go to market".

A term is searched as plain text first, which takes a microsecond a page; its context is examined
only where it occurs.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from ingestion_pipeline.companies.technologies import OTHER_NAMES

# Names that are also everyday words, as is every single letter: they count if the spelling is the
# name's own and the context is a list or about technology.
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
_AROUND = 30  # characters of context that show whether an everyday word is a name


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its lower-case form, made once for many terms; link targets are blanked."""

    text: str
    lower: str

    @classmethod
    def of(cls, *parts: str | None) -> "Text":
        """Return the non-empty parts, one line each."""
        text = "\n".join(part for part in parts if part)
        lower = text.lower()
        if len(lower) != len(text):  # some letters (İ) become two: offsets would differ
            lower = text
        if "](" in text:
            lower = _TARGET.sub(lambda link: " " * len(link[0]), lower)
        return cls(text, lower)


def find(term: str, text: Text) -> tuple[int, int] | None:
    """Return the first span of the term or one of its other names as a whole word."""
    lowered = term.lower()
    for name in (lowered, *OTHER_NAMES.get(lowered, ())):
        if _may_hold(name, text) and (span := next(_places(name, text), None)):
            return span
    return None


def first_of(terms: Iterable[str], text: Text) -> str | None:
    """Return the first of the terms, in their own order, that is in the text."""
    return next((term for term in terms if find(term, text) is not None), None)


def find_phrase(keyword: str, text: Text) -> bool:
    """Return whether the text has the phrase anywhere, or a single word as a whole word."""
    phrase = " ".join(keyword.lower().split())
    return phrase in text.lower if " " in phrase else find(keyword, text) is not None


def places(term: str, text: Text) -> Iterator[tuple[int, int]]:
    """Yield every span of the term itself as a whole word."""
    lowered = term.lower()
    if _may_hold(lowered, text):
        yield from _places(lowered, text)


def _may_hold(term: str, text: Text) -> bool:
    """Check cheaply whether the text may have the term; words may be on two lines."""
    return term in text.lower or (" " in term and all(word in text.lower for word in term.split()))


def _places(term: str, text: Text) -> Iterator[tuple[int, int]]:
    for match in _pattern(term).finditer(text.lower):
        start, end = match.span()
        is_everyday = len(term) == 1 or term in _EVERYDAY
        if not is_everyday or _is_a_name(text.text, start, end):
            yield start, end


@lru_cache(maxsize=4_096)
def _pattern(term: str) -> re.Pattern[str]:
    """Match no part of a word, nor "c" in "c++", "java" in "java.script", "net" in "asp.net"."""
    before = r"(?<!\w)(?<!\w[.&])" if term[:1].isalnum() else ""
    after = r"(?![\w+#])(?!\.\w|&\w)" if term[-1:].isalnum() else r"(?![\w+#])"
    return re.compile(before + r"\s+".join(map(re.escape, term.split())) + after)


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
