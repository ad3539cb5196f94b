"""Build course records from their first line and the text below, and check that they form a catalogue.

The text is split into description, prerequisites and credits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.record import CandidateRecord
from ingestion_pipeline.catalogs.extraction.rules.course_words import (
    ONE_CODE,
    PHRASES,
    CoursePart,
    Credits,
    Heading,
    clean_title,
    heading_credits,
    is_noise,
    is_title,
    leading_credits,
    limited,
    names_section,
    part_named,
    read_code,
    read_credits,
    read_heading,
    slot_credits,
    trailing_credits,
)
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

MAX_LABEL_CHARACTERS = 60
MAX_CREDIT_LINE_CHARACTERS = 120  # a longer line that mentions credits is part of the description
MIN_PROSE_WORDS = 8
MAX_UNNAMED_LABEL_WORDS = 6
MAX_FACT_WORDS = 6
MIN_FACTS = 1  # "Graduate | Spring" are two
UNNAMED = "\ue000"  # marks a line with an unknown label; its value follows

_LABELLED = re.compile(rf"([^:\uff1a.\n]{{1,{MAX_LABEL_CHARACTERS}}}?)\s*+[:\uff1a]\s*(.*)", re.DOTALL)
_NO_COLON = re.compile(
    r"(pre-?\s?(?:requisites?|reqs?)(?:\(s\))?)[.,;\u2013\u2014-]?\s+(?=\S)(.*)", re.IGNORECASE | re.DOTALL
)
# In the middle of a paragraph a label has a colon, or is the one unambiguous word.
_INSIDE = re.compile(
    r"(?<=[.;!?)\]])\s+(?="
    r"(?:pre-?\s?(?:requisites?|reqs?\.?)(?:\(s\))?(?:\s*(?:/|and|or|&)\s*co-?requisites?(?:\(s\))?)?"
    r"|co-?\s?requisites?(?:\(s\))?|co-?reqs?|antirequisites?|exclusions?|requisites|requirements?|restrictions?"
    r"|(?:typically |usually )?offered|grading(?: basis| system)?|repeat rules|note"
    r"|cross-?listed (?:as|with)|same as|instructors?|lecturers?|taught by)\s*:"
    r"|(?:pre|co)-?requisites?(?:\(s\))?\.?\s+[A-Z0-9(])",
    re.IGNORECASE,
)
# The end of a sentence where a label may begin; `part_named` decides.
_LABEL_INSIDE = re.compile(rf"(?<=[.;!?)\]])\s(?=([^\W\d_][^:.;!?]{{1,{MAX_LABEL_CHARACTERS - 1}}}):)")
_NOTHING = re.compile(rf"(?:{'|'.join(PHRASES['nothing'])})\.?", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<![A-Z]\.[A-Z])(?<!\b[A-Z])(?<!\b(?:Dr|Mr|St|vs|eg|ie|No))(?<=[.;])\s+(?=[A-Z][a-z]|[A-Z] )"
)
_OF_PREREQUISITES = re.compile(rf"\b(?:{'|'.join(PHRASES['of_prerequisites'])})\b", re.IGNORECASE)
# Campus: North. A fact of the course beside its description, with any label.
_FACT = re.compile(r"[^\W\d_][\w()/&'\u2019-]*(?: [\w()/&'\u2019-]+){0,3}(?: \[[^\]]{1,20}\])? ?: \S.*[^.!?\])]")
_LIMIT = re.compile(r"(?:course )?(?P<which>min|max)(?:imum)?\.? .*", re.IGNORECASE)
_BAR = re.compile(r"\s[|\u00b7\u2022\u2219]\s")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")  # scripts that set no blank between words
_ENDS = (".", "!", "?", ")", '"', "\u201d", "\u3002", "\uff01", "\uff1f")
_OFFERED = re.compile(r"(?:usually |typically |normally )?offered\b", re.IGNORECASE)
_HOURS_LINE = re.compile(
    r"[0-9.]+(?:\s*(?:to|or|-)\s*[0-9.]+)?\s*(?:lecture|lab|laboratory|other|contact|clinical|studio"
    r"|seminar|discussion)[a-z ]*hours?.*",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Parts:
    """The parts of a course, collected line by line."""

    description: list[str] = field(default_factory=list[str])
    prerequisites: list[str] = field(default_factory=list[str])
    credits: Credits | None = None
    title: str | None = None
    code: str | None = None
    before: list[str] = field(default_factory=list[str])  # lines above the description's label
    _unnamed: list[list[str]] = field(default_factory=list[list[str]])
    _early: int = 0  # lines of the description above the credits
    _label: CoursePart | None = None
    _has_value: bool = False  # whether the current label has its value
    _is_open: bool = True
    _is_minimum: bool = False  # whether the credits so far are a minimum

    def text(self) -> str | None:
        """Return the description as one paragraph."""
        return " ".join(self._described()).strip() or None

    def _described(self) -> list[str]:
        late = self.description[self._early :]
        if self._early and any(map(is_prose, late)):  # above the credits was a college's name
            return late
        if self.description:
            return self.description
        groups = [[line for line in group if is_prose(line)] for group in self._unnamed]
        longest = max(groups, key=lambda group: max(map(len, group), default=0), default=list[str]())
        return longest or self.before

    def required_before(self) -> str | None:
        """Return the prerequisites; None if the course says that there are none."""
        stated = " ".join(self.prerequisites).strip(" ;,.-\u2013\u2014:")
        whole = " ".join(self.prerequisites).strip(" ;,-\u2013\u2014:")
        return None if not stated or _NOTHING.fullmatch(stated) else whole

    def read(self, line: str) -> None:
        """Add the next line."""
        if not line or (is_noise(line) and not line.startswith(UNNAMED)):
            return
        before, _, after = line.partition(". ")
        if after and len(before.split()) <= MAX_FACT_WORDS and is_noise(f"{before}."):  # Fall. Who draws maps
            line = after
        part, rest = label_of(line)
        if part in {None, CoursePart.CREDITS} and (leading := leading_credits(line)):
            self.credits, line = self.credits or leading[0], leading[1]
            self._label = None
            part, rest = label_of(line)
        if part is CoursePart.CREDITS and rest and (stated := read_credits(line)):
            self._count(stated, line)
            self._begin(CoursePart.OTHER, rest)
        elif part is not None:
            self._begin(part, rest)
        elif self._label is not None:
            self._below(self._label, line)
        else:
            self._unlabelled(line)

    def _below(self, part: CoursePart, line: str) -> None:
        """Add a line under a label; prose below a fact that has its value is a description."""
        is_fact = part in {CoursePart.OTHER, CoursePart.UNNAMED} and self._has_value
        is_described = is_fact and not self.description and is_prose(line)
        self._add(CoursePart.DESCRIPTION if is_described else part, line)
        is_value = not line.endswith(":") and len(line.split()) <= MAX_FACT_WORDS
        self._has_value = self._has_value or (is_value and not is_prose(line))

    def _count(self, stated: Credits, line: str) -> None:
        """Add credits; a maximum on its own line belongs to the minimum before it."""
        which = _LIMIT.fullmatch(line)
        if which and which["which"].lower() == "max" and self._is_minimum and self.credits:
            self.credits = limited(self.credits, stated)
        self.credits = self.credits or stated
        self._is_minimum = which is not None and which["which"].lower() == "min"

    def _begin(self, part: CoursePart, rest: str) -> None:
        if part is CoursePart.DESCRIPTION:  # the lines before were something else
            self.before, self.description, self._early = self.description, [], 0
        elif part is CoursePart.UNNAMED:
            self._unnamed.append([])
        self._is_open = not self.description
        self._label, self._has_value = None if rest else part, False
        if rest:
            self._add(part, rest, is_inline=True)

    def _add(self, part: CoursePart, text: str, *, is_inline: bool = False) -> None:
        match part:
            case CoursePart.DESCRIPTION:
                self.description.append(text)
            case CoursePart.PREREQUISITES:
                self._add_prerequisites(text, is_inline=is_inline)
            case CoursePart.CREDITS:
                self.credits = self.credits or slot_credits(text)
                self._label = None
            case CoursePart.TITLE:
                self.title = self.title or text
                self._label = None
            case CoursePart.CODE:
                self.code = self.code or text
                self._label = None
            case CoursePart.UNNAMED:
                self._unnamed[-1].append(text)
            case CoursePart.OTHER:
                return

    def _add_prerequisites(self, text: str, *, is_inline: bool) -> None:
        if not is_inline:
            self.prerequisites.append(text)
            return
        first, *others = _SENTENCE_END.split(text)
        self.prerequisites.append(first)
        for number, sentence in enumerate(others):
            if _OFFERED.match(sentence):
                continue
            if not _OF_PREREQUISITES.search(sentence) and not ONE_CODE.search(sentence):
                self.description.extend(others[number:])
                return
            self.prerequisites.append(sentence)

    def _unlabelled(self, line: str) -> None:
        is_short = len(line) <= MAX_CREDIT_LINE_CHARACTERS
        is_apart = not is_prose(line) or (line.startswith("(") and line.endswith(")"))
        stated = read_credits(line) if is_short and is_apart else None
        if stated is not None:
            self.credits = self.credits or stated
            self._is_open = not any(map(is_prose, self.description))
            self._early = len(self.description) if self._is_open else self._early
        elif _FACT.fullmatch(line) and len(line.partition(":")[2].split()) <= MAX_FACT_WORDS:
            self._unnamed.append([line])
        elif _HOURS_LINE.fullmatch(line):
            self._is_open = not self.description
        elif (self._is_open and not is_fact_row(line)) or is_prose(line):
            self.credits = self.credits or trailing_credits(line)
            self.description.append(line)


def read_parts(lines: Iterable[str]) -> Parts:
    """Return the parts in the lines below a course's first line."""
    parts = Parts()
    for line in lines:
        for segment in _segments(line):
            parts.read(segment)
    return parts


