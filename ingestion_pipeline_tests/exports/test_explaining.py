"""Every row has a lineage, or a reason why a part of it is unknown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, update

import ingestion_pipeline
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.engine.lineage import BEFORE, CLEARED, DAMAGED, BadRow, Lineage, UnknownRow
from ingestion_pipeline.exports.explaining import explain_row
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
from ingestion_pipeline_tests.companies.boards.job_boards import a_board, jobs
from ingestion_pipeline_tests.exports.datasets import HOPS, lineage_gaps, sample_lineages
from ingestion_pipeline_tests.fakes import FakeWeb, redirect
from ingestion_pipeline_tests.polling_runs import a_feed, add_sources, poll, rows

pytestmark = pytest.mark.both_databases

RUN = "11111111-2222-3333-4444-555555555555"
BOARD = "/v1/boards/acme/jobs?content=true&pay_transparency=true"


def lineage_of(ctx: RunContext, name: str) -> Lineage:
    with ctx.store.read() as connection:
        return explain_row(connection, ctx.content, name)


def hops_by_name(chain: Lineage) -> dict[str, Any]:
    return {hop.name: hop for hop in chain.hops}


@pytest.fixture
def polled_ctx(ctx: RunContext, web: FakeWeb) -> RunContext:
    """A feed of twelve chapters and a board of twelve jobs, polled by a run."""
    source = a_definition(url="http://a.test/solo")
    add_sources(ctx.store, source, a_board())
    web.routes["/solo"] = a_feed(*range(1, 13))
    web.routes[BOARD] = json.dumps({"jobs": jobs(*range(1, 13))}).encode()
    of_run = replace(ctx, run_id=RUN)
    poll(of_run, web)
    return of_run


@pytest.mark.slow
def test_ten_rows_of_each_entity_have_every_hop_and_every_span(polled_ctx: RunContext) -> None:
    with polled_ctx.store.read() as connection:
        chains_by_table = sample_lineages(connection, polled_ctx.content)

    assert {name: len(chains) for name, chains in chains_by_table.items() if chains} == {
        "chapters": 10,
        "chapter_sources": 10,
        "job_listings": 10,
    }
    assert [gap for chains in chains_by_table.values() for chain in chains for gap in lineage_gaps(chain)] == []


def test_a_listing_names_its_place_snapshot_run_and_configuration(polled_ctx: RunContext) -> None:
    (first, *_) = rows(polled_ctx.store, job_listings)
    chain = lineage_of(polled_ctx, f"job_listings:{first.id}")

    fields = {field.name: field.place or {} for field in chain.fields}
    assert fields["title"]["path"] == "$.jobs[0].title"
    assert fields["location"]["path"] == "$.jobs[0].location.name"
    hop_by_name = hops_by_name(chain)
    assert hop_by_name["run"].facts["id"] == RUN
    assert hop_by_name["configuration"].facts["config"] == {"api_base": "http://api.test"}
    assert hop_by_name["snapshot"].facts["id"] == first.snapshot_id
    assert hop_by_name["fetch"].facts["run"] == RUN


def test_a_text_from_the_detail_page_of_a_job_is_located_there(polled_ctx: RunContext) -> None:
    (first, *_) = rows(polled_ctx.store, job_listings)
    page = f"<h1>{first.title}</h1><p>Bake bread before dawn, all week.</p>".encode()
    body_hash = polled_ctx.content.put(page)
    with polled_ctx.store.begin() as connection:
        values = {"url": "http://a.test/job", "content_hash": "d", "size_bytes": 1}
        values |= {"status_code": 200, "fetched_at": NOON, "body_hash": body_hash}
        statement = insert(snapshots).values(values).returning(snapshots.c.id)
        detail = connection.execute(statement).scalar_one()
        text = {"description": "Bake bread before dawn, all week.", "detail_snapshot_id": detail}
        connection.execute(update(job_listings).where(job_listings.c.id == first.id).values(text))

    chain = lineage_of(polled_ctx, f"job_listings:{first.id}")

    fields = {field.name: field.place or {} for field in chain.fields}
    assert fields["description"]["snapshot"] == detail
    start, end = fields["description"]["start"], fields["description"]["end"]
    assert page.decode()[start:end] == "Bake bread before dawn, all week."
    assert "snapshot" not in fields["title"]  # the list states it
    assert hops_by_name(chain)["detail page"].facts["id"] == detail
    assert hops_by_name(chain)["snapshot"].facts["id"] == first.snapshot_id


def test_a_chapters_number_is_located_beside_its_own_id(polled_ctx: RunContext) -> None:
    chapter = next(row for row in rows(polled_ctx.store, chapters) if row.key == "2")
    chain = lineage_of(polled_ctx, f"chapters:{chapter.id}")
    place = next(field.place for field in chain.fields if field.name == "number")

    (snapshot,) = [row for row in rows(polled_ctx.store, snapshots) if "solo" in row.url]
    body = polled_ctx.content.get(snapshot.body_hash).decode()
    assert place is not None
    assert body[place["start"] - 8 : place["end"] + 8] == "Chapter 2</title>"


@pytest.mark.slow
def test_a_row_of_an_earlier_configuration_shows_that_configuration(
    polled_ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    clock.advance(days=1)
    add_sources(polled_ctx.store, a_definition(url="http://a.test/moved"))
    web.routes["/moved"] = a_feed(*range(1, 14))
    poll(polled_ctx, web)

    keys = {row.key: row.id for row in rows(polled_ctx.store, chapters)}
    old, new = (hops_by_name(lineage_of(polled_ctx, f"chapters:{keys[key]}")) for key in ("1", "13"))
    assert old["configuration"].facts["url"] == "http://a.test/solo"
    assert old["configuration"].message == "version 1; it is at version 2 now"
    assert new["configuration"].facts["url"] == "http://a.test/moved"
    assert new["configuration"].message == "version 2; as it is now"
    versions = [row.version for row in rows(polled_ctx.store, source_versions) if "solo" in row.source_id]
    assert versions == [1, 2]


def test_an_unchanged_poll_writes_no_ingestion_and_no_row(
    polled_ctx: RunContext, web: FakeWeb, clock: FixedClock
) -> None:
    tables = (ingestions, chapters, chapter_sources, listing_sources, job_listings)
    before = {table.name: rows(polled_ctx.store, table) for table in tables}
    clock.advance(days=1)
    poll(polled_ctx, web)

    assert {table.name: rows(polled_ctx.store, table) for table in tables} == before


def test_a_row_older_than_lineage_says_so_and_shows_the_current_source(polled_ctx: RunContext) -> None:
    with polled_ctx.store.begin() as connection:
        connection.execute(update(chapter_sources).values(ingestion_id=None))
    (first, *_) = rows(polled_ctx.store, chapters)
    chain = lineage_of(polled_ctx, f"chapters:{first.id}")

    hop_by_name = hops_by_name(chain)
    assert [hop_by_name[name].is_known for name in ("poll", *HOPS)] == [False, True, True, False, False]
    assert hop_by_name["run"].message == BEFORE
    assert all(field.place for field in chain.fields)


def test_a_deleted_snapshot_is_reported_as_cleared(polled_ctx: RunContext) -> None:
    with polled_ctx.store.begin() as connection:
        connection.execute(delete(snapshots))
    (first, *_) = rows(polled_ctx.store, chapters)
    chain = lineage_of(polled_ctx, f"chapters:{first.id}")

    assert hops_by_name(chain)["snapshot"].message == CLEARED
    assert {field.why for field in chain.fields} == {"no stored body of it can be read"}


@pytest.mark.slow
def test_no_token_of_an_address_is_stored(ctx: RunContext, web: FakeWeb) -> None:
    canary = "canary-token-4711"
    add_sources(ctx.store, a_definition(url="http://a.test/solo"), a_board())
    web.routes["/solo"] = redirect(f"/moved?token={canary}")
    web.routes[f"/moved?token={canary}"] = f"""<rss version="2.0"><channel><title>Solo</title>
        <item><title>Chapter 1</title><link>https://a.test/1?token={canary}&amp;x=2</link>
        <guid>https://a.test/1?access_token={canary}</guid></item></channel></rss>""".encode()
    job_list = jobs(1, absolute_url=f"https://a.test/job?token={canary}")
    web.routes[BOARD] = json.dumps({"jobs": job_list}).encode()

    poll(ctx, web)

    assert rows(ctx.store, chapter_sources)
    assert rows(ctx.store, job_listings)
    for table in metadata.sorted_tables:
        assert canary not in repr(rows(ctx.store, table)), table.name


