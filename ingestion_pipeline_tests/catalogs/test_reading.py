"""Downloaded pages become a dataset: exactly once, whoever reads them and however often."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal

import pytest
from sqlalchemy import update

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.reader import PageContent, PageReading, RulesReader
from ingestion_pipeline.catalogs.reading_results import write_readings
from ingestion_pipeline.catalogs.reading_work import ReadDone, ReadWork, open_readings
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline.reading.models import Billing, OverBudget
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import (
    audit_log,
    data_items,
    dead_letters,
    extractions,
    pages,
    tasks,
)
from ingestion_pipeline.systems import check_definition, replay
from ingestion_pipeline.work.claims import Wanted
from ingestion_pipeline.work.dead_letters import list_letters
from ingestion_pipeline.work.errors import Permanent, Resource, Transient
from ingestion_pipeline.work.worker import Worker
from ingestion_pipeline_tests.catalogs.courses import (
    a_course_page,
    dataset_rows,
    given_courses,
    names,
    publish,
)
from ingestion_pipeline_tests.crawlers import (
    SHOP,
    a_catalog,
    begin,
    crawl_all,
    fetch_pages,
    found_pages,
    read_pages,
    statuses,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import GoingClock, given_sources, rows


@dataclass
class ScriptedReader:
    """Reads as the rules do, after what a test has to say to each page."""

    shop: Workshop
    says: dict[str, list[Exception | OverBudget]] = field(default_factory=dict)
    explored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    read_paths: list[str] = field(default_factory=list)

    async def read(
        self, kind: EntityType, page: PageContent, billing: Billing
    ) -> PageReading | OverBudget:
        path = page.url.removeprefix("http://a.test")
        self.read_paths.append(path)
        if self.says.get(path):
            said = self.says[path].pop(0)
            if isinstance(said, OverBudget):
                return said
            raise said
        rules = RulesReader(self.shop.settings, self.shop.store.now)
        reading = await rules.read(kind, page, billing)
        assert isinstance(reading, PageReading)
        return PageReading(
            records=reading.records, rung=reading.rung, explored=self.explored.get(path, ())
        )


def downloaded(shop: Workshop, web: FakeWeb, *numbers: int) -> None:
    """A catalogue of these courses is fetched, and nothing is read."""
    given_courses(web, *numbers)
    given_sources(shop.store, a_catalog())
    begin(shop, web)
    fetch_pages(shop, web)


def claimed_works(shop: Workshop, worker: Worker) -> list[ReadWork]:
    found = worker.claim(Wanted(kind=EXTRACT_PAGE, frontier_of=SHOP), limit=10)
    with shop.store.begin() as connection:
        opened = open_readings(connection, found, now=shop.store.clock.now(connection))
    return [one for one in opened if isinstance(one, ReadWork)]


def read_by_rules(shop: Workshop, work: ReadWork) -> ReadDone:
    reader = ScriptedReader(shop)
    billing = Billing(call_site="test")
    reading = asyncio.run(reader.read(entity_type("course"), work.content(shop.content), billing))
    assert isinstance(reading, PageReading)
    return ReadDone(work=work, reading=reading)


def test_each_downloaded_page_has_one_task_of_its_lineage(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101, 102)

    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": 2}
    fetched = {row.url: row for row in rows(store, tasks) if row.kind == "fetch_page"}
    waiting = [row for row in rows(store, tasks) if row.kind == EXTRACT_PAGE]
    [extraction] = rows(store, extractions)
    assert [row.parent_id for row in waiting] == [fetched[row.url].id for row in waiting]
    assert {row.tracking_id for row in waiting} == {extraction.tracking_id}
    assert [row.dedupe_key for row in waiting] == [
        f"{extraction.id}:{row.payload['page']}" for row in waiting
    ]
    assert extraction.status == "IN_PROGRESS"
    assert dataset_rows(store) == []


def test_pages_become_items_with_evidence_and_the_extraction_ends(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    given_courses(web, 101, 102)
    web.routes |= {"/c/102": a_course_page(102, 103), "/": a_course_links(101, 102, 104)}
    web.routes |= {"/c/104": "<html><body><p>Nothing is taught here.</p></body></html>"}
    given_sources(store, a_catalog())

    crawl_all(shop, web.port)

    assert names(store) == ["MATH 101", "MATH 102", "MATH 103"]
    assert statuses(store) == {"SUCCESS": 3, "EXTRACTED_NO_DATA": 1}
    [dataset] = dataset_rows(store)
    [extraction] = rows(store, extractions)
    assert (dataset["version"], dataset["status"]) == (1, "building")
    assert (extraction.dataset_id, extraction.status) == (dataset["id"], "COMPLETE")
    first = min(rows(store, data_items), key=lambda row: row.item_key)
    assert first.item_key == "math 101 | numbers 101"
    assert first.grounding["course_id"]["status"] == "exact"
    assert (first.rung, first.is_flagged, first.is_repeat) == ("selectors", False, False)
    counts = {row.url[-3:]: (row.item_count, row.rung) for row in rows(store, pages)[1:]}
    assert counts == {"101": (1, "selectors"), "102": (2, "selectors"), "104": (0, None)}
    assert all(row.read_as and row.reading_at and row.read_at for row in rows(store, pages)[1:])


def a_course_links(*numbers: int) -> str:
    links = "".join(f'<a href="/c/{number}">{number}</a>' for number in numbers)
    return f"<html><body><h1>Catalogue</h1>{links}</body></html>"


def test_an_unchanged_catalogue_reads_nothing_and_adds_no_row(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    given_courses(web, 101, 102)
    web.routes["/c/102"] = "<html><body><p>Nothing is taught here.</p></body></html>"
    given_sources(store, a_catalog())
    crawl_all(shop, web.port)
    publish(store)
    items, before = rows(store, data_items), rows(store, pages)

    crawl_all(shop, web.port)

    assert rows(store, data_items) == items
    assert len(dataset_rows(store)) == 1
    again = rows(store, pages)[3:]
    assert [row.status for row in again] == ["SUCCESS", "SUCCESS", "EXTRACTED_NO_DATA"]
    assert [row.carried_from for row in again] == [None, before[1].id, before[2].id]
    assert [row.item_count for row in again] == [None, 1, 0]
    assert Counter(row.kind for row in rows(store, tasks))[EXTRACT_PAGE] == 2
    assert [row.status for row in rows(store, extractions)] == ["COMPLETE", "COMPLETE"]


def test_only_a_changed_page_is_read_and_the_others_are_carried(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    given_courses(web, 101, 102, 103)
    given_sources(store, a_catalog())
    crawl_all(shop, web.port)
    publish(store)
    web.routes["/c/102"] = a_course_page(102, about="other things")

    crawl_all(shop, web.port)

    second = rows(store, pages)[5:]
    assert [row.carried_from is not None for row in second] == [True, False, True]
    assert [one["version"] for one in dataset_rows(store)] == [1, 2]
    new = [row for row in rows(store, data_items) if row.dataset_id == dataset_rows(store)[1]["id"]]
    assert [row.data["course_id"] for row in new] == ["MATH 102"]
    assert "other things" in new[0].data["course_description"]


@pytest.mark.parametrize("status", ["building", "quarantined"])
def test_nothing_is_carried_from_what_was_not_published(
    shop: Workshop, store: Store, web: FakeWeb, status: str
) -> None:
    given_courses(web, 101)
    given_sources(store, a_catalog())
    crawl_all(shop, web.port)
    publish(store, status)

    crawl_all(shop, web.port)

    assert [row.carried_from for row in rows(store, pages)] == [None] * 4
    assert names(store) == ["MATH 101", "MATH 101"]


def test_a_page_read_under_another_schema_is_read_again(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    given_courses(web, 101)
    given_sources(store, a_catalog())
    crawl_all(shop, web.port)
    publish(store)
    with store.begin() as connection:
        connection.execute(update(pages).values(read_as="another"))

    crawl_all(shop, web.port)

    assert rows(store, pages)[3].carried_from is None
    assert names(store) == ["MATH 101", "MATH 101"]


def test_a_reading_that_was_overtaken_leaves_nothing(
    shop: Workshop, store: Store, web: FakeWeb, clock: GoingClock
) -> None:
    downloaded(shop, web, 101)
    zombie = Worker(store, lease_seconds=60)
    [work] = claimed_works(shop, zombie)
    late = read_by_rules(shop, work)
    clock.advance(seconds=120)
    read_pages(shop)
    items = rows(store, data_items)

    written = write_readings(shop, [late])

    assert (written.counts.lost, written.counts.read) == (1, 0)
    assert rows(store, data_items) == items
    assert len(items) == 1


def test_a_page_that_was_read_meanwhile_is_not_written_again(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101)
    [work] = claimed_works(shop, Worker(store, lease_seconds=60))
    late = read_by_rules(shop, work)
    with store.begin() as connection:
        is_it = pages.c.id == work.page_id
        connection.execute(update(pages).where(is_it).values(status="SUCCESS", item_count=7))

    write_readings(shop, [late])

    assert rows(store, data_items) == []
    assert dataset_rows(store) == []
    assert rows(store, pages)[1].item_count == 7


def test_what_was_read_before_the_fetch_was_written_down_stays_read(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    """Trap 8: the origin's fetch worker wrote its own status over a quick extraction's."""
    given_courses(web, 101)
    given_sources(store, a_catalog())
    begin(shop, web)
    overtake_detail_pages(store, web)

    fetch_pages(shop, web)

    assert statuses(store) == {"SUCCESS": 2}
    assert [row.kind for row in rows(store, tasks)].count(EXTRACT_PAGE) == 0


def overtake_detail_pages(store: Store, web: FakeWeb) -> None:
    """While the page is on its way, somebody has it read."""
    body = a_course_page(101)

    async def overtaken(writer: asyncio.StreamWriter) -> None:
        with store.begin() as connection:
            is_detail = pages.c.page_type == "DETAIL"
            connection.execute(update(pages).where(is_detail).values(status="SUCCESS"))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body.encode())
        await writer.drain()

    web.routes["/c/101"] = overtaken


def test_a_page_that_is_read_twice_has_its_items_once(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101)
    read_pages(shop)
    read_again(store)

    read_pages(shop)

    assert names(store) == ["MATH 101"]
    assert [one["version"] for one in dataset_rows(store)] == [1]
    assert statuses(store) == {"SUCCESS": 2}


def read_again(store: Store) -> None:
    """As an operator's retry does it."""
    with store.begin() as connection:
        connection.execute(update(extractions).values(status="IN_PROGRESS", finished_at=None))
        is_detail = pages.c.page_type == "DETAIL"
        connection.execute(update(pages).where(is_detail).values(status="DOWNLOADED"))
        is_reading = tasks.c.kind == EXTRACT_PAGE
        connection.execute(update(tasks).where(is_reading).values(status="PENDING", attempts=0))


