"""Whether what rules found is a catalogue: courses that are described and that count something."""

from __future__ import annotations

from collections.abc import Sequence

from ingestion_pipeline.catalogs.entities.course_parts import length_in_words
from ingestion_pipeline.catalogs.entities.record import Found

LEAST_DESCRIPTION_WORDS = 6
# So many of them must be described, and state credits or prerequisites, or it is no catalogue.
LEAST_STATED_SHARE = 0.5
LEAST_DESCRIBED_SHARE = 0.5


def is_catalogue(found: Sequence[Found]) -> bool:
    """Whether most of them are described, and most of those state something of a course."""
    described = [one for one in found if _is_described(one)]
    if not described or len(described) < LEAST_DESCRIBED_SHARE * len(found):
        return False
    stated = sum(_states_something(one) for one in described)
    return stated >= LEAST_STATED_SHARE * len(described)


def _is_described(found: Found) -> bool:
    text = found.fields.get("course_description")
    return isinstance(text, str) and length_in_words(text) >= LEAST_DESCRIPTION_WORDS


def _states_something(found: Found) -> bool:
    names = ("course_credits_min", "course_credits_max", "course_ceu_credits", "course_non_credit")
    return any(found.fields.get(name) is not None for name in (*names, "course_prerequisites"))
