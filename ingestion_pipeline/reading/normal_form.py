"""A text in the form in which evidence is looked for, and the way back from there to the text.

Two texts with the same normal form say the same: NFKC, case folded, letters, digits and marks of
every script, `&` as the word it stands for, nothing between them but a blank where two digits
would otherwise touch.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_RUN = re.compile(r"[^\W_]+|[^\x00-\x7f]+|&")
_ODD_DIGIT = re.compile(r"(?![0-9])\d")
# `[text](target)`: what is read is the text.
_LINK = re.compile(
    r"!?\[([^\[\]]{0,1000})\]\(\s*+<?[^()\s]{0,2000}+(?:\([^()\s]{0,500}\)[^()\s]*+)?"
    r"(?:\s++\"[^\"]{0,300}\")?\s*+\)"
)
# Vowel points of Arabic and Hebrew and the stroke that stretches a word: written or left out.
_POINTS = frozenset(
    [*map(chr, range(0x0591, 0x05C8)), *map(chr, range(0x064B, 0x0653)), "\u0640", "\u0670"]
)
# Scripts that put no blank between words: there a word may begin and end anywhere.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
_FRACTIONS = frozenset("¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅟↉")


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A normal form; each of its characters knows where it stood, and where words begin."""

    text: str
    offsets: array[int]
    breaks: bytearray  # 1 where the text had something else before the character

    @classmethod
    def of(cls, text: str) -> NormalForm:
        """The normal form of the text, of Markdown's links without their targets."""
        return _Folding().fold(text, list(_seen_parts(text)))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where in the stored text the characters from `start` to `end` stand."""
        return self.offsets[start], max(self.offsets[start:end]) + 1

    def is_boundary(self, position: int) -> bool:
        """Whether a word may begin or end there."""
        if position in {0, len(self.text)} or self.breaks[position]:
            return True
        before, after = self.text[position - 1], self.text[position]
        if unicodedata.category(after)[0] == "M":  # か is no part of が
            return False
        return bool(_UNSPACED.match(before) or _UNSPACED.match(after))

    def words(self) -> Iterator[tuple[int, int]]:
        """Where each word begins and ends; in scripts without blanks each character is one."""
        starts = [place for place, is_break in enumerate(self.breaks) if is_break]
        for start, end in zip(starts, [*starts[1:], len(self.text)], strict=False):
            if not _UNSPACED.search(self.text, start, end):
                if self.text[start] != " ":
                    yield start, end
                continue
            inside = [place for place in range(start, end) if self.is_boundary(place)]
            yield from zip(inside, [*inside[1:], end], strict=True)


class _Folding:
    """What is gathered while a text is folded."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._offsets: array[int] = array("I")
        self._breaks = bytearray()
        self._last = ""
        self._is_apart = True

    def fold(self, text: str, parts: list[tuple[int, int]]) -> NormalForm:
        position = -1
        for begin, stop in parts:
            for run in _RUN.finditer(text, begin, stop):
                self._is_apart = self._is_apart or run.start() != position
                position = run.end()
                folded = run[0].casefold()
                if folded == "&":
                    self._add_sign("and", run.start())
                elif _is_plain(folded) and len(folded) == len(run[0]):
                    self._add(folded, range(run.start(), run.end()))
                else:
                    self._add_characters(run[0], run.start())
        return NormalForm("".join(self._pieces), self._offsets, self._breaks)

    def _add_sign(self, word: str, offset: int) -> None:
        self._is_apart = True
        self._add(word, [offset] * len(word))
        self._is_apart = True

    def _add_characters(self, run: str, start: int) -> None:
        for offset, character in _in_order(run, start):
            folded = _folded(character)
            if folded is None:
                self._is_apart = True
                continue
            self._is_apart = self._is_apart or character in _FRACTIONS
            head, *rest = folded.split(" ")
            self._add(head, [offset] * len(head))
            for part in rest:
                self._is_apart = True
                self._add(part, [offset] * len(part))

    def _add(self, piece: str, offsets: range | list[int]) -> None:
        if not piece:
            return
        if self._is_apart and self._last.isdecimal() and piece[0].isdecimal():
            self._pieces.append(" ")
            self._offsets.append(offsets[0])
            self._breaks.append(1)
        self._pieces.append(piece)
        self._offsets.extend(offsets)
        self._breaks.append(self._is_apart)
        self._breaks.extend(bytes(len(piece) - 1))
        self._last = piece[-1]
        self._is_apart = False


def _is_plain(folded: str) -> bool:
    """Whether each character stands for itself."""
    if folded.isascii():
        return True
    is_normal = folded.isalnum() and unicodedata.is_normalized("NFKD", folded)
    return is_normal and not _ODD_DIGIT.search(folded) and _POINTS.isdisjoint(folded)


def _in_order(run: str, start: int) -> list[tuple[int, str]]:
    """The characters with their offsets; marks on one letter in the order that Unicode gives."""
    found = list(enumerate(run, start))
    position = 0
    while position < len(found):
        end = position
        while end < len(found) and unicodedata.combining(found[end][1]):
            end += 1
        if end - position > 1:
            found[position:end] = sorted(
                found[position:end], key=lambda one: unicodedata.combining(one[1])
            )
        position = max(end, position + 1)
    return found


@lru_cache(maxsize=20_000)
def _folded(character: str) -> str | None:
    """The character in normal form; None if it keeps words apart, empty if it means nothing."""
    if character in _POINTS:
        return ""
    category = unicodedata.category(character)
    if "\uac00" <= character <= "\ud7a3":  # syllables of Korean: a part of one is another
        return character
    if category in {"Cf", "Cs"} or "\ufe00" <= character <= "\ufe0f":
        return ""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    kept = "".join(_kept(one) for one in decomposed)
    is_mark_alone = kept[:1] == " " and all(unicodedata.combining(one) for one in kept[1:])
    return kept if kept.strip() and not is_mark_alone else None


def _kept(character: str) -> str:
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if character in _POINTS:
        return ""
    return character if unicodedata.category(character)[0] in "LNM" else " "


def _seen_parts(text: str) -> Iterator[tuple[int, int]]:
    position = 0
    for link in _LINK.finditer(text) if "](" in text else ():
        yield position, link.start()
        yield link.span(1)
        position = link.end()
    yield position, len(text)
