"""Job boards by command: declared, refused with every mistake, asked for ahead of schedule."""

from __future__ import annotations

from pathlib import Path

from ingestion_pipeline_tests.cli.conftest import Ingest

BOARD = ("--id", "job_board:acme", "--kind", "job_board")


def test_a_board_is_recognised_by_its_url(ingest: Ingest) -> None:
    ingest.done("sources", "add", "https://boards.greenhouse.io/acme", *BOARD, "--company", "acme")

    (listed,) = ingest.json("sources", "list", "--kind", "job_board")

    assert (listed["platform"], listed["company"]) == ("greenhouse", "acme")


def test_a_board_without_token_is_refused_with_the_cure(ingest: Ingest) -> None:
    line = ("sources", "add", "https://acme.test/careers", *BOARD, "--platform", "greenhouse")

    assert "board_token" in ingest.refused(*line)


def test_every_mistake_of_a_boards_config_is_told(ingest: Ingest) -> None:
    config = '{"api_base": "ftp://x", "banana": 1, "fields": {"title": "a"}}'
    line = ("sources", "add", "https://acme.test/jobs", *BOARD, "--platform", "html")

    said = ingest.refused(*line, "--config", config)

    for part in ("api_base", "banana is no key", "title, and url", "items: needed"):
        assert part in said


def test_a_url_that_tells_no_platform_names_those_that_there_are(ingest: Ingest) -> None:
    said = ingest.refused("sources", "add", "https://acme.test/careers", *BOARD)

    assert "for job_board there are: greenhouse, lever" in said


def test_a_bad_board_of_a_file_is_told_with_its_line(ingest: Ingest, tmp_path: Path) -> None:
    file = tmp_path / "boards.yaml"
    file.write_text(
        "sources:\n"
        '  - {id: "job_board:a", kind: job_board, url: "https://a.test/", platform: lever}\n'
    )

    said = ingest.refused("sources", "import", str(file))

    assert "boards.yaml" in said
    assert "board_token" in said


def test_boards_are_asked_for_ahead_of_their_schedule_once(ingest: Ingest) -> None:
    ingest.done("sources", "add", "https://boards.greenhouse.io/acme", *BOARD)

    assert "asked for 1 boards" in ingest.done("sources", "scrape", "job_board:acme")
    assert "still waits" in ingest.refused("sources", "scrape", "job_board:acme")
    assert "a rotation" in ingest.done("sources", "scrape", "--max-sources", "3")
    assert "no source 'job_board:x'" in ingest.refused("sources", "scrape", "job_board:x")
    both = ("sources", "scrape", "job_board:acme", "--max-sources", "3")
    assert "belong to a rotation" in ingest.refused(*both)
