"""The numbers that the label of a chapter states: of the chapter, of a range's last one, of the volume.

The rules follow the conventions of chapter sites. The series title, dates and a year in brackets are ignored; comma
and hyphen are decimal points, but 10-12 is a range and a comma before three digits separates thousands. A number that
opens the label before a colon wins, then the one with a chapter word, then "#", then the first. Numbers of volumes,
seasons, years and side stories (epilogue, extra) are never a chapter's, those of versions only where there is no other.
The suffixes a to i are .1 to .9, as are parts (37 Part 2); special, omake and extra come last, as .97, .98 and .99.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

from ingestion_pipeline.reading.text.plain_text import packaged_data, without_references

# SQLite keeps a NUMERIC as a double: 15 significant digits are exact, and no chapter needs more.
MAX_INTEGER_DIGITS = 9
MAX_DECIMALS = 5
MAX_LABEL_CHARACTERS = 1_000  # the longest of 623 real labels has 81

_WORDS = packaged_data("ingestion_pipeline.series", "chapter_words.yaml")
_CHAPTER, _AFTER, _SIDE, _PART, _MONTHS = (
    _WORDS[name].replace(" |", "|") for name in ("chapter", "after", "side", "part", "months")
)
_BEGIN = r"(?<![a-z\u00df-\u024f\u0400-\u04ff])"  # of a word in a script with blanks between words
_END = r"(?![a-z\u00df-\u024f\u0400-\u04ff])"
_TO = "\x1f"  # between the ends of a range, in place of the many signs and words

_EXACT = re.compile(r"([+-]?)([0-9]*(?:\.[0-9]+)?)\.?")
# Most labels: a chapter's number at the beginning or after the volume, before nothing or a colon and a title.
_SIMPLE = re.compile(
    rf"\s{{0,4}}(?:(?:vol(?:ume)?[\s.]{{0,3}}[0-9]{{1,4}}[\s,.-]{{1,4}})?(?:{_CHAPTER})[\s.#]{{0,4}}|#?\s{{0,2}})"
    rf"([0-9]{{1,9}}(?:\.[0-9]{{1,{MAX_DECIMALS}}})?)(?:{_AFTER})?(?:\s{{0,4}}$|:(?!\s{{0,4}}(?:{_PART})))"
)
# A suffix ends where its word does, in any script: the b of "51.bölüm" is none.
_NUMBER = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?:\s+(?=extra|omake|special))?(?:\.?([a-z]++)(?![^\W\d_]))?")
_OPENING = re.compile(r"\s*(?=[0-9]+(?:\.[0-9]+)?\s*:)")
_MARKED = re.compile(
    rf"{_BEGIN}(?:{_CHAPTER})[\s.:#№º°(\[<]{{0,3}}(?=[0-9])"
    rf"|(?<![0-9.])(?=[0-9]+(?:\.[0-9]+)?(?:{_TO}[0-9.]+)?[\s.]{{0,2}}(?:{_AFTER}){_END})"
)
_AFTER_HASH = re.compile(r"(?<![^\W_])#\s*(?=[0-9])")
_RANGE_END = re.compile(rf"{_TO}([0-9]+(?:\.[0-9]+)?)")
# Volume and season, before their number or after it, in the languages of 623 real labels.
_TAG = re.compile(
    rf"(?<![^\W_])(?:volumen?|volumi|seasons?|vol|v|tom[eo]?|band|bd|cilt|sezon|saison|staffel|stagione|temporada|jilid"
    rf"|том|сезон|tập|quyển|เล่ม|المجلد|시즌)[^a-z0-9]{{0,2}}[0-9]+(?:{_TO}[0-9]+|\.[0-9](?![0-9]))?"
    rf"|(?:[第제]\s*+|(?<![\s第제])\s++|(?<![\s第제0-9{_TO}]))[0-9]++(?:{_TO}[0-9]+)?\s*+[巻卷권季年部부]"
)
# Names that a number may have by itself: a version, a season or the initial of the title.
_WEAK_TAG = re.compile(
    r"(?<![^\W_])(?:version|ver|s)[^a-z0-9]{0,2}[0-9]+(?:\.[0-9]+)?|(?:第\s*+)?(?<![0-9])[0-9]++\s*+期"
)
_SIDE_NUMBER = re.compile(
    rf"{_BEGIN}(?:{_SIDE})(?:[^a-z0-9]{{0,3}}|[^a-z0-9(\[]{{0,3}}(?:{_CHAPTER})[\s.:#]{{0,2}})[0-9]+(?:\.[0-9]+)?"
    rf"(?:\s?(?:{_AFTER}){_END})?"
)
_DATED_SIDE = re.compile(rf"(?<![^\W_])(?:19|20)[0-9]{{2}}(?=\s(?:[^\W\d_]+\s)?(?:{_SIDE}){_END})")
_SIDE_START = re.compile(rf"[^a-z0-9]*?{_BEGIN}(?:{_SIDE}){_END}")
_VOLUME = re.compile(
    r"(?<![^\W_])(?:volumen?|vol|tom[eo]?|band|bd|cilt|том|tập|quyển|เล่ม|المجلد)[^a-z0-9]{0,2}([0-9]{1,4})(?![0-9])"
    r"|(?<![^\W_])v\.?\s?([0-9]{1,4})[\s._]{0,3}c(?:h|hap|hapter)?[\s.]{0,2}[0-9]"
    r"|(?<![0-9])([0-9]{1,4})\s?[巻卷권]"
)
_YEAR = re.compile(r"\((?:[^()0-9]{0,20}\s)?(?:19|20)[0-9]{2}\)|(?<=annual )(?:19|20)[0-9]{2}(?![0-9])")
_YEAR_NUMBER, _MONTH_NUMBER = r"(?:19|20)[0-9]{2}", r"(?:0?[1-9]|1[0-2])"
_DAY_NUMBER = r"(?:0?[1-9]|[12][0-9]|3[01])"
_DATE = re.compile(
    rf"(?<![0-9.])(?:{_YEAR_NUMBER}([-./])(?:{_MONTH_NUMBER})\1{_DAY_NUMBER}|{_DAY_NUMBER}([-./]){_DAY_NUMBER}\2{_YEAR_NUMBER}"
    rf"|{_YEAR_NUMBER}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]))(?![0-9])"
    rf"|(?:{_YEAR_NUMBER}\s*[年년]\s*)?(?<![0-9]){_MONTH_NUMBER}\s*[月월]\s*{_DAY_NUMBER}\s*[日일]"
    rf"|{_YEAR_NUMBER}\s*[年년]\s*{_MONTH_NUMBER}\s*[月월]"
    rf"|(?<![0-9.]){_DAY_NUMBER}(?:st|nd|rd|th|\.)?\s+(?:de\s+)?(?:{_MONTHS})\.?(?:,?\s+(?:de\s+)?{_YEAR_NUMBER}(?![0-9])|\s*$)"
    rf"|(?<![^\W_])(?:{_MONTHS})\.?\s+(?:{_DAY_NUMBER}(?:st|nd|rd|th)?(?![0-9.])(?:,?\s+{_YEAR_NUMBER})?|{_YEAR_NUMBER})(?![0-9])"
)
_THOUSANDS = re.compile(r"(?<![0-9.,])([1-9][0-9]{0,2}),([0-9]{3})(?![0-9.,])")
_RANGE = re.compile(
    rf"(?<![0-9,])(?<![0-9]\.)([0-9]{{1,5}}(?:\.[0-9])?)\s?(?:{_AFTER})?(\s{{0,2}})([-~–—―〜～]|[&+]|(?<=\s)(?:to|bis|à|a|al|до|and|und|et|y|e|и)(?=\s))(\s{{0,2}})"  # noqa: RUF001
    rf"((?:(?:{_CHAPTER})[\s.]{{0,2}})?)([0-9]{{1,5}}(?:\.[0-9])?)(?![0-9]|[.,-][0-9])"
)
_CHAPTER_BEFORE = re.compile(rf"{_BEGIN}(?:{_CHAPTER})[\s.:#]{{0,3}}$")
_MAY_BE_SPELLED = re.compile(rf"{_BEGIN}(?:{_CHAPTER}|{_PART})\s+[^\W\d_]|[^\W\d_]\s+(?:{_CHAPTER}){_END}")
_NOTHING_BEHIND = re.compile(r"\s*(?:$|[\])|:：])")  # noqa: RUF001
_MOST_BEFORE = 20  # characters in which a chapter word is looked for
_DASHES = frozenset("-~–—―〜～")  # noqa: RUF001
_MIHON_RANGE = re.compile(rf"(?<=ch\.)([0-9]+){_TO}([0-9]+)")
_PART_OF = re.compile(
    rf"(?:\s?(?:{_AFTER}))?(?:"
    rf"[\s.(\[（]*{_BEGIN}(?:{_PART})[\s.]*(?P<part>[0-9]{{1,2}}|[ivx]{{1,4}})(?![0-9a-z])"  # noqa: RUF001
    rf"|\s*:\s*(?:{_PART})[\s.]*(?P<last_part>[0-9]{{1,2}}|[ivx]{{1,4}})\s*$"
    r"|\s*[(（](?P<bracketed>[0-9]{1,2})(?:/[0-9]{1,2})?[)）](?=\s*(?:$|[^\w\s(])|(?<=）))"  # noqa: RUF001
    r"|[\s.]*(?P<circled>[①-⑳])|(?<=[話话화회回章])\.(?P<dashed>[0-9]{1,2})(?![0-9])"
    r"|(?<=[話话화회回章])[\s.「【(（]*(?P<named>[前中後后上下])[編篇编]?(?![^\W_]))"  # noqa: RUF001
)
_NAMED_PARTS = {"前": 1, "上": 1, "中": 2, "後": 3, "后": 3, "下": 3}
_ROMAN = {"i": 1, "ii": 2, "iii": 3, "iv": 4, "v": 5, "vi": 6, "vii": 7, "viii": 8, "ix": 9, "x": 10}
# Volume and chapter, or an extra of the volume, as Russian sites open a label: 1 - 100 Title.
_RUSSIAN = re.compile(
    r"^\s*([0-9]{1,3})(?:\s-\s([0-9]+(?:\.[0-9])?(?![0-9.])(?=[^a-z]*[\u0400-\u04ff]))|\s+(?=экстра))"
)
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
_MOST_PARTS = 69  # .970 is a special


class ChapterNumbers(NamedTuple):
    """The number of a chapter and, if the release holds a range of chapters, that of the last."""

    first: Decimal | None
    last: Decimal | None = None


def chapter_number(label: str | Decimal | float | None, series_title: str | None = None) -> Decimal | None:
    """Return the chapter's canonical number; None, never 0 or -1, if the label has none.

    A range has the number of its first chapter; right behind "ch." its hyphen is a decimal point, as in Mihon.
    """
    if isinstance(label, str):
        if simple := _simple_number(label, series_title):
            return accepted_number(simple)
        return _from_words(_MIHON_RANGE.sub(r"\1.\2", _prepared(label, series_title))).first
    if label is None or isinstance(label, bool):
        return None
    return accepted_number(Decimal(str(label) if isinstance(label, float) else label))


def chapter_numbers(label: str, series_title: str | None = None) -> ChapterNumbers:
    """Return the number that `chapter_number` returns; both ends of a range."""
    if simple := _simple_number(label, series_title):
        return ChapterNumbers(accepted_number(simple))
    return _from_words(_prepared(label, series_title))


def _simple_number(label: str, series_title: str | None) -> Decimal | None:
    """Return the number of a label without anything to be told apart: a tenth of the time."""
    has_digits = series_title is not None and any(character.isdecimal() for character in series_title)
    match = None if has_digits else _SIMPLE.match(label.lower())
    return Decimal(match[1]) if match else None


def volume_text(label: str, series_title: str | None = None) -> str | None:
    """Return the number of the volume that a label names, as text; a version (v2) is none."""
    text = _folded(without_references(label)).translate(_POINTS)
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


def accepted_number(number: Decimal) -> Decimal | None:
    """Return the canonical number if finite, not negative and exact in every database."""
    if not number.is_finite() or number < 0 or number.adjusted() >= MAX_INTEGER_DIGITS:
        return None
    if number and number.adjusted() < -MAX_DECIMALS:
        return None
    text = number_text(number)
    if len(text.partition(".")[2]) > MAX_DECIMALS:
        return None
    return number if str(number) == text else Decimal(text)


def _prepared(label: str, series_title: str | None) -> str:
    """Return the plain text of the label without the series title and the year."""
    text = _plain(without_references(label))  # the digits of &#8211; are no number
    if _EXACT.fullmatch(text.strip()):
        return text
    text = _YEAR.sub(" ", text)
    return _without_title(text, series_title) if series_title else text


def _plain(label: str) -> str:
    """Return the label in lower case with ASCII digits and points, without dates, minus a word cut by the cap."""
    text = _with_digits(_THOUSANDS.sub(r"\1\2", _DATE.sub(" ", _folded(label))))
    text = _RANGE.sub(_ends_of_range, text)
    sign = "-" if text.startswith("-") else ""
    text = sign + text.removeprefix("-").translate(_POINTS)
    return _CUT_WORD.sub("", text) if len(label) > MAX_LABEL_CHARACTERS else text


def _folded(label: str) -> str:
    """Return the label in lower case with ASCII digits."""
    text = label[:MAX_LABEL_CHARACTERS].lower()
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c, c)) for c in text).replace("\u0307", "")
        text = _FRACTION.sub(lambda match: f"{match[1] or 0}.{_FRACTIONS[match[2]]}", text)
        text = _ORDINAL.sub(lambda match: f"第{_ordinal(match[1])}", text)
        text = _RUSSIAN.sub(r"том \1 \2", text)
    return text


def _ordinal(text: str) -> int:
    """Return the value of Chinese numerals, by units (百二十三) or by places (一二三)."""
    total = count = 0
    for character in text:
        if unit := _ORDINAL_UNITS.get(character):
            total, count = total + (count or 1) * unit, 0
        else:
            count = count * 10 + _ORDINAL_DIGITS[character]
    return total + count


def _ends_of_range(match: re.Match[str]) -> str:
    """Return both ends around `_TO` if the text states a range; else the text as it is.

    The last chapter has a higher number than the first, and neither is a year. Between blanks, a dash may precede a
    title as well: there a chapter word comes first, and a second one or the end of the label follows.
    """
    first, last, sign = Decimal(match[1]), Decimal(match[6]), match[3]
    text = match.string
    is_spaced = bool(match[2] or match[4])
    has_word = _CHAPTER_BEFORE.search(text[max(0, match.start() - _MOST_BEFORE) : match.start()]) is not None
    is_closed = bool(match[5]) or _NOTHING_BEHIND.match(text, match.end()) is not None
    is_year = all(1900 <= number < 2100 for number in (first, last))  # noqa: PLR2004
    is_joint = sign in _DASHES or sign in {"to", "bis", "à", "a", "al", "до"} or last == first + 1
    is_range = first < last and is_joint and not is_year
    if is_spaced or sign not in _DASHES:
        is_range = is_range and has_word and (is_closed or sign not in _DASHES)
    return f"{match[1]}{_TO}{match[6]}" if is_range else match[0]


def _with_digits(text: str) -> str:
    """Write the number of a chapter or part in digits: chapter twenty-one, birinci bölüm, the first chapter."""
    for pattern, words, values in _number_words() if _MAY_BE_SPELLED.search(text) else ():
        for match in reversed(list(pattern.finditer(text))):
            number = _number_of([values[word] for word in words.findall(match["number"] or match["ordinal"])])
            text = f"{text[: match.start()]}{match['word'] or match['named']} {number}{text[match.end() :]}"
    return text


_Words = Mapping[str, tuple[int, bool]]  # the value of each word, and whether it multiplies


@lru_cache(maxsize=1)
def _number_words() -> list[tuple[re.Pattern[str], re.Pattern[str], _Words]]:
    """Return for each language the pattern of chapters with a number in words, that of a word, and the values."""
    return [(*_spelled(language), dict(_values(language))) for language in _WORDS["numbers"].values()]


def _values(language: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, bool]]]:
    """Yield each word with its value and whether it multiplies what precedes it."""
    for name, first, step in (("ones", 1, 1), ("tens", 20, 10)):
        for number, forms in enumerate(language.get(name, "").split()):
            yield from ((form, (first + number * step, False)) for form in forms.split("/"))
    for name in ("more", "times"):
        yield from ((word, (value, name == "times")) for word, value in language.get(name, {}).items())


def _spelled(language: Mapping[str, Any]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    words = "|".join(sorted((re.escape(word) for word, _ in _values(language)), key=len, reverse=True))
    join = f"(?:{language['join']})?" if language.get("join") else ""
    number = rf"(?:{words})(?:[\s-]?{join}[\s-]?(?:{words})){{0,6}}"
    before, after = rf"(?P<word>{language['chapter']}|{_PART})\s+", rf"\s+(?P<named>{language['chapter']})(?!\s*[0-9])"
    pattern = rf"{_BEGIN}(?:{before}(?P<number>{number})|(?P<ordinal>{number}){after}){_END}"
    return re.compile(pattern), re.compile(words)


def _number_of(words: Sequence[tuple[int, bool]]) -> int:
    """Return the value of the words, each added or multiplied."""
    total = count = 0
    for value, is_times in words:
        count = max(count, 1) * value if is_times else count + value
        if is_times and value < 100:  # noqa: PLR2004  dua puluh: what follows is added
            total, count = total + count, 0
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


def _from_words(text: str) -> ChapterNumbers:
    if (exact := _EXACT.fullmatch(text.strip())) and exact[2]:
        return ChapterNumbers(accepted_number(Decimal(exact[1] + exact[2])))
    match = _chosen(text)
    if match is None:
        return ChapterNumbers(None)
    last = _RANGE_END.match(match.string, match.end())
    return ChapterNumbers(_value(match), accepted_number(Decimal(last[1])) if last else None)


def _chosen(text: str) -> re.Match[str] | None:
    """Return the number that is the chapter's."""
    sided = _TAG.sub(" ", text)
    tagged = _SIDE_NUMBER.sub(" ", sided)
    untagged = _WEAK_TAG.sub(" ", tagged)
    marked = _OPENING.match(untagged) or _MARKED.search(untagged)
    if marked is None and _SIDE_START.match(_WEAK_TAG.sub(" ", sided)):
        return None
    untagged, tagged = (_DATED_SIDE.sub(" ", each) if marked is None else each for each in (untagged, tagged))
    marked = marked or _AFTER_HASH.search(untagged)
    return _NUMBER.search(untagged, marked.end() if marked else 0) or _NUMBER.search(tagged)


