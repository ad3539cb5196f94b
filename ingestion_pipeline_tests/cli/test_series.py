from collections.abc import Sequence
from decimal import Decimal

import pytest

from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline.series.chapter_ingestion import ingest_listings
from ingestion_pipeline.series.chapter_plan import SourceListing
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log
from ingestion_pipeline_tests.builders import NOON, a_definition, a_release
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.polling_runs import rows


def sync(home_store: Store, source_id: str, series_id: str, numbers: Sequence[int]) -> None:
    definition = a_definition(id=source_id, series=series_id, name=series_id.title(), url=f"https://{series_id}.test/")
    releases = [a_release(number=Decimal(number), url=f"https://a.test/{number}") for number in numbers]
    with home_store.begin() as connection:
        register(connection, [definition], now=NOON)
        source = sources_by_id(connection, [source_id])[source_id]
        listing = SourceListing.of(source, ParsedFeed(records=releases, is_complete=True))
        ingest_listings(connection, [listing], now=NOON)


@pytest.fixture
def series(home_store: Store) -> None:
    """`solo` with 1, 2 and 5 of one source, `lone` with 2 and 3 of another."""
    sync(home_store, "series:solo", "solo", [1, 2, 5])
    sync(home_store, "series:lone", "lone", [2, 3])


pytestmark = pytest.mark.usefixtures("series")


def audited_actions(home_store: Store) -> list[str]:
    return [row.action for row in rows(home_store, audit_log)]


def test_every_series_is_listed_with_its_counts(ingest: Ingest) -> None:
    lone, solo = ingest.json("series", "list")

    assert (solo["id"], solo["title"], solo["latest_chapter"]) == ("solo", "Solo", "5")
    assert (solo["chapters"], solo["sources"], solo["followers"]) == (3, 1, 0)
    assert (lone["id"], lone["chapters"], lone["merged_into"]) == ("lone", 2, None)
    assert "Lone" in ingest.output("series", "list")


@pytest.mark.slow
def test_a_merge_is_tried_made_shown_and_reverted(ingest: Ingest, home_store: Store) -> None:
    tried = ingest.output("series", "merge", "lone", "solo", "--dry-run")
    assert tried.startswith("lone would be merged into solo: 1 chapters moved, 1 chapters united")
    assert audited_actions(home_store) == []

    output = ingest.output("series", "merge", "lone", "solo")
    assert output == tried.replace("would be", "is")

    series = ingest.json("series", "show", "solo")
    assert (series["merged_from"], series["gaps"]) == (["lone"], ["missing: 4"])
    assert [chapter["key"] for chapter in series["all_chapters"]] == ["5", "3", "2", "1"]
    assert series["all_chapters"][2]["sources"] == ["series:lone", "series:solo"]
    reason = "as its declaration says: lone, which was merged into solo"
    assert series["told_by"]["series:lone"] == reason
    source = ingest.json("sources", "show", "series:lone")
    assert (source["series"], source["effective_series"]) == ("lone", "solo")
    assert source["series_why"] == reason
    assert "merged into solo" in ingest.output("series", "list")
    assert "'lone' was merged into 'solo'" in ingest.refused("series", "merge", "lone", "solo")

    undone = ingest.output("series", "split", "solo", "--source", "series:lone", "--into", "lone")
    assert undone.startswith("series:lone: moved from solo to lone: 2 links moved")
    assert [row["chapters"] for row in ingest.json("series", "list")] == [2, 3]
    assert audited_actions(home_store) == ["series.merge", "series.split"]


def test_an_assigned_source_says_so_and_is_not_redeclared(ingest: Ingest) -> None:
    line = ("series", "split", "solo", "--source", "series:solo", "--into", "new", "--title", "New")
    ingest.output(*line)

    source = ingest.json("sources", "show", "series:solo")
    assert (source["effective_series"], source["series_why"]) == ("new", "assigned by an operator")
    message = ingest.refused("sources", "update", "series:solo", "--series", "lone")
    assert "`ingest series split new --source series:solo --into NEW` moves it" in message
    ingest.output("sources", "update", "series:solo", "--name", "Other")


def test_a_chapter_is_withdrawn_and_restored(ingest: Ingest, home_store: Store) -> None:
    output = ingest.output("series", "withdraw", "solo", "5.0", "--reason", "a joke")
    assert output == "chapter 5 of solo is withdrawn; 0 notices muted\n"
    again = ingest.output("series", "withdraw", "solo", "5")
    assert again == "chapter 5 of solo was withdrawn already\n"

    series = ingest.json("series", "show", "solo")
    assert (series["latest_chapter"], series["chapters"], series["withdrawn"]) == ("2", 2, 1)
    assert "withdrawn by an operator" in ingest.output("series", "show", "solo")

    assert "is restored; " in ingest.output("series", "restore", "solo", "5")
    assert ingest.output("series", "restore", "solo", "5") == "chapter 5 of solo was not withdrawn\n"
    assert ingest.json("series", "show", "solo")["latest_chapter"] == "5"
    assert audited_actions(home_store) == ["chapter.withdraw", "chapter.restore"]


def test_an_unknown_series_or_chapter_is_named_with_the_cure(ingest: Ingest) -> None:
    for line in (
        ("show", "soloo"),
        ("merge", "soloo", "lone"),
        ("split", "soloo", "--source", "series:solo", "--into", "x"),
        ("withdraw", "soloo", "1"),
        ("restore", "soloo", "1"),
    ):
        assert "there is no series 'soloo'; did you mean solo?" in ingest.refused("series", *line)
    assert "has no chapter '77'" in ingest.refused("series", "withdraw", "solo", "77")
    assert "was given twice" in ingest.refused("series", "merge", "solo", "solo")
