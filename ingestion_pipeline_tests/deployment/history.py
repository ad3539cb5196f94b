"""Work for a deployment, and what must be true of its history: nothing lost, nothing doubled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

from sqlalchemy import Connection, func, insert, select, update

from ingestion_pipeline.notices import registry
from ingestion_pipeline.sources.recipients import Follow, Mode, Recipient
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Tier
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    batch_items,
    chapter_sources,
    chapters,
    dead_letters,
    notices,
    outbox,
    series,
    sources,
    tasks,
)
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.deployment.stack import Stack
from ingestion_pipeline_tests.notices.telling import SECRET
from ingestion_pipeline_tests.pollers import rows

LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)
FOLLOWER = "ann"


def given_polls(
    store: Store, count: int, *, hosts: int, per_series: int = 1, first: int = 0, is_followed: bool = False
) -> None:
    """So many sources from the `first` on, known for long, each with one chapter that is new."""
    numbers = range(first, first + count)
    names = sorted({f"series-{number // per_series}" for number in numbers})
    with store.begin() as connection:
        known = [{"id": name, "title": name, "created_at": LONG_AGO} for name in names]
        connection.execute(insert(series), known)
        if is_followed:
            follow(connection, names)
    definitions = [
        a_definition(
            id=f"series:{number}",
            url=f"http://h{number % hosts}.demo.test/feed/{number}",
            series=f"series-{number // per_series}",
            tier=Tier.HOT,
        )
        for number in numbers
    ]
    with store.begin() as connection:  # in one: no first poll comes before they are known for long
        register(connection, definitions, now=store.clock.now(connection))
        connection.execute(update(sources).where(sources.c.synced_at.is_(None)).values(synced_at=LONG_AGO))


def given_follower(store: Store) -> None:
    """Somebody who follows nothing yet."""
    recipient = Recipient(id=FOLLOWER, address="http://hooks.demo.test/ann", mode=Mode.IMMEDIATE)
    with store.begin() as connection:
        registry.add(connection, recipient, actor="test", now=LONG_AGO, secret=SECRET)


def follow(connection: Connection, names: Sequence[str]) -> None:
    """The follower is told of these series."""
    for name in names:
        registry.follow(connection, FOLLOWER, Follow(series=name), actor="test", now=LONG_AGO)


def polled(store: Store) -> int:
    """How many sources have been polled to the end."""
    with store.read() as connection:
        query = select(func.count()).where(sources.c.last_success_at.is_not(None))
        return connection.execute(query.select_from(sources)).scalar_one()


def told(store: Store) -> int:
    """How many notices of chapters have been sent."""
    with store.read() as connection:
        is_sent = (notices.c.status == "sent") & (notices.c.subject_kind == "chapter")
        query = select(func.count()).select_from(notices).where(is_sent)
        return connection.execute(query).scalar_one()


def assert_one_effect_each(store: Store, count: int, *, per_series: int = 1, followers: int = 0) -> None:
    """Every source was polled; every chapter is one row, one piece of news, one notice each."""
    assert polled(store) == count
    links = Counter(row.source_id for row in rows(store, chapter_sources))
    assert links == Counter(f"series:{number}" for number in range(count))
    expected = count // per_series
    # Of runs that died people are told, too.
    news = [row for row in rows(store, outbox) if row.subject_kind == "chapter"]
    notes = [row for row in rows(store, notices) if row.subject_kind == "chapter"]
    found = (len(rows(store, chapters)), len(news), len(notes))
    assert found == (expected, expected, expected * followers), found
    assert {row.status for row in rows(store, tasks) if row.kind == "poll"} == {"PENDING"}
    assert rows(store, dead_letters) == []
    assert rows(store, batch_items) == []


def feeds_asked(stack: Stack) -> Counter[str]:
    """How often each feed was asked for."""
    return Counter(one["path"] for one in stack.asked() if one["path"].startswith("/feed/"))


def closest(stack: Stack) -> float:
    """The shortest time between two feeds of one host."""
    times: dict[str, list[float]] = defaultdict(list)
    for one in stack.asked():
        if one["path"].startswith("/feed/"):
            times[one["host"]].append(one["at"])
    gaps = [b - a for at in times.values() for a, b in pairwise(at)]
    return min(gaps)


def messages(stack: Stack) -> Counter[str]:
    """How often each message was delivered, by its idempotency key."""
    return Counter(one["message"] for one in stack.asked() if one["message"])
