"""Detection runs: claimed, rate limited, fenced, notified once, followed by the first extraction."""

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest

from ingestion_pipeline.catalogs.catalog_runs import start_now
from ingestion_pipeline.catalogs.detection.detection_tasks import DetectionCounts, DetectionItem, persist_detections
from ingestion_pipeline.catalogs.recipes.detected_recipes import (
    DETECT,
    detected_recipes,
    ensure_detection,
    recipe_facts,
)
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.handler import Failed, end_tasks
from ingestion_pipeline.notices.message import message_of
from ingestion_pipeline.registry import declared
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, extractions, outbox, recipes, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker
from ingestion_pipeline.tasks.ended_tasks import DeadLetterTask
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LiveCatalog, a_catalog
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import declare, detect, recipe_notices, recipe_row
from ingestion_pipeline_tests.fakes import Reply
from ingestion_pipeline_tests.polling_runs import add_sources, with_settings

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_a_recipe_is_detected_notified_and_followed(live: LiveCatalog) -> None:
    declare(live, "/courses", site=sites.numbered())

    live.poll()
    before = live.source_row().last_outcome
    counts = detect(live)
    live.poll()
    live.crawl_all()

    assert "detection of its recipe is waiting" in before
    assert counts.found == 1
    row = recipe_row(live.store)
    assert (row.status, row.recipe["page_type"]) == ("SUCCESS", "DETAIL_LINKS")
    assert recipe_notices(live.store) == [("recipe", "SUCCESS")]
    [extraction] = live.rows(extractions)
    assert (extraction.recipe, extraction.kind) == (row.recipe, "crawl")
    details = [page for page in live.pages() if page.step == "root/links"]
    assert {page.path for page in details} == {f"/courses/{number}" for number in range(12)}


def test_the_first_extraction_is_due_as_soon_as_the_recipe_is_detected(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())
    live.poll()
    waits_until = live.source_row().next_check_at

    detect(live)

    now = live.store.now()
    assert waits_until > now >= live.source_row().next_check_at


@pytest.mark.slow
def test_a_failure_is_notified_only_when_it_is_final(live: LiveCatalog) -> None:
    live.web.routes["/courses"] = 500
    declare(live, "/courses")

    counts = detect(live)

    assert (counts.retried, counts.failed) == (2, 1)
    row = recipe_row(live.store)
    assert row.status == "ERROR"
    assert "500" in row.message
    assert recipe_notices(live.store) == [("recipe", "ERROR")]
    assert [dead_letter.task_kind for dead_letter in live.rows(dead_letters)] == ["detect_recipe"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "title", "text"),
    [
        pytest.param(None, f"{CATALOG_ID}: recipe detected", "DETAIL_LINKS", id="detected"),
        pytest.param(500, f"{CATALOG_ID}: no recipe detected", "500", id="failed"),
    ],
)
def test_the_notification_of_a_detection_states_its_result(
    live: LiveCatalog, reply: int | None, title: str, text: str
) -> None:
    declare(live, "/courses", site=sites.numbered())
    if reply is not None:
        live.web.routes["/courses"] = reply

    detect(live)

    [row] = [entry for entry in live.rows(outbox) if entry.subject_kind == "recipe"]
    message = message_of("d", "ops", [("recipe", row.payload)], text_chapters=1)
    content = json.loads(message.body)
    assert message.title == title
    assert text in message.text.removeprefix(title)
    assert (content["events"][0]["source_id"], content["events"][0]["kind"]) == (CATALOG_ID, "recipe")
    assert content["events"][0]["status"] == ("SUCCESS" if reply is None else "ERROR")
    source = live.source_row()
    assert (content["events"][0]["url"], content["events"][0]["name"]) == (source.url, source.name)
    assert content["events"][0]["message"] == recipe_row(live.store).message
    assert datetime.fromisoformat(content["events"][0]["detected_at"]) == row.created_at


