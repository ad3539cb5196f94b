"""Whether a text proves a value, and where: the evidence that is kept with every field."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING

from ingestion_pipeline.reading.normal_form import NormalForm
from ingestion_pipeline.reading.stated_dates import DateFinder, stated_date
from ingestion_pipeline.reading.stated_numbers import NumberFinder, stated_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
        """Whether the value may leave the house."""
        return self.status in PROVED


ABSENT = Grounding(Status.ABSENT)
UNVERIFIABLE = Grounding(Status.UNVERIFIABLE)
BY_SOURCE = Grounding(Status.SOURCE)


def ground(value: Value, text: str) -> Grounding:
    """What in the text proves the value: its words, nearly its words, or the same number or day.

    A value without letters and digits, a truth value and None are never proved by a text.
    """
    return _evidence(text).ground(value)


@lru_cache(maxsize=4)
def _evidence(text: str) -> Evidence:
    """A page is asked for many values, one after the other: what was prepared is kept."""
    return Evidence(text)


class Evidence:
    """A stored text, prepared to be asked for many values."""

    def __init__(self, text: str) -> None:
        self._text = text

    def ground(self, value: Value) -> Grounding:
        """What in the text proves the value; see `ground`."""
        match value:
            case None | bool():
                return UNVERIFIABLE
            case str():
                return self._ground_text(value)
            case date():
                return self._ground_date(value)
            case int() | float() | Decimal():
                is_number = math.isfinite(value)
                return self._ground_number(Decimal(str(value))) if is_number else UNVERIFIABLE

    def _ground_text(self, value: str) -> Grounding:
        wanted = NormalForm.of(value)
        if not wanted.text:
            return UNVERIFIABLE
        if (number := stated_number(value, self._numbers.style)) is not None:
            return self._ground_number(number)
        if _ADDRESS.fullmatch(value):
            return self._ground_address(value)
        if (found := self._exact(wanted)) is not None:
            return found
        if (day := stated_date(value)) is not None:
            return self._ground_date(day)
        return self._fuzzy(wanted) or ABSENT

    def _ground_number(self, value: Decimal) -> Grounding:
        span = self._numbers.find(value)
        if span is None:
            return ABSENT
        is_literal = self._text[slice(*span)] == str(value)
        return Grounding(Status.EXACT if is_literal else Status.VALUE, *span)

    def _ground_date(self, value: date) -> Grounding:
        span = self._dates.find(value)
        if span is None:
            return ABSENT
        is_literal = self._text[slice(*span)] == value.isoformat()
        return Grounding(Status.EXACT if is_literal else Status.VALUE, *span)

    def _ground_address(self, value: str) -> Grounding:
        """Addresses stand in the targets of links, too, and are written in one way only."""
        for start in _occurrences(value, self._text):
            end = start + len(value)
            if not re.match(r"[\w/?&=%-]|[.:][\w]", self._text[end : end + 2]):
                return Grounding(Status.EXACT, start, end)
        return ABSENT

    def _exact(self, wanted: NormalForm) -> Grounding | None:
        form = self._form
        for start in _occurrences(wanted.text, form.text):
            end = start + len(wanted.text)
            if self._stands_alone(start, end):
                return Grounding(Status.EXACT, *form.span(start, end))
        return None

    def _stands_alone(self, start: int, end: int) -> bool:
        """Whether it is no part of a longer word or number."""
        form = self._form
        if not (form.is_boundary(start) and form.is_boundary(end)):
            return False
        span = form.span(start, end)
        begins_decimal = form.text[start].isdecimal() and _is_point(self._text, span[0] - 1)
        goes_on = form.text[end - 1].isdecimal() and _is_point(self._text, span[1])
        return not (begins_decimal or goes_on)

    def _fuzzy(self, wanted: NormalForm) -> Grounding | None:
        from rapidfuzz.distance import Levenshtein

        length = len(wanted.text)
        if not LEAST_FUZZY_CHARACTERS <= length <= MOST_FUZZY_CHARACTERS:
            return None
        firm = Counter(filter(None, _firm_words(wanted)))
        best, best_score = None, LEAST_SIMILARITY
        for first, last in self._windows(wanted):
            start, end = self._words[first][0], self._words[last][1]
            there = self._form.text[start:end]
            score = Levenshtein.normalized_similarity(wanted.text, there, score_cutoff=best_score)
            is_better = score > best_score or (score == best_score and best is None)
            if is_better and firm == Counter(filter(None, self._firm_words[first : last + 1])):
                best, best_score = (start, end), score
        return Grounding(Status.FUZZY, *self._form.span(*best)) if best else None

    def _windows(self, wanted: NormalForm) -> Iterator[tuple[int, int]]:
        """The first and last of the words that may be the wanted ones, the likeliest first."""
        words = list(wanted.words())
        places = [self._places(wanted.text[start:end], len(words)) for start, end in words]
        votes: Counter[int] = Counter()
        for position in _voters(places):
            for place in places[position]:
                votes[place - position] += 1
        slack = max(1, len(words) // 10)
        step = max(1, slack // 5)
        for first, _ in votes.most_common(MOST_WINDOWS):
            for shift in range(-slack, slack + 1, step):
                for more in range(-slack, slack + 1, step):
                    yield from self._window(first + shift, len(words) + more)

    def _window(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        if 0 <= first < len(self._words) and count > 0:
            yield first, min(first + count, len(self._words)) - 1

    def _places(self, word: str, word_count: int) -> list[int]:
        """Where the word stands, as the number of the word; misspelt if little else is known."""
        places = self._positions.get(word)
        if places is not None or word_count > SIMILAR_WORDS_UP_TO:
            return places or []
        from rapidfuzz import fuzz, process

        similar = process.extract(
            word, self._positions.keys(), scorer=fuzz.ratio, score_cutoff=MISSPELT_FROM, limit=5
        )
        return [place for found in similar for place in self._positions[found[0]]]

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


def _occurrences(wanted: str, text: str) -> Iterator[int]:
    start = text.find(wanted)
    while start >= 0:
        yield start
        start = text.find(wanted, start + 1)


def _is_point(text: str, position: int) -> bool:
    """Whether a decimal point stands there, between two digits."""
    return (
        0 < position < len(text) - 1
        and text[position] in ".,"
        and text[position - 1].isdecimal()
        and text[position + 1].isdecimal()
    )