def _value(match: re.Match[str]) -> Decimal | None:
    whole, decimals, suffix = match.groups()
    if part := _part_after(match):
        return accepted_number(Decimal(f"{whole}.{decimals or ''}{part}"))
    if decimals is None and suffix:
        follows_digit = match.string[match.end() : match.end() + 1].isdigit()
        decimals = _suffix_decimals(suffix, is_word=follows_digit)
    return accepted_number(Decimal(f"{whole}.{decimals or '0'}"))


def _part_after(match: re.Match[str]) -> str | None:
    """Return the decimals of the part that follows upon the number: 2, from the tenth on 910; None if there is none."""
    part = _PART_OF.match(match.string, match.end(2) if match[2] else match.end(1))
    if part is None:
        return None
    groups = part.groupdict()
    stated = next(filter(None, groups.values()))
    if groups["circled"]:
        number = int(unicodedata.numeric(stated))
    else:
        number = int(stated) if stated.isdecimal() else _ROMAN.get(stated) or _NAMED_PARTS.get(stated, 0)
    if not 0 < number <= _MOST_PARTS:
        return None
    return str(number) if number < 10 else f"9{number:02}"  # noqa: PLR2004


def _suffix_decimals(suffix: str, *, is_word: bool) -> str | None:
    for kind, decimals in _KINDS:
        if kind in suffix:
            return decimals
    is_letter = len(suffix) == 1 and suffix in _LETTERS and not is_word
    return str(_LETTERS.index(suffix) + 1) if is_letter else None
