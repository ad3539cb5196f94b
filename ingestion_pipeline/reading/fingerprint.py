"""Whether a page says something new: a hash over its text without the date of the day.

Only what a page says of itself is left out: "as of", "last updated", "today is", a copyright year,
a clock. A date that stands for anything else is content, and so is every other number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

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
)
_TIMED = frozenset(
    {b"generated ", b"\ngenerated", b"rendered ", b"\nrendered", b"loaded in ", b"served in "}
    | {b"processed in "}
)
_MARKS = ("©".encode(), b"(c)")
_NAMES_OWNER = (*_MARKS, b"copyright")
_NUMBER = re.compile(b"[0-9]++")
_COPYRIGHT = re.compile(
    r"((?:©|\(c\)|\bcopyright\b)[\s©(c),]{0,8})[0-9]{4}(?:\s?(?:[-–—]|to)\s?(?:[0-9]{4}|present))?"  # noqa: RUF001
    r"(?![0-9])"
)
_YEARS_LENGTH = 24  # bytes at the most of "2010 – 2025 " before a mark  # noqa: RUF003
_COPYRIGHT_AFTER = re.compile(r"()\b[0-9]{4}(?:\s?[-–]\s?[0-9]{4})?(?=\s?(?:©|\(c\)))")  # noqa: RUF001
_TIMING = re.compile(
    r"(\b(?:generated|rendered|loaded|served|processed) in )[0-9.,]{1,12}"
    r"(?=\s?(?:s|ms|sec|seconds|milliseconds)\b)"
)

_ASCII = bytes(range(128))
# Bytes that the pattern of a date may look at: before its place (a word that makes it a term), and
# from there on.
_BEFORE, _LONGEST = 48, 900


def content_hash(text: str) -> str:
    """Equal for two texts that say the same, whatever the day and the case; sha256 in hex."""
    return clean_content_hash(_in_one_spelling(text))


def clean_content_hash(text: bytes) -> str:
    """The same of a text as `utf8_text` gives it: its blanks need no second look."""
    return hashlib.sha256(_without_the_day(text)).hexdigest()


def without_the_day(text: str) -> str:
    """The text in lower case and one spelling of blanks, without the date of the day."""
    return _without_the_day(_in_one_spelling(text)).decode()


def _in_one_spelling(text: str) -> bytes:
    lines = text.lower().split("\n")
    text = "\n".join([" ".join(words) for line in lines if (words := line.split())])
    return text.encode("utf-8", "replace")


def _without_the_day(text: bytes) -> bytes:
    """In bytes, where what a page may say of the day is found far quicker than in characters."""
    whole = said = b"\n" + _lower(text)
    seen = _seen(said)
    words = {word for _, word in seen}
    starts = [place + word.startswith(b"\n") for place, word in seen if word not in _NAMES_OWNER]
    said = _without(_DATED, said, starts, longest=_LONGEST)
    if not words.isdisjoint(_TIMED):
        said = _TIMING.sub(r"\1", said.decode()).encode()
    if not words.isdisjoint(_NAMES_OWNER):
        owners = seen if said is whole else _seen(said)  # else they are no longer where they were
        said = _without_years(said, [one for one in owners if one[1] in _NAMES_OWNER])
    return said[1:]


def _without_years(said: bytes, owners: Sequence[tuple[int, bytes]]) -> bytes:
    """The text without the years that stand before or after these names of an owner."""
    marks = [place for place, word in owners if word in _MARKS]
    rest = _without(_COPYRIGHT_AFTER, said, _numbers_before(marks, said))
    if rest is not said:
        owners = [one for one in _seen(rest) if one[1] in _NAMES_OWNER]
    return _without(_COPYRIGHT, rest, [place for place, _ in owners])


def _lower(said: bytes) -> bytes:
    """In lower case: most letters are ASCII, and most others have none."""
    others = said.translate(None, _ASCII).decode()
    return said.lower() if others.lower() == others else said.decode().lower().encode()


def _without(
    pattern: re.Pattern[str], said: bytes, places: Iterable[int], *, longest: int = 100
) -> bytes:
    """The text without what follows the first group, wherever the pattern matches at a place."""
    kept: list[bytes] = []
    position = 0
    for place in places:
        if place < position:
            continue
        # What a window cuts in two, at its edges, is a character that no pattern looks at.
        before = said[max(place - _BEFORE, 0) : place].decode("utf-8", "ignore")
        window = before + said[place : place + longest].decode("utf-8", "ignore")
        if found := pattern.match(window, len(before)):
            kept.append(said[position : place + len(found[1].encode())])
            position = place + len(found[0].encode())
    return b"".join([*kept, said[position:]]) if kept else said


def _seen(said: bytes) -> list[tuple[int, bytes]]:
    """Every word that may speak of the day, and where it is."""
    return [(found.start(), found.group()) for found in _speaks().finditer(said)]


def _numbers_before(marks: Iterable[int], said: bytes) -> list[int]:
    """The numbers that a mark may follow."""
    return [
        number.start()
        for place in marks
        for number in _NUMBER.finditer(said, max(place - _YEARS_LENGTH, 0), place)
    ]


@cache
def _speaks() -> Any:  # noqa: ANN401 - re2 has no types
    re2: Any = import_module("re2")
    return re2.compile(_SPEAKS_OF_TIME.encode())
