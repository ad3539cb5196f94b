"""What each phase of an analysis comes to: closed types, for whoever runs the phases."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from ingestion_pipeline.pages.page import NewPage
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.reading import Problem
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.work.errors import WorkError


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """A page as a phase needs it: where it was found, its markup, and where it leads."""

    url: str
    html: str
    links: tuple[str, ...] = ()

    @classmethod
    def of(cls, page: NewPage) -> FetchedPage:
        """The page that a visitor brought."""
        html = decode(page.body, page.content_type)
        return cls(url=page.final_url, html=html, links=page.links)


# Brings a page politely, in a browser where it needs one; raises a `WorkError` if it cannot.
Visit = Callable[[str], Awaitable[FetchedPage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFailed:
    """The phase came to nothing; the error's class says whether to come back, and when."""

    error: WorkError


@dataclass(frozen=True, slots=True, kw_only=True)
class Informed:
    """What the website is the website of, from which pages; what went wrong by the way."""

    business: Business
    pages: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


class PromptedBy(StrEnum):
    """Who formed the prompts."""

    OPERATOR = "operator"
    MODEL = "model"
    TEMPLATES = "templates"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """One question for all providers; a direct one names the business."""

    text: str
    is_direct: bool
    by: PromptedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """The prompts in the order in which they are asked."""

    prompts: tuple[AskedPrompt, ...]
    language: str
    problems: tuple[Problem, ...] = ()

    def as_json(self) -> list[dict[str, str | bool]]:
        """As `website_analyses.prompts` keeps them."""
        return [
            {"text": one.text, "is_direct": one.is_direct, "by": one.by.value}
            for one in self.prompts
        ]


InformationOutcome = Informed | PhaseFailed
PromptsOutcome = Prompted | PhaseFailed
