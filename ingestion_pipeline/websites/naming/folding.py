"""Folding of text to the form in which names are searched, with offsets back to the original.

Case, width, ligatures and the marks of Latin and Greek letters are removed, since answers often
omit them; signs and blanks stay, since they separate words. Marks of other scripts stay, too:
without them が would be か.
"""

# ruff: noqa: RUF001 - the letters of other scripts are meant

from __future__ import annotations

import unicodedata
from array import array
from dataclasses import dataclass
from functools import lru_cache

# Letters that Unicode does not decompose, and what people write instead.
_PLAIN = {
    "ß": "ss",
    "ẞ": "ss",
    "æ": "ae",
    "œ": "oe",
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "þ": "th",
    "ħ": "h",
    "ı": "i",
    "ё": "е",
    "’": "'",
    "‘": "'",
    "ʼ": "'",
    "`": "'",
    "´": "'",
    "‐": "-",
    "‑": "-",
    "‒": "-",
    "–": "-",
    "—": "-",
    "−": "-",
}
_UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue"}


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded text with the original offset of each character."""

    text: str
    offsets: array[int]
    source: str

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the original span of the folded characters from `start` to `end`."""
        return self.offsets[start], self.offsets[end - 1] + 1

    def written(self, start: int, end: int) -> str:
        """Return those characters as they were written."""
        return self.source[slice(*self.span(start, end))]


def fold(text: str) -> Folded:
    """Fold a text."""
    if text.isascii():
        lowered = text.lower().replace("`", "'")
        return Folded(lowered, array("I", range(len(text))), text)
    parts: list[str] = []
    offsets: array[int] = array("I")
    for offset, character in enumerate(text):
        folded = folded_character(character)
        parts.append(folded)
        offsets.extend([offset] * len(folded))
    return Folded("".join(parts), offsets, text)


def folded_name(name: str) -> str:
    """Fold a name."""
    return "".join(map(folded_character, name))


def spelt_out(name: str) -> str:
    """Return the name as German writes it without umlauts: Mueller for Müller."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(_UMLAUTS.get(character.lower(), character) for character in composed)


@lru_cache(maxsize=10_000)
def folded_character(character: str) -> str:
    """Return the folded form of a character; empty for an invisible one."""
    if character.isascii() and character != "`":
        return character.lower()
    if (plain := _PLAIN.get(character.lower())) is not None:
        return plain
    if character.isspace():
        return " "
    if _is_ignored(character):
        return ""
    return _without_marks(unicodedata.normalize("NFKC", character).casefold())


def _is_ignored(character: str) -> bool:
    """Return whether it is invisible, a mark of the letter before it, or a footnote number."""
    return (
        unicodedata.category(character) in {"Cf", "Cs"}
        or "\ufe00" <= character <= "\ufe0f"
        or "\u0300" <= character <= "\u036f"
        or unicodedata.decomposition(character).startswith("<super>")
    )


def _without_marks(text: str) -> str:
    return "".join(_plain_letter(character) for character in text)


def _plain_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    name = unicodedata.name(parts[:1] or " ", "")
    is_marked = len(parts) > 1 and name.startswith(("LATIN", "GREEK"))
    return parts[0] if is_marked else _PLAIN.get(letter, letter)
