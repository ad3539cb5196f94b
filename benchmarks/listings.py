"""Listings judged by rules: the loop of `process_listings` against a bare loop without a database.

Ours claims the tasks of 10,000 listings on 100 boards, reads their rows, filters, scores, and
writes companies, decisions, matches and notices in fenced transactions. The bare loop calls the same
`filter_listing`, `rule_score` and `match_result` on the same listings in memory: what is beyond it
is what durability costs. Then 1,000 listings are judged among few and among 100,000 stored ones:
the CPU time for each must not grow.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import insert

from benchmarks.database import Database
from benchmarks.figure import Cost, Figure, middle
from ingestion_pipeline.companies.matching.listed_job import ListedJob
from ingestion_pipeline.companies.matching.listing_rules import filter_listing, match_result, rule_score
from ingestion_pipeline.companies.matching.listing_runs import match_listings, settings_profile
from ingestion_pipeline.companies.matching.profile import Profile, example_profile, load_profile
from ingestion_pipeline.companies.matching.tasks import Rules
from ingestion_pipeline.companies.records import JOB
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.fetcher import FetchLimits, HttpFetcher
from ingestion_pipeline.pages.http.guard import Guard, system_resolver
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import job_listings, tasks
from ingestion_pipeline.tasks.claims import Worker

BOARDS = 100
BAR = 1 / 3  # as a ratio of rates: three times the CPU time of judging alone
GROWTH_BAR = 1 / 1.3  # a listing among 100,000 takes at most so much more
SLICE_SECONDS = 900
WARMING = 20
_number = count(1)
_SKILLS = ("Python", "PostgreSQL", "Go", "Java", "React", "Kubernetes", "PHP", "Spark", "COBOL")
_FILLER = (
    "We are a team of engineers who like to see what they build in use. You will talk to those who"
    " need it, write it down, build it, and look after it. "
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is judged; `stored` are the listings that lie there already."""

    listings: int = 10_000
    few: int = 1_000
    stored: tuple[int, int] = (1_000, 100_000)
    rounds: int = 3


FULL = Sizes()


def measure(database: Database, sizes: Sizes = FULL) -> Iterator[Figure]:
    """Two figures, in listings a second."""
    settings = _settings(database.folder)
    profile = load_profile(Path(settings.match.profile))
    if not isinstance(profile, Profile):
        raise TypeError(str(profile))
    ours: list[Cost] = []
    bare: list[Cost] = []
    for _ in range(sizes.rounds):
        ours.append(_ours(database, settings, sizes.listings))
        bare.append(_bare(database, settings, profile, sizes.listings))
    yield Figure(
        claim=f"listings evaluated by rules: {_said(middle(ours))}",
        database=database.name,
        peer=f"filter and score alone: {_said(middle(bare))}",
        ours=middle(ours),
        theirs=middle(bare),
        bar=BAR,
    )
    yield _growth(database, settings, sizes)


def _growth(database: Database, settings: Settings, sizes: Sizes) -> Figure:
    costs: list[Cost] = []
    _ours(database, settings, WARMING)  # the smaller store goes first, and must not be the cold one
    for stored in sizes.stored:
        given_judged(database.store, settings, stored)
        some = [_ours(database, settings, sizes.few) for _ in range(sizes.rounds)]
        costs.append(middle(some))
    small, large = (f"{size:,}" for size in sizes.stored)
    return Figure(
        claim=f"one among {large} more: {_said(costs[1])}",
        database=database.name,
        peer=f"one among {small} more: {_said(costs[0])}",
        ours=costs[1],
        theirs=costs[0],
        bar=GROWTH_BAR,
    )


def _said(cost: Cost) -> str:
    return f"{1_000 * cost.cpu_seconds / cost.items:.2f} s"  # CPU seconds for 1,000


def _settings(folder: Path) -> Settings:
    profile = folder / "profile.yaml"
    profile.write_text(example_profile())
    variables = {"INGESTION_HOME": str(folder), "INGESTION_MATCH__PROFILE": str(profile)}
    return load_settings(variables)


def _ours(database: Database, settings: Settings, listings: int) -> Cost:
    given_listings(database.store, listings)
    content = ContentStore(database.folder / "content")
    ctx = RunContext(store=database.store, settings=settings, content=content, systems={})

    def work() -> int:
        return asyncio.run(_judge(ctx, listings))

    return database.meter.cost(work)


