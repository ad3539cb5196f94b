"""Content fingerprints: a hash over a page's text without the date of the day.

Only what a page says of itself is left out: "as of", "last updated", "today is", a copyright year,
a clock. A date that stands for anything else is content, and so is every other number.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import Any

# A blank is a space: `\s` would go on into the next line, and that is another block of the page.
_MONTH = (
    r"(?:jan(?:uar[yi]?|vier|eiro)?|feb(?:ruar[yi]?|braio)?|f[ée]vr(?:ier)?|m[aä]r(?:ch|z|s|zo|ts)?"
    r"|apr(?:il|ile)?|avr(?:il)?|abr(?:il)?|ma[yi]o?|mai|june?|jun[io]{0,2}|juin|july?|jul[io]{0,2}"
    r"|juillet|aug(?:ust)?|ao[uû]t|agosto|sep(?:t(?:ember|embre)?|tiembre)?|set(?:tembre|embro)?"
    r"|o[ck]t(?:ober|obre|ubro|ubre)?|out(?:ubro)?|nov(?:ember|embre|iembre|embro)?"
    r"|de[cz](?:ember|embre|iembre|embro)?|d[ée]c(?:embre)?|dic(?:iembre|embre)?)\b\.?"
)
_WEEKDAY = (
    r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?|(?:mon|diens|donners|frei"
    r"|sams|sonn)tag|mittwoch|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes"
    r"|mi[ée]rcoles|jueves|viernes|s[áa]bado|domingo)\.?,?"
)
_YEAR = r"(?:19|20)[0-9]{2}"
_MONTH_DAY = r"(?:3[01]|[12][0-9]|0?[1-9])(?![0-9])"
_HOUR = (
    r"(?:(?:[01]?[0-9]|2[0-4])(?:[:h][0-5][0-9]"
    r"(?::[0-5][0-9](?:\.[0-9]{1,9})?(?: ?[+-][0-9]{2}:?[0-9]{2})?)?(?: ?[ap]\.?m\b\.?)?"
    r"|\.[0-5][0-9](?= uhr)| ?[ap]\.?m\b\.?)"
    r"(?: ?(?:uhr|utc|gmt|z|(?:[abcehijkmp]|ak|ae|ac|aw|nz)[sd]t|cet|cest)\b)?"
    r"(?: ?\+[0-9]{2}:?[0-9]{2})?)"
)
# From one clock to another is a time of opening, not of the page.
_CLOCK = rf"(?>{_HOUR})(?! ?(?:[-–—]|to|until|bis) ?[0-9]{{1,2}}(?:[:h.][0-9]| ?[ap]\.?m))"  # noqa: RUF001
# "As of May 1, 2000 seats" counts seats, and so does "as of May 12 seats": what may be a number is
# of the date only before a word that nothing countable begins with. A year too many is seen as a
# change once a year; a number too few would hide one.
_GOES_ON = (
    r"(?:(?:at|um|à) [0-9]|(?:the|this|these|those|that|there|we|our|you|your|they|their|it|its|he"
    r"|she|his|her|i|my|an?|if|when|please|by|der|die|das|wir|le|la|les|nous|el|los|las|il)\b)"
)
_YEAR_ENDS = (
    r"(?=$|[.,;:!?)\]\"](?![0-9])| [|•·]| [-–—] (?![0-9])"  # noqa: RUF001 - found so
    rf"|,? (?:[-–—] )?[0-9]{{1,2}}(?:[:h][0-9]|\.[0-9]{{2}} uhr| ?[ap]\.?m\b)| {_GOES_ON})"  # noqa: RUF001
)
_DAY_ENDS = rf"(?! ?[€$£%+]| [0-9]{{3}}(?![0-9])| (?!{_GOES_ON})[^\W\d_])"
_DAY = (
    rf"(?:{_YEAR}[-/.][0-9]{{1,2}}[-/.]{_MONTH_DAY}(?:t{_HOUR}(?:-[0-9]{{2}}:?[0-9]{{2}})?)?"
    rf"|{_YEAR}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01]){_YEAR_ENDS}"
    rf"|{_MONTH_DAY}[-/.]{_MONTH_DAY}[-/.](?:{_YEAR}|[0-9]{{2}})"
    rf"|{_MONTH_DAY}[-/]{_MONTH}[-/](?:{_YEAR}|[0-9]{{2}})"
    r"|[0-9]{4}年[0-9]{1,2}月[0-9]{1,2}日|[0-9]{4}년 ?[0-9]{1,2}월 ?[0-9]{1,2}일"
    rf"|{_MONTH} {_MONTH_DAY}"
    rf"(?:(?:st|nd|rd|th)?,? {_YEAR}{_YEAR_ENDS}|(?:st|nd|rd|th)\b|{_DAY_ENDS})"
    rf"|{_MONTH_DAY}(?:st|nd|rd|th|\.|er)? (?:of |de )?{_MONTH}(?:,? (?:de )?{_YEAR}{_YEAR_ENDS})?"
    rf"|{_MONTH},? {_YEAR}{_YEAR_ENDS})"
)
_MOMENT = (
    rf"(?:(?:{_WEEKDAY} )?{_DAY}(?:,? (?:at |um |à )?{_CLOCK}"
    rf"|,? [-–—|•·] {_CLOCK}(?! (?!{_GOES_ON})[^\W\d_]))?"  # noqa: RUF001 - found so
    rf"|{_CLOCK}(?:,? (?:on )?(?:{_WEEKDAY} )?{_DAY})?)"
)
_AGO = (
    r"(?:(?:about |over )?(?:[0-9]{1,4}|an?|one|a few) "
    r"(?:second|minute|hour|day|week|month|year)s? ago|just now|yesterday|today)"
)
# Words that make a date a term of the content: "effective as of".
_TERM = "".join(rf"(?<!{word}[ \n])" for word in ("effective", "starting", "beginning", "valid", "due", "deadline"))
_SAYS = (
    r"as (?:of|at)|last (?:updated?|modified|modification|changed?|revised|revision|reviewed"
    r"|refresh(?:ed)?|edited|checked|published)(?: date)?|(?:latest|most recent) "
    r"(?:updated?|modification|revision|change)|(?:page|site|content|information|data|catalog(?:ue)?"
    r"|list|listing) (?:updated|modified|generated|rendered|refreshed)"
    r"|(?:generated|retrieved|printed|rendered)(?= (?:on|at)[ \n])"
    r"|letzte [äa]nderung|zuletzt (?:aktualisiert|ge[äa]ndert)|aktualisiert(?= am)"
    r"|derni[èe]re mise [àa] jour|mis [àa] jour(?= le)|[úu]ltima actualizaci[óo]n"
    r"|actualizado(?= el)|[úu]ltima atualiza[çc][ãa]o|ultimo aggiornamento|laatst bijgewerkt"
    r"|最終更新日?時?|更新日時?|更新时间|最后更新"
)
_NOW = (
    r"today is|today's date(?: is)?|(?:current|local|server) (?:date|time)(?: (?:and|&) time)?"
    r"(?: is)?|(?:the time|it) is now|currently it is|heute ist"
)
# At the head of a line these speak of the page itself; elsewhere, of anything.
_ALONE = r"^(?:updated|generated|rendered|retrieved|printed|refreshed|stand)(?=[ :：,\n])"  # noqa: RUF001
_LABEL = rf"(?:{_TERM}\b(?:{_SAYS}|{_NOW})|{_ALONE})"
_WORD = r"(?:on|at|the|am|vom|le|el|il)"
_MARK = r" ?+[:：=–,-]?+"  # noqa: RUF001 - found so
# A page often has its label in one block and the moment in the next; either has to be all there is
# on its line, else the next line is a talk at 10:30.
_HEAD = r"(?:^|(?<=\npage )|(?<=\ndata )|(?<=\npage was )|(?<=\nthis page was ))"
_FILLS_LINE = rf"{_HEAD}{_LABEL}{_MARK}(?: ?+{_WORD})?+"
_ENDS = r"(?![0-9]|[.,:/][0-9])"
# After "today" only a date is left out: a clock there is when something happens.
_DATED = (
    rf"({_LABEL}{_MARK} ?+(?:{_WORD} )?+|{_FILLS_LINE}(\n))(?:{_MOMENT}|{_AGO})(?(2)$|{_ENDS})"
    rf"|(^today{_MARK}(?: |(\n))?+)(?:{_WEEKDAY} )?{_DAY}(?(4)$|{_ENDS})"
)
# Where something of the day can begin, for one look at the bytes of a page by re2: that takes a
# thirtieth of the time. Patterns are tried there alone. None of these begins inside of another,
# so that none is overlooked.
_SPEAKS_OF_TIME = (
    "as of|as at|last |latest |laatst |most recent |page |site |content |data |information "
    "|catalog |catalogue |list |listing |generated |retrieved |printed |rendered |letzte |zuletzt "
    "|aktualisiert |derni|mis |ultim|últim|actualizado |today|current|local |server |the time"
    "|it is now|heute ist|最終更新|更新|最后更新|loaded in |served in |processed in "
    "|\nupdated|\ngenerated|\nrendered|\nretrieved|\nprinted|\nrefreshed|\nstand"
    r"|©|\(c\)|copyright"
).encode()
_TIMED = frozenset(
    {b"generated ", b"\ngenerated", b"rendered ", b"\nrendered", b"loaded in ", b"served in "} | {b"processed in "}
)
_MARKS = ("©".encode(), b"(c)")
_NAMES_OWNER = (*_MARKS, b"copyright")
_YEAR_IN_BYTES = re.compile(rb"\b(?:19|20)[0-9]{2}\b")
_YEARS = rf"{_YEAR}(?: ?(?:[-–—]|to) ?(?:{_YEAR}|present))?(?![0-9]|[.,][0-9])"  # noqa: RUF001
_COUNTS = (
    r" ?(?:[€$£%+]|(?:eur|euros?|usd|gbp|chf|dollars?|seats?|places?|spots?|students?|people"
    r"|persons?|participants?|credits?|points?|hours?)\b)"
)
# "Fee 2000 (c)" has a footnote: before that mark a year has to begin its line, an owner to follow.
_COPYRIGHT = re.compile(
    rf"((?:©|\(c\)|\bcopyright\b)[ ©(c),]{{0,8}}+){_YEARS}(?!{_COUNTS})"
    rf"|()\b{_YEARS}(?= ?©)|()^{_YEARS}(?= ?\(c\) [^\W\d_])",
    re.MULTILINE,
)
_YEARS_LENGTH = 24  # bytes at the most of "2010 – 2025 " before a mark  # noqa: RUF003
_LISTED = re.compile(rb"\([ab]\)")
_TIMING = re.compile(
    r"(\b(?:generated|rendered|loaded|served|processed) in )[0-9.,]{1,12}"
    r"(?= ?(?:s|ms|sec|seconds|milliseconds)\b)"
)

_ASCII = bytes(range(128))
# Bytes that the pattern of a date may look at: before its place (a word that makes it a term), and
# from there on.
_BEFORE, _LONGEST = 48, 400


def content_hash(text: str) -> str:
    """Return a hash that is equal for equal content, whatever the day and the case; sha256 hex."""
    return clean_content_hash(_in_one_spelling(text))


def clean_content_hash(text: bytes) -> str:
    """Return the hash of a text from `utf8_text`, whose blanks are normalised already."""
    return hashlib.sha256(_without_the_day(text)).hexdigest()


def _in_one_spelling(text: str) -> bytes:
    lines = text.lower().split("\n")
    text = "\n".join([" ".join(words) for line in lines if (words := line.split())])
    return text.encode("utf-8", "replace")


def _without_the_day(text: bytes) -> bytes:
    """Remove the date of the day, in bytes: much quicker than in characters."""
    whole = lowered = b"\n" + _lower(text)
    seen = _mentions(lowered)
    words = {word for _, word in seen}
    starts = [place + word.startswith(b"\n") for place, word in seen if word not in _NAMES_OWNER]
    lowered = _without(_dated(), lowered, starts, longest=_LONGEST)
    if not words.isdisjoint(_TIMED):
        lowered = _TIMING.sub(r"\1", lowered.decode()).encode()
    if not words.isdisjoint(_NAMES_OWNER):
        # In a shortened text their positions have changed.
        owners = _owners(lowered, seen if lowered is whole else _mentions(lowered))
        years = _years_before([place for place, word in owners if word in _MARKS], lowered)
        lowered = _without(_COPYRIGHT, lowered, sorted([*years, *(place for place, _ in owners)]))
    return lowered[1:]


def _owners(text: bytes, seen: Iterable[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return the mentions of an owner; after an (a) or (b), a (c) is the third of a list."""
    owners = [mention for mention in seen if mention[1] in _NAMES_OWNER]
    if all(word != b"(c)" for _, word in owners) or not (first := _LISTED.search(text)):
        return owners
    return [mention for mention in owners if mention[1] != b"(c)" or mention[0] < first.start()]


