"""Split the text below a course's first line into description, prerequisites and credits."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ingestion_pipeline.catalogs.extraction.rules.course_code import ONE_CODE
from ingestion_pipeline.catalogs.extraction.rules.course_words import CoursePart, is_noise, part_named
from ingestion_pipeline.catalogs.extraction.rules.credits import (
    Credits,
    leading_credits,
    limited,
    read_credits,
    slot_credits,
    trailing_credits,
)
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

MAX_LABEL_CHARACTERS = 60
MAX_CREDIT_LINE_CHARACTERS = 120  # a longer line that mentions credits is part of the description
MIN_PROSE_WORDS = 8
MAX_UNNAMED_LABEL_WORDS = 6
MAX_FACT_WORDS = 6
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
_NOTHING = re.compile(
    r"(?:none|n/?a|no(?:ne)? (?:prerequisites?|required)|not applicable|-+|no|ning[uú]n[oa]?"
    r"|keine(?: \w+){0,3}|aucune?|nessuno|geen|なし|特になし|无|無|없음)\.?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"(?<![A-Z]\.[A-Z])(?<!\b[A-Z])(?<!\b(?:Dr|Mr|St|vs|eg|ie|No))(?<=[.;])\s+(?=[A-Z][a-z]|[A-Z] )"
)
_OF_PREREQUISITES = re.compile(
    r"\b(?:prerequisite|grade|standing|permission|consent|instructor|concurrent|equivalent|gpa"
    r"|admission|admitted|placement|score|approval|completion|enrolled|better|waived|majors? only"
    r"|or higher|credits? (?:of|in)|required|department)\b",
    re.IGNORECASE,
)
# Campus: North. A fact of the course beside its description, with any label.
_FACT = re.compile(r"[^\W\d_][\w()/&'\u2019-]*(?: [\w()/&'\u2019-]+){0,3}(?: \[[^\]]{1,20}\])? ?: \S.*[^.!?\])]")
_LIMIT = re.compile(r"(?:course )?(?P<which>min|max)(?:imum)?\.? .*", re.IGNORECASE)
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
        elif self._is_open or is_prose(line):
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
    """Return whether the line has a known label or credits."""
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


def is_prose(line: str) -> bool:
    """Return whether the line is long enough for a sentence, and ends like one."""
    return line.rstrip().endswith(_ENDS) and length_in_words(line) >= MIN_PROSE_WORDS
