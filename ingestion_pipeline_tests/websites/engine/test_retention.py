"""What is kept of old analyses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.retention import old_analyses, old_answers
from ingestion_pipeline.websites.rows import upsert_business
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.pollers import given_sources, rows
from ingestion_pipeline_tests.websites.engine.analysing import a_website

SETTINGS = load_settings({})
OLD, AGED = NOON - timedelta(days=400), NOON - timedelta(days=200)


def given_analysis(store: Store, status: str, ended: datetime | None, name: str = "acme") -> None:
    row: dict[str, Any] = {
        "source_id": f"website:{name}",
        "url": "https://acme.test",
        "status": status,
        "current_step": status,
        "priority": 5,
        "tracking_id": "t",
        "phase_times": {},
        "created_at": OLD,
        "updated_at": OLD,
        "finished_at": ended,
    }
    answer = {"prompt_index": 0, "prompt": "?", "provider": "one", "model": "m"}
    answer |= {"status": "answered", "answer": "Acme."}
    with store.begin() as connection:
        made = connection.execute(insert(website_analyses).values(row).returning(website_analyses.c.id)).scalar_one()
        connection.execute(insert(website_answers).values(analysis_id=made, created_at=OLD, **answer))


def given_ranking(store: Store) -> None:
    numbers = {"visibility": 1.0, "score": 9, "mentions": 1, "prompts": 1}
    with store.begin() as connection:
        acme = Business(url="https://acme.test", name="Acme")
        business_id = upsert_business(connection, acme, now=OLD)
        row = {"day": OLD.date(), "analysis_id": 1, "by_provider": {}, "competitors": {}}
        times = {"created_at": OLD, "updated_at": OLD}
        connection.execute(insert(website_rankings).values(business_id=business_id, **row, **numbers, **times))


def swept(store: Store) -> tuple[int, int]:
    with store.begin() as connection:
        answers = old_answers(connection, SETTINGS, NOON)
        return answers, old_analyses(connection, SETTINGS, NOON)


@pytest.fixture
def aged(store: Store) -> Store:
    """Of one website: complete, failed and complete long ago, failed not so long ago; one at work.

    Of another only an old failure.
    """
    given_sources(store, a_website(), a_website("other"))
    for status, ended in (
        ("completed", OLD),
        ("failed", OLD),
        ("completed", OLD),
        ("failed", AGED),
        ("model-analysis", None),
    ):
        given_analysis(store, status, ended)
    given_analysis(store, "failed", OLD, "other")
    given_ranking(store)
    return store


def kept(store: Store) -> tuple[set[int], set[int]]:
    analyses = {row.id for row in rows(store, website_analyses)}
    return analyses, {row.analysis_id for row in rows(store, website_answers)}


def test_old_answers_and_analyses_go_and_the_last_of_each_website_and_its_history_stay(aged: Store) -> None:
    assert swept(aged) == (4, 2)  # answers of both that go, of the aged failure, of the other's

    assert kept(aged) == ({3, 4, 5, 6}, {3, 5})
    assert len(rows(aged, website_rankings)) == 1
    assert swept(aged) == (0, 0)


def test_what_a_dead_letter_may_revive_is_kept(aged: Store) -> None:
    dead_letter: dict[str, Any] = {"task_id": 1, "task_kind": "website_analysis", "source_id": "website:acme"}
    dead_letter |= {"payload": {}, "tracking_id": "t", "attempts": 3, "failed_at": OLD}
    why = {"error_class": "transient", "error_code": "down", "error": "down"}
    with aged.begin() as connection:
        connection.execute(insert(dead_letters).values(**dead_letter, **why))

    assert swept(aged) == (2, 1)
    assert kept(aged) == ({2, 3, 4, 5, 6}, {2, 3, 4, 5})


def test_two_sweeps_at_once_take_everything_once(aged: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: swept(aged), range(4)))

    assert (sum(one for one, _ in counts), sum(one for _, one in counts)) == (4, 2)
    assert kept(aged) == ({3, 4, 5, 6}, {3, 5})
