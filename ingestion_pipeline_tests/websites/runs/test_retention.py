"""Retention of old analyses and their answers."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites.analysis_rows import old_analyses, old_answers, upsert_business
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.polling_runs import add_sources, rows
from ingestion_pipeline_tests.websites.website_runs import a_website

pytestmark = pytest.mark.both_databases

SETTINGS = load_settings({})
OLD, AGED = NOON - timedelta(days=400), NOON - timedelta(days=200)


def add_analysis(store: Store, status: str, finished_at: datetime | None, name: str = "acme") -> None:
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
        "finished_at": finished_at,
    }
    answer = {"prompt_index": 0, "prompt": "?", "provider": "one", "model": "m"}
    answer |= {"status": "answered", "answer": "Acme."}
    with store.begin() as connection:
        analysis_id = connection.execute(
            insert(website_analyses).values(row).returning(website_analyses.c.id)
        ).scalar_one()
        connection.execute(insert(website_answers).values(analysis_id=analysis_id, created_at=OLD, **answer))


def add_ranking(store: Store) -> None:
    numbers = {"visibility": 1.0, "score": 9, "mentions": 1, "prompts": 1}
    with store.begin() as connection:
        acme = Business(url="https://acme.test", name="Acme")
        business_id = upsert_business(connection, acme, now=OLD)
        row = {"day": OLD.date(), "analysis_id": 1, "by_provider": {}, "competitors": {}}
        times = {"created_at": OLD, "updated_at": OLD}
        connection.execute(insert(website_rankings).values(business_id=business_id, **row, **numbers, **times))


def run_retention(store: Store) -> tuple[int, int]:
    with store.begin() as connection:
        answers = old_answers(connection, SETTINGS, NOON)
        return answers, old_analyses(connection, SETTINGS, NOON)


@pytest.fixture
def aged_store(store: Store) -> Store:
    """A website with two old completed, an old failed, a newer failed and a running analysis.

    Another website has only an old failed analysis.
    """
    add_sources(store, a_website(), a_website("other"))
    for status, ended in (
        ("completed", OLD),
        ("failed", OLD),
        ("completed", OLD),
        ("failed", AGED),
        ("model-analysis", None),
    ):
        add_analysis(store, status, ended)
    add_analysis(store, "failed", OLD, "other")
    add_ranking(store)
    return store


def remaining_ids(store: Store) -> tuple[set[int], set[int]]:
    analyses = {row.id for row in rows(store, website_analyses)}
    return analyses, {row.analysis_id for row in rows(store, website_answers)}


def test_retention_removes_old_answers_and_analyses_except_the_last_of_each_website(aged_store: Store) -> None:
    assert run_retention(aged_store) == (
        4,
        2,
    )  # answers of the two removed analyses, the newer failure and the other website

    assert remaining_ids(aged_store) == ({3, 4, 5, 6}, {3, 5})
    assert len(rows(aged_store, website_rankings)) == 1
    assert run_retention(aged_store) == (0, 0)


def test_an_analysis_with_an_open_dead_letter_is_not_removed(aged_store: Store) -> None:
    dead_letter: dict[str, Any] = {"task_id": 1, "task_kind": "website_analysis", "source_id": "website:acme"}
    dead_letter |= {"payload": {}, "tracking_id": "t", "attempts": 3, "failed_at": OLD}
    error = {"error_class": "transient", "error_code": "down", "error": "down"}
    with aged_store.begin() as connection:
        connection.execute(insert(dead_letters).values(**dead_letter, **error))

    assert run_retention(aged_store) == (2, 1)
    assert remaining_ids(aged_store) == ({2, 3, 4, 5, 6}, {2, 3, 4, 5})


def test_concurrent_retention_runs_remove_each_row_once(aged_store: Store) -> None:
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: run_retention(aged_store), range(4)))

    assert (sum(answers for answers, _ in counts), sum(analyses for _, analyses in counts)) == (4, 2)
    assert remaining_ids(aged_store) == ({3, 4, 5, 6}, {3, 5})
