"""Where the work is done, as the words of a listing say: the way of working and the place.

Only for what the board does not state. A word counts where it speaks of the job: "an on-site gym",
"hybrid cloud" and "remote teams" say nothing, nor does a text that offers several ways.
"""

from __future__ import annotations

import re

from ingestion_pipeline.companies.listing import Remote

MAX_CHARACTERS = 30_000  # of a text that is looked at; the longest of our samples has 20,000
BEFORE_CHARACTERS = 25  # before "on-site" that may say that it is not the rule
_WORDS = (
    *("remote", "site", "office", "hybrid", "person", "anywhere", "from home", "vor ort"),
    *("présentiel", "presencial"),
)
_PLACE_WORDS = ("location", "standort", "arbeitsort", "lieu", "based", "located")

_ON_SITE = re.compile(
    r"\b(?:on[\s-]?site|in[\s-]office|in[\s-]person|vor Ort|sur site|présentiel|presencial"
    r"|office[\s-]based|in (?:the|our) office (?:every day|each day|daily|full[\s-]?time)"
    r"|work(?:ing)? from (?:the|our)(?: \w{1,20}){0,2} (?:office|headquarters))\b"
    r"(?!\s+(?:reliability|map|speed|performance|content|search|gym|fitness|caf|parking|child|day"
    r"|kitchen|chef|meal|lunch|food|restaurant|canteen|doctor|clinic|health|medical|massage|amenit"
    r"|perk|shower|bar|laundry|interview|visit|meeting|meet|event|training|support|customer|client"
    r"|assessment|final|round|workshop|install|service|inspection|retreat|off-?site"
    r"|with (?:user|customer|client)s"
    r"|at (?:customer|client|event)s?))",
    re.IGNORECASE,
)
_NOT_THE_RULE = re.compile(
    r"\b(?:occasional(?:ly)?|optional(?:ly)?|sometimes|rarely|quarterly|monthly|annual|yearly|once"
    r"|twice|no|not|never|without|customers?|clients?|interviews?|few|travel|meet)\b",
    re.IGNORECASE,
)
_NO_REMOTE = re.compile(
    r"\b(?:no|non|not|never|cannot|(?:is|do|does|can|wo)n?['\u2019]t)[\s-]"
    r"(?:(?:a|an|any|be|fully|offer|offered|available|as|for|to|eligible|suitable|open|able|allow"
    r"|support|provide|permit|consider|currently|performed|done|worked|work|working)\s){0,4}"
    r"(?:remote\b(?!\s+(?:team|colleague|control|server|access))|remotely\b)"
    r"|\bremote (?:work |working |option |options )?(?:is|are) (?:not|unfortunately not)\b"
    r"|\bremote not (?:available|possible|offered|an option)\b"
    r"|\bkein(?:e)? (?:home ?office|remote)",
    re.IGNORECASE,
)
_DAYS = re.compile(
    r"\b(?P<days>[1-5]|one|two|three|four|five)\s+days?\b[^.\n;]{0,20}?"
    r"\b(?:on[\s-]?site|in[\s-](?:the |our |an )?(?:\w{1,20} )?office|in[\s-]person)\b"
    r"|\b(?:on[\s-]?site|in[\s-](?:the |our |an )?(?:\w{1,20} )?office)\b[^.\n;]{0,10}?"
    r"\b(?P<more>[1-5]|one|two|three|four|five)\s+days?\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?\n;]")
_WHOLE_WEEK = frozenset({"5", "five"})
_HYBRID = re.compile(
    r"\bhybrid\b(?!-cloud)(?=\s*(?:$|[.,;:()|/\u2013\u2014-]|\n|(?:role|position|job|work|working|schedule|model|setup"
    r"|set-up|arrangement|policy|remote|office|workplace|in|at|with|from|home)\b))",
    re.IGNORECASE,
)
_REMOTE = re.compile(
    r"\b(?:fully|100 ?%|completely|entirely) remote\b|\bwork(?:ing)? from anywhere\b"
    r"|\bwork(?:ing)? (?:fully |entirely )?remotely\b"
    r"|(?<!hybrid )(?<!hybrid-)(?<!days )(?<!day )\bremote\b"
    r"(?=\s*(?:$|[.,;:()|/\u2013\u2014]|\n|-\s|-first"
    r"|(?:role|position|job|work|working|opportunity|first|friendly|only|within|anywhere|worldwide|eligible|possible|or)\b))",
    re.IGNORECASE,
)
_NAME = r"[A-Z\u00c0-\u00de][\w'\u2019-]{1,30}"
_PLACE = rf"({_NAME}(?: {_NAME}){{0,3}}(?:, {_NAME}(?: {_NAME})?)?)"
_PLACES = (
    re.compile(
        r"(?im:^[ *#_-]{0,5}(?:job )?(?:location|standort|arbeitsort|lieu)[ *_]{0,3}:[ *_]{0,3})"
        rf"{_PLACE}"
    ),
    re.compile(
        r"\b(?i:on[\s-]?site|in[\s-](?:office|person)|hybrid|vor Ort)\b[^.\n]{0,25}?"
        rf"\b(?:in|at|from)(?: the| our)? {_PLACE}"
    ),
    re.compile(
        r"\b(?i:(?:role|position|job|you|candidates?)(?: (?:is|will be|are|must be))?"
        r" (?:based|located))"
        rf" (?:in|at)(?: our)? {_PLACE}"
    ),
    re.compile(rf"\b(?i:on[\s-]?site|hybrid)\b *[,(\u2013-] *{_PLACE}"),
    re.compile(rf"\b(?i:work(?:ing)? (?:from|in|at) (?:our|the)) office in {_PLACE}"),
    re.compile(
        rf"\b(?i:work(?:ing)? (?:from|in|at) (?:our|the)) {_PLACE}"
        r"(?= (?i:office|headquarters|HQ|campus)\b)"
    ),
)
_OFFICE = re.compile(r" (?:Office|HQ|Headquarters|Campus|Studio)$")


def work_mode_in(text: str) -> Remote | None:
    """Return the way of working that the text states; None where it states none, or several."""
    text = _lines_with(_WORDS, text)
    if not text:
        return None
    days = {(match["days"] or match["more"]).lower() for match in _DAYS.finditer(text)}
    is_remote = _REMOTE.search(_NO_REMOTE.sub(" ", text)) is not None
    if _HYBRID.search(text) or days - _WHOLE_WEEK:
        return None if is_remote else Remote.HYBRID
    is_remote = is_remote or "from home" in text.lower()
    is_on_site = bool(days) or _NO_REMOTE.search(text) is not None or _is_on_site(text)
    if is_on_site == is_remote:
        return None
    return Remote.REMOTE if is_remote else Remote.ON_SITE


def _lines_with(words: tuple[str, ...], text: str) -> str:
    """Return the lines that have one of the words: the patterns look at these alone."""
    lines = text[:MAX_CHARACTERS].split("\n")
    return "\n".join(line for line in lines if any(word in line.lower() for word in words))


def _is_on_site(text: str) -> bool:
    for match in _ON_SITE.finditer(text):
        before = text[max(0, match.start() - BEFORE_CHARACTERS) : match.start()]
        sentence = _SENTENCE_END.split(before)[-1]
        if not _NOT_THE_RULE.search(sentence):
            return True
    return False


def places_in_text(text: str) -> tuple[str, ...]:
    """Return the places that the text states as those of the job, the surest first."""
    text = _lines_with((*_WORDS, *_PLACE_WORDS), text)
    stated = (_OFFICE.sub("", match[1]) for rule in _PLACES for match in rule.finditer(text))
    return tuple(dict.fromkeys(stated))
