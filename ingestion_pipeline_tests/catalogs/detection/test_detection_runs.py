"""Detection runs: claimed, rate limited, fenced, notified once, followed by the first extraction."""

import asyncio
import json
from datetime import datetime
from itertools import pairwise
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
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, a_catalog, crawl_all, crawled_pages, poll_catalogs
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import (
    catalog_without_recipe,
    detect,
    recipe_notices,
    recipe_row,
    serve_site,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import add_sources, rows, source_row, with_settings

pytestmark = pytest.mark.both_databases


@pytest.mark.slow
def test_a_recipe_is_detected_notified_and_followed(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.numbered())
    add_sources(ctx.store, catalog_without_recipe("/courses"))

    poll_catalogs(ctx, web)
    before = source_row(ctx.store, CATALOG_ID).last_outcome
    counts = detect(ctx, web)
    poll_catalogs(ctx, web)
    crawl_all(ctx, web.port)

    assert "detection of its recipe is waiting" in before
    assert counts.found == 1
    row = recipe_row(ctx.store)
    assert (row.status, row.recipe["page_type"]) == ("SUCCESS", "DETAIL_LINKS")
    assert recipe_notices(ctx.store) == [("recipe", "SUCCESS")]
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.recipe, extraction.kind) == (row.recipe, "crawl")
    details = [page for page in crawled_pages(ctx.store) if page.step == "root/links"]
    assert {page.path for page in details} == {f"/courses/{number}" for number in range(12)}