def test_errors_go_by_their_class(
    shop: Workshop, store: Store, web: FakeWeb, now: datetime
) -> None:
    downloaded(shop, web, 101, 102, 103, 104)
    later = now.replace(year=2027)
    reader = ScriptedReader(
        shop,
        says={
            "/c/101": [Transient("a moment", code="busy")],
            "/c/102": [Transient("never", code="busy")] * 3,
            "/c/103": [Permanent("cut off", code="cut")],
            "/c/104": [Resource("no model configured", until=later, code="no_model")],
        },
    )

    counts = read_pages(shop, reader=reader)

    asked = Counter(reader.read_paths)
    assert asked == {"/c/101": 2, "/c/102": 3, "/c/103": 1, "/c/104": 1}
    assert (counts.read, counts.retried, counts.failed, counts.given_back) == (1, 3, 2, 1)
    found = {one.path: (one.status, (one.failure or {}).get("code")) for one in found_pages(store)}
    assert found == {
        "/": ("SUCCESS", None),
        "/c/101": ("SUCCESS", None),
        "/c/102": ("ERROR", "busy"),
        "/c/103": ("ERROR", "cut"),
        "/c/104": ("DOWNLOADED", "no_model"),
    }
    assert Counter(row.error_code for row in rows(store, dead_letters)) == {"busy": 1, "cut": 1}
    reading = [row for row in rows(store, tasks) if row.kind == EXTRACT_PAGE]
    [put_off] = [row for row in reading if row.url.endswith("/c/104")]
    assert (put_off.status, put_off.attempts, put_off.not_before) == ("PENDING", 0, later)


