"""Grounding: whether a text proves a value, and the span that does."""

from __future__ import annotations

import math
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.text.values import DateFinder, NumberFinder, stated_date, stated_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_RUN = re.compile(r"[^\W_]+|[^\x00-\x7f]+|&")
_ODD_DIGIT = re.compile(r"(?![0-9])\d")
# `[text](target)`: what is read is the text.
_LINK = re.compile(
    r"!?\[([^\[\]]{0,1000})\]\(\s*+<?[^()\s]{0,2000}+(?:\([^()\s]{0,500}\)[^()\s]*+)?"
    r"(?:\s++\"[^\"]{0,300}\")?\s*+\)"
)
# Vowel points of Arabic and Hebrew and the stroke that stretches a word: written or left out.
_POINTS = frozenset([*map(chr, range(0x0591, 0x05C8)), *map(chr, range(0x064B, 0x0653)), "\u0640", "\u0670"])
# Scripts that put no blank between words: there a word may begin and end anywhere.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]"
)
_FRACTIONS = frozenset("¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅟↉")


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A normalised text; each character knows its offset in the original and word boundaries."""

    text: str
    offsets: array[int]
    breaks: bytearray  # 1 where the text had something else before the character

    @classmethod
    def of(cls, text: str) -> NormalForm:
        """Return the normal form of the text, with Markdown's links without their targets."""
        return _Folding().fold(text, list(_seen_parts(text)))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span of the stored text for the characters from `start` to `end`."""
        return self.offsets[start], max(self.offsets[start:end]) + 1

    def is_boundary(self, position: int) -> bool:
        """Return whether a word may begin or end there."""
        if position in {0, len(self.text)} or self.breaks[position]:
            return True
        before, after = self.text[position - 1], self.text[position]
        if unicodedata.category(after)[0] == "M":  # か is no part of が
            return False
        return bool(_UNSPACED.match(before) or _UNSPACED.match(after))

    def words(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each word; in scripts without blanks each character is one."""
        starts = [place for place, is_break in enumerate(self.breaks) if is_break]
        for start, end in zip(starts, [*starts[1:], len(self.text)], strict=False):
            if not _UNSPACED.search(self.text, start, end):
                if self.text[start] != " ":
                    yield start, end
                continue
            inside = [place for place in range(start, end) if self.is_boundary(place)]
            yield from zip(inside, [*inside[1:], end], strict=True)


class _Folding:
    """The state while a text is folded."""

    def __init__(self) -> None:
        self._parts: list[str] = []
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
                    self._is_apart = True
                    self._add("and", [run.start()] * len("and"))
                    self._is_apart = True
                elif _is_plain(folded) and len(folded) == len(run[0]):
                    self._add(folded, range(run.start(), run.end()))
                else:
                    self._add_characters(run[0], run.start())
        return NormalForm("".join(self._parts), self._offsets, self._breaks)

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

    def _add(self, text: str, offsets: range | list[int]) -> None:
        if not text:
            return
        if self._is_apart and self._last.isdecimal() and text[0].isdecimal():
            self._parts.append(" ")
            self._offsets.append(offsets[0])
            self._breaks.append(1)
        self._parts.append(text)
        self._offsets.extend(offsets)
        self._breaks.append(self._is_apart)
        self._breaks.extend(bytes(len(text) - 1))
        self._last = text[-1]
        self._is_apart = False


def _is_plain(folded: str) -> bool:
    """Return whether each character stands for itself."""
    if folded.isascii():
        return True
    is_normal = folded.isalnum() and unicodedata.is_normalized("NFKD", folded)
    return is_normal and not _ODD_DIGIT.search(folded) and _POINTS.isdisjoint(folded)


def _in_order(run: str, start: int) -> list[tuple[int, str]]:
    """Return the characters with their offsets; marks on one letter in canonical order."""
    characters = list(enumerate(run, start))
    position = 0
    while position < len(characters):
        end = position
        while end < len(characters) and unicodedata.combining(characters[end][1]):
            end += 1
        if end - position > 1:
            characters[position:end] = sorted(
                characters[position:end], key=lambda entry: unicodedata.combining(entry[1])
            )
        position = max(end, position + 1)
    return characters


@lru_cache(maxsize=20_000)
def _folded(character: str) -> str | None:
    """Return the folded character; None if it separates words, empty if it means nothing."""
    if character in _POINTS:
        return ""
    category = unicodedata.category(character)
    if "\uac00" <= character <= "\ud7a3":  # syllables of Korean: a part of one is another
        return character
    if category in {"Cf", "Cs"} or "\ufe00" <= character <= "\ufe0f":
        return ""
    decomposed = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
    folded = "".join(_folded_part(mark) for mark in decomposed)
    is_mark_alone = folded[:1] == " " and all(unicodedata.combining(mark) for mark in folded[1:])
    return folded if folded.strip() and not is_mark_alone else None


