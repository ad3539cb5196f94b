"""The replay of an installation's own changes: what each policy would have spent, and how late it would have been."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, insert

from ingestion_pipeline.operations.polling_simulation import Simulation, simulate_polling
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.scheduling.simulation import ChangeHistory, at_budget, replay
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, series
from ingestion_pipeline_tests.builders import NOON, a_checked_source, a_definition

DAY = timedelta(days=1)
DEFAULTS = load_settings({})
WEEKLY = [NOON - DAY - number * 7 * DAY for number in reversed(range(12))]


def add_weekly_series(connection: Connection, name: str) -> None:
    """Add a series whose chapters of a dozen weeks were detected as they appeared."""
    work = f"work-{name}"
    register(connection, [a_definition(id=f"series:{name}", series=work)], now=NOON - 90 * DAY)
    connection.execute(insert(series).values(id=work, title=name, created_at=NOON))
    for number, at in enumerate(WEEKLY):
        values = {"series_id": work, "key": str(number), "first_detected_at": at}
        chapter_id = connection.execute(insert(chapters).values(values).returning(chapters.c.id)).scalar_one()
        link = {"chapter_id": chapter_id, "source_id": f"series:{name}", "releases": [], "fingerprint": "f"}
        connection.execute(insert(chapter_sources).values(**link, detected_at=at, available=True))


def simulated(store: Store, *, budget: float | None = None, days: float = 30) -> list[Simulation]:
    with store.begin() as connection:
        add_weekly_series(connection, "first")
        add_weekly_series(connection, "second")
        simulations = simulate_polling(connection, DEFAULTS, now=NOON, days=days, budget=budget)
        connection.rollback()
    return simulations


def test_each_policy_is_replayed_on_the_recorded_changes(store: Store) -> None:
    [simulation] = simulated(store)

    tiers, model, more = simulation.policies
    assert (simulation.kind, simulation.sources, simulation.changes) == ("series", 2, 10)
    assert model.requests_per_day == pytest.approx(tiers.requests_per_day, rel=0.05)
    assert model.mean_delay_minutes < tiers.mean_delay_minutes / 2
    assert more.requests_per_day == pytest.approx(tiers.requests_per_day + 2, rel=0.05)


def test_a_given_budget_is_met(store: Store) -> None:
    [simulation] = simulated(store, budget=24)

    *_, given = simulation.policies
    assert given.policy == "the given budget"
    assert given.requests_per_day == pytest.approx(24, rel=0.05)


def test_a_source_without_a_change_in_the_time_is_left_out(store: Store) -> None:
    assert simulated(store, days=0.5) == []


def test_what_was_known_before_the_replay_is_learned_before_it() -> None:
    times = [at.timestamp() for at in WEEKLY]
    source = a_checked_source(created_at=WEEKLY[0])
    span = {"start": NOON - 14 * DAY, "end": NOON}

    def delay(changes: list[float]) -> float:
        history = ChangeHistory(source=source, changes=changes, states_dates=True, prior_rate=1 / (7 * 86_400))
        return at_budget([history], DEFAULTS, requests=14 * 20, **span)[0].mean

    assert delay(times) < delay(times[-2:]) / 2


def test_a_replay_repeats() -> None:
    times = [at.timestamp() for at in WEEKLY]
    history = ChangeHistory(source=a_checked_source(), changes=times, states_dates=False, prior_rate=1 / (7 * 86_400))

    first, second = (replay([history], DEFAULTS, start=WEEKLY[0], end=NOON, request_cost=30.0) for _ in range(2))

    assert first == second