def test_the_first_extraction_is_due_as_soon_as_the_recipe_is_detected(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    add_sources(ctx.store, catalog_without_recipe("/all"))
    poll_catalogs(ctx, web)
    waits_until = source_row(ctx.store, CATALOG_ID).next_check_at

    detect(ctx, web)

    now = ctx.store.now()
    assert waits_until > now >= source_row(ctx.store, CATALOG_ID).next_check_at


@pytest.mark.slow
def test_a_failure_is_notified_only_when_it_is_final(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/courses"] = 500
    add_sources(ctx.store, catalog_without_recipe("/courses"))

    counts = detect(ctx, web)

    assert (counts.retried, counts.failed) == (2, 1)
    row = recipe_row(ctx.store)
    assert row.status == "ERROR"
    assert "500" in row.message
    assert recipe_notices(ctx.store) == [("recipe", "ERROR")]
    assert [dead_letter.task_kind for dead_letter in rows(ctx.store, dead_letters)] == ["detect_recipe"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "title", "text"),
    [
        pytest.param(None, f"{CATALOG_ID}: recipe detected", "DETAIL_LINKS", id="detected"),
        pytest.param(500, f"{CATALOG_ID}: no recipe detected", "500", id="failed"),
    ],
)
def test_the_notification_of_a_detection_states_its_result(
    ctx: RunContext, web: FakeWeb, reply: int | None, title: str, text: str
) -> None:
    serve_site(web, sites.numbered())
    if reply is not None:
        web.routes["/courses"] = reply
    add_sources(ctx.store, catalog_without_recipe("/courses"))

    detect(ctx, web)

    [row] = [entry for entry in rows(ctx.store, outbox) if entry.subject_kind == "recipe"]
    message = message_of("d", "ops", [("recipe", row.payload)], text_chapters=1)
    content = json.loads(message.body)
    assert message.title == title
    assert text in message.text.removeprefix(title)
    assert (content["events"][0]["source_id"], content["events"][0]["kind"]) == (CATALOG_ID, "recipe")
    assert content["events"][0]["status"] == ("SUCCESS" if reply is None else "ERROR")
    source = source_row(ctx.store, CATALOG_ID)
    assert (content["events"][0]["url"], content["events"][0]["name"]) == (source.url, source.name)
    assert content["events"][0]["message"] == recipe_row(ctx.store).message
    assert datetime.fromisoformat(content["events"][0]["detected_at"]) == row.created_at


@pytest.mark.slow
def test_a_detection_that_failed_on_a_host_error_is_repeated_at_the_next_poll(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    web.routes["/all"] = 500
    add_sources(ctx.store, catalog_without_recipe("/all"))
    detect(ctx, web)
    assert detect(ctx, web).found == 0  # not before a poll
    assert recipe_row(ctx.store).status == "ERROR"

    serve_site(web, sites.single())
    outcome = start_now(ctx, [CATALOG_ID])[CATALOG_ID]

    assert outcome == "not crawled: detection of its recipe is waiting"
    assert detect(ctx, web).found == 1
    assert recipe_notices(ctx.store) == [("recipe", "ERROR"), ("recipe", "SUCCESS")]


def test_a_detection_that_failed_on_the_catalog_itself_is_not_repeated(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/courses"] = 404
    add_sources(ctx.store, catalog_without_recipe("/courses"))
    detect(ctx, web)
    web.requests.clear()

    start_now(ctx, [CATALOG_ID])
    detect(ctx, web)

    assert (recipe_row(ctx.store).status, web.paths) == ("ERROR", [])


def test_a_detection_in_progress_has_that_status_and_waits_for_its_own_backoff(ctx: RunContext, web: FakeWeb) -> None:
    """A05, A23: the status during the request and after a failed attempt."""
    statuses: list[str] = []

    async def record_status(writer: asyncio.StreamWriter) -> None:
        statuses.append((await asyncio.to_thread(recipe_row, ctx.store)).status)
        writer.close()

    web.routes["/courses"] = record_status
    slow = with_settings(ctx, crawl__backoff_base_seconds="600")
    add_sources(slow.store, catalog_without_recipe("/courses"))

    counts = detect(slow, web)

    assert (counts.retried, counts.failed, statuses) == (1, 0, ["IN_PROGRESS"])
    assert recipe_row(ctx.store).status == "WAITING"


def test_a_failure_before_a_successful_retry_is_not_notified(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    web.routes["/all"] = [500, sites.single()["/all"]]  # pyright: ignore[reportArgumentType]
    add_sources(ctx.store, catalog_without_recipe("/all"))

    detect(ctx, web)

    assert recipe_notices(ctx.store) == [("recipe", "SUCCESS")]


def test_a_page_that_robots_txt_forbids_is_an_error_and_is_not_requested(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /courses")
    add_sources(ctx.store, catalog_without_recipe("/courses"))

    detect(ctx, web)

    assert "robots.txt" in recipe_row(ctx.store).message
    assert web.paths == []


def test_a_catalog_that_robots_txt_blocks_counts_no_failure_and_no_dead_letter(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /courses")
    add_sources(ctx.store, catalog_without_recipe("/courses"))

    poll_catalogs(ctx, web)
    detect(ctx, web)
    poll_catalogs(ctx, web)

    source = source_row(ctx.store, CATALOG_ID)
    assert rows(ctx.store, dead_letters) == []
    assert (source.failure_count, source.strike_count, source.status) == (0, 0, "active")
    assert [row.status for row in rows(ctx.store, tasks) if row.kind == "detect_recipe"] == ["SKIPPED"]


def test_an_uncertain_detection_without_a_model_is_an_error_that_names_the_cure(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, {"/": sites.page("<p>" + "Welcome to the college. " * 30)})
    add_sources(ctx.store, catalog_without_recipe("/"))

    detect(ctx, web)

    row = recipe_row(ctx.store)
    assert row.status == "ERROR"
    assert "OPENAI_API_KEY" in row.message
    poll_catalogs(ctx, web)
    assert "detection of its recipe failed" in source_row(ctx.store, CATALOG_ID).last_outcome
    assert rows(ctx.store, extractions) == []


def test_a_configured_recipe_is_never_detected(ctx: RunContext, web: FakeWeb) -> None:
    add_sources(ctx.store, a_catalog())

    counts = detect(ctx, web)

    assert counts == DetectionCounts()
    assert rows(ctx.store, recipes) == []


@pytest.mark.slow
def test_a_changed_url_starts_a_new_detection(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single() | sites.numbered())
    add_sources(ctx.store, catalog_without_recipe("/all"))
    detect(ctx, web)

    add_sources(ctx.store, catalog_without_recipe("/courses"))
    poll_catalogs(ctx, web)
    reset_recipe = recipe_row(ctx.store)
    detect(ctx, web)

    assert (reset_recipe.status, reset_recipe.recipe) == ("WAITING", None)
    assert recipe_row(ctx.store).recipe["page_type"] == "DETAIL_LINKS"
    assert recipe_notices(ctx.store) == [("recipe", "SUCCESS")] * 2


def test_a_success_is_notified_though_the_recipe_is_unchanged(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    add_sources(ctx.store, catalog_without_recipe("/all"))
    detect(ctx, web)
    before = recipe_row(ctx.store).recipe

    with ctx.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=ctx.store.now(), again=True)
    detect(ctx, web)

    assert recipe_row(ctx.store).recipe == before
    assert recipe_notices(ctx.store) == [("recipe", "SUCCESS")] * 2


def test_a_repeated_detection_keeps_its_recipe_in_the_meantime(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    add_sources(ctx.store, catalog_without_recipe("/all"))
    detect(ctx, web)
    web.routes["/all"] = 404

    with ctx.store.begin() as connection:
        declared_ids = declared(connection, [CATALOG_ID], now=ctx.store.now(), again=True)
    detect(ctx, web)

    assert declared_ids == [CATALOG_ID]
    row = recipe_row(ctx.store)
    assert (row.status, row.recipe["page_type"]) == ("ERROR", "DETAIL")
    with ctx.store.begin() as connection:
        source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
        facts = recipe_facts(connection, source)
    assert facts["recipe_status"] == "ERROR"
    assert facts["recipe"] == {"page_type": "DETAIL"}


def test_repeated_declarations_make_one_detection(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    add_sources(ctx.store, catalog_without_recipe("/all"))

    for _ in range(3):
        with ctx.store.begin() as connection:
            source = sources_by_id(connection, [CATALOG_ID])[CATALOG_ID]
            ensure_detection(connection, [source], now=ctx.store.now(), again=True)

    assert detect(ctx, web).found == 1


def test_a_disabled_source_is_not_detected(ctx: RunContext, web: FakeWeb) -> None:
    add_sources(ctx.store, catalog_without_recipe("/all"))
    with ctx.store.begin() as connection:
        disable(connection, CATALOG_ID, actor="me", reason="no", now=ctx.store.now())

    assert detect(ctx, web) == DetectionCounts()
    assert web.paths == []


@pytest.mark.slow
def test_a_detection_respects_the_delay_of_its_host(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.numbered(pages=1, each=2))
    slow = with_settings(ctx, crawl__delay_seconds="0.05")
    add_sources(slow.store, catalog_without_recipe("/courses"))

    detect(slow, web)

    times = [request.at for request in web.requests]
    assert len(times) == 3
    assert all(after - before >= 0.049 for before, after in pairwise(times))


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


def test_a_late_failure_for_an_old_url_does_not_affect_the_new_one(ctx: RunContext, web: FakeWeb) -> None:
    serve_site(web, sites.single())
    add_sources(ctx.store, catalog_without_recipe("/wrong"))
    with ctx.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=ctx.store.now())
    task, source = claim_detection(ctx)
    add_sources(ctx.store, catalog_without_recipe("/all"))
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        declared(connection, [CATALOG_ID], now=now)
        item = DetectionItem(task=task, source=source)
        gone = Permanent("404", code="http_404")
        late = Failed(task=task, item=item, error=gone, decision=DeadLetterTask())
        end_tasks(connection, persist_detections(connection, [late], now=now), now=now)

    detect(ctx, web)

    assert recipe_notices(ctx.store) == [("recipe", "SUCCESS")]
    assert recipe_row(ctx.store).recipe == {"page_type": "DETAIL"}
    assert rows(ctx.store, dead_letters) == []


def test_a_detection_whose_recipe_was_configured_in_the_meantime_is_skipped(ctx: RunContext, web: FakeWeb) -> None:
    add_sources(ctx.store, catalog_without_recipe("/all"))
    with ctx.store.begin() as connection:
        declared(connection, [CATALOG_ID], now=ctx.store.now())
    add_sources(ctx.store, a_catalog())

    detect(ctx, web)

    assert (recipe_notices(ctx.store), rows(ctx.store, dead_letters)) == ([], [])
    assert [row.status for row in rows(ctx.store, tasks) if row.kind == DETECT] == ["SKIPPED"]
    assert web.paths == []
