"""What SQL sees of a source's health is what the one rule says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text, update

from ingestion_pipeline.operations.alerts import record_health_changes
from ingestion_pipeline.operations.health import changed_words, source_statuses, store_words
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources, tasks
from ingestion_pipeline_tests.operations.failing import broken, given


def looked(store: Store, settings: Settings, now: datetime) -> dict[str, str]:
    """A look as `maintain` has it; the words that it found."""
    with store.begin() as connection:
        record_health_changes(connection, settings, now)
        found = source_statuses(connection, settings, now=now)
        store_words(connection, changed_words(connection, found, now=now))
    return {one.facts.id: one.health.value for one in found}


def seen(store: Store) -> dict[str, tuple[str | None, Any]]:
    with store.read() as connection:
        rows = connection.execute(text("SELECT source_id, health, health_since FROM v_source_health"))
        return {id_: (word, since) for id_, word, since in rows}


def test_the_view_says_what_the_rule_says_of_every_kind_of_failure(
    store: Store, settings: Settings, now: datetime
) -> None:
    with store.begin() as connection:
        ids = given(connection, 30, now=now)
        broken(connection, ids, each=2, now=now)
        late = {"not_before": now - timedelta(days=9)}
        connection.execute(update(tasks).where(tasks.c.source_id == ids[-1]).values(late))
        off = {"status": "disabled", "status_reason": "by an operator"}
        connection.execute(update(sources).where(sources.c.id == ids[-2]).values(off))
        new = {"last_success_at": None}
        connection.execute(update(sources).where(sources.c.id == ids[-3]).values(new))

    assert set(seen(store).values()) == {(None, None)}  # nobody has looked yet
    words = looked(store, settings, now)

    assert {id_: word for id_, (word, _) in seen(store).items()} == words
    assert {"open", "degraded", "late", "waiting", "healthy", "off"} <= set(words.values())


def test_a_word_has_the_time_since_when_it_holds(store: Store, settings: Settings, now: datetime) -> None:
    with store.begin() as connection:
        (first, second) = given(connection, 2, now=now)
    looked(store, settings, now)
    before = seen(store)
    with store.begin() as connection:
        failing = {"failure_count": 1, "last_error_class": "transient"}
        connection.execute(update(sources).where(sources.c.id == first).values(failing))

    looked(store, settings, now + timedelta(minutes=5))

    after = seen(store)
    assert (before[first][0], after[first][0]) == ("healthy", "unsteady")
    assert before[first][1] != after[first][1]
    assert before[second] == after[second]
