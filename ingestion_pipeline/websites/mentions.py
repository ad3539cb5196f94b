"""Search for the mentions of a business in an answer: exact matches, else similar words.

The rules, in the order in which they are applied:

1. The business' own host is a mention wherever it is, also in a link or a mail address; its name
   as part of another host or address is none.
2. A name must stand alone: it is no part of a longer word (see `is_word_boundary` for scripts
   without blanks between words), and not of a longer name of another business (`others`).
3. Case, width, marks, ligatures, hyphens and blanks inside the name do not matter. Exceptions:
   a name of up to three letters is matched only as written or in capitals, a camel-case name that
   is written apart (`You Tube`) only with a capital, a plain word by the rules of `is_meant`.
4. Possessives and the suffixes that Slavic and Finnic languages add to a name belong to it.
5. A mention right after words such as "not familiar with" or "avoid", or right before "is unknown to me", is denied.
6. If nothing is found: a word of the same first letter, written with a capital, that differs by
   one typing error (two from ten letters on), and is as similar to the name as the threshold.
   Plain words and names of fewer than six letters are never matched so, nor is a plural or the
   name of another business.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ingestion_pipeline.websites.name_forms import (
    AFTER_A_NAME,
    CAPITAL_NOUNS,
    COMMON_WORDS,
    DETERMINERS,
    FORMS,
    KIND_AFTER_A_NAME,
    NOT_A_NAME_BEFORE,
    OPEN_SCRIPTS,
    Folded,
    Form,
    Names,
    fold,
    is_word_boundary,
    script_of,
)

# ruff: noqa: RUF001 - the letters of other scripts are meant


_LIST_MARK = re.compile(r"\s*(?:#{1,6}\s+)?(?:[-*+•‣–]\s+|\d{1,3}[.)]\s+|\(\d{1,3}\)\s+)?(?<=\s)[*_]{0,2}")
_MARK = r"\"'“”‘’«»()\[\]*_>#"  # what may be between two sentences, besides blanks
_SENTENCE_END = re.compile(rf"(?:^|[.!?:;…。！？]|(?<![{_MARK}\s])(?:[{_MARK}]|[^\S\n])*+\n)[{_MARK}\s]*+$")
_WORD_BEFORE = re.compile(r"(?<![^\W\d_])([^\W\d_]++)[\s*_]++$")
_NEXT_WORD = re.compile(r"[\s*_]*([^\W\d_]+)")
_SIGNS_OF_A_NAME = re.compile(r"[*_]*(?:['’](?:s\b|\s)|\s?[®™]|\s?\((?:www|https?|[A-Z]{2,}))")
_ANOTHER_NAME = re.compile(r"(?:,|,?\s+(?:and|or|vs\.?|versus|et|y|e|o|ou|&))\s+\(?[A-Z]")
_NOTHING_MORE = re.compile(r"[*_\"”’»]*\s*(?:[.!?;)](?:\s|$)|[–—]|-\s|$)")
_ALONE = re.compile(r"[*_]{0,2}\s*(?:$|\n|\(|[–—:：]|-\s|,)")
_CONTEXT_WORD = re.compile(r"[^\W\d_]{2,}")
_SMALL_WORDS = frozenset(FORMS["small_words"].split())
_LEAST_HEADING = 3  # words
_LONGEST_MARK = 40  # characters
_LONGEST_HEADING = 300  # characters on either side


def has_capitals(written: str) -> bool:
    """Return whether every word begins with a capital; scripts without capitals always do."""
    words = _CONTEXT_WORD.findall(written) or [written]
    return all(not word[0].islower() for word in words)


def is_meant(text: str, start: int, end: int, language: str | None) -> bool:
    """Return whether the plain word from `start` to `end` is used as a name there."""
    if not has_capitals(text[start:end]):
        return False
    following = _NEXT_WORD.match(text, end)
    after = following[1] if following else ""
    if {after, after.lower()} & NOT_A_NAME_BEFORE:
        return False
    has_capital_nouns = (language or "").partition("-")[0].lower() in CAPITAL_NOUNS
    is_entry = _is_entry(text, start)
    if not has_capital_nouns or text[start:end].isupper():
        is_first = _SENTENCE_END.search(text, max(0, start - 200), start) is not None
        before = _WORD_BEFORE.search(text, max(0, start - _LONGEST_MARK), start)
        is_determined = before is not None and before[1].lower() in DETERMINERS
        if not is_first and not is_entry and not is_determined and not _is_heading(text, start, end):
            return True  # its capital is due neither to its place nor to the language
    is_marked = text[max(0, start - 2) : start] in {"**", "__"} and text[end : end + 2] in {"**", "__"}
    if is_marked or (is_entry and _ALONE.match(text, end)):
        return True
    if _SIGNS_OF_A_NAME.match(text, end) or after in AFTER_A_NAME or after.lower() in KIND_AFTER_A_NAME:
        return True
    # another name, a dash or nothing follows: `Slack, Zoom and Teams`
    return not has_capital_nouns and bool(_ANOTHER_NAME.match(text, end) or _NOTHING_MORE.match(text, end))


def _is_heading(text: str, start: int, end: int) -> bool:
    """Return whether all other words of its line have capitals, too."""
    before = text[max(0, start - _LONGEST_HEADING) : start].rpartition("\n")[2]
    after = text[end : end + _LONGEST_HEADING].partition("\n")[0]
    line = f"{before} {after}"
    others = [word for word in _CONTEXT_WORD.findall(line) if word.lower() not in _SMALL_WORDS]
    return len(others) >= _LEAST_HEADING - 1 and all(word[0].isupper() for word in others)


def _is_entry(text: str, start: int) -> bool:
    """Return whether it is the first word of a list entry."""
    line_start = text.rfind("\n", max(0, start - _LONGEST_MARK), start) + 1
    is_near = line_start > 0 or start <= _LONGEST_MARK
    return is_near and _LIST_MARK.fullmatch(text, line_start, start) is not None


RANK_LIMITS = (50, 150, 300, 500)  # characters before the first mention
LEAST_FUZZY_LETTERS = 6
TWO_SLIPS_FROM = 10  # letters
DEFAULT_THRESHOLD = 88.0
MAX_TEXT = 30_000  # characters; a thousand tokens are some five thousand
_LONGEST = 400  # characters of a name or a host with what may be inside it
_HOST = re.compile(
    r"(?<![\w.-])(?:(?<!\+)[\w.+-]++@)?+((?:[\w-]++\.)+(?:"
    + "|".join(FORMS["top_level_domains"].split())
    + r"))(?![\w-])"
)
_WORD = re.compile(r"[^\W_]+")
_DENIAL = 120  # characters of a denial with the words after it
_DENIED = re.compile(
    rf"(?:{'|'.join(FORMS['denials'])})(?:\s+[*_\"“„«]*(?:{'|'.join(FORMS['after_a_denial'].split())})\b){{0,5}}"
    r"[\s*_\"“”„«'\[(]+$"
)
_DENIED_AFTER = re.compile(rf"[*_\"”“»'\])]*(?:{'|'.join(FORMS['denials_after'])})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """One mention: where it is in the answer, and whether it was found word for word."""

    start: int
    end: int
    text: str
    is_exact: bool
    is_denied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mentions:
    """All mentions in one answer, in order."""

    places: tuple[Mention, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places)

    @property
    def count(self) -> int:
        """Return the number of mentions."""
        return len(self.places)

    @property
    def affirmed(self) -> "Mentions":
        """Return those that do not say that the business is unknown or to be avoided."""
        return Mentions(places=tuple(place for place in self.places if not place.is_denied))

    @property
    def rank(self) -> int | None:
        """Return 1 to 5, by how early it is mentioned; None where it is not."""
        return rank_at(self.places[0].start) if self.places else None

    @property
    def is_exact(self) -> bool:
        """Return whether the name itself was found, and not only something similar."""
        return any(place.is_exact for place in self.places)


def rank_at(position: int) -> int:
    """Return 1 within the first 50 characters, 2 within 150, 3 within 300, 4 within 500, else 5."""
    return next((rank for rank, limit in enumerate(RANK_LIMITS, 1) if position < limit), len(RANK_LIMITS) + 1)


def find_mentions(
    answer: str,
    names: Names,
    *,
    language: str | None = None,
    others: Sequence[Names] = (),
    threshold: float = DEFAULT_THRESHOLD,
) -> Mentions:
    """Return every mention of the business in the answer; see the module for the rules."""
    return mentions_of_all(answer, (names, *others), language=language, threshold=threshold)[0]


def mentions_of_all(
    answer: str, everybody: Sequence[Names], *, language: str | None = None, threshold: float = DEFAULT_THRESHOLD
) -> list[Mentions]:
    """Return the mentions of several businesses, each with all others as its `others`."""
    text = _Answer(answer[:MAX_TEXT], language)
    exact = [text.exact(names) for names in everybody]
    results: list[Mentions] = []
    for number, names in enumerate(everybody):
        rivals = (*exact[:number], *exact[number + 1 :])
        taken = sorted(span for other in rivals for span in other)
        spans = [candidate for candidate in exact[number] if not _is_inside_longer(candidate, taken)]
        is_exact = bool(spans)
        if not spans:
            spans = [candidate for candidate in text.alike(names, threshold) if not any(_around(candidate, taken))]
        results.append(Mentions(places=tuple(text.mention(span, is_exact=is_exact) for span in spans)))
    return results


_Span = tuple[int, int]


class _Answer:
    """An answer prepared for the search of several names; spans are of the folded text."""

    def __init__(self, answer: str, language: str | None) -> None:
        self._folded: Folded = fold(answer)
        self._language = language
        self._hosts = [(match.span(), match[1]) for match in _HOST.finditer(self._folded.text)]
        self._host_spans = [span for span, _ in self._hosts]
        self._words: list[_Span] | None = None

    def mention(self, span: _Span, *, is_exact: bool) -> Mention:
        start, end = self._folded.span(*span)
        text = self._folded.text
        is_denied = _DENIED.search(text, max(0, span[0] - _DENIAL), span[0]) and text[span[1] : span[1] + 2] != "'s"
        is_denied = is_denied or _DENIED_AFTER.match(text, span[1])
        return Mention(
            start=start, end=end, text=self._folded.source[start:end], is_exact=is_exact, is_denied=bool(is_denied)
        )

    def exact(self, names: Names) -> list[_Span]:
        """Return the spans of the names, in order; of overlapping ones the longer."""
        spans = [span for span, host in self._hosts if any(f".{host}".endswith(f".{own}") for own in names.hosts)]
        for form in names.forms(self._language):
            spans += self._places(form)
        return _non_overlapping(spans)

    def alike(self, names: Names, threshold: float) -> list[_Span]:
        """Return the spans of words that differ from a name by a slip."""
        spans = [
            span
            for form in names.forms(self._language)
            for span in self._similar(form, threshold)
            if not self._is_in_host(span)
        ]
        return _non_overlapping(spans)

    def _places(self, form: Form) -> Iterator[_Span]:
        text = self._folded.text
        sure: list[_Span] = []
        unsure: list[_Span] = []
        for match in form.pattern.finditer(text):
            if not self._stands_alone(*match.span()) or self._is_in_host(match.span(1)):
                continue
            if self._is_written_as(form, match.span(1)):
                sure.append(match.span(1))
            elif form.is_common and has_capitals(self._folded.written(*match.span(1))):
                unsure.append(match.span(1))
        if sure:  # one certain mention confirms those at the beginning of a sentence
            yield from (*sure, *unsure)

    def _stands_alone(self, start: int, end: int) -> bool:
        text = self._folded.text
        before, after = text[start - 1 : start], text[end : end + 1]
        if before == "_" and text[start - 2 : start - 1].isalnum():
            return False
        if after == "_" and text[end + 1 : end + 2].isalnum():
            return False
        return is_word_boundary(before, text[start]) and is_word_boundary(text[end - 1], after)

    def _is_in_host(self, span: _Span) -> bool:
        return any(begin <= span[0] and span[1] <= end for begin, end in _around(span, self._host_spans))

    def _is_written_as(self, form: Form, span: _Span) -> bool:
        written = self._folded.written(*span)
        if form.is_short:
            return written == form.written or written.isupper()
        if form.is_common:
            return is_meant(self._folded.source, *self._folded.span(*span), self._language)
        is_apart = " " in written and " " not in form.written
        return not is_apart or has_capitals(written[:1])

    def _similar(self, form: Form, threshold: float) -> Iterator[_Span]:
        from rapidfuzz import fuzz
        from rapidfuzz.distance import OSA

        letters = form.letters
        is_open = any(script_of(letter) in OPEN_SCRIPTS | {"katakana", "hangul"} for letter in letters)
        if form.is_common or len(letters) < LEAST_FUZZY_LETTERS or is_open:
            return
        slips = 2 if len(letters) >= TWO_SLIPS_FROM else 1
        for span, candidate in self._windows(form.words):
            is_like = (
                candidate[:1] == letters[:1]
                and candidate not in COMMON_WORDS
                and candidate.rstrip("s") != letters
                and _digits(candidate) == _digits(letters)
                and OSA.distance(candidate, letters, score_cutoff=slips) <= slips
                # transposed letters count as equal
                and (sorted(candidate) == sorted(letters) or fuzz.ratio(candidate, letters) >= threshold)
            )
            if is_like and has_capitals(self._folded.written(*span)[:1]):
                yield span

    def _windows(self, words: int) -> Iterator[tuple[_Span, str]]:
        if self._words is None:
            self._words = [match.span() for match in _WORD.finditer(self._folded.text)]
        for first in range(len(self._words) - words + 1):
            window = self._words[first : first + words]
            if all(right[0] - left[1] == 1 for left, right in pairwise(window)):
                yield (window[0][0], window[-1][1]), "".join(self._folded.text[slice(*span)] for span in window)


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdigit())


def _non_overlapping(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans in order; of two that overlap, the longer."""
    chosen: list[_Span] = []
    for span in sorted(set(spans), key=lambda candidate: (candidate[0], -candidate[1])):
        if not chosen or chosen[-1][1] <= span[0]:
            chosen.append(span)
        elif span[1] - span[0] > chosen[-1][1] - chosen[-1][0]:
            chosen[-1] = span
    return chosen


def _around(span: _Span, ordered: Sequence[_Span]) -> Iterator[_Span]:
    """Return those of the ordered spans that overlap the span."""
    first = bisect_left(ordered, (span[0] - _LONGEST, 0))
    last = bisect_left(ordered, (span[1], 0))
    return (other for other in ordered[first:last] if other[1] > span[0])


def _is_inside_longer(span: _Span, ordered: Sequence[_Span]) -> bool:
    return any(
        start <= span[0] and span[1] <= end and end - start > span[1] - span[0] for start, end in _around(span, ordered)
    )