def test_a_damaged_body_is_reported_and_the_other_hops_are_explained(polled_ctx: RunContext) -> None:
    for path in (polled_ctx.settings.home / "content").glob("??/*"):
        path.write_bytes(path.read_bytes()[:-7])

    for table in (chapters, job_listings):
        (first, *_) = rows(polled_ctx.store, table)
        chain = lineage_of(polled_ctx, f"{table.name}:{first.id}")

        assert (hops_by_name(chain)["snapshot"].is_known, hops_by_name(chain)["snapshot"].message) == (False, DAMAGED)
        assert hops_by_name(chain)["run"].is_known
        assert {field.why for field in chain.fields} == {"no stored body of it can be read"}


@pytest.mark.parametrize("name", ["", "chapters", "chapters:x", "series:solo", "x" * 10_000])
def test_a_bad_row_name_is_refused_with_the_accepted_forms(ctx: RunContext, name: str) -> None:
    with pytest.raises(BadRow, match="there are: chapters:ID, chapter_sources:ID") as refused:
        lineage_of(ctx, name)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("table", ["chapters", "chapter_sources", "job_listings", "job_matches", "data_items"])
def test_an_unknown_id_is_refused_with_the_command_that_lists_ids(ctx: RunContext, table: str) -> None:
    with pytest.raises(UnknownRow, match=f"there is no row {table}:999; `ingest "):
        lineage_of(ctx, f"{table}:999")


def test_both_databases_have_the_documented_views(store: Store) -> None:
    docs = (Path(ingestion_pipeline.__file__).parents[1] / "docs" / "operating" / "exports.md").read_text()
    for view in ("v_changes", "v_chapters_latest", "v_job_matches_open", "v_datasets_current", "v_source_health"):
        (line,) = [line for line in docs.splitlines() if line.startswith(f"| `{view}` |")]
        documented = [name.strip(" `") for name in line.split("|")[3].split(",")]
        with store.read() as connection:
            result = connection.exec_driver_sql(f"SELECT * FROM {view}")
            assert list(result.keys()) == documented