def stated_prerequisites(text: str | None) -> str | None:
    """Return the text of an element or key for prerequisites, without a repeated label."""
    if text is None:
        return None
    line = " ".join(text.split())
    return read_parts([line if label_of(line)[0] else f"Prerequisites: {line}"]).required_before()


def labelled_text(line: Line) -> str:
    """Return the line's text; a label that is only bold gets a colon.

    An unknown label is marked as `UNNAMED`.
    """
    lead, rest = line.lead, line.rest
    if line.is_term and not (lead and rest):
        return line.text if _is_known(line.text) else UNNAMED
    if not lead or not rest:
        return line.text
    if lead.endswith(":") or rest.startswith(":"):
        is_unnamed = len(lead.split()) <= MAX_UNNAMED_LABEL_WORDS and not _is_known(line.text)
        return f"{UNNAMED}{rest.lstrip(': ')}" if is_unnamed else line.text
    if ":" in lead:
        return line.text
    if part_named(lead.strip(" .*")) is not None:
        return f"{lead.rstrip(' .')}: {rest}"
    return f"{UNNAMED}{rest}" if line.is_term and not _is_known(line.text) else line.text


def part_text(line: Line) -> str:
    """Return the labelled text; an unknown heading is marked as `UNNAMED`, too."""
    text = labelled_text(line)
    return UNNAMED if line.is_heading and label_of(text)[0] is None else text


