"""Reads that fail, exceed the budget, wait for a model, or belong to a cancelled extraction."""

from collections import Counter
from datetime import datetime
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.extraction.tasks import wake_for_models
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.catalogs.system import FAILED_TASK_SECONDS
from ingestion_pipeline.reading.llm import OverBudget
from ingestion_pipeline.registry import check_definition, replay
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.store.tables import audit_log, data_items, dead_letters, extractions, tasks
from ingestion_pipeline.tasks import ended_tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline.tasks.ended_tasks import backoff, list_dead_letters
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline_tests.catalog_extractions import LiveCatalog, a_catalog, read_pages
from ingestion_pipeline_tests.catalogs.course_pages import (
    ScriptedReader,
    claim_page_reads,
    course_codes,
    download_courses,
    read_by_rules,
    serve_courses,
    write_readings,
)
from ingestion_pipeline_tests.polling_runs import with_settings


@pytest.mark.slow
def test_an_error_is_handled_by_its_class(live: LiveCatalog, now: datetime) -> None:
    download_courses(live.ctx, live.web, 101, 102, 103, 104)
    later = now.replace(year=2027)
    reader = ScriptedReader(
        live.ctx,
        failures={
            "/c/101": [Transient("a moment", code="busy")],
            "/c/102": [Transient("never", code="busy")] * 3,
            "/c/103": [Permanent("cut off", code="cut")],
            "/c/104": [Resource("no model configured", until=later, code="no_model")],
        },
    )

    counts = live.read(reader=reader)

    read_counts = Counter(reader.read_paths)
    assert read_counts == {"/c/101": 2, "/c/102": 3, "/c/103": 1, "/c/104": 1}
    assert (counts.read, counts.retried, counts.failed, counts.given_back) == (1, 3, 2, 1)
    pages = {page.path: (page.status, (page.failure or {}).get("code")) for page in live.pages()}
    assert pages == {
        "/": ("SUCCESS", None),
        "/c/101": ("SUCCESS", None),
        "/c/102": ("ERROR", "busy"),
        "/c/103": ("ERROR", "cut"),
        "/c/104": ("DOWNLOADED", "no_model"),
    }
    assert Counter(row.error_code for row in live.rows(dead_letters)) == {"busy": 1, "cut": 1}
    reading = [row for row in live.rows(tasks) if row.kind == EXTRACT_PAGE]
    [put_off] = [row for row in reading if row.url.endswith("/c/104")]
    assert (put_off.status, put_off.attempts, put_off.not_before) == ("PENDING", 0, later)


