"""Whatever is ingested, merged and split, in any order: every link at home, every notice once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import insert, select, update

from ingestion_pipeline.series.chapter import Release
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.canonical_series import series_assignments
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapters, follows, notices, outbox, series
from ingestion_pipeline_tests.builders import a_release
from ingestion_pipeline_tests.series.identity import check_invariants, follow, merge_now, split_now
from ingestion_pipeline_tests.series.syncing import Syncing

SOURCES = [f"series:{name}" for name in "abcd"]
STEPS = 30


@dataclass(slots=True)
class World:
    """What sources list, and what each recipient must have heard of in the end."""

    syncing: Syncing
    random: Random
    listed: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    owed: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def begin(self) -> None:
        for position, source in enumerate(SOURCES):
            self.listed[source] = set(range(position + 1, position + 9))
            self.syncing.given_source(source, series_id=f"s{position % 3}")
            self.poll(source)
        for name, followed in {"ann": ["s0"], "ben": ["s0", "s1"], "cat": ["s2"]}.items():
            follow(self.syncing, name, *followed)

    def step(self) -> None:
        self.syncing.clock.advance(minutes=10)
        choice = self.random.choice(["publish", "drop", "tell", "merge", "merge", "split"])
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
        known = {row["id"] for row in self.syncing.rows(outbox)}
        self.syncing.sync([self.release(source, one) for one in self.listed[source]], by=source)
        with self.syncing.store.read() as connection:
            followers = connection.execute(select(follows.c.recipient_id, follows.c.series_id)).all()
        self.owed |= {
            (recipient, row["payload"]["number"])
            for row in self.syncing.rows(outbox)
            for recipient, series_id in followers
            if row["id"] not in known and series_id == row["payload"]["series_id"]
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

    def tell(self) -> None:
        """Outbox rows become notices, one per recipient and chapter for ever, some sent at once."""
        with self.syncing.store.begin() as connection:
            query = select(outbox).where(outbox.c.handled_at.is_(None))
            for row in connection.execute(query).mappings().all():
                subject = (row["subject_kind"], row["subject_id"])
                heard = select(notices.c.recipient).where(
                    notices.c.subject_kind == subject[0], notices.c.subject_id == subject[1]
                )
                wanted = select(follows.c.recipient_id).where(
                    follows.c.series_id == row["payload"]["series_id"], follows.c.recipient_id.not_in(heard)
                )
                for recipient in connection.execute(wanted).scalars().all():
                    connection.execute(
                        insert(notices).values(
                            recipient=recipient,
                            subject_kind=subject[0],
                            subject_id=subject[1],
                            status=self.random.choice(["sent", "pending"]),
                            mode="immediate",
                            series_id=row["payload"]["series_id"],
                            payload=row["payload"],
                            created_at=self.syncing.clock.at,
                        )
                    )
            connection.execute(update(outbox).values(handled_at=self.syncing.clock.at))

    def merge(self) -> None:
        if len(self.live()) > 1:
            merge_now(self.syncing, *self.random.sample(self.live(), 2))

    def split(self) -> None:
        with self.syncing.store.read() as connection:
            home = {one: found.series_id for one, found in series_assignments(connection, SOURCES).items()}
        old = self.random.choice(sorted(set(home.values())))
        mine = [one for one in SOURCES if home[one] == old]
        leaving = self.random.sample(mine, self.random.randint(1, len(mine)))
        gone = [row["id"] for row in self.syncing.rows(series) if row["merged_into"] == old]
        others = [one for one in self.live() if one != old]
        new = self.random.choice([*gone, *gone, *others, f"n{len(self.syncing.rows(series))}"])
        split_now(self.syncing, old, new, *leaving)
        for position, source in enumerate(SOURCES):  # their files are imported again
            self.syncing.given_source(source, series_id=f"s{position % 3}")

    def live(self) -> list[str]:
        return [row["id"] for row in self.syncing.rows(series) if row["merged_into"] is None]

    def check(self) -> None:
        check_invariants(self.syncing)
        with self.syncing.store.read() as connection:
            query = select(chapters.c.id, chapters.c.key)
            keys = {str(row.id): row.key for row in connection.execute(query)}
        heard = [(row["recipient"], row["subject_id"]) for row in self.syncing.rows(notices)]
        assert max(Counter(heard).values(), default=1) == 1
        assert {subject for _, subject in heard} <= keys.keys()


@pytest.mark.parametrize("seed", range(2))
def test_any_sequence_of_ingestions_merges_and_splits_keeps_the_house_in_order(
    store: Store, clock: FixedClock, settings: Settings, seed: int
) -> None:
    world = World(Syncing(store, clock, settings, Random(seed)), Random(seed))
    world.begin()
    for _ in range(STEPS):
        world.step()
        world.check()
    world.tell()

    numbers = {str(row["id"]): row["key"] for row in world.syncing.chapters()}
    rows = world.syncing.rows(notices)
    heard = {(row["recipient"], numbers[row["subject_id"]]) for row in rows}
    assert world.owed
    assert {(who, number) for who, number in world.owed if number is not None} <= heard
