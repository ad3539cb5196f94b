"""A course put together from its first line and what its other lines say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from ingestion_pipeline.catalogs.entities.course_code import (
    Heading,
    clean_title,
    is_title,
    read_code,
    read_heading,
)
from ingestion_pipeline.catalogs.entities.course_parts import Parts, length_in_words, read_parts
from ingestion_pipeline.catalogs.entities.credits import Credits, heading_credits
from ingestion_pipeline.catalogs.entities.record import RecordField

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
