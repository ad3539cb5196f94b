"""Every row tells where it comes from, or why it does not know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

import ingestion_pipeline
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.exports.explaining import BEFORE, CLEARED, DAMAGED, BadRow, Lineage, UnknownRow, explain_row
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import (
    chapter_sources,
    chapters,
    ingestions,
    job_listings,
    listing_sources,
    metadata,
    snapshots,
    source_versions,
)
from ingestion_pipeline_tests.builders import NOON, a_definition
from ingestion_pipeline_tests.companies.boards.polling import a_board, jobs
from ingestion_pipeline_tests.exports.chains import HOPS, gaps, ten_of_each
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.pollers import a_feed, a_run_context, given_sources, poll, rows, settings_of

RUN = "11111111-2222-3333-4444-555555555555"
BOARD = "/v1/boards/acme/jobs?content=true&pay_transparency=true"


def the_chain(ctx: RunContext, name: str) -> Lineage:
    with ctx.store.read() as connection:
        return explain_row(connection, ctx.content, name)


def hops(chain: Lineage) -> dict[str, Any]:
    return {hop.name: hop for hop in chain.hops}


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    return a_run_context(store, settings_of(tmp_path / "home", database_url))


@pytest.fixture
def polled(ctx: RunContext, web: FakeWeb) -> RunContext:
    """A feed of twelve chapters and a board of twelve jobs, polled by a run."""
    source = a_definition(url="http://a.test/solo")
    given_sources(ctx.store, source, a_board())
    web.routes["/solo"] = a_feed(*range(1, 13))
    web.routes[BOARD] = json.dumps({"jobs": jobs(*range(1, 13))}).encode()
    of_run = replace(ctx, run_id=RUN)
    poll(of_run, web)
    return of_run


def test_ten_rows_of_each_entity_have_every_hop_and_every_span(polled: RunContext) -> None:
    with polled.store.read() as connection:
        found = ten_of_each(connection, polled.content)

    assert {name: len(chains) for name, chains in found.items() if chains} == {
        "chapters": 10,
        "chapter_sources": 10,
        "job_listings": 10,
    }
    assert [gap for chains in found.values() for one in chains for gap in gaps(one)] == []


def test_a_listing_names_its_place_snapshot_run_and_configuration(polled: RunContext) -> None:
    (first, *_) = rows(polled.store, job_listings)
    chain = the_chain(polled, f"job_listings:{first.id}")

    fields = {one.name: one.place or {} for one in chain.fields}
    assert fields["title"]["path"] == "$.jobs[0].title"
    assert fields["location"]["path"] == "$.jobs[0].location.name"
    told = hops(chain)
    assert told["run"].facts["id"] == RUN
    assert told["configuration"].facts["config"] == {"api_base": "http://api.test"}
    assert told["snapshot"].facts["id"] == first.snapshot_id
    assert told["fetch"].facts["run"] == RUN


def test_a_text_that_came_from_the_jobs_own_page_is_found_there(polled: RunContext) -> None:
    (first, *_) = rows(polled.store, job_listings)
    page = f"<h1>{first.title}</h1><p>Bake bread before dawn, all week.</p>".encode()
    body_hash = polled.content.put(page)
    with polled.store.begin() as connection:
        values = {"url": "http://a.test/job", "content_hash": "d", "size_bytes": 1}
        values |= {"status_code": 200, "fetched_at": NOON, "body_hash": body_hash}
        statement = insert(snapshots).values(values).returning(snapshots.c.id)
        detail = connection.execute(statement).scalar_one()
        text = {"description": "Bake bread before dawn, all week.", "detail_snapshot_id": detail}
        connection.execute(update(job_listings).where(job_listings.c.id == first.id).values(text))

    chain = the_chain(polled, f"job_listings:{first.id}")

    fields = {one.name: one.place or {} for one in chain.fields}
    assert fields["description"]["snapshot"] == detail
    start, end = fields["description"]["start"], fields["description"]["end"]
    assert page.decode()[start:end] == "Bake bread before dawn, all week."
    assert "snapshot" not in fields["title"]  # the list states it
    assert hops(chain)["detail page"].facts["id"] == detail
    assert hops(chain)["snapshot"].facts["id"] == first.snapshot_id


def test_a_chapter_s_number_is_found_beside_its_own_id(polled: RunContext) -> None:
    chapter = next(one for one in rows(polled.store, chapters) if one.key == "2")
    chain = the_chain(polled, f"chapters:{chapter.id}")
    place = next(one.place for one in chain.fields if one.name == "number")

    (snapshot,) = [one for one in rows(polled.store, snapshots) if "solo" in one.url]
    body = polled.content.get(snapshot.body_hash).decode()
    assert place is not None
    assert body[place["start"] - 8 : place["end"] + 8] == "Chapter 2</title>"


def test_what_was_read_by_another_configuration_still_shows_that_one(
    polled: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    clock.advance(days=1)
    given_sources(polled.store, a_definition(url="http://a.test/moved"))
    web.routes["/moved"] = a_feed(*range(1, 14))
    poll(polled, web)

    keys = {one.key: one.id for one in rows(polled.store, chapters)}
    old, new = (hops(the_chain(polled, f"chapters:{keys[key]}")) for key in ("1", "13"))
    assert old["configuration"].facts["url"] == "http://a.test/solo"
    assert old["configuration"].said == "version 1; it is at version 2 now"
    assert new["configuration"].facts["url"] == "http://a.test/moved"
    assert new["configuration"].said == "version 2; as it is now"
    versions = [one.version for one in rows(polled.store, source_versions) if "solo" in one.source_id]
    assert versions == [1, 2]


def test_an_unchanged_poll_writes_no_ingestion_and_no_row(polled: RunContext, web: FakeWeb, clock: FixedClock) -> None:
    tables = (ingestions, chapters, chapter_sources, listing_sources, job_listings)
    before = {table.name: rows(polled.store, table) for table in tables}
    clock.advance(days=1)
    poll(polled, web)

    assert {table.name: rows(polled.store, table) for table in tables} == before


def test_a_row_from_before_lineage_says_so_and_shows_what_the_source_says_now(polled: RunContext) -> None:
    with polled.store.begin() as connection:
        connection.execute(update(chapter_sources).values(ingestion_id=None))
    (first, *_) = rows(polled.store, chapters)
    chain = the_chain(polled, f"chapters:{first.id}")

    told = hops(chain)
    assert [told[name].is_known for name in ("poll", *HOPS)] == [False, True, True, False, False]
    assert told["run"].said == BEFORE
    assert all(one.place for one in chain.fields)


def test_a_snapshot_that_was_cleared_away_is_called_that(polled: RunContext) -> None:
    with polled.store.begin() as connection:
        connection.execute(delete(snapshots))
    (first, *_) = rows(polled.store, chapters)
    chain = the_chain(polled, f"chapters:{first.id}")

    assert hops(chain)["snapshot"].said == CLEARED
    assert {one.why for one in chain.fields} == {"no stored body of it can be read"}


def test_no_token_of_an_address_is_stored(ctx: RunContext, web: FakeWeb) -> None:
    canary = "canary-token-4711"
    given_sources(ctx.store, a_definition(url="http://a.test/solo"), a_board())
    web.routes["/solo"] = redirect(f"/moved?token={canary}")
    web.routes[f"/moved?token={canary}"] = f"""<rss version="2.0"><channel><title>Solo</title>
        <item><title>Chapter 1</title><link>https://a.test/1?token={canary}&amp;x=2</link>
        <guid>https://a.test/1?access_token={canary}</guid></item></channel></rss>""".encode()
    listed = jobs(1, absolute_url=f"https://a.test/job?token={canary}")
    web.routes[BOARD] = json.dumps({"jobs": listed}).encode()

    poll(ctx, web)

    assert rows(ctx.store, chapter_sources)
    assert rows(ctx.store, job_listings)
    for table in metadata.sorted_tables:
        assert canary not in repr(rows(ctx.store, table)), table.name


