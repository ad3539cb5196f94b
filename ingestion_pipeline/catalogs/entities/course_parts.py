"""The text under a course's first line, told apart: description, prerequisites, credits, the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from ingestion_pipeline.catalogs.entities.course_code import ONE_CODE
from ingestion_pipeline.catalogs.entities.page_lines import Line
from ingestion_pipeline.catalogs.entities.credits import Credits, read_credits, slot_credits

MAX_LABEL_CHARACTERS = 60
MAX_CREDIT_LINE_CHARACTERS = 120  # a longer line that mentions credits is part of the description
LEAST_PROSE_WORDS = 8


class Part(Enum):
    """What a label announces."""

    DESCRIPTION = "description"
    PREREQUISITES = "prerequisites"
    CREDITS = "credits"
    TITLE = "title"
    CODE = "code"
    OTHER = "other"


_LABELS: tuple[tuple[Part, str], ...] = (
    (Part.OTHER, r"(?:co-?|anti-?|post-?)\s?requisites?(?:\(s\)|s)?|co-?reqs?|exclusions?|concurrent(?:ly)?[a-z ]*"),
    (Part.PREREQUISITES, r"pre-?\s?(?:requisites?|reqs?\.?)(?:\(s\))?(?:\s*(?:/|and|or|&|,)\s*(?:co-?)?(?:requisites?|reqs?)"
                         r"(?:\(s\))?)?(?:\s*(?:&|and)\s*notes)?|(?:course |registration )?requisites?(?:\(s\))?"
                         r"|enrollment requirements?|entry requirements?|(?:course )?requirements?|pre\s?-?\s?or\s?-?co-?requisites?"),
    (Part.DESCRIPTION, r"(?:course |catalog |full |bulletin )*descriptions?|course (?:content|overview|summary)|overview|summary"
                       r"|about(?: this course)?|content|synopsis"),
    (Part.CREDITS, r"(?:total |course |semester |quarter |max(?:imum)? |min(?:imum)? )*(?:credits?|credit[ -](?:hours?|units?|value)"
                   r"|units?|ects(?: credits?)?|ceus?)(?:\s?\(s\)|s)?(?:\s?\(?(?:min(?:imum)?|max(?:imum)?|sch)\)?)?|hours"),
    (Part.TITLE, r"(?:course |long )?(?:title|name)"),
    (Part.CODE, r"(?:course |catalog )?(?:code|number|id|no\.?|#)"),
    (Part.OTHER, r"(?:course |class )?(?:restrictions?|grad(?:e|ing)[a-z/ ]*|(?:typically |usually |when |terms? |semesters? |course )?offered[a-z ]*"
                 r"|offerings?|terms?(?: offered)?|semesters?(?: offered)?|repeat[a-z ]*|attributes?|cross-?\s?list[a-z ]*"
                 r"|(?:also )?(?:same|offered|listed) as|equivalen[a-z ]*|notes?|fees?|(?:course |lab |additional )?fees?(?: type)?|lec(?:ture)?[a-z /]*"
                 r"|lab(?:oratory)?[a-z /]*|(?:weekly |total )?contact hours?|clock hours?|clinical[a-z /]*|departments?(?:\(s\))?"
                 r"|division|college|school|campus(?:es)?|locations?(?:\(s\))?|levels?|schedule types?|instruct[a-z]*(?: type| method| mode)?"
                 r"|component[s]?|formats?|delivery[a-z ]*|mode[a-z ]*|designations?|course designation|breadth[a-z ]*"
                 r"|general education[a-z ]*|gen ed[a-z ]*|ge [a-z]+|core[a-z ]*|distribution[a-z ]*|(?:student |course )?learning"
                 r" (?:outcomes?|objectives?|hours?)|outcomes?|(?:course )?objectives?|textbooks?|last taught|sections?|faculty"
                 r"|additional information|comments?|transfer[a-z ]*|cip(?: code)?|toefl[a-z /]*|language[a-z ]*|duration"
                 r"|subject(?: area)?|type|typical[a-z ]*|recommended[a-z ]*|advisory[a-z ]*|enrollment limit|information|keywords?"
                 r"|prior learning[a-z /]*|credit by exam[a-z ]*|topics?|equate[a-z /]*|acgm[a-z /]*|tccns[a-z /]*|uc/csu|csu|degree applicable)"),
)
_PATTERNS = tuple((part, re.compile(rf"(?:{pattern})", re.IGNORECASE)) for part, pattern in _LABELS)
_LABELLED = re.compile(rf"([^:.\n]{{2,{MAX_LABEL_CHARACTERS}}}?)\s*:\s*(.*)", re.DOTALL)
_NO_COLON = re.compile(r"(pre-?\s?(?:requisites?|reqs?)(?:\(s\))?)[.,;–—-]?\s+(?=\S)(.*)", re.IGNORECASE | re.DOTALL)
# In the middle of a paragraph a label has a colon, or is the one word that nobody misreads.
_INSIDE = re.compile(
    r"(?<=[.;!?)\]])\s+(?=(?:pre-?\s?(?:requisites?|reqs?)(?:\(s\))?(?:\s*(?:/|and|or|&)\s*co-?requisites?(?:\(s\))?)?"
    r"|co-?\s?requisites?(?:\(s\))?|co-?reqs?|antirequisites?|exclusions?|(?:typically |usually )?offered"
    r"|grading(?: basis| system)?|repeat rules|cross-?listed (?:as|with)|same as|note|restrictions?|requisites)\s*:)"
    r"|(?<=[.;!?)\]])\s+(?=(?:pre|co)-?requisites?(?:\(s\))?\.?\s+[A-Z0-9(])",
    re.IGNORECASE,
)
_NOISE = re.compile(
    r"(?:print[ -]friendly.*|add to (?:my )?(?:portfolio|favorites|plan).*|back to top.*|help|share.*|print(?: this page)?|close"
    r"|\[?(?:add to|remove from).*|view (?:sections|catalog entry|course sections|schedule).*|all sections for this course"
    r"|dept/.*|.{0,60} department|facebook.*|tweet.*|(?:opens|open) (?:a|in a) new window.*|expand all.*|collapse.*|skip to.*"
    r"|(?:course )?schedule\s*|.{0,40}\(opens (?:a|in a) new (?:window|tab)\).*|show(?: more| less).*|more info.*|read more.*"
    r"|search.*|see (?:section|schedule)s?.*|register.*|hide.*|formerly .{0,80}|[|•·\-–—_*]+)",
    re.IGNORECASE,
)
_NOTHING = re.compile(r"(?:none|n/?a|no(?:ne)? (?:prerequisites?|required)|not applicable|-+|no)\.?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<![A-Z]\.[A-Z])(?<!\b[A-Z])(?<!\b(?:Dr|Mr|St|vs|eg|ie|No))(?<=[.;])\s+(?=[A-Z][a-z]|[A-Z] )")
_OF_PREREQUISITES = re.compile(
    r"\b(?:prerequisite|grade|standing|permission|consent|instructor|concurrent|equivalent|gpa|admission|admitted|placement"
    r"|score|approval|completion|enrolled|better|waived|majors? only|or higher|credits? (?:of|in)|required|department)\b",
    re.IGNORECASE,
)
_OFFERED = re.compile(r"(?:usually |typically |normally )?offered\b", re.IGNORECASE)
_HOURS_LINE = re.compile(
    r"[0-9.]+(?:\s*(?:to|or|-)\s*[0-9.]+)?\s*(?:lecture|lab|laboratory|other|contact|clinical|studio|seminar|discussion)[a-z ]*hours?.*",
    re.IGNORECASE,
)


@dataclass(slots=True)
class Parts:
    """What the lines of a course say, gathered."""

    description: list[str] = field(default_factory=list[str])
    prerequisites: list[str] = field(default_factory=list[str])
    credits: Credits | None = None
    title: str | None = None
    code: str | None = None
    _label: Part | None = None
    _is_open: bool = True

    def text(self) -> str | None:
        """The description as one paragraph."""
        return " ".join(self.description).strip() or None

    def required_before(self) -> str | None:
        """The prerequisites; None if the course says that there are none."""
        stated = " ".join(self.prerequisites).strip(" ;,.-–—:")
        whole = " ".join(self.prerequisites).strip(" ;,-–—:")
        return None if not stated or _NOTHING.fullmatch(stated) else whole

    def read(self, line: str) -> None:
        """Take in the next line."""
        if not line or _NOISE.fullmatch(line):
            return
        part, rest = label_of(line)
        if part is Part.CREDITS and rest and (stated := read_credits(line)):
            self.credits = self.credits or stated
            self._begin(Part.OTHER, rest)
        elif part is not None:
            self._begin(part, rest)
        elif self._label is not None:
            self._add(self._label, line)
        else:
            self._unlabelled(line)

    def _begin(self, part: Part, rest: str) -> None:
        if part is Part.DESCRIPTION:  # what stood before was something else
            self.description = []
        self._is_open = not self.description
        self._label = None if rest else part
        if rest:
            self._add(part, rest, is_inline=True)

    def _add(self, part: Part, text: str, *, is_inline: bool = False) -> None:
        match part:
            case Part.DESCRIPTION:
                self.description.append(text)
            case Part.PREREQUISITES:
                self._add_prerequisites(text, is_inline=is_inline)
            case Part.CREDITS:
                self.credits = self.credits or slot_credits(text)
                self._label = None
            case Part.TITLE:
                self.title = self.title or text
                self._label = None
            case Part.CODE:
                self.code = self.code or text
                self._label = None
            case Part.OTHER:
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
        stated = read_credits(line) if is_short and not _is_prose(line) else None
        if stated is not None:
            self.credits = self.credits or stated
            self._is_open = not self.description
        elif _HOURS_LINE.fullmatch(line):
            self._is_open = not self.description
        elif self._is_open or _is_prose(line):
            self.description.append(line)


def read_parts(lines: Iterable[str]) -> Parts:
    """What the lines under a course's first line say."""
    parts = Parts()
    for line in lines:
        for piece in _pieces(line):
            parts.read(piece)
    return parts


