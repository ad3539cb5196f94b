"""Golden sets: pages of accepted rows that every reader must go on reading rightly."""

import json
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.golden import (
    TRUTH,
    BadTruth,
    Scored,
    Truth,
    add_golden_pages,
    config_of,
    golden_sets,
    load_truth,
    save_truth,
    worse_golden_sets,
)
from ingestion_pipeline.catalogs.system import SYSTEM
from ingestion_pipeline.settings import Settings
from ingestion_pipeline_tests.catalog_extractions import CATALOG_ID, LiveCatalog
from ingestion_pipeline_tests.catalogs.course_pages import crawl_courses, set_dataset_status

NAME = "college"


@pytest.fixture
def settings(live: LiveCatalog, tmp_path: Path) -> Settings:
    return live.ctx.settings.model_copy(update={"sources": tmp_path})


def add_pages(live: LiveCatalog, settings: Settings, *, limit: int = 5) -> Truth | None:
    with live.store.read() as connection:
        return add_golden_pages(connection, live.ctx.content, settings, CATALOG_ID, name=NAME, limit=limit)


def published(live: LiveCatalog, *numbers: int) -> None:
    crawl_courses(live, *numbers)
    live.read()
    set_dataset_status(live.store)


def test_a_golden_set_keeps_the_bodies_and_the_accepted_records_of_pages(live: LiveCatalog, settings: Settings) -> None:
    published(live, 101, 102, 103)

    truth = add_pages(live, settings, limit=2)

    assert truth is not None
    assert sorted(page.records[0]["course_id"] for page in truth.pages.values()) == ["MATH 101", "MATH 102"]
    [(folder, stored)] = golden_sets(settings)
    assert stored == truth
    assert all((folder / name).read_bytes() for name in truth.pages)


def test_more_pages_join_those_that_the_set_has(live: LiveCatalog, settings: Settings) -> None:
    published(live, 101, 102, 103)
    add_pages(live, settings, limit=1)

    truth = add_pages(live, settings, limit=3)

    assert truth is not None
    assert len(truth.pages) == 3


def test_without_published_rows_there_is_no_set(live: LiveCatalog, settings: Settings) -> None:
    live.register()

    assert add_pages(live, settings) is None
    assert list(golden_sets(settings)) == []


def test_a_set_that_is_read_as_before_is_no_finding(live: LiveCatalog, settings: Settings) -> None:
    published(live, 101, 102)
    add_pages(live, settings)

    assert worse_golden_sets(settings) == []


def test_a_set_that_is_read_worse_turns_the_check_red(live: LiveCatalog, settings: Settings) -> None:
    published(live, 101, 102)
    add_pages(live, settings)
    [(folder, truth)] = golden_sets(settings)
    for name in truth.pages:
        (folder / name).write_text("<h1>We have moved</h1>")

    check = next(check for check in SYSTEM.checks if check.name == "golden_sets_read")
    with live.store.read() as connection:
        [finding] = check.find(connection, settings, live.store.now())

    assert check.holds_back
    assert finding.subject == NAME
    assert "below 0.95" in finding.message


def test_a_changed_prompt_or_model_is_red_until_the_set_is_scored_with_it(
    live: LiveCatalog, settings: Settings
) -> None:
    published(live, 101)
    truth = add_pages(live, settings)
    assert truth is not None
    [(folder, _)] = golden_sets(settings)
    reader = config_of(truth, settings).reader_hash(settings)
    modelled = truth.model_copy(update={"uses_model": True, "scored": Scored(reader=reader, f1=0.99)})
    save_truth(folder, modelled)
    assert worse_golden_sets(settings) == []

    save_truth(folder, modelled.model_copy(update={"scored": Scored(reader="earlier", f1=0.99)}))

    [finding] = worse_golden_sets(settings)
    assert "changed since it was scored" in finding.message


def test_a_damaged_set_is_a_finding_and_not_an_error(settings: Settings) -> None:
    folder = settings.sources / "golden" / NAME
    folder.mkdir(parents=True)
    (folder / TRUTH).write_text(json.dumps({"pages": {"a.html": {"records": 3}}}))

    [finding] = worse_golden_sets(settings)

    assert "golden.json" in finding.message
    with pytest.raises(BadTruth, match="records"):
        load_truth(folder / TRUTH)
