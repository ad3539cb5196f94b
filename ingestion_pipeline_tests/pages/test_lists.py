"""An HTML list the whole way: page by page from the web to rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapters
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import a_run_context, given_sources, poll, rows, settings_of

CONFIG = {"items": "li", "fields": {"label": "a", "url": "a@href", "published_at": "i"}, "next": "a.next"}


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as web:
        yield web


@pytest.fixture
def ctx(store: Store, database_url: str, tmp_path: Path) -> RunContext:
    return a_run_context(store, settings_of(tmp_path / "home", database_url))


def test_pages_become_chapters_whose_relative_dates_count_from_the_fetch(
    ctx: RunContext, store: Store, web: FakeWeb, clock: FixedClock
) -> None:
    given_sources(store, a_definition(url="http://a.test/solo", platform="html", config=CONFIG))
    web.routes["/solo"] = "<li><a href=/2>Ch. 2</a><i>yesterday</i></li><a class=next href=/old>"
    web.routes["/old"] = "<li><a href=/1>Ch. 1</a><i>2 days ago</i></li>"

    poll(ctx, web)

    today = clock.at.replace(hour=0, minute=0, second=0, microsecond=0)
    assert {row.number: row.published_at for row in rows(store, chapters)} == {
        2: today - timedelta(days=1),
        1: today - timedelta(days=2),
    }
