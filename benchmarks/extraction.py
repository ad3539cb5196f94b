"""Downloaded detail pages read by rules: our slice against a bare loop over the same bodies.

Ours claims the pages, reads body and cleaned text from the content store, where a crawl has left
them in one file, reads and proves the records, looks for what the page announces and for words that
speak to machines, and writes items, pages and tasks in fenced transactions. The peer has every body
in memory, calls the same `read_records` in one thread, and inserts the items by one executemany:
what is beyond it is what durability, leases, suspicion and the natural key cost. It has no text at
hand and makes it, which takes it a twentieth of its time; nothing is remembered of a page from one
round to the next by either. The bar is on CPU time: at most half again as much as the peer's.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import count

from sqlalchemy import insert, select, update

from benchmarks.database import Database
from benchmarks.figure import Cost, Figure, middle
from ingestion_pipeline.catalogs.catalog_runs import run_extraction
from ingestion_pipeline.catalogs.datasets.dataset_items import Item, items_of
from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.pipeline import read_records
from ingestion_pipeline.catalogs.extraction.record import ExtractionResult
from ingestion_pipeline.catalogs.extraction_states import start_extractions
from ingestion_pipeline.catalogs.frontier import CrawlFilter
from ingestion_pipeline.catalogs.states import EXTRACT_PAGE
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.pages import ContentStore
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.text.plain_text import decode
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources import Definition, Kind
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, snapshots, tasks
from ingestion_pipeline.tasks.claims import Worker

PAGES = 1_000
ROUNDS = 7
BAR = 1 / 1.5  # as a ratio of rates: half again as much CPU time
FILLER = "<p>Read the academic calendar, and ask your adviser before you enrol.</p>" * 40
_number = count(1)


def measure(database: Database, *, pages: int = PAGES, rounds: int = ROUNDS) -> Iterator[Figure]:
    """One figure, in records a second; each page states two."""
    bodies = [a_page(number) for number in range(pages)]
    settings = load_settings({"INGESTION_HOME": str(database.folder)})
    measured: dict[Callable[[], Cost], list[Cost]] = {
        lambda: _ours(database, settings, bodies): [],
        lambda: _bare(database, bodies): [],
    }
    for way, costs in measured.items():  # caches are warm in the rounds that count
        way()
        costs.clear()
    for _ in range(rounds):
        for way, costs in measured.items():
            costs.append(way())
    ours, theirs = (middle(costs) for costs in measured.values())
    yield Figure(
        claim=f"detail pages read by rules: {_per_thousand(ours, pages)}",
        database=database.name,
        peer=f"bare loop, executemany: {_per_thousand(theirs, pages)}",
        ours=ours,
        theirs=theirs,
        bar=BAR,
    )


def _per_thousand(cost: Cost, pages: int) -> str:
    return f"{1_000 * cost.cpu_seconds / pages:.2f}"


def a_page(number: int) -> bytes:
    """Two courses in a vendor's layout, among 3 KB of other words."""
    courses = "".join(
        f'<div class="courseblock"><p class="courseblocktitle"><strong>MATH {one}. Numbers {one}.'
        f' 3 Credits.</strong></p><p class="courseblockdesc">This course is about {one} ways to'
        " count, and about those who counted before us.</p></div>"
        for one in (1_000 + 2 * number, 1_001 + 2 * number)
    )
    return f"<html><body><h1>Courses</h1>{FILLER}{courses}</body></html>".encode()


def _ours(database: Database, settings: Settings, bodies: list[bytes]) -> Cost:
    store, source_id = database.store, f"catalog:bench-reading-{next(_number)}"
    content = ContentStore(database.folder / "content")
    ctx = RunContext(store=store, settings=settings, content=content, systems={})
    given_downloaded(store, content, source_id, bodies)

    def work() -> int:
        worker = Worker(store, lease_seconds=300)
        wanted = CrawlFilter(source_ids=[source_id])
        found = asyncio.run(run_extraction(ctx, worker, wanted))
        _check(found.items, bodies)
        return found.items

    return database.meter.cost(work)


def _bare(database: Database, bodies: list[bytes]) -> Cost:
    kind, source_id = entity_type("course"), f"catalog:bench-bare-{next(_number)}"
    store = database.store
    page_id, dataset_id = given_dataset(store, source_id)
    now = store.now()

    def work() -> int:
        rows: list[dict[str, object]] = []
        for number, body in enumerate(bodies):
            records = read_records(kind, Document.of(body, "text/html")).records
            items = items_of(kind, ExtractionResult(records=tuple(records)))
            shared = {"dataset_id": dataset_id, "page_id": page_id, "created_at": now}
            rows += [_row(item, number) | shared for item in items]
        with store.begin() as connection:
            connection.execute(insert(data_items), rows)
        _check(len(rows), bodies)
        return len(rows)

    return database.meter.cost(work)


