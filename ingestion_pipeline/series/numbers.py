"""Chapter numbers: what a label says, one form per number, and which whole chapters are missing.

The rules are those that readers of chapter sites know. The series title is left out; comma and
hyphen are decimal points; "ch." beats other numbers, and the tags of volume, version and season
count only when nothing else does; the suffixes a to i are .1 to .9, and special, omake and extra
come last, as .97, .98 and .99.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from itertools import islice, pairwise

# SQLite keeps a NUMERIC as a double: 15 significant digits are exact, and no chapter needs more.
MAX_INTEGER_DIGITS = 9
MAX_DECIMALS = 5

MAX_LABEL_CHARACTERS = 1_000  # the longest of 623 real labels has 81
MAX_LISTED = 100  # as many missing numbers as anyone acts upon

_EXACT = re.compile(r"([+-]?)([0-9]*(?:\.[0-9]+)?)\.?")
_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\s+(?=extra|omake|special))?(?:\.?([a-z]+))?")
_AFTER_CH = re.compile(r"(?<![a-z])ch\.\s*(?=[0-9])")
_TAG = re.compile(r"\b(?:version|volume|season|ver|vol|v|s)[^a-z0-9]{0,2}[0-9]+")
_CUT_WORD = re.compile(r"[0-9a-z.]++\Z")
_POINTS = str.maketrans({",": ".", "-": ".", "\N{FULLWIDTH FULL STOP}": "."})
_KINDS = (("extra", "99"), ("omake", "98"), ("special", "97"))
_LETTERS = "abcdefghi"


def chapter_number(
    label: str | Decimal | float | None, series_title: str | None = None
) -> Decimal | None:
    """The chapter's number in canonical form; None, never 0 or -1, where the label names none."""
    if label is None or isinstance(label, bool):
        return None
    if isinstance(label, float):
        return _accepted(Decimal(str(label)))
    if not isinstance(label, str):
        return _accepted(Decimal(label))
    text = _plain(label)
    if (exact := _EXACT.fullmatch(text.strip())) and exact[2]:
        return _accepted(Decimal(exact[1] + exact[2]))
    return _from_words(_without_title(text, _plain(series_title or "").strip()))


def canonical_number(number: Decimal) -> Decimal:
    """The one form of a finite number: 45, 45.0 and 45.00 become 45; 1E+2 becomes 100."""
    return Decimal(number_text(number))


def number_text(number: Decimal) -> str:
    """The number as people write it: no exponent, no trailing zeros."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def gap_between(higher: Decimal | None, lower: Decimal | None) -> int:
    """How many whole chapters lie between two neighbours; an unknown number opens no gap."""
    if higher is None or lower is None:
        return 0
    return max(0, int(higher) - int(lower) - 1)


def missing_count(numbers: Iterable[Decimal | None]) -> int:
    """How many whole chapters are absent below the highest, counted from chapter 1."""
    return sum(len(gap) for gap in _gaps(numbers))


def missing_numbers(numbers: Iterable[Decimal | None]) -> tuple[int, ...]:
    """The absent whole chapters, lowest first, at most `MAX_LISTED` of them."""
    return tuple(islice((number for gap in _gaps(numbers) for number in gap), MAX_LISTED))


def _gaps(numbers: Iterable[Decimal | None]) -> list[range]:
    whole = [0, *sorted({int(number) for number in numbers if number is not None and number >= 1})]
    return [range(low + 1, high) for low, high in pairwise(whole) if high > low + 1]


def _plain(label: str) -> str:
    """Lower case, ASCII digits, one kind of decimal point, and no word that the cap cut in two."""
    text = label[:MAX_LABEL_CHARACTERS].lower()
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c, c)) for c in text)
    sign = "-" if text.startswith("-") else ""
    text = sign + text.removeprefix("-").translate(_POINTS)
    return _CUT_WORD.sub("", text) if len(label) > MAX_LABEL_CHARACTERS else text


def _without_title(text: str, title: str) -> str:
    """The label without the series title, unless nothing numbered would be left of it."""
    if len(title) < 2 and not title.isdigit():  # noqa: PLR2004  a one-letter title could be a suffix
        return text
    whole = rf"(?<![0-9a-z]){re.escape(title)}(?![0-9a-z]|\.[0-9])"
    rest = re.sub(whole, " ", text)
    return rest if any(c in "0123456789" for c in rest) else text


def _from_words(text: str) -> Decimal | None:
    found = _NUMBER.search(text)
    if found is None:
        return None
    if _NUMBER.search(text, found.end()):
        return _value(_chosen(_TAG.sub(" ", text)) or found)
    return _value(found)


def _chosen(text: str) -> re.Match[str] | None:
    """The number after "ch.", else the first."""
    marked = _AFTER_CH.search(text)
    return _NUMBER.search(text, marked.end() if marked else 0)


def _value(found: re.Match[str]) -> Decimal | None:
    whole, decimals, suffix = found.groups()
    if decimals is None and suffix:
        follows_digit = found.string[found.end() : found.end() + 1].isdigit()
        decimals = _suffix_decimals(suffix, is_word=follows_digit)
    return _accepted(Decimal(f"{whole}.{decimals or '0'}"))


def _suffix_decimals(suffix: str, *, is_word: bool) -> str | None:
    for kind, decimals in _KINDS:
        if kind in suffix:
            return decimals
    is_letter = len(suffix) == 1 and suffix in _LETTERS and not is_word
    return str(_LETTERS.index(suffix) + 1) if is_letter else None


def _accepted(number: Decimal) -> Decimal | None:
    """The number in canonical form if it is finite, not negative and exact in every database."""
    if not number.is_finite() or number < 0 or number.adjusted() >= MAX_INTEGER_DIGITS:
        return None
    if number and number.adjusted() < -MAX_DECIMALS:
        return None
    text = number_text(number)
    is_exact = len(text.partition(".")[2]) <= MAX_DECIMALS
    return Decimal(text) if is_exact else None