def stated_prerequisites(text: str | None) -> str | None:
    """What an element or key made for prerequisites says, without the label it may repeat."""
    if text is None:
        return None
    line = " ".join(text.split())
    return read_parts([line if label_of(line)[0] else f"Prerequisites: {line}"]).required_before()


def labelled_text(line: Line) -> str:
    """The line's text; a label that is only set in bold gets its colon."""
    if not line.lead or not line.rest or ":" in line.lead or line.rest.startswith(":"):
        return line.text
    is_label = _part(line.lead.strip(" .*")) is not None
    return f"{line.lead.rstrip(' .')}: {line.rest}" if is_label else line.text


def label_of(line: str) -> tuple[Part | None, str]:
    """What the line announces and what it says of it; None where it is just a line."""
    bare = line.strip(" :.*").strip()
    if len(bare) <= MAX_LABEL_CHARACTERS and (part := _part(bare)):
        return part, ""
    labelled = _LABELLED.fullmatch(line)
    if labelled and (part := _part(labelled[1].strip(" *-–—•"))):
        return part, labelled[2].strip()
    if found := _NO_COLON.fullmatch(line):
        return Part.PREREQUISITES, found[2].strip()
    return None, line


def _part(label: str) -> Part | None:
    return next((part for part, pattern in _PATTERNS if pattern.fullmatch(label)), None)


def _pieces(line: str) -> Iterator[str]:
    """The line, cut where a label stands inside it."""
    return (piece.strip() for piece in _INSIDE.split(line))


def _is_prose(line: str) -> bool:
    return len(line.split()) >= LEAST_PROSE_WORDS and line.rstrip()[-1:] in {".", "!", "?", ")", '"', "”"}
