"""Companies as work: one polite pass, facts with evidence, boards discovered, nothing twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from ingestion_pipeline.companies.records import analysis_task, ensure_company, ensure_source
from ingestion_pipeline.companies.system import begin as begin_analysis
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
from ingestion_pipeline_tests.pollers import (
    GoingClock,
    fetch_async,
    given_sources,
    rows,
    source_row,
)


def given_acme(shop: RunContext, web: FakeWeb) -> None:
    serve(web, a_site())
    serve(web, {API: a_board("Engineer", "Sorter")}, host="api.test")
    given_sources(shop.store, a_company())
    begin(shop, web)


def test_a_poll_makes_the_record_at_once_and_the_analysis_fills_it(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    before = company_row(shop.store)

    counts = work(shop, web.port, ranks={"Python": 40, "go": 45, "cobol": 50})

    assert (before.status, before.name, before.website) == ("pending", None, "http://acme.test/")
    assert counts == {"analysed": 1, "boards_active": 1}
    row = company_row(shop.store)
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


def test_the_pages_that_the_menu_names_are_asked_for_and_no_others(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)

    work(shop, web.port)

    asked = [one.path for one in web.requests if one.host == "acme.test"]
    assert sorted(asked) == ["/", "/company/about-acme", "/team/careers"]


def test_where_the_menu_names_none_the_sitemap_does(shop: RunContext, web: FakeWeb) -> None:
    bare = "<html><body><h1>Acme</h1><p>" + "Parcels, sorted quietly. " * 20 + "</p></body></html>"
    careers = "http://acme.test/en/our-team/jobs"
    sitemap = f"<urlset><url><loc>{careers}</loc></url></urlset>"
    serve(web, {"/": bare, "/sitemap.xml": sitemap, "/en/our-team/jobs": a_page("<h1>Jobs</h1>")})
    serve(web, {"/about-us": a_page(f"<h1>About us</h1><p>{ABOUT}</p>")})
    given_sources(shop.store, a_company())
    begin(shop, web)

    work(shop, web.port)

    assert company_row(shop.store).about == ABOUT
    # the sitemap had jobs; about was guessed, in the order of the promise
    guessed = [path for path in web.paths if path.startswith("/about")]
    assert guessed == ["/about", "/about-us"]
    assert "/careers" not in web.paths
    assert "/en/our-team/jobs" in web.paths


def test_a_board_that_is_recognised_and_read_is_a_source_that_is_polled_at_once(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)

    work(shop, web.port)

    board = source_row(shop.store, "job_board:greenhouse-acme")
    assert (board.status, board.platform, board.company_id) == ("active", "greenhouse", "acme")
    assert (board.url, board.config) == (BOARD, {"api_base": "http://api.test"})
    [analysis], [discovery] = (
        tasks_of(shop.store, kind) for kind in ("company", "source_discovery")
    )
    poll = next(one for one in tasks_of(shop.store, "poll") if one.source_id == board.id)
    assert (poll.status, poll.parent_id, poll.spawn_depth) == ("PENDING", discovery.id, 2)
    assert poll.ancestry == [analysis.id, discovery.id]
    assert {one.tracking_id for one in (analysis, discovery, poll, board)} == {analysis.tracking_id}
    assert all(one.url for one in (analysis, discovery, poll))
    [kept] = company_row(shop.store).boards
    assert (kept["confidence"], kept["source_id"]) == ("high", board.id)


def test_a_company_that_is_known_well_is_not_asked_again_for_a_month(
    shop: RunContext, web: FakeWeb, clock: GoingClock
) -> None:
    given_acme(shop, web)
    work(shop, web.port)
    asked = len(web.requests)
    poll_again(shop, web)

    soon = work(shop, web.port)
    clock.advance(days=31)
    poll_again(shop, web)
    later = work(shop, web.port)

    assert (soon, later) == ({"needless": 1}, {"analysed": 1})
    assert web.requests[asked].path == "/"
    assert len(rows(shop.store, companies)) == 1
    assert len(tasks_of(shop.store, "source_discovery")) == 1


def poll_again(shop: RunContext, web: FakeWeb) -> None:
    with shop.store.begin() as connection:
        make_due(connection, [ACME], now=shop.store.clock.now(connection))
    asyncio.run(fetch_async(shop, web.port, ClaimFilter(kind="poll", source_ids=[ACME])))


def test_a_person_who_asks_gets_an_analysis_however_well_it_is_known(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    work(shop, web.port)
    with shop.store.begin() as connection:
        known = sources_by_id(connection, [ACME])
        begin_analysis(
            connection, list(known.values()), now=shop.store.clock.now(connection), is_asked=True
        )

    assert work(shop, web.port, source_ids=[ACME]) == {"analysed": 1}


def test_a_person_who_asks_makes_an_analysis_that_waits_anyway_one_that_is_asked_for(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    work(shop, web.port)
    poll_again(shop, web)  # the ordinary one, which would be needless

    with shop.store.begin() as connection:
        known = sources_by_id(connection, [ACME])
        now = shop.store.clock.now(connection)
        said = begin_analysis(connection, list(known.values()), now=now, is_asked=True)

    assert "under way" in said[ACME]
    assert work(shop, web.port, source_ids=[ACME]) == {"analysed": 1}


def test_thin_data_is_kept_with_its_flag_and_the_task_is_skipped(
    shop: RunContext, web: FakeWeb
) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})
    given_sources(shop.store, a_company(name="acme"))
    begin(shop, web)

    counts = work(shop, web.port)

    [task] = tasks_of(shop.store, "company")
    assert (counts, task.status, task.error_code) == ({"thin": 1}, "SKIPPED", "thin")
    row = company_row(shop.store)
    assert (row.status, row.name, row.about, row.size, row.industry) == ("pending", *[None] * 4)
    assert (row.quality["level"], row.tier) == ("thin", "D")
    assert "unknown" not in str(row).lower()
    assert source_row(shop.store, ACME).failure_count == 0


def test_a_thin_company_that_cannot_be_reached_later_is_not_taken_for_a_known_one(
    shop: RunContext, web: FakeWeb
) -> None:
    serve(web, {"/": "<html><body><h1>Acme</h1><p>" + "Parcels. " * 40 + "</p></body></html>"})
    given_sources(shop.store, a_company(name="acme"))
    begin(shop, web)
    work(shop, web.port)
    serve(web, {"/": 404})
    with shop.store.begin() as connection:
        source = sources_by_id(connection, [ACME])[ACME]
        now = shop.store.clock.now(connection)
        begin_analysis(connection, [source], now=now, is_asked=True)

    assert work(shop, web.port) == {"failed": 1}
    assert company_row(shop.store).status == "pending"


def test_a_home_page_that_fails_is_tried_three_times_and_is_a_strike(
    shop: RunContext, web: FakeWeb
) -> None:
    serve(web, {"/": 500})
    given_sources(shop.store, a_company())
    begin(shop, web)

    counts = work(shop, web.port)

    assert counts == {"retried": 2, "failed": 1}
    row, source = company_row(shop.store), source_row(shop.store, ACME)
    assert row.status == "failed"
    assert "500" in row.failure
    assert (source.failure_count, source.status) == (1, "active")
    assert [one.task_kind for one in rows(shop.store, dead_letters)] == ["company"]


def test_a_page_that_robots_forbid_is_not_asked_for_and_noted(
    shop: RunContext, web: FakeWeb
) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /team")
    given_acme(shop, web)

    counts = work(shop, web.port)

    assert counts["analysed"] == 1
    assert "/team/careers" not in web.paths
    failed = company_row(shop.store).quality["pages_failed"]
    assert failed == {"http://acme.test/team/careers": "blocked_by_robots"}


def test_a_company_that_robots_txt_blocks_is_neither_a_strike_nor_a_dead_letter(
    shop: RunContext, web: FakeWeb
) -> None:
    web.routes["acme.test/robots.txt"] = Reply(b"User-agent: *\nDisallow: /")
    given_acme(shop, web)

    assert work(shop, web.port) == {"forbidden": 1}

    source = source_row(shop.store, ACME)
    assert (source.failure_count, source.strike_count) == (0, 0)
    assert "robots.txt" in source.last_outcome
    assert rows(shop.store, dead_letters) == []


def test_a_page_that_fails_is_fetched_again_and_the_others_are_not(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    web.routes["acme.test/team/careers"] = [503, a_site()["/team/careers"]]

    counts = work(shop, web.port)

    assert counts == {"retried": 1, "analysed": 1, "boards_active": 1}
    asked = Counter(one.path for one in web.requests if one.host == "acme.test")
    assert asked == {"/": 1, "/company/about-acme": 1, "/team/careers": 2}


def test_a_company_that_a_job_names_gets_a_source_and_is_not_polled_now(
    shop: RunContext, web: FakeWeb
) -> None:
    serve(web, a_site(board=None))
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        task = analysis_task("acme-robotics", "http://www.acme.test", now=now)
        insert_tasks(connection, [replace(task, payload={"name": "Acme Robotics"})], now=now)
    serve(web, a_site(board=None), host="www.acme.test")

    work(shop, web.port)

    [source] = rows(shop.store, sources)[:1]
    [row] = rows(shop.store, companies)
    assert (source.id, source.company_id) == ("company:acme-robotics", "acme-robotics")
    assert (row.id, row.source_id, row.name) == ("acme-robotics", source.id, "Acme Robotics")
    [poll] = [one for one in tasks_of(shop.store, "poll") if one.source_id == source.id]
    assert (poll.not_before - shop.store.now()).days >= 29


def test_one_website_is_one_company_whoever_names_it(shop: RunContext, web: FakeWeb) -> None:
    given_acme(shop, web)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        made = ensure_company(
            connection,
            name="Acme Robotics GmbH",
            website="https://www.acme.test",
            discovered_by="a listing",
            tracking_id="t",
            now=now,
        )
        source = ensure_source(connection, made, now=now, settings=shop.settings)

    assert made == "acme"
    assert source is not None
    assert source.id == ACME
    assert len(rows(shop.store, companies)) == len(rows(shop.store, sources)) == 1


def test_nothing_is_asked_for_a_company_whose_source_is_disabled(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        disable(connection, ACME, actor="someone", reason="enough", now=now)

    assert work(shop, web.port) == {"needless": 1}
    assert web.paths == []


def test_a_task_that_makes_no_sense_is_a_dead_letter_and_spoils_no_other(
    shop: RunContext, web: FakeWeb
) -> None:
    given_acme(shop, web)
    with shop.store.begin() as connection:
        now = shop.store.clock.now(connection)
        bad = NewTask(kind="source_discovery", dedupe_key="x", url="http://x.test/", not_before=now)
        insert_tasks(connection, [bad], now=now)

    counts = work(shop, web.port)

    assert counts == {"failed": 1, "analysed": 1, "boards_active": 1}
    assert [one.error_code for one in rows(shop.store, dead_letters)] == ["bad_task"]
