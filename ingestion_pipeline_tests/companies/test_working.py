"""Companies as work: one polite pass, facts with evidence, boards discovered, nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from ingestion_pipeline.companies.records import analysis_task, ensure_company, ensure_source
from ingestion_pipeline.companies.system import start_analyses as begin_analysis
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.registry import disable
from ingestion_pipeline.store.tables import companies, dead_letters, sources
from ingestion_pipeline.tasks.claims import ClaimFilter
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask
from ingestion_pipeline_tests.companies.sites import (
    ABOUT,
    ACME,
    API,
    BOARD,
    CULTURE,
    a_board,
    a_company,
    a_page,
    a_site,
    begin,
    company_row,
    serve,
    tasks_of,
    work,
)
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.pollers import GoingClock, fetch_async, given_sources, rows, source_row


def given_acme(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site())
    serve(web, {API: a_board("Engineer", "Sorter")}, host="api.test")
    given_sources(ctx.store, a_company())
    begin(ctx, web)


def test_a_poll_makes_the_record_at_once_and_the_analysis_fills_it(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    before = company_row(ctx.store)

    counts = work(ctx, web.port, ranks={"Python": 40, "go": 45, "cobol": 50})

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
    assert row.evidence["founded"]["rung"] == "embedded"
    assert row.evidence["culture"]["status"] == "exact"


def test_the_pages_that_the_menu_names_are_asked_for_and_no_others(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)

    work(ctx, web.port)

    asked = [one.path for one in web.requests if one.host == "acme.test"]
    assert sorted(asked) == ["/", "/company/about-acme", "/team/careers"]


def test_where_the_menu_names_none_the_sitemap_does(ctx: RunContext, web: FakeWeb) -> None:
    bare = "<html><body><h1>Acme</h1><p>" + "Parcels, sorted quietly. " * 20 + "</p></body></html>"
    careers = "http://acme.test/en/our-team/jobs"
    sitemap = f"<urlset><url><loc>{careers}</loc></url></urlset>"
    serve(web, {"/": bare, "/sitemap.xml": sitemap, "/en/our-team/jobs": a_page("<h1>Jobs</h1>")})
    serve(web, {"/about-us": a_page(f"<h1>About us</h1><p>{ABOUT}</p>")})
    given_sources(ctx.store, a_company())
    begin(ctx, web)

    work(ctx, web.port)

    assert company_row(ctx.store).about == ABOUT
    # the sitemap had jobs; about was guessed, in the order of the promise
    guessed = [path for path in web.paths if path.startswith("/about")]
    assert guessed == ["/about", "/about-us"]
    assert "/careers" not in web.paths
    assert "/en/our-team/jobs" in web.paths


def test_a_board_that_is_recognised_and_read_is_a_source_that_is_polled_at_once(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)

    work(ctx, web.port)

    board = source_row(ctx.store, "job_board:greenhouse-acme")
    assert (board.status, board.platform, board.company_id) == ("active", "greenhouse", "acme")
    assert (board.url, board.config) == (BOARD, {"api_base": "http://api.test"})
    [analysis], [discovery] = (tasks_of(ctx.store, kind) for kind in ("company", "source_discovery"))
    poll = next(one for one in tasks_of(ctx.store, "poll") if one.source_id == board.id)
    assert (poll.status, poll.parent_id, poll.spawn_depth) == ("PENDING", discovery.id, 2)
    assert poll.ancestry == [analysis.id, discovery.id]
    assert {one.tracking_id for one in (analysis, discovery, poll, board)} == {analysis.tracking_id}
    assert all(one.url for one in (analysis, discovery, poll))
    [kept] = company_row(ctx.store).boards
    assert (kept["confidence"], kept["source_id"]) == ("high", board.id)


def test_a_company_that_is_known_well_is_not_asked_again_for_a_month(
    ctx: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    given_acme(ctx, web)
    work(ctx, web.port)
    asked = len(web.requests)
    poll_again(ctx, web)

    soon = work(ctx, web.port)
    clock.advance(days=31)
    poll_again(ctx, web)
    later = work(ctx, web.port)

    assert (soon, later) == ({"needless": 1}, {"analysed": 1})
    assert web.requests[asked].path == "/"
    assert len(rows(ctx.store, companies)) == 1
    assert len(tasks_of(ctx.store, "source_discovery")) == 1


def poll_again(ctx: RunContext, web: FakeWeb) -> None:
    with ctx.store.begin() as connection:
        make_due(connection, [ACME], now=ctx.store.clock.now(connection))
    asyncio.run(fetch_async(ctx, web.port, ClaimFilter(kind="poll", source_ids=[ACME])))


def test_a_person_who_asks_gets_an_analysis_however_well_it_is_known(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    work(ctx, web.port)
    with ctx.store.begin() as connection:
        known = sources_by_id(connection, [ACME])
        begin_analysis(connection, list(known.values()), now=ctx.store.clock.now(connection), is_asked=True)

    assert work(ctx, web.port, source_ids=[ACME]) == {"analysed": 1}


def test_a_person_who_asks_makes_an_analysis_that_waits_anyway_one_that_is_asked_for(
    ctx: RunContext, web: FakeWeb
) -> None:
    given_acme(ctx, web)
    work(ctx, web.port)
    poll_again(ctx, web)  # the ordinary one, which would be needless

    with ctx.store.begin() as connection:
        known = sources_by_id(connection, [ACME])
        now = ctx.store.clock.now(connection)
        said = begin_analysis(connection, list(known.values()), now=now, is_asked=True)

    assert "is already active" in said[ACME]
    assert work(ctx, web.port, source_ids=[ACME]) == {"analysed": 1}


def test_thin_data_is_kept_with_its_flag_and_the_task_is_skipped(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})
    given_sources(ctx.store, a_company(name="acme"))
    begin(ctx, web)

    counts = work(ctx, web.port)

    [task] = tasks_of(ctx.store, "company")
    assert (counts, task.status, task.error_code) == ({"thin": 1}, "SKIPPED", "thin")
    row = company_row(ctx.store)
    assert (row.status, row.name, row.about, row.size, row.industry) == ("pending", *[None] * 4)
    assert (row.quality["level"], row.tier) == ("thin", "D")
    assert "unknown" not in str(row).lower()
    assert source_row(ctx.store, ACME).failure_count == 0


def test_a_thin_company_that_cannot_be_reached_later_is_not_taken_for_a_known_one(
    ctx: RunContext, web: FakeWeb
) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})
    given_sources(ctx.store, a_company(name="acme"))
    begin(ctx, web)
    work(ctx, web.port)
    serve(web, {"/": 404})
    with ctx.store.begin() as connection:
        source = sources_by_id(connection, [ACME])[ACME]
        now = ctx.store.clock.now(connection)
        begin_analysis(connection, [source], now=now, is_asked=True)

    assert work(ctx, web.port) == {"failed": 1}
    assert company_row(ctx.store).status == "pending"


def test_a_home_page_that_fails_is_tried_three_times_and_is_a_strike(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, {"/": 500})
    given_sources(ctx.store, a_company())
    begin(ctx, web)

    counts = work(ctx, web.port)

    assert counts == {"retried": 2, "failed": 1}
    row, source = company_row(ctx.store), source_row(ctx.store, ACME)
    assert row.status == "failed"
    assert "500" in row.failure
    assert (source.failure_count, source.status) == (1, "active")
    assert [one.task_kind for one in rows(ctx.store, dead_letters)] == ["company"]


def test_a_page_that_robots_forbid_is_not_asked_for_and_noted(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /team")
    given_acme(ctx, web)

    counts = work(ctx, web.port)

    assert counts["analysed"] == 1
    assert "/team/careers" not in web.paths
    failed = company_row(ctx.store).quality["pages_failed"]
    assert failed == {"http://acme.test/team/careers": "blocked_by_robots"}


def test_a_company_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(ctx: RunContext, web: FakeWeb) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    given_acme(ctx, web)

    assert work(ctx, web.port) == {"forbidden": 1}

    source = source_row(ctx.store, ACME)
    assert (source.failure_count, source.strike_count) == (0, 0)
    assert "robots.txt" in source.last_outcome
    assert rows(ctx.store, dead_letters) == []


def test_a_page_that_fails_is_fetched_again_and_the_others_are_not(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    web.routes["acme.test/team/careers"] = [503, a_site()["/team/careers"]]

    counts = work(ctx, web.port)

    assert counts == {"retried": 1, "analysed": 1, "boards_active": 1}
    asked = Counter(one.path for one in web.requests if one.host == "acme.test")
    assert asked == {"/": 1, "/company/about-acme": 1, "/team/careers": 2}


def test_a_company_that_a_job_names_gets_a_source_and_is_not_polled_now(ctx: RunContext, web: FakeWeb) -> None:
    serve(web, a_site(board=None))
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        task = analysis_task("acme-robotics", "http://www.acme.test", now=now)
        insert_tasks(connection, [replace(task, payload={"name": "Acme Robotics"})], now=now)
    serve(web, a_site(board=None), host="www.acme.test")

    work(ctx, web.port)

    [source] = rows(ctx.store, sources)[:1]
    [row] = rows(ctx.store, companies)
    assert (source.id, source.company_id) == ("company:acme-robotics", "acme-robotics")
    assert (row.id, row.source_id, row.name) == ("acme-robotics", source.id, "Acme Robotics")
    [poll] = [one for one in tasks_of(ctx.store, "poll") if one.source_id == source.id]
    assert (poll.not_before - ctx.store.now()).days >= 29


def test_one_website_is_one_company_whoever_names_it(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        made = ensure_company(
            connection,
            name="Acme Robotics GmbH",
            website="https://www.acme.test",
            discovered_by="a listing",
            tracking_id="t",
            now=now,
        )
        source = ensure_source(connection, made, now=now, settings=ctx.settings)

    assert made == "acme"
    assert source is not None
    assert source.id == ACME
    assert len(rows(ctx.store, companies)) == len(rows(ctx.store, sources)) == 1


def test_nothing_is_asked_for_a_company_whose_source_is_disabled(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        disable(connection, ACME, actor="someone", reason="enough", now=now)

    assert work(ctx, web.port) == {"needless": 1}
    assert web.paths == []


def test_a_task_that_makes_no_sense_is_a_dead_letter_and_spoils_no_other(ctx: RunContext, web: FakeWeb) -> None:
    given_acme(ctx, web)
    with ctx.store.begin() as connection:
        now = ctx.store.clock.now(connection)
        bad = NewTask(kind="source_discovery", dedupe_key="x", url="http://x.test/", not_before=now)
        insert_tasks(connection, [bad], now=now)

    counts = work(ctx, web.port)

    assert counts == {"failed": 1, "analysed": 1, "boards_active": 1}
    assert [one.error_code for one in rows(ctx.store, dead_letters)] == ["bad_task"]
