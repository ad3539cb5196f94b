"""A text in the form in which names are looked for, and the way back to the text as written.

Case, width, ligatures and the marks of Latin and Greek letters are gone, since answers leave them
out at will; signs and blanks stay, since they part words. Marks of other scripts stay, too: without
them が would be か.
"""

# ruff: noqa: RUF001 - the letters of other scripts are meant

from __future__ import annotations

import unicodedata
from array import array
from dataclasses import dataclass
from functools import lru_cache

# Letters that Unicode does not take apart, and what people without the key write instead.
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
    """The folded text; each of its characters knows where it stood."""

    text: str
    offsets: array[int]
    source: str

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the text as written the folded characters from `start` to `end` stand."""
        return self.offsets[start], self.offsets[end - 1] + 1

    def written(self, start: int, end: int) -> str:
        """Those characters as they were written."""
        return self.source[slice(*self.span(start, end))]


def fold(text: str) -> Folded:
    """The text in that form."""
    if text.isascii():
        lowered = text.lower().replace("`", "'")
        return Folded(lowered, array("I", range(len(text))), text)
    pieces: list[str] = []
    offsets: array[int] = array("I")
    for offset, character in enumerate(text):
        folded = folded_character(character)
        pieces.append(folded)
        offsets.extend([offset] * len(folded))
    return Folded("".join(pieces), offsets, text)


def folded_name(name: str) -> str:
    """A name in that form."""
    return "".join(map(folded_character, name))


def spelt_out(name: str) -> str:
    """The name as German writes it without umlauts: Mueller for Müller."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(_UMLAUTS.get(one.lower(), one) for one in composed)


@lru_cache(maxsize=10_000)
def folded_character(character: str) -> str:
    """What stands for it; nothing for what nobody sees."""
    if character.isascii() and character != "`":
        return character.lower()
    if (plain := _PLAIN.get(character.lower())) is not None:
        return plain
    if character.isspace():
        return " "
    if _means_nothing(character):
        return ""
    return _without_marks(unicodedata.normalize("NFKC", character).casefold())


def _means_nothing(character: str) -> bool:
    """Nobody sees it, it marks the letter before it, or it is the number of a footnote."""
    return (
        unicodedata.category(character) in {"Cf", "Cs"}
        or "\ufe00" <= character <= "\ufe0f"
        or "\u0300" <= character <= "\u036f"
        or unicodedata.decomposition(character).startswith("<super>")
    )


def _without_marks(text: str) -> str:
    return "".join(_plain_letter(one) for one in text)


def _plain_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    name = unicodedata.name(parts[:1] or " ", "")
    is_marked = len(parts) > 1 and name.startswith(("LATIN", "GREEK"))
    return parts[0] if is_marked else _PLAIN.get(letter, letter)
