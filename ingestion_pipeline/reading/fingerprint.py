"""Whether a page says something new: a hash over its text without the date of the day.

Only what a page says of itself is left out: "as of", "last updated", "today is", a copyright year,
a clock. A date that stands for anything else is content, and so is every other number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

_MONTH = (
    r"(?:jan(?:uar[yi]?|vier|eiro)?|feb(?:ruar[yi]?|braio)?|f[ée]vr(?:ier)?|m[aä]r(?:ch|z|s|zo|ts)?"
    r"|apr(?:il|ile)?|avr(?:il)?|abr(?:il)?|ma[yi]o?|mai|june?|jun[io]{0,2}|juin|july?|jul[io]{0,2}"
    r"|juillet|aug(?:ust)?|ao[uû]t|agosto|sep(?:t(?:ember|embre)?|tiembre)?|set(?:tembre|embro)?"
    r"|o[ck]t(?:ober|obre|ubro|ubre)?|out(?:ubro)?|nov(?:ember|embre|iembre|embro)?"
    r"|de[cz](?:ember|embre|iembre|embro)?|d[ée]c(?:embre)?|dic(?:iembre|embre)?)\.?"
)
_WEEKDAY = (
    r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?|(?:mon|diens|donners|frei"
    r"|sams|sonn)tag|mittwoch|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes"
    r"|mi[ée]rcoles|jueves|viernes|s[áa]bado|domingo)\.?,?"
)
_CLOCK = (
    r"(?:[0-9]{1,2}[:h][0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?|[0-9]{1,2}\.[0-9]{2}(?=\suhr))"
    r"(?:\s?[ap]\.?m\b\.?)?(?:\s?(?:uhr|utc|gmt|z|[a-z]{1,2}[sd]t|cet|cest)\b)?"
    r"(?:\s?[+-][0-9]{2}:?[0-9]{2})?"
)
_DAY = (
    rf"(?:[0-9]{{4}}[-/.][0-9]{{1,2}}[-/.][0-9]{{1,2}}(?:t{_CLOCK})?"
    r"|[0-9]{1,2}[-/.][0-9]{1,2}[-/.](?:[0-9]{4}|[0-9]{2})"
    r"|[0-9]{4}年[0-9]{1,2}月[0-9]{1,2}日|[0-9]{4}년\s?[0-9]{1,2}월\s?[0-9]{1,2}일"
    rf"|{_MONTH}\s[0-9]{{1,2}}(?:st|nd|rd|th)?(?:,?\s[0-9]{{4}})?"
    rf"|[0-9]{{1,2}}(?:st|nd|rd|th|\.|er)?\s(?:de\s)?{_MONTH}(?:,?\s(?:de\s)?[0-9]{{4}})?"
    rf"|{_MONTH}\s[0-9]{{4}})"
)
_MOMENT = (
    rf"(?:(?:{_WEEKDAY}\s)?{_DAY}(?:,?\s(?:at\s|um\s|à\s|-\s|\|\s)?{_CLOCK})?"
    rf"|{_CLOCK}(?:,?\s(?:on\s)?(?:{_WEEKDAY}\s)?{_DAY})?)"
)
_AGO = (
    r"(?:(?:about\s|over\s)?(?:[0-9]{1,4}|an?|one|a few)\s"
    r"(?:second|minute|hour|day|week|month|year)s?\sago|just now|yesterday|today)"
)
# Words that make a date a term of the content: "effective as of".
_TERM = r"(?<!effective )(?<!starting )(?<!beginning )(?<!valid )(?<!due )(?<!deadline )"
_SAYS = (
    r"as (?:of|at)|last\s(?:updated?|modified|modification|changed?|revised|revision|reviewed"
    r"|refresh(?:ed)?|edited|checked|published)(?:\sdate)?|(?:latest|most recent)\s"
    r"(?:updated?|modification|revision|change)|(?:page|site|content|information|data|catalog(?:ue)?"
    r"|list|listing)\s(?:updated|modified|generated|rendered|refreshed)"
    r"|(?:generated|retrieved|printed|rendered)(?=\s(?:on|at)\s)"
    r"|letzte [äa]nderung|zuletzt (?:aktualisiert|ge[äa]ndert)|aktualisiert(?= am)"
    r"|derni[èe]re mise [àa] jour|mis [àa] jour(?= le)|[úu]ltima actualizaci[óo]n"
    r"|actualizado(?= el)|[úu]ltima atualiza[çc][ãa]o|ultimo aggiornamento|laatst bijgewerkt"
    r"|最終更新日?時?|更新日時?|更新时间|最后更新"
)
_NOW = (
    r"today is|today's date(?: is)?|(?:current|local|server)\s(?:date|time)(?:\s(?:and|&)\stime)?"
    r"(?: is)?|(?:the time|it) is now|currently it is|heute ist"
)
# At the head of a line these speak of the page itself; elsewhere, of anything.
_ALONE = r"(?:updated|generated|rendered|retrieved|printed|refreshed|stand|today)"
_JOINT = r"\s?[:：=–-]?\s?(?:(?:on|at|the|am|vom|le|el|il)\s)?"  # noqa: RUF001 - found so
_DATED = re.compile(
    rf"((?:{_TERM}\b(?:{_SAYS}|{_NOW})|^{_ALONE}(?=[\s:：])){_JOINT})"  # noqa: RUF001 - found so
    rf"(?:{_MOMENT}|{_AGO})(?![0-9])",
    re.MULTILINE,
)
# Where such a phrase can begin. The pattern above is tried there alone, and looked for only where a
# moment follows: all of them have a digit or one of four words, and no phrase is longer than that.
# The character before it is taken first: to ask everywhere for a word's edge takes far longer.
_BEGINNING = re.compile(
    r"\W(?=as (?:of|at)|la(?:st |test |atst )|most recent |page |site |content |data |information "
    r"|catalog(?:ue)? |list(?:ing)? |generated |retrieved |printed |rendered |letzte |zuletzt "
    r"|aktualisiert |derni|mis [àa]|[uú]ltim|actualizado |today(?: is|'s)|current|local |server "
    rf"|the time|it is now|heute ist|最終更新|更新|最后更新|(?<=\n){_ALONE})"
)
_PHRASE_LENGTH = 80  # up to the first digit: 57 in "current date and time is: the donnerstag., ..."
_NUMBER = re.compile("[0-9]++")
_DIGITS_ALIKE = bytes.maketrans(b"123456789", b"000000000")
_RELATIVE = (b"ago", b"just now", b"yesterday", b"today")
_COPYRIGHT = re.compile(
    r"((?:©|\(c\)|\bcopyright\b)[\s©(c),]{0,8})[0-9]{4}(?:\s?(?:[-–—]|to)\s?(?:[0-9]{4}|present))?"  # noqa: RUF001
    r"(?![0-9])"
)
_MARKS = ("©", "(c)")
_YEARS_LENGTH = 13  # "2010 - 2025 " before a mark
_COPYRIGHT_AFTER = re.compile(r"()\b[0-9]{4}(?:\s?[-–]\s?[0-9]{4})?(?=\s?(?:©|\(c\)))")  # noqa: RUF001
_TIMING = re.compile(
    r"(\b(?:generated|rendered|loaded|served|processed) in )[0-9.,]{1,12}"
    r"(?=\s?(?:s|ms|sec|seconds|milliseconds)\b)"
)


def content_hash(text: str, *, is_clean: bool = False) -> str:
    """Equal for two texts that say the same, whatever the day and the case; sha256 in hex.

    With `is_clean` the text is as `cleaned_text` gives it: its blanks need no second look.
    """
    said = without_the_day(text, is_clean=is_clean)
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()


def without_the_day(text: str, *, is_clean: bool = False) -> str:
    """The text in lower case and one spelling of blanks, without the date of the day."""
    said = text.lower()
    if not is_clean:
        lines = said.split("\n")
        said = "\n".join([" ".join(words) for line in lines if (words := line.split())])
    said = "\n" + said
    said = _without(_DATED, said, _beginnings(said))[1:]
    if "ed in " in said:
        said = _TIMING.sub(r"\1", said)
    marks = [*_places(said, _MARKS)]
    if named := [*marks, *_places(said, ("copyright",))]:
        said = _without(_COPYRIGHT, said, sorted(named))
    return _without(_COPYRIGHT_AFTER, said, _years(said)) if marks else said


def _without(pattern: re.Pattern[str], text: str, starts: Iterable[int]) -> str:
    """The text without what follows the first group, wherever the pattern matches at a start."""
    kept: list[str] = []
    position = 0
    for start in starts:
        found = pattern.match(text, start) if start >= position else None
        if found:
            kept.append(text[position : found.end(1)])
            position = found.end()
    kept.append(text[position:])
    return "".join(kept)


def _beginnings(text: str) -> Iterator[int]:
    """Every place where a phrase of the day can begin and a moment may follow, in order."""
    for start, end in _before_moments(text):
        for found in _BEGINNING.finditer(text, start, end):
            yield found.end()


def _before_moments(text: str) -> Iterator[tuple[int, int]]:
    """The stretches before digits and words for a moment, as wide as a phrase is long.

    None overlaps the next.
    """
    # One byte a character, whatever it is: to find one byte is far quicker than a pattern.
    marks = text.encode("ascii", "replace").translate(_DIGITS_ALIKE)
    for word in _RELATIVE:
        marks = marks.replace(word, b"0" + word[1:])
    place = marks.find(b"0")
    while place >= 0:
        begin, end = place - _PHRASE_LENGTH, place + 1
        while (place := marks.rfind(b"0", end, end + _PHRASE_LENGTH + 1)) >= 0:
            end = place + 1
        yield max(begin, 0), end
        place = marks.find(b"0", end)


def _years(text: str) -> Iterator[int]:
    """The numbers that a mark may follow."""
    for place in sorted(_places(text, _MARKS)):
        for number in _NUMBER.finditer(text, max(place - _YEARS_LENGTH, 0), place):
            yield number.start()


def _places(text: str, words: Iterable[str]) -> Iterator[int]:
    for word in words:
        place = text.find(word)
        while place >= 0:
            yield place
            place = text.find(word, place + 1)
