"""`ingest feed`, `ingest follow --on` and `ingest export --as-of`."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sqlalchemy import update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.changes import Cause, Origin, set_origins
from ingestion_pipeline.store.tables import chapter_sources, chapters, sources
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.cli.test_series import sync

ATOM = "{http://www.w3.org/2005/Atom}"
TITLE = "A, B; C & <D>\x1b[2J" + "é" * 60


@pytest.fixture(autouse=True)
def rows(home_store: Store) -> None:
    sync(home_store, "series:solo", "solo", [1])
    with home_store.begin() as connection:
        set_origins(connection, {}, now=NOON + timedelta(days=1), default=Origin(cause=Cause.SOURCE_CHANGED))
        connection.execute(update(chapters).values(title=TITLE))
        connection.execute(update(chapter_sources).values(url="https://ann:password@a.test/1"))
        connection.execute(update(sources).values(name="Solo", last_new_at=NOON, changes_per_day=0.5))


def test_new_releases_are_an_atom_feed(ingest: Ingest) -> None:
    feed = ElementTree.fromstring(ingest.output("feed", "--to", "atom"))

    [entry] = feed.findall(f"{ATOM}entry")
    assert entry.findtext(f"{ATOM}title", "").endswith("A, B; C & <D> [2J" + "é" * 60)
    assert entry.find(f"{ATOM}link").attrib == {"href": "https://a.test/1"}  # type: ignore[union-attr]
    assert feed.findtext(f"{ATOM}updated") == entry.findtext(f"{ATOM}updated")


def test_new_and_expected_releases_are_an_icalendar(ingest: Ingest, tmp_path: Path) -> None:
    file = tmp_path / "releases.ics"
    ingest.output("feed", "--to", "ical", "--source", "series:solo", "--out", str(file))

    text = file.read_bytes().decode()
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n"))
    lines = text.replace("\r\n ", "").split("\r\n")
    assert lines[0] == "BEGIN:VCALENDAR"
    assert [line for line in lines if line.startswith("STATUS")] == ["STATUS:CONFIRMED", "STATUS:TENTATIVE"]
    assert "A\\, B\\; C & <D>" in next(line for line in lines if line.startswith("SUMMARY"))
    assert "SUMMARY:Solo: expected" in lines


def test_changes_are_followed_by_table_field_source_and_cause(ingest: Ingest) -> None:
    ingest.output("recipients", "add", "ops", "https://ops.test/hook")
    on = ("--on", "chapters.title", "--source", "series:solo", "--cause", "source_changed")

    assert ingest.output("follow", "ops", *on) == "ops now follows chapters.title of series:solo by source_changed\n"
    assert ingest.json("recipients", "list")[0]["changes"] == ["chapters.title of series:solo by source_changed"]
    assert "no longer follows" in ingest.output("unfollow", "ops", *on)
    assert "has no field" in ingest.refused("follow", "ops", "--on", "chapters.colour")
    assert "not recorded" in ingest.refused("follow", "ops", "--on", "pages")
    assert "either a SERIES" in ingest.refused("follow", "ops", "solo", *on)


def test_rows_are_exported_as_of_a_moment(ingest: Ingest, tmp_path: Path) -> None:
    with_title = [
        json.loads(ingest.output("export", "chapters", "--to", "jsonl", "--out", "-", "--as-of", moment))["title"]
        for moment in ((NOON + timedelta(hours=12)).isoformat(), (NOON + timedelta(days=2)).isoformat())
    ]

    assert with_title == [None, TITLE]
    assert ingest.output("export", "chapters", "--out", "-", "--as-of", "2026-02-01").count("\n") == 1
    assert "longer ago" in ingest.refused("export", "chapters", "--as-of", "2020-01-01")
    assert "not recorded" in ingest.refused("export", "pages", "--as-of", datetime.now(UTC).isoformat())
