"""Freshness objectives: how late a source was, its error budget, and the one alert when it is gone."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.operations.alerts import measure_freshness
from ingestion_pipeline.operations.freshness import Attainment, attainments, lateness
from ingestion_pipeline.operations.source_health import as_row, reported, source_statuses
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import freshness_days, outbox, sources
from ingestion_pipeline_tests.builders import NOON

FEED: dict[str, Any] = {"id": "series:solo", "kind": "series", "url": "https://a.test/feed.xml", "platform": "rss"}
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
BUDGET = 0.01 * timedelta(days=30)  # 7.2 hours


@pytest.mark.parametrize(
    ("since", "fresh_at", "success", "measured", "late"),
    [
        (-5, -60, -3, 5, 0),  # checked in time
        (-5, -60, -60, 5, 0),  # not checked since, and not late yet
        (-5, -121, -121, 5, 1),  # late for a minute
        (-5, -200, -3, 5, 2),  # late until the check
        (-5, -200, -200, 5, 5),
        (-600, -700, -60, 60, 0),  # maintenance paused: nobody knows what succeeded before the last check
        (-600, -700, -700, 600, 580),
    ],
)
def test_a_source_is_late_from_its_max_delay_after_a_success_until_the_next(
    since: int, fresh_at: int, success: int, measured: int, late: int
) -> None:
    at = {"since": NOON + since * MINUTE, "fresh_at": NOON + fresh_at * MINUTE, "success": NOON + success * MINUTE}

    assert lateness(2 * HOUR, **at, now=NOON) == (60 * measured, 60 * late)


@pytest.mark.parametrize(("stated", "seconds"), [("30m", 1_800), ("2h", 7_200), ("1d", 86_400)])
def test_a_source_file_states_the_objective_as_a_duration(stated: str, seconds: int) -> None:
    definition, problems = definition_of(FEED | {"max_delay": stated})

    assert problems == []
    assert definition is not None
    assert definition.max_delay_seconds == seconds


@pytest.mark.parametrize("stated", ["soon", "2 h", "0h", "5m", 3600, "1.5h"])
def test_a_bad_objective_is_refused_with_its_field(stated: object) -> None:
    definition, problems = definition_of(FEED | {"max_delay": stated})

    assert definition is None
    assert [problem.field for problem in problems] == ["max_delay"]


class Installation:
    """A feed with an objective of two hours, and a clock."""

    def __init__(self, store: Store, settings: Settings, clock: FixedClock) -> None:
        self.store, self.settings, self.clock = store, settings, clock
        self.declare(max_delay="2h")

    def declare(self, **fields: str) -> None:
        definition, _ = definition_of(FEED | fields)
        assert definition is not None
        with self.store.begin() as connection:
            register(connection, [definition], now=self.clock.at)

    def poll(self, **values: object) -> None:
        with self.store.begin() as connection:
            connection.execute(update(sources).values({"last_success_at": self.clock.at, **values}))

    def maintain(self, until: datetime) -> None:
        while self.clock.at < until:
            self.clock.advance(minutes=5)
            with self.store.begin() as connection:
                measure_freshness(connection, self.settings, self.clock.at)

    def attained(self) -> Attainment:
        with self.store.read() as connection:
            [attained] = attainments(connection, self.settings, now=self.clock.at)
        return attained

    def alerts(self) -> list[str]:
        with self.store.read() as connection:
            return list(connection.execute(select(outbox.c.subject_kind)).scalars())


@pytest.fixture
def installation(store: Store, settings: Settings, clock: FixedClock) -> Installation:
    return Installation(store, settings, clock)


@pytest.mark.both_databases
def test_the_budget_of_a_source_is_spent_by_lateness_and_its_end_is_notified_once(installation: Installation) -> None:
    start = installation.clock.at
    installation.poll()
    installation.maintain(start + 2 * HOUR)
    assert installation.attained().late_seconds == 0

    installation.maintain(start + 2 * HOUR + BUDGET / 2)
    half = installation.attained()
    assert half.budget_left == pytest.approx(0.5, abs=0.02)
    assert half.share == pytest.approx(2 / (2 + 3.6), abs=0.03)
    assert installation.alerts() == []

    installation.maintain(start + 2 * HOUR + 2 * BUDGET)
    assert installation.attained().budget_left == 0
    assert installation.alerts() == ["freshness_budget"]


@pytest.mark.both_databases
def test_a_budget_that_was_regained_alerts_again_when_it_is_gone(installation: Installation) -> None:
    installation.poll()
    installation.maintain(installation.clock.at + 2 * HOUR + BUDGET + HOUR)
    with installation.store.begin() as connection:  # a month later
        connection.execute(update(freshness_days).values(late_seconds=0.0))
    installation.poll()
    installation.maintain(installation.clock.at + HOUR)

    installation.maintain(installation.clock.at + 2 * HOUR + BUDGET)

    assert installation.alerts() == ["freshness_budget", "freshness_budget"]


@pytest.mark.both_databases
def test_the_health_report_shows_attainment_and_budget(installation: Installation) -> None:
    installation.poll()
    installation.maintain(installation.clock.at + 4 * HOUR)

    with installation.store.read() as connection:
        now, settings = installation.clock.at, installation.settings
        [row] = map(as_row, reported(connection, source_statuses(connection, settings, now=now), settings, now=now))

    assert row["max_delay_seconds"] == 7_200
    assert row["freshness_30d"] == pytest.approx(0.5, abs=0.02)
    assert row["freshness_budget_left"] == pytest.approx(1 - 2 / 7.2, abs=0.02)
    assert str(installation.attained()).endswith("within 2h; budget 72 % left")


def test_a_success_whose_data_is_held_back_does_not_make_a_source_fresh(installation: Installation) -> None:
    installation.poll()
    installation.maintain(installation.clock.at + HOUR)
    for _ in range(3):
        installation.poll(last_outcome="quarantined: 0 instead of 100")
        installation.maintain(installation.clock.at + HOUR)

    assert installation.attained().late_seconds == pytest.approx(2 * 3_600, abs=400)


def test_an_objective_can_be_changed_and_withdrawn_by_the_file(installation: Installation) -> None:
    installation.declare(max_delay="1d")
    assert installation.attained().max_delay == timedelta(days=1)

    installation.declare()
    with installation.store.read() as connection:
        assert attainments(connection, installation.settings, now=installation.clock.at) == []


def test_one_who_maintains_twice_at_once_measures_once(installation: Installation) -> None:
    installation.poll()
    installation.maintain(installation.clock.at + HOUR)
    before = installation.attained().measured_seconds

    with installation.store.begin() as connection:
        measure_freshness(connection, installation.settings, installation.clock.at)

    assert installation.attained().measured_seconds == before
