"""Parse course codes and the first line of a course: CS 101 Introduction to Computing (3)."""

import re
from dataclasses import dataclass

from ingestion_pipeline.catalogs.extraction.rules.course_words import names_subject, part_named
from ingestion_pipeline.catalogs.extraction.rules.credits import Credits, credit_ends, heading_credits

MAX_TITLE_CHARACTERS = 200
MAX_TITLE_WORDS = 25
MIN_REST_WORDS = 4  # fewer words say when a course is offered, not what it is about

# COMP SCI 400, CIS*1500, MATH& 151, BUS-A 100, EN.601.226, I&C SCI 31, A&EP 110
_SUBJECT = r"(?<![A-Z])[A-Z][A-Z&_]{0,9}(?:[ /-](?:[A-Z&]{1,9})){0,3}"
_NUMBER = (
    r"[A-Z]{0,2}[0-9]{1,5}(?:[A-Z]{1,2}[0-9]{1,3})?(?:\.[0-9]{1,4})?[A-Z]{0,3}(?![0-9a-z])"
    r"(?:(?:-[A-Z]\b){1,5}|-[0-9A-Z]{1,3}\b)?"
)
_LETTERED = rf"{_SUBJECT}(?:\s{{0,3}}[-*.:_]?\s{{0,3}}){_NUMBER}"
_FIGURES = (
    r"[0-9]{1,2}\.[A-Z]{0,3}[0-9]{2,4}[A-Z]{0,2}|[0-9]{3}-[0-9]{4}-[0-9]{2}[A-Z]?|[0-9]{2}-[0-9]{3}"
    r"|[A-Z]{2}\.[0-9]{3}\.[0-9]{3}|[0-9]{2}:[0-9]{3}:[0-9]{3}"
)
_ONE = rf"(?:{_FIGURES}|{_LETTERED})"
_ALSO = rf"(?:\s*(?:/|,|&|and|or)\s*(?:{_ONE}|[0-9]{{3,5}}[A-Z]{{0,2}}\b))"
CODE = re.compile(rf"{_ONE}{_ALSO}{{0,5}}(?![\w%]|:[0-9]{{2}})")
ONE_CODE = re.compile(_ONE)
_LOOSE_CODE = re.compile(rf"(?:{_ONE}|[A-Za-z][A-Za-z&. -]{{1,40}}?\s?[-*]?\s?{_NUMBER}){_ALSO}{{0,5}}")

_SIGN = re.compile(r"(?=(?:[^0-9]*[0-9]){3})[A-Z0-9][A-Z0-9.:/_*-]{2,19}")
_CODE_LAST = re.compile(
    rf"(?P<title>.{{3,150}}?)(?: ?[(\[] ?(?P<code>{_ONE}) ?[)\]]"
    rf"|(?: [-\u2013\u2014|/]|:|,) (?P<bare>{_ONE}))"
)
# Modern Languages 210: a code only with punctuation after it, or with credits; else a phrase.
_WORDED_CODE = re.compile(
    r"[A-Z][a-z]{1,14}(?: (?:[A-Z][a-z]{1,14}|and|of|&)){0,3}"
    r" [0-9]{2,4}[A-Za-z]?(?:/[A-Z])?(?![\w%])"
)
_HOURS_OF = re.compile(
    r"(?:(?:credit|lecture|lab|laboratory|contact|clinical|studio|semester|quarter|other) )?"
    r"(?:hours?|credits?|units?|points?)\b",
    re.IGNORECASE,
)
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff\ufe0f\u200d"  # arrows to stars, and emoji
_MARKS = re.compile(rf"^[\s*+†‡§#•·»>{_PICTURES}\u2013\u2014-]+")
_KIND = re.compile(  # Module LAWS20011: Law of the Sea
    r"^(?i:course|module|unit|subject|paper|modul|kurs|asignatura|cours)(?i: code)?[:#]? "
    r"(?=[A-Z]{2,9}[ -]?[0-9])"
)
_KIND_OF_TITLE = re.compile(  # Postgraduate Course: Stories of Place (LLLG07031)
    r"^(?:(?:under|post)?graduate )?(?:course|module|unit|subject|modul|kurs|cours"
    r"|asignatura|disciplina): (?=\S)",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"^[\s.:|,;*†‡·•\u2013\u2014-]+")
