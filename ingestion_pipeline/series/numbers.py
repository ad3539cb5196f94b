"""Chapter numbers: parsed from labels, in one canonical form, and the gaps between them.

The rules follow the conventions of chapter sites. The series title and a year in brackets are
ignored; comma and hyphen are decimal points; "ch." beats other numbers, "#" all but that, and
numbers of volume, version, season and year count only when there is no other; the suffixes a to
i are .1 to .9, and special, omake and extra come last, as .97, .98 and .99.
"""

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from itertools import islice, pairwise

from ingestion_pipeline.reading.text.decoding import without_references

# SQLite keeps a NUMERIC as a double: 15 significant digits are exact, and no chapter needs more.
MAX_INTEGER_DIGITS = 9
MAX_DECIMALS = 5

MAX_LABEL_CHARACTERS = 1_000  # the longest of 623 real labels has 81
MAX_LISTED = 100  # more missing numbers than anyone acts upon

_EXACT = re.compile(r"([+-]?)([0-9]*(?:\.[0-9]+)?)\.?")
# A suffix ends where its word does, in any script: the b of "51.bölüm" is none.
_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\s+(?=extra|omake|special))?(?:\.?([a-z]++)(?![^\W\d_]))?")
_AFTER_CH = re.compile(r"(?<![a-z])ch\.\s*(?=[0-9])")
_AFTER_HASH = re.compile(r"(?<![^\W_])#\s*(?=[0-9])")
# Volume, version and season, before their number or after it, in the languages of 623 real labels.
_TAG_WORDS = (
    "version|volumen?|season|ver|vol|v|s|tome?|band|cilt|sezon|saison|staffel|stagione|temporada"
    "|том|сезон|tập|quyển|เล่ม|المجلد|시즌"
)
_TAG = re.compile(
    rf"(?<![^\W_])(?:{_TAG_WORDS})[^a-z0-9]{{0,2}}[0-9]+"
    r"|(?:[第제]\s*+|(?<![\s第제])\s++|(?<![\s第제0-9]))[0-9]++\s*+[巻卷권季期年]"
)
_VOLUME = re.compile(
    r"(?<![^\W_])(?:volumen?|vol|tome?|band|cilt|том|tập|quyển|เล่ม|المجلد)[^a-z0-9]{0,2}([0-9]{1,4})(?![0-9])"
    r"|(?<![^\W_])v\.?\s?([0-9]{1,4})[\s._]{0,3}c(?:h|hap|hapter)?[\s.]{0,2}[0-9]"
    r"|(?<![0-9])([0-9]{1,4})\s?[巻卷권]"
)
_YEAR = re.compile(r"\((?:[^()0-9]{0,20}\s)?(?:19|20)[0-9]{2}\)")
_FRACTION = re.compile("((?<![0-9])[0-9]++|)([¼½¾])")
_FRACTIONS = {"¼": "25", "½": "5", "¾": "75"}
_ORDINAL = re.compile("第([零〇一二三四五六七八九十百千]{1,9})")
_ORDINAL_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"\N{IDEOGRAPHIC NUMBER ZERO}": 0}
_ORDINAL_UNITS = {"十": 10, "百": 100, "千": 1000}
# Separators of a title that is given twice, in two scripts or with another name in brackets.
_TITLE_PARTS = re.compile(r"(?:(?<!\s)\s++)?+[|/()\[\]（）【】]\s*+|(?<!\s)\s++(?=[^ -~])")  # noqa: RUF001  full-width brackets
_CUT_WORD = re.compile(r"(?<![0-9a-z.])[0-9a-z.]++\Z")
_POINTS = str.maketrans({",": ".", "-": ".", "\N{FULLWIDTH FULL STOP}": "."})
_KINDS = (("extra", "99"), ("omake", "98"), ("special", "97"))
_LETTERS = "abcdefghi"


def chapter_number(label: str | Decimal | float | None, series_title: str | None = None) -> Decimal | None:
    """Return the chapter's canonical number; None, never 0 or -1, if the label has none."""
    if isinstance(label, Decimal):
        return _accepted(label)
    if label is None or isinstance(label, bool):
        return None
    if isinstance(label, float):
        return _accepted(Decimal(str(label)))
    if not isinstance(label, str):
        return _accepted(Decimal(label))
    text = _plain(without_references(label))  # the digits of &#8211; are no number
    if (exact := _EXACT.fullmatch(text.strip())) and exact[2]:
        return _accepted(Decimal(exact[1] + exact[2]))
    if "(" in text:
        text = _YEAR.sub(" ", text)
    return _from_words(_without_title(text, series_title) if series_title else text)