def _lower(text: bytes) -> bytes:
    """Return the text in lower case: most letters are ASCII, and most others have no case."""
    others = text.translate(None, _ASCII).decode()
    return text.lower() if others.lower() == others else text.decode().lower().encode()


def _without(pattern: re.Pattern[str], text: bytes, places: Iterable[int], *, longest: int = 100) -> bytes:
    """Remove what follows the group, wherever the pattern matches at a place."""
    parts: list[bytes] = []
    position = 0
    for place in places:
        if place < position:
            continue
        # What a window cuts in two, at its edges, is a character that no pattern looks at.
        before = text[max(place - _BEFORE, 0) : place].decode("utf-8", "ignore")
        window = before + text[place : place + longest].decode("utf-8", "ignore")
        if match := pattern.match(window, len(before)):
            parts.append(text[position : place + len(match[match.lastindex or 0].encode())])
            position = place + len(match[0].encode())
    return b"".join([*parts, text[position:]]) if parts else text


def _mentions(text: bytes) -> list[tuple[int, bytes]]:
    """Return every word that may refer to the day, and its position."""
    spans = [match.span() for match in re2_pattern(_SPEAKS_OF_TIME).finditer(text)]
    return [(start, text[start:end]) for start, end in spans]


def _years_before(marks: Sequence[int], text: bytes) -> list[int]:
    """Return the years that a mark may follow, each once however many marks are near."""
    return [
        year.start()
        for last, place in pairwise([0, *marks])
        if text[place - 2 : place].strip().isdigit()
        for year in _YEAR_IN_BYTES.finditer(text, max(place - _YEARS_LENGTH, last), place)
    ]


@cache
def _dated() -> re.Pattern[str]:
    """Compile on first use: it takes as long as importing the whole package."""
    return re.compile(_DATED, re.MULTILINE)


@cache
def re2_pattern(pattern: str | bytes) -> Any:  # noqa: ANN401 - re2 has no types
    """Compile on first use, with re2: it takes one pass, whatever the text."""
    re2: Any = import_module("re2")
    return re2.compile(pattern)


class QuickCheck:
    """A pattern in re2's syntax, in lower case, for a folded text."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern.encode()

    def sees(self, text: str) -> bool:
        """Return whether the pattern occurs in the text, in whatever case."""
        return re2_pattern(self._pattern).search(folded(text).encode("utf-8", "replace")) is not None


def folded(text: str) -> str:
    """Return the text in lower case, with equal letters as `re` defines them."""
    if text.isascii():
        return text.lower()
    return text.replace("\u0130", "i").replace("\u0131", "i").casefold()