def _folded_part(character: str) -> str:
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


LEAST_SIMILARITY = 0.9
LEAST_FUZZY_CHARACTERS = 8  # shorter ones differ from another word by a single letter
MOST_FUZZY_CHARACTERS = 20_000  # a longer value is proved word for word or not at all
MOST_VOTES = 500_000  # words of a value with each place of them; to count them takes 0.1 s
MOST_WINDOWS = 8  # the likeliest places that are compared letter by letter
SIMILAR_WORDS_UP_TO = 3  # values of so few words may have no word right and still be meant
MISSPELT_FROM = 75  # percent of its letters that a misspelt word shares with the right one

_ADDRESS = re.compile(r"(?:https?:/)?/\S+", re.IGNORECASE)
# Words that may not differ: a number, a part of a sequel's title, and what says the opposite.
_FIRM = re.compile(r"\w*[0-9]\w*|[ivx]+|no[nt]?|without|except")

Value = str | int | float | Decimal | date | None


class Status(StrEnum):
    """How a value is proved; the last two are no proof."""

    EXACT = "exact"
    FUZZY = "fuzzy"
    VALUE = "value"
    SOURCE = "source"
    UNVERIFIABLE = "unverifiable"
    ABSENT = "absent"


PROVED = frozenset({Status.EXACT, Status.FUZZY, Status.VALUE, Status.SOURCE})


@dataclass(frozen=True, slots=True)
class Grounding:
    """How a value is proved, and the span of the stored text that proves it."""

    status: Status
    start: int | None = None
    end: int | None = None

    @property
    def is_proof(self) -> bool:
        """Return whether the value may be published."""
        return self.status in PROVED


ABSENT = Grounding(Status.ABSENT)
UNVERIFIABLE = Grounding(Status.UNVERIFIABLE)
BY_SOURCE = Grounding(Status.SOURCE)


def ground(value: Value, text: str) -> Grounding:
    """Return what in the text proves the value: its words, similar words, the same number or day.

    A value without letters and digits, a truth value and None are never proved by a text.
    """
    return _evidence(text).ground(value)


@lru_cache(maxsize=4)
def _evidence(text: str) -> Evidence:
    """Return the prepared text, cached: a page is asked for many values one after the other."""
    return Evidence(text)