@pytest.mark.slow
def test_a_detection_that_failed_on_a_host_error_is_repeated_at_the_next_poll(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())
    live.web.routes["/all"] = 500
    detect(live)
    assert detect(live).found == 0  # not before a poll
    assert recipe_row(live.store).status == "ERROR"

    live.web.routes |= dict(sites.single())
    outcome = start_now(live.ctx, [CATALOG_ID])[CATALOG_ID]

    assert outcome == "not crawled: detection of its recipe is waiting"
    assert detect(live).found == 1
    assert recipe_notices(live.store) == [("recipe", "ERROR"), ("recipe", "SUCCESS")]


def test_a_detection_that_failed_on_the_catalog_itself_is_not_repeated(live: LiveCatalog) -> None:
    live.web.routes["/courses"] = 404
    declare(live, "/courses")
    detect(live)
    live.web.requests.clear()

    start_now(live.ctx, [CATALOG_ID])
    detect(live)

    assert (recipe_row(live.store).status, live.web.paths) == ("ERROR", [])


def test_a_detection_in_progress_has_that_status_and_waits_for_its_own_backoff(live: LiveCatalog) -> None:
    """A05, A23: the status during the request and after a failed attempt."""
    statuses: list[str] = []

    async def record_status(writer: asyncio.StreamWriter) -> None:
        statuses.append((await asyncio.to_thread(recipe_row, live.store)).status)
        writer.close()

    live.web.routes["/courses"] = record_status
    slow = with_settings(live.ctx, crawl__backoff_base_seconds="600")
    declare(live, "/courses")

    counts = detect(live, slow)

    assert (counts.retried, counts.failed, statuses) == (1, 0, ["IN_PROGRESS"])
    assert recipe_row(live.store).status == "WAITING"


def test_a_failure_before_a_successful_retry_is_not_notified(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())
    live.web.routes["/all"] = [500, sites.single()["/all"]]  # pyright: ignore[reportArgumentType]

    detect(live)

    assert recipe_notices(live.store) == [("recipe", "SUCCESS")]


def test_a_catalog_that_robots_txt_blocks_is_not_requested_and_counts_no_failure(live: LiveCatalog) -> None:
    live.web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /courses")
    declare(live, "/courses")

    live.poll()
    detect(live)
    live.poll()

    source = live.source_row()
    assert "robots.txt" in recipe_row(live.store).message
    assert live.web.paths == live.rows(dead_letters) == []
    assert (source.failure_count, source.strike_count, source.status) == (0, 0, "active")
    assert [row.status for row in live.rows(tasks) if row.kind == "detect_recipe"] == ["SKIPPED"]


def test_an_uncertain_detection_without_a_model_is_an_error_that_names_the_cure(live: LiveCatalog) -> None:
    declare(live, "/", site={"/": sites.page("<p>" + "Welcome to the college. " * 30)})

    detect(live)

    row = recipe_row(live.store)
    assert row.status == "ERROR"
    assert "OPENAI_API_KEY" in row.message
    live.poll()
    assert "detection of its recipe failed" in live.source_row().last_outcome
    assert live.rows(extractions) == []


def test_a_configured_recipe_is_never_detected(live: LiveCatalog) -> None:
    live.register()

    counts = detect(live)

    assert counts == DetectionCounts()
    assert live.rows(recipes) == []


@pytest.mark.slow
def test_a_changed_url_starts_a_new_detection(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single() | sites.numbered())
    detect(live)

    declare(live, "/courses")
    live.poll()
    reset_recipe = recipe_row(live.store)
    detect(live)

    assert (reset_recipe.status, reset_recipe.recipe) == ("WAITING", None)
    assert recipe_row(live.store).recipe["page_type"] == "DETAIL_LINKS"
    assert recipe_notices(live.store) == [("recipe", "SUCCESS")] * 2