def test_a_damaged_body_is_called_that_and_the_rest_is_explained(polled: RunContext) -> None:
    for path in (polled.settings.home / "content").glob("??/*"):
        path.write_bytes(path.read_bytes()[:-7])

    for table in (chapters, job_listings):
        (first, *_) = rows(polled.store, table)
        chain = the_chain(polled, f"{table.name}:{first.id}")

        assert (hops(chain)["snapshot"].is_known, hops(chain)["snapshot"].said) == (False, DAMAGED)
        assert hops(chain)["run"].is_known
        assert {field.why for field in chain.fields} == {"no stored body of it can be read"}


@pytest.mark.parametrize("name", ["", "chapters", "chapters:x", "series:solo", "x" * 10_000])
def test_what_names_no_row_is_refused_with_what_does(ctx: RunContext, name: str) -> None:
    with pytest.raises(BadRow, match="there are: chapters:ID, chapter_sources:ID") as refused:
        the_chain(ctx, name)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("table", ["chapters", "chapter_sources", "job_listings", "job_matches", "data_items"])
def test_an_id_that_is_not_there_is_told_with_where_ids_are(ctx: RunContext, table: str) -> None:
    with pytest.raises(UnknownRow, match=f"there is no row {table}:999; `ingest "):
        the_chain(ctx, f"{table}:999")


def test_stores_of_both_kinds_have_the_views_that_are_documented(store: Store) -> None:
    docs = (Path(ingestion_pipeline.__file__).parents[1] / "docs" / "operating.md").read_text()
    for view in ("v_chapters_latest", "v_job_matches_open", "v_datasets_current", "v_source_health"):
        (line,) = [one for one in docs.splitlines() if one.startswith(f"| `{view}` |")]
        documented = [name.strip(" `") for name in line.split("|")[3].split(",")]
        with store.read() as connection:
            found = connection.exec_driver_sql(f"SELECT * FROM {view}")
            assert list(found.keys()) == documented