def test_a_dead_letter_of_a_reading_is_replayed(
    shop: Workshop, store: Store, web: FakeWeb, now: datetime
) -> None:
    downloaded(shop, web, 101, 102)
    later = Resource("no model configured", until=now.replace(year=2027), code="no_model")
    says = {"/c/101": [Permanent("cut off", code="cut")], "/c/102": [later]}
    read_pages(shop, reader=ScriptedReader(shop, says=says))

    with store.begin() as connection:
        [letter] = list_letters(connection)
        said = replay(connection, letter["id"], actor="me", now=store.clock.now(connection))
    read_pages(shop)

    assert said == "queued"
    assert names(store) == ["MATH 101"]


def test_content_that_is_gone_is_an_error_with_its_cure(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101)
    for file in (shop.settings.home / "content").rglob("*"):
        if file.is_file():
            file.unlink()

    counts = read_pages(shop)

    assert counts.failed == 1
    failure = found_pages(store)[1].failure or {}
    assert failure["code"] == "content_missing"
    assert "retry the page to fetch it again" in failure["message"]


def test_over_budget_cancels_the_extraction_at_once_and_is_audited(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101, 102, 103)
    [extraction] = rows(store, extractions)
    over = OverBudget(
        extraction_id=extraction.id,
        limit_usd=Decimal(1),
        held_usd=Decimal(1),
        wanted_usd=Decimal("0.1"),
    )
    reader = ScriptedReader(shop, says={f"/c/{n}": [over] for n in (101, 102, 103)})

    read_pages(shop, reader=reader)

    [extraction] = rows(store, extractions)
    assert (extraction.status, extraction.failure["code"]) == ("CANCELLED", "over_budget")
    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": 3}
    reading = [row.status for row in rows(store, tasks) if row.kind == EXTRACT_PAGE]
    assert not {"PENDING", "PROCESSING"} & set(reading)
    [entry] = [row for row in rows(store, audit_log) if row.action == "extraction.cancel"]
    assert (entry.actor, entry.subject) == ("system", f"extraction:{extraction.id}")


