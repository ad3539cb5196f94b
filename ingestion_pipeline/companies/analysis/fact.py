"""What a page states of its company: a value, where it was found, and what proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ingestion_pipeline.companies.analysis.site import Role
from ingestion_pipeline.companies.names import is_word_for_nothing
from ingestion_pipeline.reading.embedded import EmbeddedData
from ingestion_pipeline.reading.grounding import BY_SOURCE, Grounding, ground

if TYPE_CHECKING:
    from ingestion_pipeline.companies.analysis.site import SiteLink

# The fields of C15, in the order in which they are shown.
TEXT_FIELDS = ("about", "culture", "mission", "size", "headquarters", "industry")
FIELDS = (*TEXT_FIELDS, "founded")
MOST_CHARACTERS = {"about": 4_000, "culture": 4_000, "mission": 1_000}
MOST_OTHERWISE = 200


class FactMethod(StrEnum):
    """Who found a value: data for machines, the page's head, rules on its text, or a model."""

    EMBEDDED = "embedded"
    META = "meta"
    TEXT = "text"
    MODEL = "model"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanyPage:
    """A page of the company as it was seen; `text` is what a visitor reads, a line per block.

    `embedded_urls` are of frames, scripts and forms; `script_urls` are what inline scripts mention.
    """

    url: str
    role: Role
    text: str
    headed: tuple[tuple[str, str], ...]
    embedded: EmbeddedData
    anchors: tuple[SiteLink, ...]
    embedded_urls: tuple[str, ...]
    script_urls: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A value of a field, found on `page` by `rung`."""

    value: str | int
    rung: FactMethod
    page: str
    grounding: Grounding

    def as_evidence(self) -> dict[str, object]:
        """What is kept beside the value."""
        found = self.grounding
        evidence: dict[str, object] = {
            "page": self.page,
            "rung": self.rung.value,
            "status": found.status.value,
        }
        if found.start is not None:
            evidence |= {"start": found.start, "end": found.end}
        return evidence


Facts = Mapping[str, Fact]


def stated(field: str, value: str | int, *, page: CompanyPage, rung: FactMethod) -> Fact | None:
    """The fact, proved by the page's text; None if the value says nothing.

    What a page says to machines need not stand in its text: then its own data are the proof. Of
    rules and models everything must stand there.
    """
    fitting = value if isinstance(value, int) else clean_value(field, value)
    if fitting is None:
        return None
    found = _grounded(fitting, page.text)
    if not found.is_proof and rung in {FactMethod.EMBEDDED, FactMethod.META}:
        found = BY_SOURCE
    return Fact(value=fitting, rung=rung, page=page.url, grounding=found)


def _grounded(value: str | int, text: str) -> Grounding:
    """What proves the value; of several paragraphs each must stand there, for itself."""
    if isinstance(value, int) or "\n" not in value:
        return ground(value, text)
    found = [ground(line, text) for line in value.split("\n")]
    unproved = next((one for one in found if not one.is_proof), None)
    if unproved is not None:
        return unproved
    return Grounding(found[0].status, found[0].start, found[-1].end)


def clean_value(field: str, value: str) -> str | None:
    """The value in one piece and of bounded length; None for a blank or a word for nothing."""
    lines = [" ".join(line.split()) for line in value.split("\n")]
    text = "\n".join(line for line in lines if line)
    if is_word_for_nothing(text):
        return None
    most = MOST_CHARACTERS.get(field, MOST_OTHERWISE)
    if len(text) <= most:
        return text
    # a long one is cut between words; of a short field a long value is a mistake
    return text[:most].rpartition(" ")[0] if field in MOST_CHARACTERS else None