def _row(item: Item, number: int) -> dict[str, object]:
    return {
        "entity_type": "course",
        "item_key": f"{number} {item.item_key}",
        "position": item.position,
        "data": dict(item.data),
        "grounding": dict(item.grounding),
        "extraction_method": item.extraction_method,
        "confidence": item.confidence,
        "is_flagged": item.is_flagged,
        "is_repeat": False,
    }


def _check(found: int, bodies: list[bytes]) -> None:
    if found != 2 * len(bodies):
        raise RuntimeError(f"{found} records of {2 * len(bodies)} were found")


def given_downloaded(store: Store, content: ContentStore, source_id: str, bodies: list[bytes]) -> None:
    """A catalogue whose detail pages are downloaded, each with its task, as a crawl leaves it."""
    extraction_id, step_id = _given_extraction(store, source_id)
    forms = [(body, cleaned_text(decode(body, "text/html")).encode()) for body in bodies]
    hashes = content.put_together(forms, fsync=False)
    with store.begin() as connection:
        now = store.clock.now(connection)
        shard = sources_by_id(connection, [source_id])[source_id].shard
        for number, (body_hash, text_hash) in enumerate(hashes):
            url = f"https://{source_id.partition(':')[2]}.test/{number}"
            snapshot = insert(snapshots).values(
                source_id=source_id,
                url=url,
                url_key=f"{source_id} {number}"[-64:],
                content_hash=body_hash,
                content_type="text/html",
                size_bytes=len(bodies[number]),
                status_code=200,
                fetched_at=now,
                body_hash=body_hash,
                text_hash=text_hash,
            )
            snapshot_id = connection.execute(snapshot.returning(snapshots.c.id)).scalar_one()
            page = insert(pages).values(
                extraction_id=extraction_id,
                step_id=step_id,
                url=url,
                key=url,
                host="bench.test",
                status="DOWNLOADED",
                page_type="DETAIL",
                snapshot_id=snapshot_id,
                created_at=now,
            )
            page_id = connection.execute(page.returning(pages.c.id)).scalar_one()
            payload = {"page": page_id, "extraction": extraction_id}
            values = _task(source_id, f"{extraction_id}:{page_id}", url, shard, now)
            connection.execute(insert(tasks).values(**values, payload=payload))


def _task(source_id: str, key: str, url: str, shard: int, now: datetime) -> dict[str, object]:
    return {
        "kind": EXTRACT_PAGE,
        "dedupe_key": key,
        "source_id": source_id,
        "url": url,
        "status": "PENDING",
        "priority": 5,
        "shard": shard,
        "not_before": now,
        "tracking_id": "benchmark",
        "ancestry": [],
        "created_at": now,
        "updated_at": now,
    }


def _given_extraction(store: Store, source_id: str) -> tuple[int, int]:
    """An extraction whose root is done; its id, and that of the step of its detail pages."""
    definition = Definition(
        id=source_id,
        kind=Kind.CATALOG,
        url="https://bench.test/",
        platform="catalog",
        config={"recipe": {"page_type": "DETAIL_LINKS", "link_pattern": "/"}},
    )
    with store.begin() as connection:
        now = store.clock.now(connection)
        register(connection, [definition], now=now)
        start_extractions(connection, list(sources_by_id(connection, [source_id]).values()), now=now)
        of_source = extractions.c.source_id == source_id
        extraction_id = connection.execute(select(extractions.c.id).where(of_source)).scalar_one()
        is_root = pages.c.extraction_id == extraction_id
        connection.execute(update(pages).where(is_root).values(status="SUCCESS"))
        step = select(crawl_steps.c.id).where(
            crawl_steps.c.extraction_id == extraction_id, crawl_steps.c.key == "root/links"
        )
        return extraction_id, connection.execute(step).scalar_one()


def given_dataset(store: Store, source_id: str) -> tuple[int, int]:
    """A page and a dataset for the peer's items."""
    extraction_id, _ = _given_extraction(store, source_id)
    with store.begin() as connection:
        page = select(pages.c.id).where(pages.c.extraction_id == extraction_id).limit(1)
        dataset = insert(datasets).values(
            source_id=source_id,
            extraction_id=extraction_id,
            version=1,
            entity_type="course",
            reader_hash="bench",
            status="building",
            created_at=store.clock.now(connection),
        )
        page_id = connection.execute(page).scalar_one()
        return page_id, connection.execute(dataset.returning(datasets.c.id)).scalar_one()
