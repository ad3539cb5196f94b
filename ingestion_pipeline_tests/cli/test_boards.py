"""Job boards on the command line: declared, refused with every mistake, polled ahead of schedule."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.sources.source import Definition, Kind
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline_tests.cli.conftest import Ingest

BOARD = ("--id", "job_board:acme", "--kind", "job_board")


def test_a_board_is_recognised_by_its_url(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *BOARD, "--company", "acme")

    (source,) = ingest.json("sources", "list", "--kind", "job_board")

    assert (source["platform"], source["company"]) == ("greenhouse", "acme")


def test_a_board_without_token_is_refused_with_the_cure(ingest: Ingest) -> None:
    line = ("sources", "add", "https://acme.test/careers", *BOARD, "--platform", "greenhouse")

    assert "board_token" in ingest.refused(*line)


def test_every_mistake_of_a_board_config_is_reported(ingest: Ingest) -> None:
    config = '{"api_base": "ftp://x", "banana": 1, "fields": {"title": "a"}}'
    line = ("sources", "add", "https://acme.test/jobs", *BOARD, "--platform", "html")

    message = ingest.refused(*line, "--config", config)

    for part in ("api_base", "banana is no key", "title, and url", "items: needed"):
        assert part in message


def test_a_url_of_no_known_platform_is_refused_with_the_platforms(ingest: Ingest) -> None:
    message = ingest.refused("sources", "add", "https://acme.test/careers", *BOARD)

    assert "for job_board there are: greenhouse, lever" in message


def test_a_bad_board_of_a_file_is_reported_with_its_line(ingest: Ingest, tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    file.write_text('sources:\n  - {id: "job_board:a", kind: job_board, url: "https://a.test/", platform: lever}\n')

    message = ingest.refused("sources", "import", str(file))

    assert "boards.yaml" in message
    assert "board_token" in message


def test_boards_are_made_due_ahead_of_their_schedule_once(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *BOARD)

    assert "queued 1 boards" in ingest.output("sources", "scrape", "job_board:acme")
    assert "still waits" in ingest.refused("sources", "scrape", "job_board:acme")
    assert "a rotation" in ingest.output("sources", "scrape", "--max-sources", "3")
    assert "no source 'job_board:x'" in ingest.refused("sources", "scrape", "job_board:x")
    both = ("sources", "scrape", "job_board:acme", "--max-sources", "3")
    assert "belong to a rotation" in ingest.refused(*both)


def test_a_source_that_cannot_be_scraped_is_refused_with_the_reason(ingest: Ingest) -> None:
    ingest.output("sources", "add", "https://boards.greenhouse.io/acme", *BOARD)
    ingest.output("sources", "add", "https://acme.test/", "--id", "company:acme", "--kind", "company")
    ingest.output("sources", "disable", "job_board:acme", "--reason", "we left")

    assert "we left" in ingest.refused("sources", "scrape", "job_board:acme")
    assert "no job board" in ingest.refused("sources", "scrape", "company:acme")


def add_unapproved_board(home_store: Store, platform: str, **config: Any) -> None:
    """Add a board as discovery stores an uncertain one."""
    board = Definition(
        id="job_board:acme",
        kind=Kind.JOB_BOARD,
        url="https://acme.test/jobs",
        platform=platform,
        config=config,
        enabled=False,
    )
    waits = {"status": "pending_validation", "status_reason": "confidence low"}
    with home_store.begin() as connection:
        register(connection, [board], now=home_store.clock.now(connection))
        connection.execute(update(sources).values(waits))


@pytest.mark.slow
def test_a_board_with_a_bad_config_is_not_approved_before_it_is_corrected(ingest: Ingest, home_store: Store) -> None:
    add_unapproved_board(home_store, "html")
    config = '{"items": "li", "fields": {"title": "a", "url": "a@href"}}'

    message = ingest.refused("sources", "enable", "job_board:acme")
    ingest.output("sources", "update", "job_board:acme", "--config", config)
    mended = ingest.json("sources", "show", "job_board:acme")
    ingest.output("sources", "enable", "job_board:acme")

    assert "items: needed" in message
    assert "ingest sources update job_board:acme --config" in message
    assert mended["status"] == "pending_validation"
    assert ingest.json("sources", "show", "job_board:acme")["status"] == "active"
