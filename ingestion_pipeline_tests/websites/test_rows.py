"""The rows of an analysis are written idempotently."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection, Row, Table, insert, select
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.sources.registry import add
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import businesses, website_analyses, website_answers, website_rankings
from ingestion_pipeline.websites.analysis_rows import (
    answers_of,
    store_answers,
    store_mentions,
    upsert_business,
    upsert_ranking,
)
from ingestion_pipeline.websites.business import AnswerStatus, Business, ProviderAnswer
from ingestion_pipeline.websites.name_forms import Names
from ingestion_pipeline.websites.provider_analysis import WebsiteAnalysed, mentions_in, ranking_of
from ingestion_pipeline_tests.builders import NOON, a_definition

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


def rows(store: Store, table: Table) -> list[Row[Any]]:
    with store.read() as connection:
        return list(connection.execute(select(table)).all())


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
    mentions = mentions_in(answers, Names.of("Acme"), [Names.of("Globex")], threshold=88)
    return WebsiteAnalysed(
        ranking=ranking_of(answers, mentions, "Acme"),
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
