"""Chapters: their numbers, parsed from labels, and their releases, grouped whatever the order listed.

The number rules follow the conventions of chapter sites. The series title and a year in brackets are
ignored; comma and hyphen are decimal points; "ch." beats other numbers, "#" all but that, and
numbers of volume, version, season and year count only when there is no other; the suffixes a to
i are .1 to .9, and special, omake and extra come last, as .97, .98 and .99.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import islice, pairwise
from json.encoder import encode_basestring_ascii
from typing import Any

from ingestion_pipeline.reading.structured.items import Problem
from ingestion_pipeline.reading.text.plain_text import clean_text, without_references
from ingestion_pipeline.urls import without_secrets

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One row of a source's listing; several may share a number (languages, groups)."""

    number: Decimal | None
    title: str | None
    url: str | None
    language: str | None
    scanlation_group: str | None
    source_chapter_id: str | None
    volume: str | None
    published_at: datetime | None

    def __post_init__(self) -> None:
        """Remove secrets from the addresses: private feeds put the user's token in each of them."""
        for name in ("url", "source_chapter_id"):
            if (address := getattr(self, name)) is not None and "://" in address:
                object.__setattr__(self, name, without_secrets(address))


MAX_OWN_ID_BYTES = 500  # longer ids are hashed: PostgreSQL indexes no key over 2,700
_NEVER = datetime.max.replace(tzinfo=UTC)
_TEXTS = ("title", "url", "language", "scanlation_group", "source_chapter_id", "volume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chapter of one source; its facts are those of its leading release."""

    key: str
    releases: tuple[Release, ...]  # the leading one first

    @property
    def leading(self) -> Release:
        """Return the release that stands for the chapter."""
        return self.releases[0]

    @property
    def number(self) -> Decimal | None:
        """Return the number; all releases have it."""
        return self.releases[0].number


def chapters_of(releases: Sequence[Release], *, source_id: str) -> tuple[list[Chapter], list[Problem]]:
    """Return one chapter per number, lowest first, then the unnumbered, and the problems.

    Every release is in exactly one chapter. A release with neither number, id nor address cannot be
    recognised again: it is reported as a problem.
    """
    groups: dict[str, list[Release]] = {}
    problems: list[Problem] = []
    for position, release in enumerate(map(_cleaned, releases), start=1):
        key = _key(release, source_id)
        if key is None:
            message = (
                f"{release.title or 'untitled'!r} has neither number, id nor address;"
                " it is left out, since it could not be recognised again"
            )
            problems.append(Problem(where=f"release {position}", message=message))
        else:
            groups.setdefault(key, []).append(release)
    chapters = [chapter_of(key, group) for key, group in groups.items()]
    return sorted(chapters, key=_reading_order), problems


def chapter_of(key: str, releases: Sequence[Release]) -> Chapter:
    """Return the chapter made of these releases, each once."""
    ordered = releases if len(releases) == 1 else sorted(set(releases), key=_precedence)
    return Chapter(key=key, releases=tuple(ordered))


def own_id(release: Release) -> str:
    """Return the source's id of the release, else its address; empty if it has neither."""
    return release.source_chapter_id or release.url or ""


def with_stored_releases(chapter: Chapter, stored: Iterable[Release]) -> Chapter:
    """Add the stored releases that have left a feed's window to the listed chapter.

    Two releases are the same by id or address, language and group; the listed one is newer.
    """
    listed = {_identity(release) for release in chapter.releases}
    gone = [release for release in stored if _identity(release) not in listed]
    return chapter_of(chapter.key, [*chapter.releases, *gone])


def _identity(release: Release) -> tuple[str, str | None, str | None]:
    return own_id(release), release.language, release.scanlation_group


def fingerprint(chapter: Chapter) -> str:
    """Return a hash of every field of the chapter, independent of the order of its releases."""
    return _fingerprint(chapter, list(map(_canonical_json, chapter.releases)))


def as_stored(chapter: Chapter) -> tuple[str, str]:
    """Return the releases as a JSON list (each as in `release_as_dict`) and the fingerprint."""
    releases_json = list(map(_canonical_json, chapter.releases))
    return f"[{','.join(releases_json)}]", _fingerprint(chapter, releases_json)


def _fingerprint(chapter: Chapter, releases_json: Sequence[str]) -> str:
    if len(releases_json) == 1:  # most chapters have one release
        leading, every = releases_json[0], _quoted(releases_json[0])
    else:
        leading, every = _canonical_json(chapter.leading), ",".join(map(_quoted, sorted(releases_json)))
    facts = f"[{_quoted(chapter.key)},{leading},[{every}]]"
    return hashlib.sha256(facts.encode("ascii")).hexdigest()


def _canonical_json(release: Release) -> str:
    """Return `json.dumps(release_as_dict(...), sort_keys=True, separators=(",", ":"))`.

    Written by hand: it takes a fifth of the time.
    """
    number = None if release.number is None else number_text(release.number)
    moment = _in_utc(release.published_at)
    return (
        f'{{"language":{_quoted(release.language)},"number":{_quoted(number)}'
        f',"published_at":{_quoted(moment.isoformat() if moment else None)}'
        f',"scanlation_group":{_quoted(release.scanlation_group)}'
        f',"source_chapter_id":{_quoted(release.source_chapter_id)}'
        f',"title":{_quoted(release.title)},"url":{_quoted(release.url)}'
        f',"volume":{_quoted(release.volume)}}}'
    )


def _quoted(text: str | None) -> str:
    return "null" if text is None else encode_basestring_ascii(text)


def release_as_dict(release: Release) -> dict[str, str | None]:
    """Return the release for JSON: number as text, time as ISO 8601 in UTC."""
    moment = _in_utc(release.published_at)
    return {
        "number": None if release.number is None else number_text(release.number),
        **{name: getattr(release, name) for name in _TEXTS},
        "published_at": moment.isoformat() if moment else None,
    }


def release_from_dict(fields: Mapping[str, str | None]) -> Release:
    """Return the release that `release_as_dict` wrote; an absent field is None."""
    number, published_at = fields.get("number"), fields.get("published_at")
    return Release(
        number=Decimal(number) if number is not None else None,
        published_at=datetime.fromisoformat(published_at) if published_at else None,
        **{name: fields.get(name) for name in _TEXTS},
    )


def _cleaned(release: Release) -> Release:
    """Return the release with clean texts; the same object if nothing changed, which is faster."""
    cleaned: dict[str, Any] = {
        "number": chapter_number(release.number),
        **{name: clean_text(getattr(release, name)) for name in _TEXTS},
        "published_at": _in_utc(release.published_at),
    }
    is_clean = all(getattr(release, name) is value for name, value in cleaned.items())
    return release if is_clean else Release(**cleaned)


def _in_utc(moment: datetime | None) -> datetime | None:
    """Convert to UTC; a time without zone is taken as UTC."""
    if moment is None or moment.tzinfo is None:
        return moment and moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC)
    except OverflowError:  # the first or last day of the calendar, in a zone that has left it
        return moment.replace(tzinfo=UTC)


def _key(release: Release, source_id: str) -> str | None:
    if release.number is not None:
        return number_text(release.number)
    id_ = own_id(release)
    if len(id_.encode()) > MAX_OWN_ID_BYTES:
        id_ = hashlib.sha256(id_.encode()).hexdigest()
    return f"{source_id}#{id_}" if id_ else None


def _precedence(release: Release) -> tuple[bool, datetime, str, str]:
    """Order releases: titled first, then the earliest, then by id, then by every field."""
    return release.title is None, release.published_at or _NEVER, own_id(release), _canonical_json(release)


def _reading_order(chapter: Chapter) -> tuple[bool, Decimal, str]:
    return chapter.number is None, chapter.number or Decimal(0), chapter.key
