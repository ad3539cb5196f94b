"""Runs that analyse companies: pages are fetched once, facts have evidence, boards are discovered, profiles rescore."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from ingestion_pipeline.companies.company_runs import is_scoring_due, rescore
from ingestion_pipeline.companies.records import analysis_task, ensure_company, ensure_source, start_analyses
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies, dead_letters, sources
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.companies.company_sites import (
    ABOUT,
    ACME,
    BOARD,
    CULTURE,
    a_company,
    a_page,
    a_site,
    add_acme,
    company_row,
    poll_companies,
    process_companies,
    serve,
    tasks_of,
    transaction,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.polling_runs import RunningClock, add_sources, fetch_async, rows, source_row

pytestmark = pytest.mark.both_databases


def analyse(ctx: RunContext, web: FakeWeb, **changes: Any) -> Counter[str]:
    """Add Acme as a source, poll it, and run its analysis."""
    add_sources(ctx.store, a_company(**changes))
    poll_companies(ctx, web)
    return process_companies(ctx, web.port)


def analyse_acme(ctx: RunContext, web: FakeWeb) -> Counter[str]:
    add_acme(ctx, web)
    return process_companies(ctx, web.port)


def request_analysis(ctx: RunContext) -> dict[str, str]:
    """Request the analysis of Acme, as an operator does."""
    with transaction(ctx) as (connection, now):
        source = sources_by_id(connection, [ACME])[ACME]
        return start_analyses(connection, [source], now=now, is_asked=True)


def test_a_poll_adds_the_record_at_once_and_the_analysis_fills_it(ctx: RunContext, web: FakeWeb) -> None:
    add_acme(ctx, web)
    before = company_row(ctx.store)

    counts = process_companies(ctx, web.port, ranks={"Python": 40, "go": 45, "cobol": 50})

    assert (before.status, before.name, before.website) == ("pending", None, "http://acme.test/")
    assert counts == {"analysed": 1, "boards_active": 1}
    row = company_row(ctx.store)
    assert (row.status, row.name, row.founded) == ("active", "Acme Robotics", 2011)
    assert (row.about.split("\n")[0], row.culture) == (ABOUT, CULTURE)
    assert row.mission == "Our mission is to give every parcel a quiet way home."
    assert (row.size, row.employees_low, row.employees_high) == ("51-200", 51, 200)
    assert (row.size_category, row.headquarters) == ("medium", "Portland, OR, US")
    assert row.industry is None
    assert row.is_remote_first is True
    assert row.tech_stack["languages"] == ["python", "go"]
    assert row.score_parts == {"city": 50, "tech": 85, "remote": 15, "machine_learning": 10}
    assert (row.score, row.tier) == (160, "S")
    assert (row.quality["level"], row.quality["missing"]) == ("good", ["industry"])
    assert row.evidence["founded"]["method"] == "embedded"
    assert row.evidence["culture"]["status"] == "exact"


def test_only_the_pages_that_the_menu_links_are_fetched(ctx: RunContext, web: FakeWeb) -> None:
    analyse_acme(ctx, web)

    paths = [request.path for request in web.requests if request.host == "acme.test"]
    assert sorted(paths) == ["/", "/company/about-acme", "/team/careers"]


def test_pages_missing_from_the_menu_are_found_in_the_sitemap(ctx: RunContext, web: FakeWeb) -> None:
    home_page = "<html><body><h1>Acme</h1><p>" + "Parcels, sorted quietly. " * 20 + "</p></body></html>"
    careers = "http://acme.test/en/our-team/jobs"
    sitemap = f"<urlset><url><loc>{careers}</loc></url></urlset>"
    serve(web, {"/": home_page, "/sitemap.xml": sitemap, "/en/our-team/jobs": a_page("<h1>Jobs</h1>")})
    serve(web, {"/about-us": a_page(f"<h1>About us</h1><p>{ABOUT}</p>")})

    analyse(ctx, web)

    assert company_row(ctx.store).about == ABOUT
    # jobs came from the sitemap; the about page was guessed in the documented order
    guessed = [path for path in web.paths if path.startswith("/about")]
    assert guessed == ["/about", "/about-us"]
    assert "/careers" not in web.paths
    assert "/en/our-team/jobs" in web.paths


def test_a_recognised_board_that_parses_becomes_a_source_and_is_polled_at_once(ctx: RunContext, web: FakeWeb) -> None:
    analyse_acme(ctx, web)

    board = source_row(ctx.store, "job_board:greenhouse-acme")
    assert (board.status, board.platform, board.company_id) == ("active", "greenhouse", "acme")
    assert (board.url, board.config) == (BOARD, {"api_base": "http://api.test"})
    [analysis], [discovery] = (tasks_of(ctx.store, kind) for kind in ("company", "source_discovery"))
    poll = next(row for row in tasks_of(ctx.store, "poll") if row.source_id == board.id)
    assert (poll.status, poll.parent_id, poll.spawn_depth) == ("PENDING", discovery.id, 2)
    assert poll.ancestry == [analysis.id, discovery.id]
    assert {row.tracking_id for row in (analysis, discovery, poll, board)} == {analysis.tracking_id}
    assert all(row.url for row in (analysis, discovery, poll))
    [board_record] = company_row(ctx.store).boards
    assert (board_record["confidence"], board_record["source_id"]) == ("high", board.id)


@pytest.mark.slow
def test_a_complete_company_is_not_analysed_again_for_a_month(
    ctx: RunContext, web: FakeWeb, clock: RunningClock
) -> None:
    analyse_acme(ctx, web)
    request_count = len(web.requests)
    poll_again(ctx, web)

    soon = process_companies(ctx, web.port)
    clock.advance(days=31)
    poll_again(ctx, web)
    later = process_companies(ctx, web.port)

    assert (soon, later) == ({"needless": 1}, {"analysed": 1})
    assert web.requests[request_count].path == "/"
    assert len(rows(ctx.store, companies)) == 1
    assert len(tasks_of(ctx.store, "source_discovery")) == 1


def poll_again(ctx: RunContext, web: FakeWeb) -> None:
    with transaction(ctx) as (connection, now):
        make_due(connection, [ACME], now=now)
    asyncio.run(fetch_async(ctx, web.port, ClaimFilter(kind="poll", source_ids=[ACME])))


def test_a_requested_analysis_runs_for_a_complete_company(ctx: RunContext, web: FakeWeb) -> None:
    analyse_acme(ctx, web)
    request_analysis(ctx)

    assert process_companies(ctx, web.port, source_ids=[ACME]) == {"analysed": 1}


@pytest.mark.slow
def test_a_request_marks_an_analysis_that_is_already_queued_as_requested(ctx: RunContext, web: FakeWeb) -> None:
    analyse_acme(ctx, web)
    poll_again(ctx, web)  # the scheduled analysis, which would be skipped as needless

    messages = request_analysis(ctx)

    assert "is already active" in messages[ACME]
    assert process_companies(ctx, web.port, source_ids=[ACME]) == {"analysed": 1}


def test_thin_data_is_stored_with_its_flag_and_the_task_is_skipped(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})

    counts = analyse(ctx, web)

    [task] = tasks_of(ctx.store, "company")
    assert (counts, task.status, task.error_code) == ({"thin": 1}, "SKIPPED", "thin")
    row = company_row(ctx.store)
    assert (row.status, row.name, row.about, row.size, row.industry) == ("pending", *[None] * 4)
    assert (row.quality["level"], row.tier) == ("thin", "D")
    assert "unknown" not in str(row).lower()
    assert source_row(ctx.store, ACME).failure_count == 0


def test_a_thin_company_that_becomes_unreachable_stays_pending(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})
    analyse(ctx, web)
    serve(web, {"/": 404})
    request_analysis(ctx)

    assert process_companies(ctx, web.port) == {"failed": 1}
    assert company_row(ctx.store).status == "pending"


@pytest.mark.slow
def test_a_failing_home_page_is_tried_three_times_and_counted_as_a_failure(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": 500})

    counts = analyse(ctx, web)

    assert counts == {"retried": 2, "failed": 1}
    row, source = company_row(ctx.store), source_row(ctx.store, ACME)
    assert row.status == "failed"
    assert "500" in row.failure
    assert (source.failure_count, source.status) == (1, "active")
    assert [dead_letter.task_kind for dead_letter in rows(ctx.store, dead_letters)] == ["company"]


def test_a_page_blocked_by_robots_txt_is_recorded_and_not_fetched(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /team")
    counts = analyse_acme(ctx, web)

    assert counts["analysed"] == 1
    assert "/team/careers" not in web.paths
    failed = company_row(ctx.store).quality["pages_failed"]
    assert failed == {"http://acme.test/team/careers": "blocked_by_robots"}


def test_a_company_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    assert analyse_acme(ctx, web) == {"forbidden": 1}

    source = source_row(ctx.store, ACME)
    assert (source.failure_count, source.strike_count) == (0, 0)
    assert "robots.txt" in source.last_outcome
    assert rows(ctx.store, dead_letters) == []


@pytest.mark.slow
def test_a_page_that_fails_is_fetched_again_and_the_others_are_not(ctx: RunContext, web: FakeWeb) -> None:
    add_acme(ctx, web)
    web.routes["acme.test/team/careers"] = [503, a_site()["/team/careers"]]

    counts = process_companies(ctx, web.port)

    assert counts == {"retried": 1, "analysed": 1, "boards_active": 1}
    request_counts = Counter(request.path for request in web.requests if request.host == "acme.test")
    assert request_counts == {"/": 1, "/company/about-acme": 1, "/team/careers": 2}


def test_a_company_named_by_a_job_gets_a_source_that_is_polled_later(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site(board=None))
    with transaction(ctx) as (connection, now):
        analysis = analysis_task("acme-robotics", "http://www.acme.test", now=now)
        insert_tasks(connection, [replace(analysis, payload={"name": "Acme Robotics"})], now=now)
    serve(web, a_site(board=None), host="www.acme.test")

    process_companies(ctx, web.port)

    [source] = rows(ctx.store, sources)[:1]
    [row] = rows(ctx.store, companies)
    assert (source.id, source.company_id) == ("company:acme-robotics", "acme-robotics")
    assert (row.id, row.source_id, row.name) == ("acme-robotics", source.id, "Acme Robotics")
    [poll] = [task for task in tasks_of(ctx.store, "poll") if task.source_id == source.id]
    assert (poll.not_before - ctx.store.now()).days >= 29


def test_a_website_is_one_company_under_any_name(ctx: RunContext, web: FakeWeb) -> None:
    add_acme(ctx, web)
    with transaction(ctx) as (connection, now):
        company_id = ensure_company(
            connection,
            name="Acme Robotics GmbH",
            website="https://www.acme.test",
            discovered_by="a listing",
            tracking_id="t",
            now=now,
        )
        source = ensure_source(connection, company_id, now=now, settings=ctx.settings)

    assert company_id == "acme"
    assert source is not None
    assert source.id == ACME
    assert len(rows(ctx.store, companies)) == len(rows(ctx.store, sources)) == 1


def test_nothing_is_fetched_for_a_company_whose_source_is_disabled(ctx: RunContext, web: FakeWeb) -> None:
    add_acme(ctx, web)
    with transaction(ctx) as (connection, now):
        disable(connection, ACME, actor="someone", reason="enough", now=now)

    assert process_companies(ctx, web.port) == {"needless": 1}
    assert web.paths == []


def test_an_invalid_task_is_a_dead_letter_and_others_are_processed(ctx: RunContext, web: FakeWeb) -> None:
    add_acme(ctx, web)
    with transaction(ctx) as (connection, now):
        bad = NewTask(kind="source_discovery", dedupe_key="x", url="http://x.test/", not_before=now)
        insert_tasks(connection, [bad], now=now)

    counts = process_companies(ctx, web.port)

    assert counts == {"failed": 1, "analysed": 1, "boards_active": 1}
    assert [row.error_code for row in rows(ctx.store, dead_letters)] == ["bad_task"]


STACK = {"languages": ["python", "go"], "infrastructure": ["kubernetes"]}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "profile.yaml"


@pytest.fixture
def profile_settings(settings: Settings, profile: Path) -> Settings:
    match = settings.match.model_copy(update={"profile": str(profile)})
    return settings.model_copy(update={"match": match})


def add_companies(store: Store) -> None:
    common = {
        "status": "active",
        "quality": {},
        "discovered_by": "operator",
        "tracking_id": "t",
        "created_at": NOON,
        "updated_at": NOON,
    }
    with store.begin() as connection:
        connection.execute(
            insert(companies).values(
                id="acme",
                tech_stack=STACK,
                is_remote_first=True,
                score=65,
                tier="C",
                score_parts={"city": 50, "tech": 0, "remote": 15, "machine_learning": 0},
                **common,
            )
        )
        connection.execute(insert(companies).values(id="new", **common))  # not analysed yet


def rescore_once(store: Store, settings: Settings) -> tuple[bool, int]:
    with store.begin() as connection:
        return is_scoring_due(connection, settings), rescore(connection, settings, now=NOON)


def test_a_changed_profile_changes_scores_and_tiers_once(
    store: Store, profile_settings: Settings, profile: Path
) -> None:
    add_companies(store)
    profile.write_text("skills: {Python: 10, K8s: 9}\n")

    assert rescore_once(store, profile_settings) == (True, 1)
    assert rescore_once(store, profile_settings) == (False, 0)
    first = next(row for row in rows(store, companies) if row.id == "acme")
    profile.write_text("skills: {Painting: 10}\n")
    assert rescore_once(store, profile_settings) == (True, 1)

    second = next(row for row in rows(store, companies) if row.id == "acme")
    assert (first.score, first.tier) == (160, "S")  # 50 city, 95 skills, 15 remote
    assert (second.score, second.tier) == (65, "C")
    assert next(row for row in rows(store, companies) if row.id == "new").score is None