def _is_known(text: str) -> bool:
    return label_of(text)[0] is not None or read_credits(text) is not None


def label_of(line: str) -> tuple[CoursePart | None, str]:
    """Return the part that the line's label names, and the rest of the line; None without label."""
    if line.startswith(UNNAMED):
        return CoursePart.UNNAMED, line.removeprefix(UNNAMED).strip()
    bare = line.strip(" :.*\uff1a").strip()
    if len(bare) <= MAX_LABEL_CHARACTERS and (part := part_named(bare)):
        return part, ""
    labelled = _LABELLED.fullmatch(line)
    if labelled and (part := part_named(labelled[1].strip(" *-\u2013\u2014•"))):
        return part, labelled[2].strip()
    if prerequisites := _NO_COLON.fullmatch(line):
        return CoursePart.PREREQUISITES, prerequisites[2].strip()
    return None, line


def _segments(line: str) -> Iterator[str]:
    """Split the line where a label is inside it."""
    fields = [field_.strip() for field_ in line.split(" | ")]
    is_row = len(fields) > 1 and sum(":" in field_ for field_ in fields) * 2 >= len(fields)
    for text in fields if is_row else [line]:
        for segment in _INSIDE.split(text):
            yield from _cut_at_prerequisites(segment)


def _cut_at_prerequisites(text: str) -> Iterator[str]:
    """Split the text before each label for prerequisites, of any language."""
    start = 0
    for match in _LABEL_INSIDE.finditer(text):
        if part_named(match[1].strip()) is CoursePart.PREREQUISITES:
            yield text[start : match.start()].strip()
            start = match.end()
    yield text[start:].strip()


