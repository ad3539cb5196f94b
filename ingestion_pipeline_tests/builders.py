"""Builders with defaults: a test names only the values it is about."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.sources.source import Definition, Kind, Source, SourceStatus, Tier
from ingestion_pipeline.tasks.task import NewTask, Task, TaskStatus

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)  # the same moment as the fixture `now`


def a_task(**changes: Any) -> Task:
    """A task under its first claim, as `claim` returns it."""
    values: dict[str, Any] = {
        "id": 1,
        "kind": "poll",
        "dedupe_key": "series:solo",
        "source_id": "series:solo",
        "url": "https://a.test/feed",
        "payload": {},
        "status": TaskStatus.PROCESSING,
        "priority": 5,
        "shard": 0,
        "stage": None,
        "state": None,
        "attempts": 1,
        "suspicion": 0,
        "not_before": NOON,
        "lease_owner": "worker",
        "lease_until": NOON,
        "fence": 1,
        "tracking_id": "11111111-1111-4111-8111-111111111111",
        "parent_id": None,
        "ancestry": (),
        "spawn_depth": 0,
        "created_at": NOON,
    }
    return Task(**(values | changes))


def a_new_task(**changes: Any) -> NewTask:
    """A poll of one source, due at noon."""
    values: dict[str, Any] = {
        "kind": "poll",
        "dedupe_key": "series:solo",
        "not_before": NOON,
        "source_id": "series:solo",
        "url": "https://a.test/feed",
    }
    return NewTask(**(values | changes))


def a_definition(**changes: Any) -> Definition:
    """A series source that reads a feed."""
    values: dict[str, Any] = {
        "id": "series:solo",
        "kind": Kind.SERIES,
        "url": "https://a.test/feed",
        "platform": "rss",
        "series": "solo",
    }
    return Definition(**(values | changes))


def a_source(**changes: Any) -> Source:
    """An active series source in the middle tier, never polled."""
    values: dict[str, Any] = dict.fromkeys(Source.__dataclass_fields__) | {
        "id": "series:solo",
        "kind": Kind.SERIES,
        "url": "https://a.test/feed",
        "config": {},
        "origin": "row",
        "host": "a.test",
        "shard": 0,
        "tier": Tier.WARM,
        "tier_pinned": False,
        "status": SourceStatus.ACTIVE,
        "failure_count": 0,
        "record_count": 0,
        "created_at": NOON,
    }
    return Source(**(values | changes))


def a_checked_source(**changes: Any) -> Source:
    """A source that is a month old and was polled at noon."""
    values = {"created_at": NOON - timedelta(days=30), "last_checked_at": NOON, "last_success_at": NOON}
    return a_source(**(values | changes))


def a_release(**changes: Any) -> Release:
    """Chapter 1 in English."""
    values: dict[str, Any] = {
        "number": Decimal(1),
        "title": None,
        "url": "https://a.test/chapter/1",
        "language": "en",
        "scanlation_group": None,
        "source_chapter_id": None,
        "volume": None,
        "published_at": NOON,
    }
    return Release(**(values | changes))
