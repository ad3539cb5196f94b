"""Phrases that schema files give, found in what a page says: whole words, any case, any signs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_WORDS = re.compile(r"[^\W_]+")
_PARTS = re.compile(r"[A-Z][a-z]+")  # of a choice's name: BachelorDegree


def words_of(text: str) -> str:
    """The words alone, between single blanks, one before and one after."""
    # B.S. and Ph.D. are written with stops, and are one word each.
    joined = re.sub(r"\b((?:\w{1,2}\.){2,})", lambda found: found[1].replace(".", ""), text)
    return f" {' '.join(_WORDS.findall(joined.casefold()))} "


def has_phrase(text: str, phrases: Iterable[str]) -> bool:
    """Whether one of the phrases stands in the text."""
    words = words_of(text)
    return any(words_of(phrase) in words for phrase in phrases)


def choice_by_phrase(text: str, choices: Mapping[str, Iterable[str]]) -> str | None:
    """The first choice of which a phrase stands in the text."""
    words = words_of(text)
    found = (
        choice
        for choice, phrases in choices.items()
        if any(words_of(phrase) in words for phrase in phrases)
    )
    return next(found, None)


def choice_by_name(text: str, choices: Iterable[str]) -> str | None:
    """The choice that is written like the text: Bachelor Degree is BachelorDegree."""
    wanted = words_of(text).replace(" ", "")
    return next((choice for choice in choices if choice.casefold() == wanted), None)


def choice_in_words(text: str, choices: Iterable[str]) -> str | None:
    """The one choice whose name of several words is in the text: "3 semester hours"."""
    words = words_of(text)
    found = [choice for choice in choices if _is_named(choice, words)]
    return found[0] if len(found) == 1 else None


def _is_named(choice: str, words: str) -> bool:
    parts = _PARTS.findall(choice)
    phrase = " ".join(parts).casefold()
    return len(parts) > 1 and (f" {phrase} " in words or f" {phrase}s " in words)