_HOURS = re.compile(r"(?:(?<!\s)\s++)?+\([0-9]{1,2}(?:[-:,][0-9]{1,2}){1,3}\)$")  # lecture and laboratory hours
_AT_END = re.compile(r"(?<![\s,:;|*†‡·•\u2013\u2014-])[\s,:;|*†‡·•\u2013\u2014-]++$")
_STOP = re.compile(r"(?<![A-Z]\.[A-Z])(?<!\.\.)\.$")
_LONE_STOP = re.compile(r"^[^.]*[a-z]{4}\.$")  # of a whole word; Intro to Comp. Sci. has its own
_TITLE_START = re.compile(
    rf"[{_PICTURES}\s]*+"
    r"[\"'\u201c\u2018(¿¡]?(?:[^\W\d_]|[0-9]{1,4}(?:[a-zA-Z]{1,2}\b|-|\b))"
)
_TERM = re.compile(r"(?:SP|FL|FA|SU|WI|AU|WN|SS|WS) ?20[0-9]{2}")  # FL2020
_COUNT = re.compile(r"[0-9]{1,2}\.(?:0{2,4}|250?|50{1,2}|750?)")
_ALPHABETIC = re.compile(r"[^\W\d_]")
# A text that continues like a sentence about a course is no title.
_SENTENCE = re.compile(
    r"(?:is|are|was|were|will|may|must|should|can|has|have|or|and|with|in|to|at|as|from|for|by|if|on"
    r"|only|does|minimum|grade|concurrently|through|required|course|courses)\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The first line of a course; `title` is empty where another line has it."""

    code: str
    title: str
    credits: Credits | None


def read_heading(line: str) -> Heading | None:
    """Parse a line that begins with a course code; None if it is something else."""
    line = _KIND.sub("", _MARKS.sub("", " ".join(line.split())))
    code = CODE.match(line)
    is_worded = code is None
    code = code or _WORDED_CODE.match(line)
    if code is None or not is_subject(code[0].upper() if is_worded else code[0]):
        return None
    rest = line[code.end() :]
    has_sign = bool(_BETWEEN.match(rest.lstrip()))
    has_stop = rest.startswith(".") or (rest.startswith(":") and bool(_LONE_STOP.search(rest)))
    stated, rest = heading_credits(rest)
    title = clean_title(rest, has_stop=has_stop or stated is not None)
    if not is_title(title) or (is_worded and not (title and (stated or has_sign))):
        return None
    is_count = _HOURS_OF.match(title) if title else _COUNT.fullmatch(code[0])
    if code[0][0].isdigit() and is_count:  # 3.000 Lecture hours, 3.00
        return None
    return Heading(code=clean_code(code[0]), title=title, credits=stated)


def reversed_heading(line: str) -> str | None:
    """Return a heading that ends with its code turned round: Botany (BIO 101), Botany - BIO 101."""
    match = _CODE_LAST.fullmatch(" ".join(line.split()))
    if match is None or not is_title(match["title"]) or read_heading(line):
        return None
    if part_named(match["title"]):  # Prerequisite: BIO 101
        return None
    title = _KIND_OF_TITLE.sub("", match["title"])
    turned = f"{match['code'] or match['bare']} {title}"
    return turned if read_heading(turned) else None


def split_heading(line: str) -> tuple[str, str] | None:
    """Split a line into code, title and credits, and the text after them; None if it lacks one."""
    if not CODE.match(line):
        return None
    for end in credit_ends(line[:MAX_TITLE_CHARACTERS]):
        heading, rest = read_heading(line[:end]), line[end:].lstrip(" .:;\u2013\u2014-")
        if heading and heading.title and heading.credits and len(rest.split()) >= MIN_REST_WORDS:
            return line[:end], rest
    return None


def read_code(text: str, *, is_sure: bool = False) -> str | None:
    """Return the code in an element made for codes, in capitals or not.

    With `is_sure`, any token with three digits counts: 61411, 2026/K-17.
    """
    text = _MARKS.sub("", " ".join(text.split())).rstrip(" .:-\u2013\u2014|")
    match = CODE.match(text) or _LOOSE_CODE.match(text)
    if match and match.end() >= len(text) - 1:
        return clean_code(match[0])
    return text if is_sure and _SIGN.fullmatch(text) else None


def clean_code(code: str) -> str:
    """Return the code as it is written, with single blanks."""
    return " ".join(code.split()).rstrip(".:- ")


def clean_title(text: str, *, has_stop: bool = True) -> str:
    """Return the title without separators from code and credits, and without a full stop."""
    text = _HOURS.sub("", _AT_END.sub("", _BETWEEN.sub("", text)).strip())
    return text[:-1].rstrip() if has_stop and _STOP.search(text) else text


def is_title(text: str) -> bool:
    """Return whether the text can be a course's title; an empty one can."""
    if not text:
        return True
    is_short = len(text) <= MAX_TITLE_CHARACTERS and len(text.split()) <= MAX_TITLE_WORDS
    is_worded = is_short and bool(_ALPHABETIC.search(text))  # 001 numbers a section
    return is_worded and bool(_TITLE_START.match(text)) and not _SENTENCE.match(text)


def is_subject(code: str) -> bool:
    """Return whether the letters before the number may name a subject."""
    if _TERM.fullmatch(code):
        return False
    words = re.match(r"[A-Z&]+(?:[ /-][A-Z&]+)*", code)
    return words is None or names_subject(re.split(r"[ /-]", words[0]))
