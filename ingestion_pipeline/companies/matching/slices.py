"""One run over listings, for jobs and commands alike: profile, model, loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection

from ingestion_pipeline.companies.boards.expired import close_expired, expired_listings
from ingestion_pipeline.companies.boards.unwatched import close_unwatched, is_any_unwatched
from ingestion_pipeline.companies.matching.analysing import Analyst
from ingestion_pipeline.companies.matching.asking import ModelScorer
from ingestion_pipeline.companies.matching.detail_asking import DetailAsker
from ingestion_pipeline.companies.matching.judging import Rules
from ingestion_pipeline.companies.matching.loop import ListingSlice
from ingestion_pipeline.companies.matching.profile import (
    NOBODY,
    BadProfile,
    FoundProfile,
    NoProfile,
    Profile,
    load_profile,
)
from ingestion_pipeline.companies.matching.waiting import (
    is_work_waiting,
    judge_anew,
    make_due,
    wake_for_profile,
)
from ingestion_pipeline.companies.matching.work import MatchCounts
from ingestion_pipeline.pages.http_fetcher import HttpFetcher
from ingestion_pipeline.pages.workshop import RunContext
from ingestion_pipeline.reading.models import ModelClient
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.findings import Finding
from ingestion_pipeline.store.clock import SteadyClock
from ingestion_pipeline.work.worker import Worker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedSlice:
    """What a run over listings came to; `problem` is what is wrong with the profile, if so.

    `boards` are those of which listings were judged, `closed` how many listings were closed since
    nobody asks their boards any more or their deadline has passed.
    """

    counts: MatchCounts
    boards: frozenset[str] = frozenset()
    rejudged: int = 0
    closed: int = 0
    problem: str | None = None


def profile_path(settings: Settings) -> Path:
    """The profile's file; a relative name is one of the working directory."""
    return Path(settings.match.profile).expanduser().absolute()


def found_profile(settings: Settings) -> FoundProfile:
    """The profile that the settings name, or why there is none."""
    return load_profile(profile_path(settings))


def rules_of(settings: Settings) -> Rules | None:
    """By what listings are judged now; None without a profile that can be used."""
    found = found_profile(settings)
    return Rules(profile=found, settings=settings) if isinstance(found, Profile) else None


def are_listings_waiting(connection: Connection, settings: Settings, *, now: datetime) -> bool:
    """Whether a run would judge or close anything; with a bad profile none would judge."""
    if is_any_unwatched(connection, now=now, settings=settings) or expired_listings(
        connection, now=now
    ):
        return True
    found = found_profile(settings)
    if isinstance(found, BadProfile):
        return False
    rules = Rules(profile=found, settings=settings) if isinstance(found, Profile) else None
    return is_work_waiting(connection, rules, now=now)


def profile_findings(settings: Settings) -> list[Finding]:
    """What is wrong with the profile; nothing where there is none."""
    found = found_profile(settings)
    if not isinstance(found, BadProfile):
        return []
    return [
        Finding(subject=f"{found.path.name}:{one.line}", message=f"{one.key}: {one.message}")
        for one in found.problems
    ]


async def match_slice(
    shop: RunContext,
    worker: Worker,
    fetcher: HttpFetcher,
    *,
    source_ids: Sequence[str] | None = None,
    seconds: float | None = None,
) -> MatchedSlice:
    """Judge what waits, or the listings of these boards; a bad profile judges nothing.

    What only boards list that nobody asks any more, or whose deadline has passed, is closed before.
    """
    closed = await asyncio.to_thread(_close_ended, shop)
    found = found_profile(shop.settings)
    if isinstance(found, BadProfile):
        log.warning("no listing is judged before the profile is mended:\n%s", found)
        return MatchedSlice(counts=MatchCounts(), problem=str(found), closed=closed)
    profile = NOBODY if isinstance(found, NoProfile) else found
    lacking = found if isinstance(found, NoProfile) else None
    rules = Rules(profile=profile, settings=shop.settings)
    rejudged = await asyncio.to_thread(_prepare, shop, rules, source_ids, lacking)
    run = _Run(shop, worker, fetcher, rules, lacking, seconds)
    if lacking is not None or not shop.settings.has_model:
        done = await run.judge(source_ids)
    else:
        async with ModelClient(shop.store, shop.settings) as client:
            done = await run.judge(source_ids, client)
    said = None if lacking is None else str(lacking)
    return replace(done, rejudged=rejudged, closed=closed, problem=said)


def _close_ended(shop: RunContext) -> int:
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        unwatched = close_unwatched(connection, now=now, settings=shop.settings)
        return unwatched + close_expired(connection, now=now)


def _prepare(
    shop: RunContext, rules: Rules, source_ids: Sequence[str] | None, lacking: NoProfile | None
) -> int:
    """With a profile, what waited for one is due, and what others judged is to be judged anew.

    Of boards that were asked for by hand everything is due.
    """
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        if source_ids is not None:
            make_due(connection, source_ids, now=now)
        if lacking is not None:
            return 0
        wake_for_profile(connection, now=now)
    with shop.store.begin() as connection:  # apart: who waits to insert a task holds none
        now = shop.store.clock.now(connection)
        return judge_anew(connection, rules, now=now, source_ids=source_ids)


@dataclass(frozen=True, slots=True)
class _Run:
    shop: RunContext
    worker: Worker
    fetcher: HttpFetcher
    rules: Rules
    lacking: NoProfile | None
    seconds: float | None

    async def judge(
        self, source_ids: Sequence[str] | None, client: ModelClient | None = None
    ) -> MatchedSlice:
        clock = SteadyClock(await asyncio.to_thread(self.shop.store.now))
        scorer = client and ModelScorer(client, self.rules.profile)
        analyst = Analyst(self.rules, clock=clock, scorer=scorer, lacking=self.lacking)
        loop = ListingSlice(
            self.shop,
            self.worker,
            self.fetcher,
            self.rules,
            analyst,
            clock=clock,
            asker=client and DetailAsker(client),
            seconds=self.seconds,
        )
        counts = await loop.run(source_ids)
        return MatchedSlice(counts=counts, boards=frozenset(loop.boards))