def length_in_words(text: str) -> int:
    """Return the number of words; in a script without blanks, two characters count as one."""
    words = len(text.split())
    return words if text.isascii() else words + len(_UNSPACED.findall(text)) // 2


def is_fact_row(line: str) -> bool:
    """Return whether the line is a row of short facts between bars or dots: Undergraduate | 3 credits | Fall."""
    facts = _BAR.split(line)
    return len(facts) > MIN_FACTS and all(len(fact.split()) <= MAX_FACT_WORDS for fact in facts)


def is_prose(line: str) -> bool:
    """Return whether the line is long enough for a sentence, and ends like one."""
    return line.rstrip().endswith(_ENDS) and length_in_words(line) >= MIN_PROSE_WORDS


MIN_DESCRIPTION_WORDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Texts of elements made for a part of a course; None where a layout has no such element."""

    code: str | None = None
    title: str | None = None
    heading: str | None = None
    credits: Credits | None = None
    description: str | None = None
    prerequisites: str | None = None


def build_course(
    slots: Slots, lines: Iterable[str], *, confidence: float, otherwise: Credits | None = None
) -> CandidateRecord | None:
    """Return the course that slots and lines describe; None if they name none.

    `otherwise` are credits that the description mentions, used if there are no others.
    """
    rest = list(lines)
    parts = read_parts(rest)
    heading = _heading(slots, parts)
    if heading is None:
        return None
    title, below = heading.title or parts.title, None
    if not title:
        title, below = _title_below(parts)
    description = slots.description or parts.text() or ""
    is_sentence = description.endswith(".") and " " in description
    is_description = is_sentence or length_in_words(description) >= MIN_DESCRIPTION_WORDS
    stated = slots.credits or heading.credits or parts.credits or below or otherwise
    return CandidateRecord(
        fields={
            "course_id": heading.code,
            "course_name": title or None,
            "course_description": description if is_description else None,
            "course_prerequisites": slots.prerequisites or parts.required_before(),
            **credit_fields(stated),
        },
        quotes=credit_quotes(stated),
        confidence=confidence,
    )


def _title_below(parts: Parts) -> tuple[str | None, Credits | None]:
    """Return the title on the line after the code, and the credits at its end.

    It is removed from the description.
    """
    lines = parts.before or parts.description
    if not lines or lines[0].endswith(".") or not is_title(lines[0]):
        return None, None
    stated, title = heading_credits(lines.pop(0))
    return clean_title(title), stated


def credit_fields(stated: Credits | None) -> dict[str, str | bool | Decimal | None]:
    """Return the credit fields of a course."""
    if stated is None:
        return {}
    return {
        "course_non_credit": True if stated.non_credit else None,
        "course_credits_min": stated.low,
        "course_credits_max": stated.high,
        "course_credits_type": stated.kind,
        "course_ceu_credits": stated.ceu,
    }


def credit_quotes(stated: Credits | None) -> dict[str, str]:
    """Return the words that prove inferred values, which are not on the page themselves."""
    if stated is None:
        return {}
    concluded = {"course_non_credit": stated.quote, "course_credits_type": stated.quote}
    return concluded | ({"course_credits_max": stated.quote} if stated.is_sum else {})


def _heading(slots: Slots, parts: Parts) -> Heading | None:
    read = read_heading(slots.heading) if slots.heading else None
    stated = slots.code or parts.code
    if stated is not None and (code := read_code(stated, is_sure=slots.code is not None)):
        title = clean_title(slots.title or parts.title or "")
        if not title and slots.heading:
            title = read.title if read else clean_title(slots.heading.replace(stated, "", 1))
        return Heading(code=code, title=title, credits=read.credits if read else None)
    if read is not None and slots.title:
        named = read_heading(slots.title)  # an element for titles may repeat the code
        title = named.title if named else clean_title(slots.title)
        return Heading(code=read.code, title=title, credits=read.credits)
    return read


ENOUGH_COURSES = 20  # enough to recognize the layout of the page's courses

_Kind = tuple[str | None, str | None]


def own_lines(courses: Sequence[Sequence[Line]]) -> list[Line]:
    """Return the lines of the last course that have the same layout as those of the others.

    A single course is compared with itself: a line is dropped if it is outside the element around
    the first line and the first prose, and has no label.
    """
    *others, last = courses
    if len(last) <= 1:
        return list(last)
    return _lines_set_alike(others[:ENOUGH_COURSES], last) if others else _in_one_element(last)


def _lines_set_alike(others: Sequence[Sequence[Line]], last: Sequence[Line]) -> list[Line]:
    starts = [_path(course[0]) for course in (*others, last)]
    depth = _shared(starts)
    shared = starts[0][depth - 1].mem_id if depth else None
    known_kinds = {_kind(line, depth, shared) for course in others for line in course}
    own: list[Line] = []
    for line in last:
        kind = _kind(line, depth, shared)
        if own and (kind is None or kind not in known_kinds):
            break
        own.append(line)
    return own


def _in_one_element(last: Sequence[Line]) -> list[Line]:
    prose = next((line for line in last[1:] if is_prose(line.text)), None)
    if prose is None:
        return list(last)
    paths = [_path(last[0]), _path(prose)]
    depth = _shared(paths)
    around = paths[0][depth - 1].mem_id if depth else None
    return [
        line
        for line in last
        if any(node.mem_id == around for node in upwards(line.node)) or label_of(line.text)[0] is not None
    ]


def _kind(line: Line, depth: int, shared: int | None) -> _Kind | None:
    """Return tag and class of the line's ancestor below the shared element; None if outside it."""
    path = _path(line)
    if shared is None or len(path) < depth or path[depth - 1].mem_id != shared:
        return None
    return (path[depth].tag, path[depth].attrs.get("class")) if len(path) > depth else ("", None)


