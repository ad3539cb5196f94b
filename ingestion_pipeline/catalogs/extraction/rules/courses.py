"""A course put together from its first line and what its other lines say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from ingestion_pipeline.catalogs.extraction.record import RecordField
from ingestion_pipeline.catalogs.extraction.rules.course_code import (
    Heading,
    clean_title,
    is_title,
    read_code,
    read_heading,
)
from ingestion_pipeline.catalogs.extraction.rules.course_parts import (
    Parts,
    is_prose,
    label_of,
    length_in_words,
    read_parts,
)
from ingestion_pipeline.catalogs.extraction.rules.credits import Credits, heading_credits
from ingestion_pipeline.catalogs.extraction.rules.page_lines import Line

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode


LEAST_DESCRIPTION_WORDS = 3
MAX_CODE_CHARACTERS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """What elements made for it say of a course; None where a layout has no such element."""

    code: str | None = None
    title: str | None = None
    heading: str | None = None
    credits: Credits | None = None
    description: str | None = None
    prerequisites: str | None = None


def course_found(
    slots: Slots, lines: Iterable[str], *, confidence: float, otherwise: Credits | None = None
) -> RecordField | None:
    """The course that slots and lines describe; None if they name none.

    `otherwise` are credits that the description mentions, for want of better ones.
    """
    rest = list(lines)
    parts = read_parts(rest)
    heading = _heading(slots, parts)
    if heading is None:
        return None
    title, below = heading.title or parts.title, None
    if not title:
        title, below = _title_below(parts)
    description = slots.description or parts.text()
    stated = slots.credits or heading.credits or parts.credits or below or otherwise
    return RecordField(
        fields={
            "course_id": heading.code,
            "course_name": title or None,
            "course_description": _real(description),
            "course_prerequisites": slots.prerequisites or parts.required_before(),
            **credit_fields(stated),
        },
        quotes=credit_quotes(stated),
        confidence=confidence,
    )


def _title_below(parts: Parts) -> tuple[str | None, Credits | None]:
    """The title where it stands in the line after the code's, and the credits at its end.

    The description goes without it.
    """
    lines = parts.before or parts.description
    if not lines or lines[0].endswith(".") or not is_title(lines[0]):
        return None, None
    stated, title = heading_credits(lines.pop(0))
    return clean_title(title), stated


def credit_fields(stated: Credits | None) -> dict[str, str | bool | Decimal | None]:
    """The fields of a course that say what it counts."""
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
    """The words that prove what is concluded from them and does not stand on the page."""
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


def _real(description: str | None) -> str | None:
    if description is None:
        return None
    is_sentence = description.endswith(".") and " " in description
    is_long = length_in_words(description) >= LEAST_DESCRIPTION_WORDS
    return description if is_sentence or is_long else None


ENOUGH_COURSES = 20  # to see how the page sets its courses

_Kind = tuple[str | None, str | None]


def own_lines(courses: Sequence[Sequence[Line]]) -> list[Line]:
    """The lines of the last course that are set as those of the others are.

    A course that stands alone is compared with itself: what is outside the element around its
    first line and its first prose, and has no label, is not its own.
    """
    *others, last = courses
    if len(last) <= 1:
        return list(last)
    return _set_alike(others[:ENOUGH_COURSES], last) if others else _in_one_element(last)


def _set_alike(others: Sequence[Sequence[Line]], last: Sequence[Line]) -> list[Line]:
    starts = [_path(course[0]) for course in (*others, last)]
    depth = _shared(starts)
    shared = starts[0][depth - 1].mem_id if depth else None
    known = {_kind(line, depth, shared) for course in others for line in course}
    kept: list[Line] = []
    for line in last:
        kind = _kind(line, depth, shared)
        if kept and (kind is None or kind not in known):
            break
        kept.append(line)
    return kept


def _in_one_element(last: Sequence[Line]) -> list[Line]:
    prose = next((line for line in last[1:] if is_prose(line.text)), None)
    if prose is None:
        return list(last)
    paths = [_path(last[0]), _path(prose)]
    depth = _shared(paths)
    around = paths[0][depth - 1].mem_id if depth else None
    return [line for line in last if _is_in(line, around) or label_of(line.text)[0] is not None]


def _is_in(line: Line, around: int | None) -> bool:
    return any(node.mem_id == around for node in _upwards(line))


def _kind(line: Line, depth: int, shared: int | None) -> _Kind | None:
    """What the line stands in, of the children of the element around all courses; None: none."""
    path = _path(line)
    if shared is None or len(path) < depth or path[depth - 1].mem_id != shared:
        return None
    return (path[depth].tag, path[depth].attrs.get("class")) if len(path) > depth else ("", None)


def _shared(paths: Sequence[Sequence[LexborNode]]) -> int:
    """How many elements all paths have in common, from the page's root on."""
    levels = zip(*paths, strict=False)
    same = [len({node.mem_id for node in level}) == 1 for level in levels]
    return next((depth for depth, is_same in enumerate(same) if not is_same), len(same))


def _path(line: Line) -> list[LexborNode]:
    return list(_upwards(line))[::-1]


def _upwards(line: Line) -> Iterator[LexborNode]:
    node = line.node
    while node is not None:
        yield node
        node = node.parent


LEAST_CATALOGUE_WORDS = 6  # fewer describe a course that states something else of itself
# So many of them must be described, and state credits or prerequisites, or it is no catalogue.
LEAST_STATED_SHARE = 0.5
LEAST_DESCRIBED_SHARE = 0.5
# Or nearly all of several are described at length: some catalogues state credits elsewhere.
SEVERAL = 4
LENGTH_WORDS = 15
LEAST_LONG_SHARE = 0.8


def is_catalogue(found: Sequence[RecordField]) -> bool:
    """Whether most of them are described, and most of those state something of a course."""
    described = [one for one in found if _is_described(one)]
    if not described or len(described) < LEAST_DESCRIBED_SHARE * len(found):
        return False
    stated = sum(_states_something(one) for one in described)
    return stated >= LEAST_STATED_SHARE * len(described) or _is_long(found)


def is_first_described_alone(found: Sequence[RecordField]) -> bool:
    """Whether the first is described and states something, and the others are only named."""
    is_any_other = any(_is_described(one, 1) or _states_something(one) for one in found[1:])
    return is_catalogue(found[:1]) and not is_any_other


def _is_long(found: Sequence[RecordField]) -> bool:
    long = sum(_is_described(one, LENGTH_WORDS) for one in found)
    codes = {one.fields["course_id"] for one in found}
    return len(codes) == len(found) >= SEVERAL and long >= LEAST_LONG_SHARE * len(found)


def _is_described(found: RecordField, least: int | None = None) -> bool:
    text = found.fields.get("course_description")
    if least is None:
        least = 1 if _states_something(found) else LEAST_CATALOGUE_WORDS
    return isinstance(text, str) and length_in_words(text) >= least


def _states_something(found: RecordField) -> bool:
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(found.fields.get(name) is not None for name in (*names, "course_prerequisites"))
