"""Whether what rules found is a catalogue: courses that are described and that count something."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion_pipeline.catalogs.entities.course_parts import length_in_words
from ingestion_pipeline.catalogs.entities.record import RecordField

LEAST_DESCRIPTION_WORDS = 6  # fewer describe a course that states something else of itself
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
        least = 1 if _states_something(found) else LEAST_DESCRIPTION_WORDS
    return isinstance(text, str) and length_in_words(text) >= least


def _states_something(found: RecordField) -> bool:
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(found.fields.get(name) is not None for name in (*names, "course_prerequisites"))
