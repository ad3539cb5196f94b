"""A board asked once, politely, for its first page: can we read it, and how sure is that?

Pattern and a page that its adapter reads are high; the pattern alone is medium; a page of the
company's own, whatever it says, is low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ingestion_pipeline.companies.analysis.boards import GENERIC, RSS
from ingestion_pipeline.companies.platforms import PLATFORMS, BadConfig, JobBoard, JobPlatform
from ingestion_pipeline.companies.platforms.generic import RECOGNISE
from ingestion_pipeline.companies.platforms.recognised import recognised, sampled
from ingestion_pipeline.companies.states import Confidence
from ingestion_pipeline.pages.paced import PacedFetch
from ingestion_pipeline.pages.request import Answer, Fetched, Request
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.embedded import read_embedded
from ingestion_pipeline.urls import host_of
from ingestion_pipeline.work.errors import Permanent, Resource

FORBIDDEN = "blocked_by_robots"
HTML_ACCEPT = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What is asked of a board; a generic one is a page that says by itself what it is."""

    platform: str
    url: str
    config: Mapping[str, Any]
    board: JobBoard | None
    request: Request
    honours_robots: bool

    @property
    def host(self) -> str:
        """Whom it asks."""
        return host_of(self.request.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The platform to read it by, its config, and how sure that is."""

    platform: str
    config: Mapping[str, Any]
    confidence: Confidence
    said: str


def probe_of(platform: str, url: str, config: Mapping[str, Any]) -> Probe:
    """What to ask of the board.

    Raises:
        BadConfig: address and config do not say whose board it is.
        Permanent: nothing reads boards of this platform.
    """
    if platform == GENERIC:
        return Probe(
            platform=platform,
            url=url,
            config=config,
            board=None,
            request=Request(url=url, accept=HTML_ACCEPT),
            honours_robots=True,
        )
    if platform not in PLATFORMS:
        raise Permanent(f"nothing reads boards of {platform} yet", code="no_reader")
    adapter: JobPlatform = PLATFORMS[platform]
    board = adapter.configure(url, config)
    return Probe(
        platform=platform,
        url=url,
        config=config,
        board=board,
        request=board.first_request(),
        honours_robots=adapter.honours_robots,
    )


async def ask(probe: Probe, fetch: PacedFetch, *, now: datetime) -> ProbeResult:
    """The verdict on the board; what may pass, or is nobody's fault, is raised.

    A board that is not there, or answers with something else, is a verdict: medium, with what it
    said, and a person decides.
    """
    try:
        answer = await fetch(probe.request)
        return _read(probe, answer, now=now)
    except Permanent as error:
        return _unsure(probe, error.code, error.text)
    except Resource as error:
        if error.code != FORBIDDEN:
            raise
        return _unsure(probe, error.code, error.text)


def _read(probe: Probe, answer: Answer, *, now: datetime) -> ProbeResult:
    if not isinstance(answer, Fetched):
        raise Permanent(f"{probe.request.url} sent no body", code="empty_body")
    if probe.board is None:
        return _generic(probe, answer)
    try:
        reading = probe.board.read(
            [answer.body],
            content_types=[answer.content_type],
            urls=[answer.final_url],
            now=now,
        )
    except BadConfig as error:
        raise Permanent(str(error), code="bad_config") from error
    count = len(reading.records)
    # An empty feed may be a feed of anything; an empty board is a board without jobs.
    is_sure = count > 0 or probe.platform != RSS
    return ProbeResult(
        platform=probe.platform,
        config=probe.config,
        confidence=Confidence.HIGH if is_sure else Confidence.MEDIUM,
        said=f"its first page lists {count} jobs",
    )


def _generic(probe: Probe, answer: Fetched) -> ProbeResult:
    """A page of the company's own: read by its data for machines, else by its layout if sure."""
    html = decode(answer.body, answer.content_type)
    postings = sum(1 for _ in read_embedded(html).things("JobPosting"))
    if postings:
        said = f"a page of its own that states {postings} jobs for machines"
        return ProbeResult(
            platform="jsonld",
            config=probe.config or {"may_be_empty": True},
            confidence=Confidence.LOW,
            said=said,
        )
    config = probe.config
    jobs = [] if config else recognised(html, url=answer.final_url)
    if jobs:
        config = {RECOGNISE: True}
        said = f"a page of its own; {len(jobs)} jobs recognised by its layout: {sampled(jobs)}"
    else:
        said = (
            "a page of its own, on which no list of jobs is recognised; it needs `items` and"
            " `fields` (CSS selectors) in its config"
        )
    return ProbeResult(platform="html", config=config, confidence=Confidence.LOW, said=said)


def _unsure(probe: Probe, code: str, text: str) -> ProbeResult:
    is_generic = probe.platform == GENERIC
    return ProbeResult(
        platform="html" if is_generic else probe.platform,
        config=probe.config,
        confidence=Confidence.LOW if is_generic else Confidence.MEDIUM,
        said=f"its first page was not read ({code}): {text[:300]}",
    )