def test_a_cancelled_extraction_takes_no_late_result(
    shop: Workshop, store: Store, web: FakeWeb
) -> None:
    downloaded(shop, web, 101)
    [work] = claimed_works(shop, Worker(store, lease_seconds=60))
    late = read_by_rules(shop, work)
    with store.begin() as connection:
        connection.execute(update(extractions).values(status="CANCELLED"))

    written = write_readings(shop, [late])

    assert written.ended == {work.extraction_id}
    assert (written.counts.skipped, rows(store, data_items)) == (1, [])
    assert statuses(store) == {"SUCCESS": 1, "DOWNLOADED": 1}


def test_an_unknown_entity_is_refused_at_registration() -> None:
    definition = a_catalog()
    bad = a_catalog(config={**definition.config, "entity": "spaceship"})

    assert list(check_definition(definition)) == []
    [problem] = check_definition(bad)
    assert "no entity is called 'spaceship'; there are: competency, course" in problem.message


def test_what_only_a_model_reads_waits_for_one(shop: Workshop, store: Store, web: FakeWeb) -> None:
    given_courses(web, 101)
    source = a_catalog()
    given_sources(store, a_catalog(config={**source.config, "entity": "credential"}))

    crawl_all(shop, web.port)

    [page] = [one for one in found_pages(store) if one.path == "/c/101"]
    assert (page.status, (page.failure or {})["code"]) == ("DOWNLOADED", "no_model")
    assert rows(store, dead_letters) == []