def _shared(paths: Sequence[Sequence[LexborNode]]) -> int:
    """Return how many elements all paths have in common, from the page's root on."""
    levels = zip(*paths, strict=False)
    same = [len({node.mem_id for node in level}) == 1 for level in levels]
    return next((depth for depth, is_same in enumerate(same) if not is_same), len(same))


MIN_CATALOGUE_WORDS = 6  # fewer suffice for a course with credits or prerequisites
# Shares of courses with a description, and with credits or prerequisites, that make a catalogue.
MIN_STATED_SHARE = 0.5
MIN_DESCRIBED_SHARE = 0.5
# Or nearly all of several are described at length: some catalogues state credits elsewhere.
SEVERAL = 4
LENGTH_WORDS = 15
MIN_LONG_SHARE = 0.8


def is_catalogue(courses: Sequence[CandidateRecord]) -> bool:
    """Return whether most courses are described, and most of those have other facts."""
    described = [course for course in courses if _is_described(course)]
    if not described or len(described) < MIN_DESCRIBED_SHARE * len(courses):
        return False
    stated = sum(states_something(course) for course in described)
    long = sum(_is_described(course, LENGTH_WORDS) for course in courses)
    codes = {course.fields["course_id"] for course in courses}
    is_long = len(codes) == len(courses) >= SEVERAL and long >= MIN_LONG_SHARE * len(courses)
    return stated >= MIN_STATED_SHARE * len(described) or is_long


def is_first_described_alone(courses: Sequence[CandidateRecord]) -> bool:
    """Return whether only the first has a description and facts, and the others only names."""
    is_any_other = any(_is_described(course, 1) or states_something(course) for course in courses[1:])
    return is_catalogue(courses[:1]) and not is_any_other


def _is_described(course: CandidateRecord, least: int | None = None) -> bool:
    text = course.fields.get("course_description")
    if least is None:
        least = 1 if states_something(course) else MIN_CATALOGUE_WORDS
    return isinstance(text, str) and length_in_words(text) >= least


def states_something(course: CandidateRecord) -> bool:
    """Return whether the course has credits or prerequisites."""
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(course.fields.get(name) is not None for name in (*names, "course_prerequisites"))


def _path(line: Line) -> list[LexborNode]:
    return list(upwards(line.node))[::-1]


def upwards(node: LexborNode | None) -> Iterator[LexborNode]:
    """Yield the element and those around it, the innermost first."""
    while node is not None:
        yield node
        node = node.parent


def may_name(line: Line) -> bool:
    """Return whether the line may be the title of a course."""
    is_section = names_section(line.text) or label_of(line.text)[0] is not None
    return not is_section and not line.is_term and is_title(line.text)
