"""Random sequences of ingestions, merges and splits: every link in its series, every notice once."""

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import series_assignments
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapters, follows, notices, outbox, series
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.series_harness import SeriesHarness, check_invariants, follow, merge_now, split_now

pytestmark = pytest.mark.both_databases

SOURCES = [f"series:{name}" for name in "abcd"]
STEPS = 30


@dataclass(slots=True)
class Simulation:
    """A random simulation: what sources list, and which chapters each recipient must be notified of."""

    harness: SeriesHarness
    random: Random
    listed: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    owed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def begin(self) -> None:
        for position, source in enumerate(SOURCES):
            self.listed[source] = set(range(position + 1, position + 9))
            self.harness.add_source(source, series_id=f"s{position % 3}")
            self.poll(source)
        for name, followed in {"ann": ["s0"], "ben": ["s0", "s1"], "cat": ["s2"]}.items():
            follow(self.harness, name, *followed)

    def step(self) -> None:
        self.harness.clock.advance(minutes=10)
        choice = self.random.choice(["publish", "drop", "notify", "merge", "merge", "split"])
        getattr(self, choice)()

    def publish(self) -> None:
        for source in self.random.sample(SOURCES, self.random.randint(1, 3)):
            self.listed[source].add(max(self.listed[source]) + self.random.randint(1, 2))
            self.poll(source)

    def drop(self) -> None:
        source = self.random.choice(SOURCES)
        self.listed[source].remove(self.random.choice(sorted(self.listed[source])))
        self.poll(source)
        self.poll(source)

    def poll(self, source: str) -> None:
        earlier = {row["id"] for row in self.harness.rows(outbox)}
        self.harness.sync([self.release(source, number) for number in self.listed[source]], by=source)
        with self.harness.store.read() as connection:
            followers = connection.execute(select(follows.c.recipient_id, follows.c.series_id)).all()
        self.owed |= {
            (recipient, row["payload"]["number"])
            for row in self.harness.rows(outbox)
            for recipient, series_id in followers
            if row["id"] not in earlier and series_id == row["payload"]["series_id"]
        }

    @staticmethod
    def release(source: str, number: int) -> Release:
        own = f"{source}/{number}"
        is_oneshot = number == 5
        return a_release(
            number=None if is_oneshot else Decimal(number),
            title="Interlude" if is_oneshot else None,
            source_chapter_id=own,
            url=f"https://a.test/{own}",
        )

    def notify(self) -> None:
        """Turn outbox rows into notices, one per recipient and chapter for ever, some sent at once."""
        with self.harness.store.begin() as connection:
            query = select(outbox).where(outbox.c.handled_at.is_(None))
            for row in connection.execute(query).mappings().all():
                subject = (row["subject_kind"], row["subject_id"])
                notified = select(notices.c.recipient).where(
                    notices.c.subject_kind == subject[0], notices.c.subject_id == subject[1]
                )
                pending_followers = select(follows.c.recipient_id).where(
                    follows.c.series_id == row["payload"]["series_id"], follows.c.recipient_id.not_in(notified)
                )
                for recipient in connection.execute(pending_followers).scalars().all():
                    connection.execute(
                        insert(notices).values(
                            recipient=recipient,
                            subject_kind=subject[0],
                            subject_id=subject[1],
                            status=self.random.choice(["sent", "pending"]),
                            mode="immediate",
                            series_id=row["payload"]["series_id"],
                            payload=row["payload"],
                            created_at=self.harness.clock.at,
                        )
                    )
            connection.execute(update(outbox).values(handled_at=self.harness.clock.at))

    def merge(self) -> None:
        if len(self.live()) > 1:
            merge_now(self.harness, *self.random.sample(self.live(), 2))

    def split(self) -> None:
        with self.harness.store.read() as connection:
            series_by_source = {
                source_id: assignment.series_id
                for source_id, assignment in series_assignments(connection, SOURCES).items()
            }
        old = self.random.choice(sorted(set(series_by_source.values())))
        members = [source_id for source_id in SOURCES if series_by_source[source_id] == old]
        leaving = self.random.sample(members, self.random.randint(1, len(members)))
        merged = [row["id"] for row in self.harness.rows(series) if row["merged_into"] == old]
        others = [series_id for series_id in self.live() if series_id != old]
        new = self.random.choice([*merged, *merged, *others, f"n{len(self.harness.rows(series))}"])
        split_now(self.harness, old, new, *leaving)
        for position, source in enumerate(SOURCES):  # their files are imported again
            self.harness.add_source(source, series_id=f"s{position % 3}")

    def live(self) -> list[str]:
        return [row["id"] for row in self.harness.rows(series) if row["merged_into"] is None]

    def check(self) -> None:
        check_invariants(self.harness)
        with self.harness.store.read() as connection:
            query = select(chapters.c.id, chapters.c.key)
            keys = {str(row.id): row.key for row in connection.execute(query)}
        notified = [(row["recipient"], row["subject_id"]) for row in self.harness.rows(notices)]
        assert max(Counter(notified).values(), default=1) == 1
        assert {subject for _, subject in notified} <= keys.keys()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_ingestions_merges_and_splits_keeps_every_invariant(
    store: Store, clock: FixedClock, settings: Settings, seed: int
) -> None:
    simulation = Simulation(SeriesHarness(store, clock, settings, Random(seed)), Random(seed))
    simulation.begin()
    for _ in range(STEPS):
        simulation.step()
        simulation.check()
    simulation.notify()

    numbers = {str(row["id"]): row["key"] for row in simulation.harness.chapters()}
    rows = simulation.harness.rows(notices)
    notified = {(row["recipient"], numbers[row["subject_id"]]) for row in rows}
    assert simulation.owed
    assert {(recipient, number) for recipient, number in simulation.owed if number is not None} <= notified