def test_a_success_is_notified_though_the_recipe_is_unchanged(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())
    detect(live)
    before = recipe_row(live.store).recipe

    with live.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=live.store.now(), again=True)
    detect(live)

    assert recipe_row(live.store).recipe == before
    assert recipe_notices(live.store) == [("recipe", "SUCCESS")] * 2


def test_a_repeated_detection_keeps_its_recipe_in_the_meantime(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())
    detect(live)
    live.web.routes["/all"] = 404

    with live.store.begin() as connection:
        declared_ids = declared(connection, [CATALOG_ID], now=live.store.now(), again=True)
    detect(live)

    assert declared_ids == [CATALOG_ID]
    row = recipe_row(live.store)
    assert (row.status, row.recipe["page_type"]) == ("ERROR", "DETAIL")
    with live.store.begin() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        facts = recipe_facts(connection, source)
    assert facts["recipe_status"] == "ERROR"
    assert facts["recipe"] == {"page_type": "DETAIL"}


def test_repeated_declarations_make_one_detection(live: LiveCatalog) -> None:
    declare(live, "/all", site=sites.single())

    for _ in range(3):
        with live.store.begin() as connection:
            source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
            ensure_detection(connection, [source], now=live.store.now(), again=True)

    assert detect(live).found == 1


def test_a_disabled_source_is_not_detected(live: LiveCatalog) -> None:
    declare(live, "/all")
    with live.store.begin() as connection:
        disable(connection, CATALOG_ID, actor="me", reason="no", now=live.store.now())

    assert detect(live) == DetectionCounts()
    assert live.web.paths == []


@pytest.mark.parametrize("config", [{"entity": "planet"}, {"recipe": {"page_type": "X"}}])
def test_an_invalid_declaration_is_refused(config: dict[str, Any]) -> None:
    from ingestion_pipeline.registry import check_definition

    problems = list(check_definition(a_catalog(config=config)))

    assert [problem.field for problem in problems] == ["config"]
    assert CATALOG_ID in problems[0].message


def test_a_declaration_without_a_recipe_is_valid(store: Store) -> None:
    from ingestion_pipeline.registry import check_definition

    assert list(check_definition(a_catalog(config={}))) == []
    add_sources(store, a_catalog(config={}))
    with store.begin() as connection:
        assert declared(connection, [CATALOG_ID], now=store.now()) == [CATALOG_ID]
        assert detected_recipes(connection, [CATALOG_ID])[CATALOG_ID].status == "WAITING"


def claim_detection(ctx: RunContext) -> tuple[Task, Source]:
    """Claim the waiting detection; return its task and source."""
    [task] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=DETECT), limit=1)
    with ctx.store.read() as connection:
        return task, sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]


def test_a_late_failure_for_an_old_url_does_not_affect_the_new_one(live: LiveCatalog) -> None:
    declare(live, "/wrong", site=sites.single())
    with live.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=live.store.now())
    task, source = claim_detection(live.ctx)
    declare(live, "/all")
    with live.store.begin() as connection:
        now = live.store.clock.now(connection)
        declared(connection, [CATALOG_ID], now=now)
        item = DetectionItem(task=task, source=source)
        gone = Permanent("404", code="http_404")
        late = Failed(task=task, item=item, error=gone, decision=DeadLetterTask())
        end_tasks(connection, persist_detections(connection, [late], now=now), now=now)

    detect(live)

    assert recipe_notices(live.store) == [("recipe", "SUCCESS")]
    assert recipe_row(live.store).recipe == {"page_type": "DETAIL"}
    assert live.rows(dead_letters) == []


def test_a_detection_whose_recipe_was_configured_in_the_meantime_is_skipped(live: LiveCatalog) -> None:
    declare(live, "/all")
    with live.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=live.store.now())
    live.register()

    detect(live)

    assert (recipe_notices(live.store), live.rows(dead_letters)) == ([], [])
    assert [row.status for row in live.rows(tasks) if row.kind == DETECT] == ["SKIPPED"]
    assert live.web.paths == []
