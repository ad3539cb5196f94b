"""Whether a page says something new: a hash over its text without the date of the day.

Only what a page says of itself is left out: "as of", "last updated", "today is", a copyright year,
a clock. A date that stands for anything else is content, and so is every other number.
"""

from __future__ import annotations

import hashlib
import re

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
# Where such a phrase can begin. To find words is quick; the pattern above is tried there alone.
_BEGINNINGS = (
    *("as of", "as at", "last ", "latest ", "most recent ", "page ", "site ", "content ", "data "),
    *("information ", "catalog ", "catalogue ", "list ", "listing ", "generated ", "retrieved "),
    *("printed ", "rendered ", "letzte ", "zuletzt ", "aktualisiert ", "derni", "mis à", "mis a"),
    *("ultim", "últim", "actualizado ", "laatst ", "today is", "today's", "current", "local "),
    *("server ", "the time", "it is now", "heute ist", "最終更新", "更新", "最后更新"),
    *("\nupdated", "\ngenerated", "\nrendered", "\nretrieved", "\nprinted", "\nrefreshed"),
    *("\nstand", "\ntoday"),
)
_COPYRIGHT = re.compile(
    r"((?:©|\(c\)|\bcopyright\b)[\s©(c),]{0,8})[0-9]{4}(?:\s?(?:[-–—]|to)\s?(?:[0-9]{4}|present))?"  # noqa: RUF001
    r"(?![0-9])"
)
_COPYRIGHT_AFTER = re.compile(r"\b[0-9]{4}(?:\s?[-–]\s?[0-9]{4})?(?=\s?(?:©|\(c\)))")  # noqa: RUF001
_TIMING = re.compile(
    r"(\b(?:generated|rendered|loaded|served|processed) in )[0-9.,]{1,12}"
    r"(?=\s?(?:s|ms|sec|seconds|milliseconds)\b)"
)


def content_hash(text: str) -> str:
    """Equal for two texts that say the same, whatever the day and the case; sha256 in hex."""
    return hashlib.sha256(without_the_day(text).encode("utf-8", "replace")).hexdigest()


def without_the_day(text: str) -> str:
    """The text in lower case and one spelling of blanks, without the date of the day."""
    lines = (" ".join(line.split()) for line in text.lower().split("\n"))
    said = _undated("\n".join(line for line in lines if line))
    if "ed in " in said:
        said = _TIMING.sub(r"\1", said)
    if "©" in said or "(c)" in said or "copyright" in said:
        said = _COPYRIGHT_AFTER.sub("", _COPYRIGHT.sub(r"\1", said))
    return said


def _undated(text: str) -> str:
    kept: list[str] = []
    position = 0
    for start in _beginnings(text):
        found = _DATED.match(text, start) if start >= position else None
        if found:
            kept.append(text[position : found.end(1)])
            position = found.end()
    kept.append(text[position:])
    return "".join(kept)


def _beginnings(text: str) -> list[int]:
    """Every place where a phrase of the day can begin, in order."""
    lines = "\n" + text
    places: set[int] = set()
    for word in _BEGINNINGS:
        place = lines.find(word)
        while place >= 0:
            # `lines` is one longer than `text`; a word with its line end begins one later.
            places.add(place if word[0] == "\n" else place - 1)
            place = lines.find(word, place + 1)
    return sorted(places)
