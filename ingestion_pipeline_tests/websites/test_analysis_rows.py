"""Rows of analyses are written idempotently, locked in one order, and removed when they are old."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, cast

import pytest
from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.registry import add
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    businesses,
    dead_letters,
    tasks,
    website_analyses,
    website_answers,
    website_rankings,
)
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline.websites.analysis_rows import (
    FIRST,
    answers_of,
    old_analyses,
    old_answers,
    requeue_phase,
    store_answers,
    store_mentions,
    upsert_business,
    upsert_ranking,
)
from ingestion_pipeline.websites.business import Business
from ingestion_pipeline.websites.mentions import Names
from ingestion_pipeline.websites.provider_analysis import WebsiteAnalysed, mentions_in, ranking_of
from ingestion_pipeline.websites.states import AnswerStatus, ProviderAnswer
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.lock_orders import ON_POSTGRES, rows_locked_while_waiting
from ingestion_pipeline_tests.polling_runs import add_sources, rows
from ingestion_pipeline_tests.websites.website_runs import a_website

pytestmark = pytest.mark.both_databases

ACME = Business(url="https://acme.test", name="Acme", keywords=("tools",), confidence=70)
FAILED = ProviderAnswer(
    prompt_index=0, prompt="Who?", provider="one", model="m", status=AnswerStatus.FAILED, error="http_500: down"
)
ANSWERED = replace(
    FAILED,
    status=AnswerStatus.ANSWERED,
    error=None,
    answer="Acme.\0",
    cited_urls=("https://acme.test/about",),
    cost_usd=Decimal("0.000009"),
    input_tokens=1,
    output_tokens=2,
    sentiment="positive",
)


def an_analysis(connection: Connection, **changes: Any) -> int:
    values: dict[str, Any] = {
        "source_id": "website:acme",
        "url": "https://acme.test",
        "status": "not-started",
        "current_step": "not-started",
        "priority": 5,
        "tracking_id": "t",
        "phase_times": {},
        "created_at": NOON,
        "updated_at": NOON,
    }
    statement = insert(website_analyses).values(values | changes)
    return connection.execute(statement.returning(website_analyses.c.id)).scalar_one()


@pytest.fixture
def analysis_id(store: Store) -> int:
    source = a_definition(id="website:acme", kind=Kind.WEBSITE, url="https://acme.test", platform=None, series=None)
    with store.begin() as connection:
        add(connection, source, actor="test", now=NOON)
        return an_analysis(connection)


def test_a_source_has_one_unfinished_analysis(store: Store, analysis_id: int) -> None:
    with pytest.raises(IntegrityError), store.begin() as connection:
        an_analysis(connection)

    with store.begin() as connection:
        connection.execute(website_analyses.update().values(finished_at=NOON))
        assert an_analysis(connection) > analysis_id


def test_a_business_is_one_row_for_every_spelling_of_its_url(store: Store) -> None:
    with store.begin() as connection:
        first = upsert_business(connection, ACME, now=NOON)
        updated = replace(ACME, url="http://www.acme.test/", name="Acme Tools", confidence=90)
        second = upsert_business(connection, updated, now=NOON + timedelta(days=1))

    (row,) = rows(store, businesses)
    assert first == second == row.id
    assert (row.url, row.name, row.confidence) == ("https://acme.test", "Acme Tools", 90)
    assert (row.keywords, row.created_at) == (["tools"], NOON)


def test_an_answer_replaces_a_failure_and_is_never_replaced(store: Store, analysis_id: int) -> None:
    with store.begin() as connection:
        store_answers(connection, analysis_id, [FAILED], now=NOON)
        store_answers(connection, analysis_id, [ANSWERED], now=NOON)
        store_answers(connection, analysis_id, [FAILED], now=NOON)
        store_answers(connection, analysis_id, [replace(ANSWERED, answer="Other")], now=NOON)
        store_answers(connection, analysis_id, [], now=NOON)

    (row,) = rows(store, website_answers)
    assert (row.status, row.error) == ("answered", None)
    assert row.answer == "Acme.\N{REPLACEMENT CHARACTER}"
    assert row.cost_usd == Decimal("0.000009")


def test_answers_survive_a_round_trip_through_the_database(store: Store, analysis_id: int) -> None:
    other = replace(FAILED, prompt_index=1)
    with store.begin() as connection:
        store_answers(connection, analysis_id, [replace(ANSWERED, answer="Acme."), other], now=NOON)
        answers = answers_of(connection, analysis_id, direct=frozenset({1}))

    assert answers == [replace(ANSWERED, answer="Acme."), replace(other, is_direct=True)]


def analysis_of_answer(answer: str) -> WebsiteAnalysed:
    answers = [replace(ANSWERED, answer=answer)]
    mentions = mentions_in(answers, Names.of("Acme"), [Names.of("Globex")], language=None)
    return WebsiteAnalysed(
        ranking=ranking_of(answers, mentions, "Acme", None),
        answers=tuple(answers),
        mentions={(0, "one"): {name: places[0] for name, places in mentions.items()}},
        failures={},
    )


def test_an_answer_stores_its_mentions(store: Store, analysis_id: int) -> None:
    with store.begin() as connection:
        store_answers(connection, analysis_id, [ANSWERED], now=NOON)
        store_mentions(connection, analysis_id, analysis_of_answer("Acme and Acme"))

    (row,) = rows(store, website_answers)
    assert row.mentions == {
        "names": {"Acme": {"count": 2, "rank": 1, "is_exact": True, "places": [[0, 4], [9, 13]]}},
        "sentiment": "positive",
    }


def test_a_day_has_one_ranking_the_latest(store: Store, analysis_id: int) -> None:
    with store.begin() as connection:
        business_id = upsert_business(connection, ACME, now=NOON)
        ids = (business_id, analysis_id)
        upsert_ranking(connection, *ids, analysis_of_answer("nobody"), now=NOON)
        upsert_ranking(connection, *ids, analysis_of_answer("Acme"), now=NOON + timedelta(hours=3))
        upsert_ranking(
            connection, business_id, analysis_id, analysis_of_answer("Globex"), now=NOON + timedelta(hours=13)
        )

    first, second = rows(store, website_rankings)
    assert (first.visibility, first.score, first.created_at) == (1.0, 12, NOON)
    assert second.competitors["Globex"]["visibility"] == 1.0
    assert second.day - first.day == timedelta(days=1)


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
    numbers = {
        "visibility": 1.0,
        "visibility_low": 0.2,
        "visibility_high": 1.0,
        "answers": 1,
        "score": 9,
        "mentions": 1,
        "prompts": 1,
    }
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


@ON_POSTGRES
def test_replaying_a_dead_letter_waits_for_its_task_without_locking_the_analysis(store: Store, now: datetime) -> None:
    add_sources(store, a_website())
    row = {"source_id": "website:acme", "url": "http://acme.test/", "status": "failed"}
    row |= {"current_step": "failed", "priority": 1, "tracking_id": "t", "phase_times": {}}
    with store.begin() as connection:
        times = {"created_at": now, "updated_at": now}
        insert_analysis = insert(website_analyses).values(row | times).returning(website_analyses.c.id)
        id_ = connection.execute(insert_analysis).scalar_one()
        new = NewTask(kind=FIRST.kind, dedupe_key="1", not_before=now)
        [task_id] = insert_tasks(connection, [new], now=now)
    dead_letter = {"task_id": task_id, "task_kind": FIRST.kind, "payload": {"analysis": id_}}

    def replay(connection: Connection) -> None:
        assert requeue_phase(connection, cast("Any", dead_letter), now) == "queued"

    locked_task = select(tasks.c.id).where(tasks.c.id == task_id)
    analysis_ids = select(website_analyses.c.id)
    assert rows_locked_while_waiting(store, replay, held=locked_task, among=analysis_ids) == []