@pytest.mark.slow
def test_a_read_is_retried_after_one_second_then_after_two(live: LiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A23 and A-10, with the default settings: those of the tests differ only in the first delay."""
    policy = load_settings({}).catalog_work
    monkeypatch.setattr(ended_tasks, "BACKOFF_JITTER_SHARE", 0)
    assert [backoff(n, policy, Random(7)).total_seconds() for n in (1, 2)] == [1, 2]
    assert (policy.max_attempts, FAILED_TASK_SECONDS) == (3, 432_000)

    download_courses(live.ctx, live.web, 101)
    reader = ScriptedReader(live.ctx, failures={"/c/101": [Transient("a moment", code="busy")]})
    counts = read_pages(with_settings(live.ctx, crawl__backoff_base_seconds="600"), reader=reader)

    assert (counts.retried, reader.read_paths) == (1, ["/c/101"])


@pytest.mark.slow
def test_pages_that_wait_for_a_model_are_due_once_one_is_configured(live: LiveCatalog, now: datetime) -> None:
    download_courses(live.ctx, live.web, 101, 102)
    later = now.replace(year=2027)
    failures: dict[str, list[Exception | OverBudget]] = {
        "/c/101": [Resource("no model configured", until=later, code="no_model")],
        "/c/102": [Resource("no money", until=later, code="budget_used_up")],
    }
    live.read(reader=ScriptedReader(live.ctx, failures=failures))

    assert wake_for_models(live.ctx) == 0
    assert wake_for_models(with_settings(live.ctx, openai_base_url="http://127.0.0.1:1/v1")) == 1

    due = {row.url[-3:]: row.not_before for row in live.rows(tasks) if row.kind == EXTRACT_PAGE}
    assert due["101"] < later
    assert due["102"] == later


@pytest.mark.slow
def test_a_dead_letter_of_a_read_is_requeued(live: LiveCatalog, now: datetime) -> None:
    download_courses(live.ctx, live.web, 101, 102)
    later = Resource("no model configured", until=now.replace(year=2027), code="no_model")
    failures = {"/c/101": [Permanent("cut off", code="cut")], "/c/102": [later]}
    live.read(reader=ScriptedReader(live.ctx, failures=failures))

    with live.store.begin() as connection:
        [dead_letter] = list_dead_letters(connection)
        replay_result = replay(connection, dead_letter["id"], actor="me", now=live.store.clock.now(connection))
    live.read()

    assert replay_result == "queued"
    assert course_codes(live.store) == ["MATH 101"]


def test_missing_content_is_an_error_that_names_the_cure(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101)
    for file in (live.ctx.settings.home / "content").rglob("*"):
        if file.is_file():
            file.unlink()

    counts = live.read()

    assert counts.failed == 1
    failure = live.pages()[1].failure or {}
    assert failure["code"] == "content_missing"
    assert "a retry of its extraction fetches it again" in failure["message"]


@pytest.mark.slow
def test_over_budget_cancels_the_extraction_at_once_and_is_audited(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101, 102, 103)
    [extraction] = live.rows(extractions)
    over = OverBudget(extraction_id=extraction.id, limit_usd=Decimal(1), held_usd=Decimal(1), wanted_usd=Decimal("0.1"))
    reader = ScriptedReader(live.ctx, failures={f"/c/{n}": [over] for n in (101, 102, 103)})

    live.read(reader=reader)

    [extraction] = live.rows(extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "over_budget")
    assert live.page_statuses() == {"SUCCESS": 1, "DOWNLOADED": 3}
    reading = [row.status for row in live.rows(tasks) if row.kind == EXTRACT_PAGE]
    assert not {"PENDING", "PROCESSING"} & set(reading)
    [entry] = [row for row in live.rows(audit_log) if row.action == "extraction.cancelled"]
    assert (entry.actor, entry.subject) == ("system", f"extraction:{extraction.id}")


def test_a_cancelled_extraction_takes_no_late_result(live: LiveCatalog) -> None:
    download_courses(live.ctx, live.web, 101)
    [work] = claim_page_reads(live.ctx, Worker(live.store, lease_seconds=60))
    late = read_by_rules(live.ctx, work)
    with live.store.begin() as connection:
        connection.execute(update(extractions).values(status="CANCELLED"))

    counts, ended = write_readings(live.ctx, [late])

    assert ended == {work.extraction_id}
    assert (counts.skipped, live.rows(data_items)) == (1, [])
    assert live.page_statuses() == {"SUCCESS": 1, "DOWNLOADED": 1}


def test_an_unknown_entity_is_refused_at_registration() -> None:
    definition = a_catalog()
    bad = a_catalog(config={**definition.config, "entity": "spaceship"})

    assert list(check_definition(definition)) == []
    [problem] = check_definition(bad)
    assert "no entity is called 'spaceship'; there are: competency, course" in problem.message


@pytest.mark.slow
def test_a_page_that_only_a_model_reads_waits_for_one(live: LiveCatalog) -> None:
    serve_courses(live.web, 101)
    source = a_catalog()
    live.register(config={**source.config, "entity": "credential"})

    live.crawl_all()

    [page] = [page for page in live.pages() if page.path == "/c/101"]
    assert (page.status, (page.failure or {})["code"]) == ("DOWNLOADED", "no_model")
    assert live.rows(dead_letters) == []