async def _judge(ctx: RunContext, listings: int) -> int:
    limits = FetchLimits(max_bytes=1_000_000, deadline_seconds=5)
    worker = Worker(ctx.store, lease_seconds=300)
    async with HttpFetcher("benchmark", limits, Guard(frozenset(), system_resolver)) as fetcher:
        done = await match_listings(ctx, worker, fetcher, seconds=SLICE_SECONDS)
    counts = done.counts
    judged = counts.matched + counts.filtered + counts.skipped
    if judged != listings or not counts.matched or not counts.filtered:
        raise RuntimeError(f"of {listings} listings {judged} were judged: {counts}")
    return judged


def _bare(database: Database, settings: Settings, profile: Profile, listings: int) -> Cost:
    now = database.store.now()
    some = [_listing(a_row(number, now=now)) for number in range(listings)]

    def work() -> int:
        for one in some:
            if filter_listing(one, profile, settings.filter, at=now).passed:
                base = rule_score(one, profile)
                match_result(one, profile, base, settings.match, at=now)
        return len(some)

    return database.meter.cost(work)


def _listing(row: dict[str, Any]) -> ListedJob:
    return ListedJob(
        title=row["title"],
        url=row["url"],
        company=row["company_name"],
        locations=(row["location"],),
        description=row["description"],
        salary=row["salary"],
        posted_at=row["posted_at"],
    )


def a_row(number: int, *, now: datetime, of: int = 0) -> dict[str, Any]:
    """A listing of 3 KB; of five, two are filtered and two fit."""
    board = number % BOARDS
    skills = [_SKILLS[(number + step) % len(_SKILLS)] for step in range(3)]
    if number % 3 == 0:
        skills = ["Python", "PostgreSQL", "Kubernetes"]
    level = ("Senior", "Staff", "", "Junior")[number % 4]
    described = f"{_FILLER * 10}You know {', '.join(skills)}. 8 years of experience. {_FILLER * 10}"
    key = sha256(f"{of} {number}".encode()).hexdigest()
    return {
        "source_id": f"job_board:{board}",
        "company_name": f"Company {board}",
        "url": f"https://{board}.test/jobs/{of}-{number}",
        "url_key": key,
        "fingerprint": key,
        "content_hash": key,
        "title": f"{level} Backend Engineer {number}".strip(),
        "location": ("Remote", "Portland, OR", "Berlin, Germany")[number % 3],
        "description": described,
        "salary": {"minimum": "160000", "maximum": "190000", "currency": "USD", "period": "year"},
        "posted_at": now - timedelta(hours=number % 40),
        "status": "open",
        "quality": [],
        "tracking_id": key[:36],
        "first_seen_at": now,
        "first_listed_at": now,
        "changed_at": now,
    }


def given_listings(store: Store, listings: int) -> None:
    """So many new listings, each with its task, as polls of boards leave them."""
    of = next(_number)
    with store.begin() as connection:
        now = store.clock.now(connection)
        rows = [a_row(number, now=now, of=of) for number in range(listings)]
        made = insert(job_listings).returning(job_listings.c.id, sort_by_parameter_order=True)
        ids = connection.execute(made, rows).scalars().all()
        connection.execute(insert(tasks), [_task(id_, row, now=now) for id_, row in zip(ids, rows, strict=True)])


def _task(listing_id: int, row: dict[str, Any], *, now: datetime) -> dict[str, Any]:
    return {
        "kind": JOB,
        "dedupe_key": row["url"],
        "source_id": row["source_id"],
        "url": row["url"],
        "payload": {"listing_id": listing_id, "is_first_sync": False},
        "status": "PENDING",
        "priority": 5,
        "shard": 0,
        "not_before": now,
        "tracking_id": row["tracking_id"],
        "ancestry": [],
        "created_at": now,
        "updated_at": now,
    }


def given_judged(store: Store, settings: Settings, listings: int) -> None:
    """So many listings that were judged by today's rules, and whose tasks are long gone."""
    profile = settings_profile(settings)
    if not isinstance(profile, Profile):
        raise TypeError("there is no usable profile")
    rules = Rules(profile=profile, settings=settings)
    of = next(_number)
    with store.begin() as connection:
        now = store.clock.now(connection)
        for start in range(0, listings, 5_000):
            numbers = range(start, min(start + 5_000, listings))
            rows = [a_row(number, now=now, of=of) for number in numbers]
            for row in rows:
                row |= {"decision": "skipped", "rules_hash": rules.rules_hash(row["content_hash"])}
            connection.execute(insert(job_listings), rows)
