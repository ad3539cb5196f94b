"""Changes of published items: by key and field, with the cause that their bodies and readers tell."""

from typing import Any

import pytest
from sqlalchemy import select, update

from ingestion_pipeline.catalogs.datasets.item_changes import record_published
from ingestion_pipeline.exports.change_history import changes_of_row
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import changes, data_items, extractions
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.exports.datasets import ABSENT, COLLEGE, a_course, a_dataset
from ingestion_pipeline_tests.folding import check_fold

pytestmark = pytest.mark.both_databases


def publish(store: Store, version: int, *items: Any, is_decided: bool = False, snapshot_of: int | None = None) -> int:
    """Publish a version with these items; with `snapshot_of`, from the bodies of that dataset."""
    dataset_id = a_dataset(store, items, version=version)
    with store.begin() as connection:
        if snapshot_of is not None:
            body = select(data_items.c.snapshot_id).where(data_items.c.dataset_id == snapshot_of).limit(1)
            values = {"snapshot_id": connection.execute(body).scalar_one()}
            connection.execute(update(data_items).where(data_items.c.dataset_id == dataset_id).values(values))
        record_published(connection, dataset_id, now=NOON, is_decided=is_decided)
        check_fold(connection)
    return dataset_id


def recorded(store: Store, *, after: int = 0) -> list[tuple[str, str, Any, Any, str]]:
    with store.read() as connection:
        found = connection.execute(select(changes).where(changes.c.id > after).order_by(changes.c.id))
        found = [row for row in found if row.table_name == "course"]
    return [(row.row_key.partition("/")[2], row.op, row.before, row.after, row.cause) for row in found]


def last(store: Store) -> int:
    with store.read() as connection:
        return max(connection.execute(select(changes.c.id)).scalars(), default=0)


def test_a_first_version_is_recorded_as_a_first_sync_with_what_is_proved(store: Store) -> None:
    publish(store, 1, a_course("A", course_level="low", grounding={"course_level": ABSENT}, item_key="a"))

    [(key, op, before, after, cause)] = recorded(store)
    assert (key, op, before, cause) == ("a#0", "insert", None, "first_sync")
    assert after == {"course_id": "A", "course_name": "Introduction", "course_description": "What it is about."}


def test_only_differing_fields_are_recorded_and_what_is_gone_is_deleted(store: Store) -> None:
    publish(store, 1, *(a_course(name, item_key=name) for name in "abc"))
    before = last(store)
    publish(store, 2, a_course("a", item_key="a"), a_course("b", item_key="b", course_name="New", course_level="x"))

    [changed, gone] = recorded(store, after=before)
    assert changed == (
        "b#1",
        "update",
        {"course_name": "Introduction", "course_level": None},
        {"course_name": "New", "course_level": "x"},
        "source_changed",
    )
    assert (gone[0], gone[1], gone[3], gone[4]) == ("c#2", "delete", None, "source_changed")


def test_an_unchanged_version_records_nothing(store: Store) -> None:
    publish(store, 1, a_course("a", item_key="a"))
    before = last(store)
    publish(store, 2, a_course("a", item_key="a"))

    assert recorded(store, after=before) == []


def test_the_same_bodies_read_otherwise_are_the_readers_or_the_models_change(store: Store) -> None:
    first = publish(store, 1, a_course("a", item_key="a"))
    before = last(store)
    publish(store, 2, a_course("a", item_key="a", course_name="By rules"), snapshot_of=first)
    by_model = {**a_course("a", item_key="a", course_name="By a model"), "model": "m-1"}
    publish(store, 3, by_model, snapshot_of=first)

    assert [change[4] for change in recorded(store, after=before)] == ["reader_changed", "model_changed"]


def test_a_rerun_and_an_operator_are_causes(store: Store) -> None:
    publish(store, 1, a_course("a", item_key="a"))
    before = last(store)
    dataset_id = a_dataset(store, [a_course("b", item_key="b")], version=2)
    with store.begin() as connection:
        connection.execute(update(extractions).values(kind="rerun"))
        record_published(connection, dataset_id, now=NOON, is_decided=False)
    publish(store, 3, a_course("a", item_key="a"), is_decided=True)

    assert {change[4] for change in recorded(store, after=before)} == {"reader_changed", "operator"}
    assert set(_sources(store)) == {COLLEGE}


def _sources(store: Store) -> list[str]:
    with store.read() as connection:
        return list(connection.execute(select(changes.c.source_id).where(changes.c.table_name == "course")).scalars())


def test_the_changes_of_an_item_are_found_by_its_row_in_any_version(store: Store) -> None:
    publish(store, 1, a_course("a", item_key="a"))
    dataset_id = publish(store, 2, a_course("a", item_key="a", course_name="New"))

    with store.read() as connection:
        row_id = connection.execute(select(data_items.c.id).where(data_items.c.dataset_id == dataset_id)).scalar_one()
        history = changes_of_row(connection, "data_items", row_id)

    assert [(change["op"], change["snapshot_id"] is None) for change in history] == [
        ("insert", False),
        ("update", False),
    ]