class Evidence:
    """A stored text, prepared for grounding many values."""

    def __init__(self, text: str) -> None:
        self._text = text

    def ground(self, value: Value) -> Grounding:
        """Return what in the text proves the value; see `ground`."""
        match value:
            case None | bool():
                return UNVERIFIABLE
            case str():
                return self._ground_text(value)
            case date():
                return self._ground_value(self._dates.find(value), value.isoformat())
            case int() | float() | Decimal():
                return self._ground_number(Decimal(str(value))) if math.isfinite(value) else UNVERIFIABLE

    def _ground_text(self, value: str) -> Grounding:
        form = NormalForm.of(value)
        if not form.text:
            return UNVERIFIABLE
        if (number := stated_number(value, self._numbers.style)) is not None:
            return self._ground_number(number)
        if _ADDRESS.fullmatch(value):
            return self._ground_address(value)
        if (grounding := self._exact(form)) is not None:
            return grounding
        if (day := stated_date(value)) is not None:
            return self._ground_value(self._dates.find(day), day.isoformat())
        return self._fuzzy(form) or ABSENT

    def _ground_number(self, value: Decimal) -> Grounding:
        return self._ground_value(self._numbers.find(value), str(value))

    def _ground_value(self, span: tuple[int, int] | None, literal: str) -> Grounding:
        if span is None:
            return ABSENT
        is_literal = self._text[slice(*span)] == literal
        return Grounding(Status.EXACT if is_literal else Status.VALUE, *span)

    def _ground_address(self, value: str) -> Grounding:
        """Ground an address: it may stand in the target of a link, in one spelling only."""
        for start in _occurrences(value, self._text):
            end = start + len(value)
            if not re.match(r"[\w/?&=%-]|[.:][\w]", self._text[end : end + 2]):
                return Grounding(Status.EXACT, start, end)
        return ABSENT

    def _exact(self, value: NormalForm) -> Grounding | None:
        form = self._form
        for start in _occurrences(value.text, form.text):
            end = start + len(value.text)
            if self._stands_alone(start, end):
                return Grounding(Status.EXACT, *form.span(start, end))
        return None

    def _stands_alone(self, start: int, end: int) -> bool:
        """Return whether the span is no part of a longer word or number."""
        form = self._form
        if not (form.is_boundary(start) and form.is_boundary(end)):
            return False
        span = form.span(start, end)
        begins_decimal = form.text[start].isdecimal() and _is_point(self._text, span[0] - 1)
        goes_on = form.text[end - 1].isdecimal() and _is_point(self._text, span[1])
        return not (begins_decimal or goes_on)

    def _fuzzy(self, value: NormalForm) -> Grounding | None:
        from rapidfuzz.distance import Levenshtein

        length = len(value.text)
        if not LEAST_FUZZY_CHARACTERS <= length <= MOST_FUZZY_CHARACTERS:
            return None
        firm = Counter(filter(None, _firm_words(value)))
        best, best_score = None, LEAST_SIMILARITY
        for first, last in self._windows(value):
            start, end = self._words[first][0], self._words[last][1]
            there = self._form.text[start:end]
            score = Levenshtein.normalized_similarity(value.text, there, score_cutoff=best_score)
            is_better = score > best_score or (score == best_score and best is None)
            if is_better and firm == Counter(filter(None, self._firm_words[first : last + 1])):
                best, best_score = (start, end), score
        return Grounding(Status.FUZZY, *self._form.span(*best)) if best else None

    def _windows(self, value: NormalForm) -> Iterator[tuple[int, int]]:
        """Yield first and last word of each window that may be the value, the likeliest first."""
        words = list(value.words())
        places = [self._places(value.text[start:end], len(words)) for start, end in words]
        votes: Counter[int] = Counter()
        for position in _voters(places):
            for place in places[position]:
                votes[place - position] += 1
        slack = max(1, len(words) // 10)
        step = max(1, slack // 5)
        for first, _ in votes.most_common(MOST_WINDOWS):
            for shift in range(-slack, slack + 1, step):
                for more in range(-slack, slack + 1, step):
                    start, count = first + shift, len(words) + more
                    if 0 <= start < len(self._words) and count > 0:
                        yield start, min(start + count, len(self._words)) - 1

    def _places(self, word: str, word_count: int) -> list[int]:
        """Return the positions of the word; similar words too if the value has few words."""
        places = self._positions.get(word)
        if places is not None or word_count > SIMILAR_WORDS_UP_TO:
            return places or []
        from rapidfuzz import fuzz, process

        similar = process.extract(word, self._positions.keys(), scorer=fuzz.ratio, score_cutoff=MISSPELT_FROM, limit=5)
        return [place for candidate in similar for place in self._positions[candidate[0]]]

    @cached_property
    def _form(self) -> NormalForm:
        return NormalForm.of(self._text)

    @cached_property
    def _words(self) -> list[tuple[int, int]]:
        return list(self._form.words())

    @cached_property
    def _firm_words(self) -> list[str]:
        return _firm_words(self._form)

    @cached_property
    def _positions(self) -> dict[str, list[int]]:
        positions: dict[str, list[int]] = {}
        for number, (start, end) in enumerate(self._words):
            positions.setdefault(self._form.text[start:end], []).append(number)
        return positions

    @cached_property
    def _numbers(self) -> NumberFinder:
        return NumberFinder(self._text)

    @cached_property
    def _dates(self) -> DateFinder:
        return DateFinder(self._text)


def _voters(places: Sequence[Sequence[int]]) -> Iterable[int]:
    """Return the words that say where a value stands: all, or the rarest if that is too much."""
    if sum(map(len, places)) <= MOST_VOTES:
        return range(len(places))
    rarest = sorted(range(len(places)), key=lambda position: len(places[position]))
    counts = accumulate(len(places[position]) for position in rarest)
    return [position for position, count in zip(rarest, counts, strict=True) if count <= MOST_VOTES]


def _firm_words(form: NormalForm) -> list[str]:
    """Return each word that may not differ, and an empty text in place of any other."""
    words = (form.text[start:end] for start, end in form.words())
    return [word if _FIRM.fullmatch(word) else "" for word in words]


def _occurrences(value: str, text: str) -> Iterator[int]:
    start = text.find(value)
    while start >= 0:
        yield start
        start = text.find(value, start + 1)


def _is_point(text: str, position: int) -> bool:
    """Return whether a decimal point stands there, between two digits."""
    return (
        0 < position < len(text) - 1
        and text[position] in ".,"
        and text[position - 1].isdecimal()
        and text[position + 1].isdecimal()
    )
