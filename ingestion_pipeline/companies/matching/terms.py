"""Words of a profile in the words of a listing: whole words only, and no "go" in "go to market".

A term is looked for as plain text first, which takes a microsecond a page; only where it stands its
surroundings are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

# Names that are words of every day, too: they count where the spelling is the name's own, and what
# stands beside them is a list, a slash or a word of the trade.
_EVERYDAY = frozenset({"go", "r", "c", "d", "swift", "rust", "dart", "express", "spring", "julia"})
_BEFORE = re.compile(
    r"(?:[,/(;:|&+•*]|^\s*[-\u2013]|\b(?:in|with|and|or|using|like|know|knowledge of|experience of"
    r"|proficien\w+ in|e\.g\.|write|writing|code))\s*\**$",
    re.IGNORECASE | re.MULTILINE,
)
_AFTER = re.compile(
    r"\**\s*(?:[,/);|]|\.(?:\s|$)|$|(?:and|or|developer|engineer|programm\w+|lang\w*|code|codebase"
    r"|services?|microservices?|backend|experience|stack|boot|framework)\b)",
    re.IGNORECASE | re.MULTILINE,
)
_AROUND = 30  # characters that say whether an everyday word is a name
_ALSO = {
    "go": ("golang",),
    "postgresql": ("postgres",),
    "postgres": ("postgresql",),
    "kubernetes": ("k8s",),
    "javascript": ("js",),
    "typescript": ("ts",),
    "node.js": ("nodejs", "node js"),
    "react": ("react.js", "reactjs"),
    "vue": ("vue.js", "vuejs"),
    "aws": ("amazon web services",),
    "gcp": ("google cloud",),
    "machine learning": ("ml",),
    "ci/cd": ("ci / cd",),
}


@dataclass(frozen=True, slots=True)
class Text:
    """A text and its small letters, made once for many terms."""

    text: str
    lower: str

    @classmethod
    def of(cls, *parts: str | None) -> Text:
        """The parts that are there, a line each."""
        text = "\n".join(part for part in parts if part)
        lower = text.lower()
        # A few letters (İ) are two in lower case: places would not be the same.
        return cls(text, lower if len(lower) == len(text) else text)


def find(term: str, text: Text) -> tuple[int, int] | None:
    """Where the term or another name of it first stands as a word of its own."""
    wanted = term.lower()
    for one in (wanted, *_ALSO.get(wanted, ())):
        if one in text.lower and (found := next(_places(one, term, text), None)):
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
    if wanted in text.lower:
        yield from _places(wanted, term, text)


def _places(wanted: str, term: str, text: Text) -> Iterator[tuple[int, int]]:
    for found in _pattern(wanted).finditer(text.lower):
        start, end = found.span()
        if wanted not in _EVERYDAY or _is_a_name(term, text.text, start, end):
            yield start, end


@lru_cache(maxsize=4_096)
def _pattern(wanted: str) -> re.Pattern[str]:
    """Not inside a word; nor "c" in "c++", "java" in "java.script" or "net" in "asp.net"."""
    before = r"(?<!\w)(?<!\w[.&])" if wanted[:1].isalnum() else ""
    after = r"(?![\w+#])(?!\.\w|&\w)" if wanted[-1:].isalnum() else r"(?![\w+#])"
    return re.compile(before + r"\s+".join(map(re.escape, wanted.split())) + after)


def _is_a_name(term: str, text: str, start: int, end: int) -> bool:
    written = text[start:end]
    if written not in {term[:1].upper() + term[1:].lower(), term.upper()}:
        return False
    if text[end : end + 1] in {"-", "'", "\N{RIGHT SINGLE QUOTATION MARK}"}:
        return False
    before, after = text[max(0, start - _AROUND) : start], text[end : end + _AROUND]
    return _BEFORE.search(before) is not None or _AFTER.match(after) is not None