def volume_text(label: str, series_title: str | None = None) -> str | None:
    """Return the number of the volume that a label names, as text; a version (v2) is none."""
    text = _plain(without_references(label))
    match = _VOLUME.search(_without_title(text, series_title) if series_title else text)
    return str(int(match[1] or match[2] or match[3])) if match else None


def number_text(number: Decimal) -> str:
    """Return the number as people write it: no exponent, no trailing zeros."""
    text = format(number, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def is_special(number: Decimal) -> bool:
    """Return whether it stands for an extra, an omake or a special."""
    return any(number % 1 == Decimal(f"0.{decimals}") for _, decimals in _KINDS)


def missing_numbers(numbers: Iterable[Decimal | None]) -> tuple[int, ...]:
    """Return the absent whole chapters below the highest, from 1, at most `MAX_LISTED` of them."""
    whole = [0, *sorted({int(number) for number in numbers if number is not None and number >= 1})]
    missing = (number for low, high in pairwise(whole) for number in range(low + 1, high))
    return tuple(islice(missing, MAX_LISTED))


def _plain(label: str) -> str:
    """Return the label in lower case with ASCII digits and points, minus a word cut by the cap."""
    text = label[:MAX_LABEL_CHARACTERS].lower()
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c, c)) for c in text)
        text = _FRACTION.sub(lambda match: f"{match[1] or 0}.{_FRACTIONS[match[2]]}", text)
        text = _ORDINAL.sub(lambda match: f"第{_ordinal(match[1])}", text)
    sign = "-" if text.startswith("-") else ""
    text = sign + text.removeprefix("-").translate(_POINTS)
    return _CUT_WORD.sub("", text) if len(label) > MAX_LABEL_CHARACTERS else text


def _ordinal(text: str) -> int:
    """Return the value of Chinese numerals, by units (百二十三) or by places (一二三)."""
    total = count = 0
    for character in text:
        if unit := _ORDINAL_UNITS.get(character):
            total, count = total + (count or 1) * unit, 0
        else:
            count = count * 10 + _ORDINAL_DIGITS[character]
    return total + count


def _without_title(text: str, series_title: str) -> str:
    """Remove the series title; a title that is a number may be the chapter's as well."""
    pattern, is_number = _title_pattern(series_title)
    if pattern is None:
        return text
    rest = pattern.sub(" ", text)
    return text if is_number and not any(c in "0123456789" for c in rest) else rest


@lru_cache(maxsize=1_000)
def _title_pattern(series_title: str) -> tuple[re.Pattern[str] | None, bool]:
    """Return the pattern of title parts to ignore, and whether the title is a number."""
    title = _plain(series_title).strip()
    if len(title) < 2 and not title.isdigit():  # noqa: PLR2004  a one-letter title could be a suffix
        return None, False
    parts = [part for part in _TITLE_PARTS.split(title) if not part.isdigit() and _NUMBER.search(part)]
    names = "|".join(map(re.escape, [title, *parts]))
    return re.compile(rf"(?<![0-9a-z])(?:{names})(?![0-9a-z]|\.[0-9])"), title.isdigit()


def _from_words(text: str) -> Decimal | None:
    match = _NUMBER.search(text)
    if match is None:
        return None
    if _NUMBER.search(text, match.end()):
        untagged = _TAG.sub(" ", text)
        marked = _AFTER_CH.search(untagged) or _AFTER_HASH.search(untagged)
        match = _NUMBER.search(untagged, marked.end() if marked else 0) or match
    return _value(match)


def _value(match: re.Match[str]) -> Decimal | None:
    whole, decimals, suffix = match.groups()
    if decimals is None and suffix:
        follows_digit = match.string[match.end() : match.end() + 1].isdigit()
        decimals = _suffix_decimals(suffix, is_word=follows_digit)
    return _accepted(Decimal(f"{whole}.{decimals or '0'}"))


def _suffix_decimals(suffix: str, *, is_word: bool) -> str | None:
    for kind, decimals in _KINDS:
        if kind in suffix:
            return decimals
    is_letter = len(suffix) == 1 and suffix in _LETTERS and not is_word
    return str(_LETTERS.index(suffix) + 1) if is_letter else None


def _accepted(number: Decimal) -> Decimal | None:
    """Return the canonical number if finite, not negative and exact in every database."""
    if not number.is_finite() or number < 0 or number.adjusted() >= MAX_INTEGER_DIGITS:
        return None
    if number and number.adjusted() < -MAX_DECIMALS:
        return None
    text = number_text(number)
    if len(text.partition(".")[2]) > MAX_DECIMALS:
        return None
    return number if str(number) == text else Decimal(text)
