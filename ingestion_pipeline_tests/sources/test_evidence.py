"""When a change happened: as the records say, if they can be believed, else between two polls."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from ingestion_pipeline.sources.scheduling.change_model import REMEMBERED_DATES, changes_found
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.sources.test_polling import a_source

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MIDNIGHT = NOON.replace(hour=0)
POLLED = a_source(synced_at=NOON - 9 * DAY, last_success_at=NOON - 4 * HOUR)


def found(*published: datetime, **changes: Any) -> list[tuple[float, float]]:
    return changes_found(replace(POLLED, **changes), published=published, has_news=True, now=NOON)


def between(start: datetime, end: datetime) -> tuple[float, float]:
    return start.timestamp(), end.timestamp()


def test_without_news_there_is_no_change() -> None:
    assert changes_found(POLLED, published=[NOON], has_news=False, now=NOON) == []


@pytest.mark.parametrize(
    ("published", "when"),
    [
        pytest.param((), between(NOON - 4 * HOUR, NOON), id="no date"),
        pytest.param((NOON - HOUR,), between(NOON - HOUR, NOON - HOUR), id="a date in between"),
        pytest.param((NOON - DAY,), between(NOON - 4 * HOUR, NOON), id="an old record, come late"),
        pytest.param((NOON + DAY,), between(NOON - 4 * HOUR, NOON), id="still to come"),
        pytest.param((MIDNIGHT,), between(NOON - 4 * HOUR, NOON), id="a date without time"),
    ],
)
def test_a_date_is_believed_between_the_polls(published: tuple[datetime, ...], when: tuple[float, float]) -> None:
    assert found(*published) == [when]


def test_a_first_sync_is_a_history_by_its_own_dates() -> None:
    dates = [NOON - number * DAY - HOUR for number in range(100)]

    history = found(*dates, synced_at=None, last_success_at=None)

    assert len(history) == REMEMBERED_DATES
    assert history == sorted(history)
    assert history[-1] == between(NOON - HOUR, NOON - HOUR)


def test_a_first_sync_without_dates_says_nothing() -> None:
    assert found(synced_at=None, last_success_at=None) == []
