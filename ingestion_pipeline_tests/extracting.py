"""Extractions as crawls and readers leave them: rows, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from random import Random
from typing import Any

import pytest
from sqlalchemy import Table, insert, select, update

from ingestion_pipeline.catalogs.datasets.completion import update_completions
from ingestion_pipeline.catalogs.datasets.finishing import COMPLETE, Ended, FinishReason, finish_extractions
from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import crawl_steps, data_items, datasets, extractions, pages, snapshots, tasks
from ingestion_pipeline_tests.crawlers import SHOP, a_catalog
from ingestion_pipeline_tests.pollers import a_run_context, given_sources

FAILURE = {"class": "permanent", "code": "http_404", "message": "it answered 404"}


@dataclass(slots=True)
class Extracting:
    """A store in which extractions are begun, read and ended; time stands where `clock` stands."""

    ctx: RunContext
    clock: FixedClock

    def source(self, source_id: str = SHOP) -> None:
        given_sources(self.ctx.store, a_catalog(name=source_id.partition(":")[2]))

    def begin(
        self,
        paths: Mapping[str, str],
        *,
        root: str = "SUCCESS",
        kind: str = "crawl",
        source_id: str = SHOP,
        **more: Any,
    ) -> int:
        """An extraction with a root and these pages of records, each in its state."""
        now = self.clock.at
        values = {
            "source_id": source_id,
            "status": "IN_PROGRESS",
            "recipe": {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"},
            "tracking_id": f"t{source_id}{now.timestamp()}"[-36:],
            "page_count": len(paths) + 1,
            "kind": kind,
            "created_at": now,
            "updated_at": now,
        }
        id_ = self.insert(extractions, values | more)
        step = {"extraction_id": id_, "created_at": now}
        first = self.insert(crawl_steps, {**step, "kind": "FETCH_ROOT", "key": "root", "page_type": "DETAIL_LINKS"})
        second = {"kind": "FETCH_LINKS", "key": "root/links", "page_type": "DETAIL"}
        links = self.insert(crawl_steps, {**step, **second, "parent_id": first})
        self.page(id_, first, "/", root, page_type="DETAIL_LINKS")
        for path, status in paths.items():
            self.page(id_, links, path, status)
        return id_

    def page(self, id_: int, step_id: int, path: str, status: str, **more: Any) -> int:
        url = f"http://a.test{path}"
        is_got = status in {"DOWNLOADED", "SUCCESS", "EXTRACTED_NO_DATA"}
        values = {
            "extraction_id": id_,
            "step_id": step_id,
            "url": url,
            "key": url,
            "host": "a.test",
            "status": status,
            "page_type": "DETAIL",
            "failure": FAILURE if status == "ERROR" else None,
            "snapshot_id": self._snapshot(url) if is_got else None,
            "read_as": "r1" if path != "/" and status in {"SUCCESS", "EXTRACTED_NO_DATA"} else None,
            "created_at": self.clock.at,
        }
        return self.insert(pages, values | more)

    def _snapshot(self, url: str) -> int:
        for row in self.rows(snapshots, url=url):
            return row.id
        values = {"url": url, "content_hash": "c", "size_bytes": 3_000, "status_code": 200}
        return self.insert(snapshots, {**values, "fetched_at": self.clock.at})

    def read(self, id_: int, items: Mapping[str, Sequence[str]], **more: Any) -> int:
        """The pages state items of these keys, in the extraction's own dataset; its id."""
        [row] = self.rows(extractions, id=id_)
        own = self.rows(datasets, extraction_id=id_)
        result = [item.id for item in own if item.status != "published"]
        dataset_id = result[0] if result else self._dataset(row)
        for path, keys in items.items():
            page = self.page_of(id_, path)
            for position, key in enumerate(keys):
                self.insert(data_items, an_item(dataset_id, page.id, key, position) | more)
            state = "SUCCESS" if keys else "EXTRACTED_NO_DATA"
            values = {"item_count": len(keys), "rung": "layout", "read_as": "r1"}
            self.set(pages, page.id, status=state, **values)
        return dataset_id

    def _dataset(self, row: Any) -> int:
        versions = [item.version for item in self.rows(datasets, source_id=row.source_id)]
        values = {
            "source_id": row.source_id,
            "extraction_id": row.id,
            "version": max(versions, default=0) + 1,
            "entity_type": row.entity_type,
            "read_as": "r1",
            "status": "building",
            "created_at": self.clock.at,
        }
        return self.insert(datasets, values)

    def carry(self, id_: int, base: int, *paths: str) -> None:
        """These pages are as the base's extraction has them."""
        for path in paths:
            old, new = self.page_of(base, path), self.page_of(id_, path)
            count = len(self.rows(data_items, page_id=old.id))
            values = {"status": old.status, "item_count": count, "carried_from": old.id}
            self.set(pages, new.id, **values)

    def page_of(self, id_: int, path: str) -> Any:
        [row] = self.rows(pages, extraction_id=id_, url=f"http://a.test{path}")
        return row

    def task(self, id_: int, path: str, kind: str = "fetch_page", **more: Any) -> int:
        """A task of the extraction's page that waits."""
        page, [row] = self.page_of(id_, path), self.rows(extractions, id=id_)
        values = {
            "kind": kind,
            "dedupe_key": f"{id_}:{page.key if kind == 'fetch_page' else page.id}",
            "source_id": row.source_id,
            "url": page.url,
            "payload": {"page": page.id, "extraction": id_},
            "status": "PENDING",
            "priority": 5,
            "shard": 0,
            "not_before": self.clock.at,
            "tracking_id": row.tracking_id,
            "ancestry": [],
            "created_at": self.clock.at,
            "updated_at": self.clock.at,
        }
        return self.insert(tasks, values | more)

    def end(self, id_: int, ending: FinishReason = COMPLETE) -> list[Ended]:
        with self.ctx.store.begin() as connection:
            return finish_extractions(
                connection, {id_: ending}, now=self.clock.at, settings=self.ctx.settings, random=Random(7)
            )

    def look(self, **later: float) -> list[Ended]:
        """Completion is looked at, so much later."""
        self.clock.advance(**later)
        return list(update_completions(self.ctx).ended)

    def status(self, id_: int) -> str:
        return self.rows(extractions, id=id_)[0].status

    def cancel(self, id_: int) -> Ended:
        with self.ctx.store.begin() as connection:
            return control.cancel(
                connection, id_, actor="ann", now=self.clock.at, settings=self.ctx.settings, random=Random(7)
            )

    def act(self, action: Any, id_: int, **more: Any) -> Any:
        self.clock.advance(seconds=1)
        with self.ctx.store.begin() as connection:
            return action(connection, id_, actor="ann", now=self.clock.at, **more)

    def fail(self, id_: int, path: str, code: str = "http_500") -> None:
        """The page failed for good."""
        failure = {**FAILURE, "code": code}
        self.set(pages, self.page_of(id_, path).id, status="ERROR", failure=failure)

    def versions(self) -> dict[int, tuple[str, list[str]]]:
        """State and keys of every version, each key once."""
        return {
            item.version: (
                item.status,
                sorted(row.item_key for row in self.rows(data_items, dataset_id=item.id) if not row.is_repeat),
            )
            for item in self.rows(datasets)
        }

    def live(self, kind: str) -> list[str]:
        """The paths of the pages that have a live task of this kind."""
        result = [row for row in self.rows(tasks, kind=kind) if row.ended_at is None]
        return sorted(row.url.removeprefix("http://a.test") for row in result)

    def set(self, table: Table, id_: int, **values: Any) -> None:
        with self.ctx.store.begin() as connection:
            connection.execute(update(table).where(table.c.id == id_).values(values))

    def rows(self, table: Table, **only: Any) -> list[Any]:
        query = select(table)
        for name, value in only.items():
            query = query.where(table.c[name] == value)
        order = table.c.id if "id" in table.c else next(iter(table.c))
        with self.ctx.store.read() as connection:
            return list(connection.execute(query.order_by(order)))

    def insert(self, table: Table, values: Mapping[str, Any]) -> int:
        with self.ctx.store.begin() as connection:
            made = connection.execute(insert(table).values(dict(values)).returning(table.c.id))
            return made.scalar_one()


@pytest.fixture
def some(store: Store, settings: Settings, now: datetime) -> Extracting:
    """A catalogue without an extraction, under the default settings."""
    clock = FixedClock(now)
    store.clock = clock
    made = Extracting(ctx=a_run_context(store, settings), clock=clock)
    made.source()
    return made


def an_item(dataset_id: int, page_id: int, key: str, position: int = 0) -> dict[str, Any]:
    """A course of this key."""
    fields = {"course_id": key, "course_name": key.title(), "course_description": "All of it."}
    return {
        "dataset_id": dataset_id,
        "page_id": page_id,
        "entity_type": "course",
        "item_key": key,
        "position": position,
        "data": fields,
        "grounding": {},
        "rung": "layout",
        "confidence": 1.0,
        "is_flagged": False,
        "is_repeat": False,
        "created_at": datetime.fromisoformat("2026-03-01T12:00:00+00:00"),
    }
