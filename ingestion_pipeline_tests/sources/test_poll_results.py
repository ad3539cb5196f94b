"""Results of polls: source row, task row and dead letter in one fenced transaction."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import RowMapping, select, update

from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import poll_results, registry
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_results import IngestResult, PollFailure, PollSuccess
from ingestion_pipeline.sources.source import Kind, Source
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import audit_log, dead_letters, sources, tasks
from ingestion_pipeline.tasks import claims
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask, Decision, ReleaseTask, Retry, after_failure
from ingestion_pipeline.tasks.errors import Fatal, Permanent, Resource, Transient, WorkError
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
SOLO = "series:solo"


class PollHarness:
    """A store with one source and its polls, and a fixed clock."""

    def __init__(self, store: Store, clock: FixedClock, settings: Settings, random: Random) -> None:
        self.store, self.clock, self.settings, self.random = store, clock, settings, random

    def add_source(self, **changes: Any) -> None:
        definition = a_definition(id=changes.pop("id", SOLO), kind=changes.pop("kind", Kind.SERIES))
        with self.store.begin() as connection:
            registry.register(connection, [definition], now=self.clock.at)
            if changes:
                connection.execute(update(sources).values(**changes))

    def claim(self) -> list[Task]:
        with self.store.begin() as connection:
            return claims.claim(
                connection, ClaimFilter(kind="poll"), owner="worker", now=self.clock.at, lease=HOUR, limit=10
            )

    def claim_new(self, **changes: Any) -> Task:
        """Add the source and claim its poll."""
        self.add_source(**changes)
        [task] = self.claim()
        return task

    def source(self) -> Source:
        with self.store.read() as connection:
            [source] = sources_by_id(connection, [SOLO]).values()
        return source

    def row(self) -> RowMapping:
        with self.store.read() as connection:
            return connection.execute(select(tasks)).mappings().one()

    def succeed(self, task: Task, *, read_by: str | None = None, **result: Any) -> None:
        source = self.source()
        values: dict[str, Any] = {"outcome": "2 new", "record_count": source.record_count} | result
        success = PollSuccess(
            task=task,
            source=source,
            result=IngestResult(source_id=source.id, **values),
            etag="e",
            last_modified="m",
            is_read=read_by is not None,
            content_hash="h",
            parser_version=read_by,
        )
        with self.store.begin() as connection:
            poll_results.succeed(connection, [success], now=self.clock.at, settings=self.settings, random=self.random)

    def fail(self, task: Task, error: WorkError, stack: str | None = None) -> Decision:
        now, policy = self.clock.at, self.settings.work
        decision = after_failure(task, error, now=now, policy=policy, random=self.random)
        failure = PollFailure(task=task, source=self.source(), error=error, stack=stack, decision=decision)
        with self.store.begin() as connection:
            [final] = poll_results.fail(connection, [failure], now=now, settings=self.settings, random=self.random)
        return final

    def fail_whole_poll(self, error: WorkError) -> int:
        """Wait until the poll is due and fail it until it is dead-lettered; return the number of attempts."""
        self.clock.at = self.row()["not_before"]
        attempts = 0
        while True:
            [task] = self.claim()
            attempts += 1
            if isinstance(self.fail(task, error), DeadLetterTask):
                return attempts
            self.clock.at = self.row()["not_before"]

    def dead_letters(self) -> list[RowMapping]:
        with self.store.read() as connection:
            return list(connection.execute(select(dead_letters)).mappings())

    def audit_actions(self) -> list[str]:
        return [row.action for row in rows(self.store, audit_log)]


@pytest.fixture
def polls(store: Store, clock: FixedClock, settings: Settings, random: Random) -> PollHarness:
    return PollHarness(store, clock, settings, random)


def by_tiers(settings: Settings) -> Settings:
    """Return settings in which the tier alone decides."""
    polling = settings.polling.model_copy(update={"adaptive": False})
    return settings.model_copy(update={"polling": polling})


def test_a_success_rearms_the_poll_at_its_tiers_interval(polls: PollHarness) -> None:
    polls.settings = by_tiers(polls.settings)
    task = polls.claim_new(failure_count=3, status_reason="x", last_error_class="transient")

    polls.succeed(task, read_by="rss:1", new=2, newest_at=NOON, record_count=2, needs_full_read=True)

    row, source = polls.row(), polls.source()
    assert (row["status"], row["attempts"], row["priority"]) == ("PENDING", 0, 1)
    assert 13.5 * MINUTE <= row["not_before"] - NOON <= 16.5 * MINUTE
    assert (row["lease_owner"], row["error"]) == (None, None)
    assert (source.tier, source.failure_count, source.status_reason) == ("hot", 0, None)
    assert (source.next_check_at, source.last_outcome) == (row["not_before"], "2 new")
    assert (source.etag, source.last_modified, source.content_hash) == ("e", "m", "h")
    assert source.parser_version == "rss:1"
    moments = (source.last_checked_at, source.last_success_at, source.last_changed_at)
    assert (*moments, source.last_new_at, source.synced_at) == (NOON,) * 5
    assert (source.record_count, source.needs_full_read) == (2, True)


def test_an_unchanged_poll_leaves_change_sync_and_content_alone(polls: PollHarness, clock: FixedClock) -> None:
    polls.add_source(last_changed_at=NOON, last_new_at=NOON, synced_at=NOON, content_hash="h", record_count=5)
    polls.clock.at = polls.row()["not_before"]
    [task] = polls.claim()
    clock.advance(days=9)
    polls.settings = by_tiers(polls.settings)

    polls.succeed(task, outcome="unchanged")

    source = polls.source()
    assert (source.last_changed_at, source.last_new_at, source.synced_at) == (NOON, NOON, NOON)
    assert (source.content_hash, source.record_count) == ("h", 5)
    assert (source.last_success_at, source.last_outcome) == (clock.at, "unchanged")
    assert (source.tier, polls.row()["priority"]) == ("cold", 3)


def test_an_accepted_drop_lasts_until_a_listing_is_ingested(polls: PollHarness) -> None:
    task = polls.claim_new(accepts_drop=True)
    polls.succeed(task)
    assert polls.source().accepts_drop

    polls.clock.at = polls.row()["not_before"]
    [task] = polls.claim()
    polls.succeed(task, read_by="rss:1", new=2)
    assert not polls.source().accepts_drop


def test_a_tier_that_was_pinned_during_the_poll_is_not_overwritten(polls: PollHarness) -> None:
    task = polls.claim_new()
    before = polls.source()
    with polls.store.begin() as connection:
        connection.execute(update(sources).values(tier="cold", tier_pinned=True))

    success = poll_results.unchanged(task, before, etag=None, last_modified=None)
    with polls.store.begin() as connection:
        poll_results.succeed(connection, [success], now=NOON, settings=polls.settings, random=polls.random)

    assert polls.source().tier == "cold"


def test_a_transient_failure_is_tried_three_times_and_counts_as_one_failure(polls: PollHarness) -> None:
    polls.add_source()
    first, second = Transient("reset", code="reset"), Transient("timeout", code="timeout")

    [task] = polls.claim()
    assert polls.fail(task, first) == Retry(polls.row()["not_before"])
    row = polls.row()
    assert (row["status"], row["attempts"], row["error"]) == ("PENDING", 1, "reset")
    assert timedelta(seconds=5) <= row["not_before"] - NOON <= timedelta(seconds=5.5)
    assert (polls.source().failure_count, polls.dead_letters()) == (0, [])

    attempts = polls.fail_whole_poll(second)

    [dead_letter] = polls.dead_letters()
    assert attempts == 2
    assert (dead_letter["error_code"], dead_letter["error"], dead_letter["attempts"]) == ("timeout", "timeout", 3)
    assert (dead_letter["source_id"], dead_letter["payload"]["url"]) == (SOLO, "https://a.test/feed")
    row, source = polls.row(), polls.source()
    assert (row["status"], row["attempts"], row["error"]) == ("PENDING", 0, "timeout")
    assert (source.failure_count, source.status) == (1, "active")
    assert (source.last_outcome, source.last_error_class) == ("failed: timeout", "transient")
    assert source.next_check_at == row["not_before"] > polls.clock.at + HOUR


def test_five_failed_polls_open_the_breaker_and_not_five_attempts(polls: PollHarness) -> None:
    """Trap 25: one failure per poll, at its last attempt."""
    polls.add_source()
    states: list[tuple[int, str]] = []
    for _ in range(5):
        assert polls.fail_whole_poll(Transient("reset")) == 3
        source = polls.source()
        states.append((source.failure_count, source.status.value))

    assert states == [(1, "active"), (2, "active"), (3, "active"), (4, "active"), (5, "open")]
    assert polls.source().tier == "cold"
    assert polls.row()["not_before"] >= polls.clock.at + DAY
    assert polls.audit_actions() == ["source.open"]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(Resource("429", until=NOON + HOUR, code="rate_limited"), id="rate limit"),
        pytest.param(Fatal("disk full"), id="fatal"),
    ],
)
def test_a_failure_that_is_not_the_sources_fault_is_never_counted(polls: PollHarness, error: WorkError) -> None:
    polls.add_source(failure_count=4, last_outcome="2 new")
    for _ in range(6):
        [task] = polls.claim()
        assert task.attempts == 1
        assert isinstance(polls.fail(task, error), ReleaseTask)
        polls.clock.at = max(polls.row()["not_before"], polls.clock.at + MINUTE)

    row, source = polls.row(), polls.source()
    assert (row["attempts"], row["error"]) == (0, str(error))
    assert (source.failure_count, source.last_outcome) == (4, "2 new")
    assert polls.dead_letters() == []


def test_an_error_with_invalid_characters_is_cleaned_and_stored(polls: PollHarness) -> None:
    task = polls.claim_new()
    quoted = "no listing: 'a\0b\ud800' " + "x" * 9_000

    polls.fail(task, Permanent(quoted, code="c" * 99), stack=f"Traceback: {quoted}")

    [dead_letter] = polls.dead_letters()
    assert dead_letter["stack"].startswith("Traceback: no listing: 'a\N{REPLACEMENT CHARACTER}b?'")
    outcome = polls.source().last_outcome or ""
    assert outcome.startswith("failed: no listing")
    assert len(outcome) == 500


@pytest.mark.parametrize("kind", [Kind.SERIES, Kind.JOB_BOARD])
@pytest.mark.parametrize("code", ["bot_wall", "login_wall"])
def test_a_blocked_page_disables_its_source_at_once_and_is_not_counted(
    polls: PollHarness, kind: Kind, code: str
) -> None:
    task = polls.claim_new(kind=kind, failure_count=2)

    failed = polls.fail(task, Permanent("a.test keeps robots out", code=code))

    source, row = polls.source(), polls.row()
    assert failed == DeadLetterTask()
    assert (source.status, source.failure_count) == ("disabled", 2)
    reason = source.status_reason or ""
    assert code.replace("_", " ") in reason
    assert "a.test keeps robots out" in reason
    assert "`ingest sources enable`" in reason
    assert (row["status"], row["error_code"]) == ("SKIPPED", code)
    assert polls.audit_actions()[-1] == "source.disabled"
    assert [dead_letter["error_code"] for dead_letter in polls.dead_letters()] == [code]
