"""Detection as work: claimed, polite, fenced, told once, and followed by the first extraction."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from ingestion_pipeline.catalogs.crawling.runs import start_now
from ingestion_pipeline.catalogs.detection.runs import DetectionCounts, DetectionFailed, write_results
from ingestion_pipeline.catalogs.recipes.registry import DETECT, detected_recipes, ensure_detection, recipe_facts
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.notices.message import message_of
from ingestion_pipeline.registry import declared
from ingestion_pipeline.settings import Work
from ingestion_pipeline.sources import Source
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import dead_letters, extractions, outbox, recipes, tasks
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.tasks.task import Task
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.finding import a_found_catalog, detect, recipe_row, serve, told
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog, begin, crawl_all, found_pages
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import changed, given_sources, rows, source_row


def test_a_recipe_is_detected_told_and_followed(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.numbered())
    given_sources(ctx.store, a_found_catalog("/courses"))

    begin(ctx, web)
    before = source_row(ctx.store, SHOP).last_outcome
    counts = detect(ctx, web)
    begin(ctx, web)
    crawl_all(ctx, web.port)

    assert "detection of its recipe is waiting" in before
    assert counts.found == 1
    row = recipe_row(ctx.store)
    assert (row.status, row.recipe["page_type"]) == ("SUCCESS", "DETAIL_LINKS")
    assert told(ctx.store) == [("recipe", "SUCCESS")]
    [extraction] = rows(ctx.store, extractions)
    assert (extraction.recipe, extraction.kind) == (row.recipe, "crawl")
    details = [one for one in found_pages(ctx.store) if one.step == "root/links"]
    assert {one.path for one in details} == {f"/courses/{number}" for number in range(12)}


def test_its_first_extraction_is_due_as_soon_as_the_recipe_is_there(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    given_sources(ctx.store, a_found_catalog("/all"))
    begin(ctx, web)
    waits_until = source_row(ctx.store, SHOP).next_check_at

    detect(ctx, web)

    now = ctx.store.now()
    assert waits_until > now >= source_row(ctx.store, SHOP).next_check_at


def test_a_failure_is_told_only_when_it_is_final(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/courses"] = 500
    given_sources(ctx.store, a_found_catalog("/courses"))

    counts = detect(ctx, web)

    assert (counts.retried, counts.failed) == (2, 1)
    row = recipe_row(ctx.store)
    assert row.status == "ERROR"
    assert "500" in row.message
    assert told(ctx.store) == [("recipe", "ERROR")]
    assert [one.task_kind for one in rows(ctx.store, dead_letters)] == ["detect_recipe"]


@pytest.mark.parametrize(
    ("reply", "title", "text"),
    [
        pytest.param(None, f"{SHOP}: recipe detected", "DETAIL_LINKS", id="detected"),
        pytest.param(500, f"{SHOP}: no recipe detected", "500", id="failed"),
    ],
)
def test_the_notice_of_a_detection_says_to_people_what_came_of_it(
    ctx: RunContext, web: FakeWeb, reply: int | None, title: str, text: str
) -> None:
    serve(web, sites.numbered())
    if reply is not None:
        web.routes["/courses"] = reply
    given_sources(ctx.store, a_found_catalog("/courses"))

    detect(ctx, web)

    [row] = [entry for entry in rows(ctx.store, outbox) if entry.subject_kind == "recipe"]
    message = message_of("d", "ops", [("recipe", row.payload)], text_chapters=1)
    content = json.loads(message.body)
    assert message.title == title
    assert text in message.text.removeprefix(title)
    assert (content["events"][0]["source_id"], content["events"][0]["kind"]) == (SHOP, "recipe")
    assert content["events"][0]["status"] == ("SUCCESS" if reply is None else "ERROR")
    source = source_row(ctx.store, SHOP)
    assert (content["events"][0]["url"], content["events"][0]["name"]) == (source.url, source.name)
    assert content["events"][0]["message"] == recipe_row(ctx.store).message
    assert datetime.fromisoformat(content["events"][0]["detected_at"]) == row.created_at


def test_what_a_host_that_was_down_hid_is_looked_for_again_at_the_next_poll(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    web.routes["/all"] = 500
    given_sources(ctx.store, a_found_catalog("/all"))
    detect(ctx, web)
    assert detect(ctx, web).found == 0  # not before a poll
    assert recipe_row(ctx.store).status == "ERROR"

    serve(web, sites.single())
    said = start_now(ctx, [SHOP])[SHOP]

    assert said == "not crawled: detection of its recipe is waiting"
    assert detect(ctx, web).found == 1
    assert told(ctx.store) == [("recipe", "ERROR"), ("recipe", "SUCCESS")]


def test_what_is_wrong_with_the_catalogue_itself_is_not_looked_for_again(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/courses"] = 404
    given_sources(ctx.store, a_found_catalog("/courses"))
    detect(ctx, web)
    web.requests.clear()

    start_now(ctx, [SHOP])
    detect(ctx, web)

    assert (recipe_row(ctx.store).status, web.paths) == ("ERROR", [])


def test_a_detection_in_progress_says_so_and_waits_for_its_own_backoff(ctx: RunContext, web: FakeWeb) -> None:
    """A05, A23: looked at from within the request, and after an attempt that came to nothing."""
    seen: list[str] = []

    async def looked_at(writer: asyncio.StreamWriter) -> None:
        seen.append((await asyncio.to_thread(recipe_row, ctx.store)).status)
        writer.close()

    web.routes["/courses"] = looked_at
    slow = changed(ctx, crawl__backoff_base_seconds="600")
    given_sources(slow.store, a_found_catalog("/courses"))

    counts = detect(slow, web)

    assert (counts.retried, counts.failed, seen) == (1, 0, ["IN_PROGRESS"])
    assert recipe_row(ctx.store).status == "WAITING"


def test_a_failure_that_passes_is_never_told(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    web.routes["/all"] = [500, sites.single()["/all"]]  # pyright: ignore[reportArgumentType]
    given_sources(ctx.store, a_found_catalog("/all"))

    detect(ctx, web)

    assert told(ctx.store) == [("recipe", "SUCCESS")]


def test_a_page_that_robots_forbid_is_an_error_and_is_not_asked_for(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /courses")
    given_sources(ctx.store, a_found_catalog("/courses"))

    detect(ctx, web)

    assert "robots.txt" in recipe_row(ctx.store).message
    assert web.paths == []


def test_a_catalogue_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(
    ctx: RunContext, web: FakeWeb
) -> None:
    web.routes["/robots.txt"] = Reply(b"User-agent: *\nDisallow: /courses")
    given_sources(ctx.store, a_found_catalog("/courses"))

    begin(ctx, web)
    detect(ctx, web)
    begin(ctx, web)

    source = source_row(ctx.store, SHOP)
    assert rows(ctx.store, dead_letters) == []
    assert (source.failure_count, source.strike_count, source.status) == (0, 0, "active")
    assert [row.status for row in rows(ctx.store, tasks) if row.kind == "detect_recipe"] == ["SKIPPED"]


def test_a_doubt_without_a_model_is_an_error_with_its_cure(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": sites.page("<p>" + "Welcome to the college. " * 30)})
    given_sources(ctx.store, a_found_catalog("/"))

    detect(ctx, web)

    row = recipe_row(ctx.store)
    assert row.status == "ERROR"
    assert "OPENAI_API_KEY" in row.message
    begin(ctx, web)
    assert "detection of its recipe failed" in source_row(ctx.store, SHOP).last_outcome
    assert rows(ctx.store, extractions) == []


def test_a_recipe_by_hand_is_never_looked_for(ctx: RunContext, web: FakeWeb) -> None:
    given_sources(ctx.store, a_catalog())

    counts = detect(ctx, web)

    assert counts == DetectionCounts()
    assert rows(ctx.store, recipes) == []


def test_another_url_is_another_catalogue(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single() | sites.numbered())
    given_sources(ctx.store, a_found_catalog("/all"))
    detect(ctx, web)

    given_sources(ctx.store, a_found_catalog("/courses"))
    begin(ctx, web)
    forgotten = recipe_row(ctx.store)
    detect(ctx, web)

    assert (forgotten.status, forgotten.recipe) == ("WAITING", None)
    assert recipe_row(ctx.store).recipe["page_type"] == "DETAIL_LINKS"
    assert told(ctx.store) == [("recipe", "SUCCESS")] * 2


def test_a_success_is_told_also_where_the_recipe_is_the_one_before(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    given_sources(ctx.store, a_found_catalog("/all"))
    detect(ctx, web)
    before = recipe_row(ctx.store).recipe

    with ctx.store.begin() as connection:
        declared(connection, [SHOP], now=ctx.store.now(), again=True)
    detect(ctx, web)

    assert recipe_row(ctx.store).recipe == before
    assert told(ctx.store) == [("recipe", "SUCCESS")] * 2


def test_what_is_looked_for_again_keeps_its_recipe_meanwhile(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    given_sources(ctx.store, a_found_catalog("/all"))
    detect(ctx, web)
    web.routes["/all"] = 404

    with ctx.store.begin() as connection:
        asked = declared(connection, [SHOP], now=ctx.store.now(), again=True)
    detect(ctx, web)

    assert asked == [SHOP]
    row = recipe_row(ctx.store)
    assert (row.status, row.recipe["page_type"]) == ("ERROR", "DETAIL")
    with ctx.store.begin() as connection:
        source = sources_by_id(connection, [SHOP])[SHOP]
        facts = recipe_facts(connection, source)
    assert facts["recipe_status"] == "ERROR"
    assert facts["recipe"] == {"page_type": "DETAIL"}


def test_two_who_declare_at_once_make_one_detection(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    given_sources(ctx.store, a_found_catalog("/all"))

    for _ in range(3):
        with ctx.store.begin() as connection:
            source = sources_by_id(connection, [SHOP])[SHOP]
            ensure_detection(connection, [source], now=ctx.store.now(), again=True)

    assert detect(ctx, web).found == 1


def test_a_disabled_source_is_not_looked_at(ctx: RunContext, web: FakeWeb) -> None:
    given_sources(ctx.store, a_found_catalog("/all"))
    with ctx.store.begin() as connection:
        disable(connection, SHOP, actor="me", reason="no", now=ctx.store.now())

    assert detect(ctx, web) == DetectionCounts()
    assert web.paths == []


def test_a_host_is_asked_at_its_pace(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.numbered(pages=1, each=2))
    slow = changed(ctx, crawl__delay_seconds="0.05")
    given_sources(slow.store, a_found_catalog("/courses"))

    detect(slow, web)

    times = [asked.at for asked in web.requests]
    assert len(times) == 3
    assert all(after - before >= 0.049 for before, after in pairwise(times))


@pytest.mark.parametrize("config", [{"entity": "planet"}, {"recipe": {"page_type": "X"}}])
def test_a_declaration_that_cannot_work_is_refused(config: dict[str, Any]) -> None:
    from ingestion_pipeline.registry import check_definition

    bad = list(check_definition(a_catalog(config=config)))

    assert [one.field for one in bad] == ["config"]
    assert SHOP in bad[0].message


def test_a_declaration_without_a_recipe_is_a_good_one(store: Store) -> None:
    from ingestion_pipeline.registry import check_definition

    assert list(check_definition(a_catalog(config={}))) == []
    given_sources(store, a_catalog(config={}))
    with store.begin() as connection:
        assert declared(connection, [SHOP], now=store.now()) == [SHOP]
        assert detected_recipes(connection, [SHOP])[SHOP].status == "WAITING"


def claimed(ctx: RunContext) -> tuple[Task, Source]:
    """The detection that waits, as a worker has it that looks at the source now."""
    [task] = Worker(ctx.store, lease_seconds=60).claim(ClaimFilter(kind=DETECT), limit=1)
    with ctx.store.read() as connection:
        return task, sources_by_id(connection, [SHOP])[SHOP]


def test_what_was_found_wrong_with_an_address_says_nothing_of_the_next(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, sites.single())
    given_sources(ctx.store, a_found_catalog("/wrong"))
    with ctx.store.begin() as connection:
        declared(connection, [SHOP], now=ctx.store.now())
    task, source = claimed(ctx)
    given_sources(ctx.store, a_found_catalog("/all"))
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        declared(connection, [SHOP], now=now)
        late = DetectionFailed(task=task, source=source, error=Permanent("404", code="http_404"))
        write_results(connection, [late], now=now, policy=Work(), random=ctx.random)

    detect(ctx, web)

    assert told(ctx.store) == [("recipe", "SUCCESS")]
    assert recipe_row(ctx.store).recipe == {"page_type": "DETAIL"}
    assert rows(ctx.store, dead_letters) == []


def test_a_recipe_that_was_written_meanwhile_is_no_failure(ctx: RunContext, web: FakeWeb) -> None:
    given_sources(ctx.store, a_found_catalog("/all"))
    with ctx.store.begin() as connection:
        declared(connection, [SHOP], now=ctx.store.now())
    given_sources(ctx.store, a_catalog())

    detect(ctx, web)

    assert (told(ctx.store), rows(ctx.store, dead_letters)) == ([], [])
    assert [row.status for row in rows(ctx.store, tasks) if row.kind == DETECT] == ["SKIPPED"]
    assert web.paths == []
