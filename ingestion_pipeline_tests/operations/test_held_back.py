"""A dataset that is held back degrades its source, as a listing does: told once, over once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from sqlalchemy import select, text

from ingestion_pipeline.catalogs.operations import control
from ingestion_pipeline.catalogs.operations.held_back import quarantined
from ingestion_pipeline.operations.alerts import record_health_changes
from ingestion_pipeline.operations.health import SourceFacts, changed_words, source_statuses, store_words
from ingestion_pipeline.sources.health import Health
from ingestion_pipeline.store.tables import datasets, outbox
from ingestion_pipeline_tests.crawlers import SHOP
from ingestion_pipeline_tests.extracting import Extracting, some

__all__ = ["some"]

TELLS = ("source_degraded", "source_recovered")


def crawled(some: Extracting, *keys: str) -> int:
    """A crawl that read these anew, ten minutes later."""
    some.clock.advance(minutes=10)
    id_ = some.begin({"/c/1": "SUCCESS"})
    some.read(id_, {"/c/1": keys})
    some.end(id_)
    return id_


def given_drop(some: Extracting) -> int:
    """A published dataset of ten, and one of a single item that is held back; its extraction."""
    crawled(some, *(f"c{n}" for n in range(10)))
    return crawled(some, "c0")


def confirmed(some: Extracting) -> None:
    """A crawl that finds every page as the published dataset has it."""
    some.clock.advance(minutes=10)
    base = some.rows(datasets)[0]
    id_ = some.begin({"/c/1": "SUCCESS"}, base_dataset_id=base.id)
    some.carry(id_, base.extraction_id, "/c/1")
    [ended] = some.end(id_)
    assert ended.dataset is not None
    assert ended.dataset.is_confirmed


def look(some: Extracting) -> SourceFacts:
    """How the catalogue does; what changed is told."""
    now, settings = some.clock.advance(seconds=1), some.ctx.settings
    with some.ctx.store.begin() as connection:
        [found] = source_statuses(connection, settings, now=now)
        record_health_changes(connection, settings, now)
        store_words(connection, changed_words(connection, [found], now=now))
    return found


def told(some: Extracting) -> Counter[str]:
    with some.ctx.store.read() as connection:
        kinds = connection.execute(select(outbox.c.subject_kind)).scalars()
        return Counter(kind for kind in kinds if kind in TELLS)


def test_a_dataset_that_is_held_back_degrades_its_source_and_that_is_told_once(some: Extracting) -> None:
    id_ = given_drop(some)

    found = [look(some) for _ in range(3)][-1]

    assert found.health is Health.DEGRADED
    assert found.verdict.reason.startswith("quarantined: version 2 is held back: ")
    assert found.verdict.reason.endswith(f"; extraction {id_}; the last good data stays")
    assert told(some) == {"source_degraded": 1}
    with some.ctx.store.read() as connection:
        query = text("SELECT health, told_state FROM v_source_health WHERE source_id = :id")
        assert tuple(connection.execute(query, {"id": SHOP}).one()) == ("degraded", "degraded")


def accepted(some: Extracting) -> None:
    some.act(control.publish, some.rows(datasets)[-1].extraction_id)


def done_better(some: Extracting) -> None:
    crawled(some, *(f"c{n}" for n in range(9)))


@pytest.mark.parametrize("ended", [accepted, done_better, confirmed], ids=lambda one: one.__name__)
def test_it_recovers_once_when_it_is_accepted_or_the_next_extraction_does_better(
    some: Extracting, ended: Callable[[Extracting], None]
) -> None:
    given_drop(some)
    look(some)

    ended(some)
    found = [look(some) for _ in range(3)][-1]

    assert found.health is Health.HEALTHY
    assert told(some) == {"source_degraded": 1, "source_recovered": 1}
    with some.ctx.store.read() as connection:
        assert quarantined(connection) == []


def test_one_that_is_held_back_again_stays_degraded_and_is_not_told_again(some: Extracting) -> None:
    given_drop(some)
    look(some)

    crawled(some, "c1")

    assert look(some).verdict.reason.startswith("quarantined: version 3 is held back")
    assert told(some) == {"source_degraded": 1}
