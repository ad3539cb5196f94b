"""Whether a plain word is meant as a name where it stands.

A name that is also a word of the language must be written with a capital, and the capital must mean
something: at the beginning of a sentence, in a heading or in German it means nothing, and then
what follows must be what follows names (`'s`, `®`, `is`, `offers`, `app`, another name after a
comma), or the word must stand out (bold, alone, or the entry of a list).
"""

# ruff: noqa: RUF001 - the letters of other scripts are meant

from __future__ import annotations

import re

from ingestion_pipeline.websites.naming.common_words import (
    AFTER_A_NAME,
    CAPITAL_NOUNS,
    KIND_AFTER_A_NAME,
    NOT_A_NAME_BEFORE,
)

_LIST_MARK = re.compile(
    r"\s*(?:#{1,6}\s+)?(?:[-*+•‣–]\s+|\d{1,3}[.)]\s+|\(\d{1,3}\)\s+)?(?<=\s)[*_]{0,2}"
)
_MARK = r"\"'“”‘’«»()\[\]*_>#"  # what may stand between two sentences, besides blanks
_SENTENCE_END = re.compile(
    rf"(?:^|[.!?:;…。！？]|(?<![{_MARK}\s])(?:[{_MARK}]|[^\S\n])*+\n)[{_MARK}\s]*+$"
)
_NEXT_WORD = re.compile(r"[\s*_]*([^\W\d_]+)")
_SIGNS_OF_A_NAME = re.compile(r"[*_]*(?:['’](?:s\b|\s)|\s?[®™]|\s?\((?:www|https?|[A-Z]{2,}))")
_ANOTHER_NAME = re.compile(r"(?:,|,?\s+(?:and|or|vs\.?|versus|et|y|e|o|ou|&))\s+\(?[A-Z]")
_NOTHING_MORE = re.compile(r"[*_\"”’»]*\s*(?:[.!?;)](?:\s|$)|[–—]|-\s|$)")
_ALONE = re.compile(r"[*_]{0,2}\s*(?:$|\n|\(|[–—:：]|-\s|,)")
_WORD = re.compile(r"[^\W\d_]{2,}")
_SMALL = (
    "a an and as at by for from in is of on or the to with vs und der die das für von mit de la le"
    " les et du des en el los y para con il e di per per o da do"
)
_SMALL_WORDS = frozenset(_SMALL.split())
_LEAST_HEADING = 3  # words
_LONGEST_MARK = 40  # characters
_LONGEST_HEADING = 300  # characters on either side


def has_capitals(written: str) -> bool:
    """Whether every word of it begins with a capital; scripts without capitals have them all."""
    words = _WORD.findall(written) or [written]
    return all(not word[0].islower() for word in words)


def is_meant(text: str, start: int, end: int, language: str | None) -> bool:
    """Whether the plain word from `start` to `end` is a name there; see the module's rule."""
    if not has_capitals(text[start:end]):
        return False
    following = _NEXT_WORD.match(text, end)
    after = following[1] if following else ""
    if after in NOT_A_NAME_BEFORE or after.lower() in NOT_A_NAME_BEFORE:
        return False
    if _capital_tells(text, start, end, language):
        return True
    if _stands_out(text, start, end) or _is_followed_as_names_are(text, end, after):
        return True
    return not _has_capital_nouns(language) and _is_one_of_names(text, end)


def _capital_tells(text: str, start: int, end: int, language: str | None) -> bool:
    """Whether its capital is more than what the place, or the language, gives every word."""
    if _has_capital_nouns(language) and not text[start:end].isupper():
        return False
    is_first = _SENTENCE_END.search(text, max(0, start - 200), start) is not None
    is_entry = _is_entry(text, start)
    return not is_first and not is_entry and not _is_heading(text, start, end)


def _has_capital_nouns(language: str | None) -> bool:
    return (language or "").partition("-")[0].lower() in CAPITAL_NOUNS


def _is_one_of_names(text: str, end: int) -> bool:
    """Whether another name follows, a dash, or nothing, as in `Slack, Zoom and Teams`."""
    return bool(_ANOTHER_NAME.match(text, end) or _NOTHING_MORE.match(text, end))


def _is_heading(text: str, start: int, end: int) -> bool:
    """Whether all other words of its line have capitals, too."""
    before = text[max(0, start - _LONGEST_HEADING) : start].rpartition("\n")[2]
    after = text[end : end + _LONGEST_HEADING].partition("\n")[0]
    line = f"{before} {after}"
    others = [word for word in _WORD.findall(line) if word.lower() not in _SMALL_WORDS]
    return len(others) >= _LEAST_HEADING - 1 and all(word[0].isupper() for word in others)


def _is_entry(text: str, start: int) -> bool:
    """Whether it is the first word of an entry of a list."""
    line_start = text.rfind("\n", max(0, start - _LONGEST_MARK), start) + 1
    is_near = line_start > 0 or start <= _LONGEST_MARK
    return is_near and _LIST_MARK.fullmatch(text, line_start, start) is not None


def _stands_out(text: str, start: int, end: int) -> bool:
    is_marked = text[max(0, start - 2) : start] in {"**", "__"} and text[end : end + 2] in {
        "**",
        "__",
    }
    is_entry = _is_entry(text, start)
    return is_marked or (is_entry and _ALONE.match(text, end) is not None)


def _is_followed_as_names_are(text: str, end: int, after: str) -> bool:
    if _SIGNS_OF_A_NAME.match(text, end):
        return True
    return after in AFTER_A_NAME or after.lower() in KIND_AFTER_A_NAME
