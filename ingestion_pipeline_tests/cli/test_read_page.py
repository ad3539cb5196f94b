"""`ingest read --platform page`: one record per page, and no body that crashes it."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from ingestion_pipeline.cli.read import kind_for
from ingestion_pipeline.pages.visits.polite_visits import read_saved
from ingestion_pipeline.reading.structured.items import SavedBody
from ingestion_pipeline.sources import Kind
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

PAGE = (
    b"<html lang=en><title>Baking I</title><link rel=canonical href=/baking>"
    b"<h1>Baking I</h1><p>12 seats, <a href='/apply?utm_source=x'>apply</a>"
)
AS_PAGE = ("--platform", "page")
# Prefixes that random bytes seldom have and that lead deeper into the parsers.
HEADS = (b"", b"<html>", b"<meta charset=", b"<a href=", b"<p style=", b"\xff\xfe", b"<style>", b"<!--")


@pytest.fixture
def ingest() -> Ingest:
    """`ingest read` must work where no database can be."""
    return Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})


def test_a_page_is_one_record_of_exactly_these_fields(ingest: Ingest) -> None:
    result = ingest("read", "-", *AS_PAGE, "--url", "https://a.test/x", "--json", stdin=PAGE)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "records": [
            {
                "title": "Baking I",
                "canonical_url": "https://a.test/baking",
                "language": "en",
                "links": ["https://a.test/apply"],
                "markdown": "# Baking I\n\n12 seats, [apply](https://a.test/apply?utm_source=x)",
                "text": "Baking I\n12 seats, apply",
            }
        ],
        "problems": [],
    }


def test_the_text_output_has_the_values_and_the_markdown(ingest: Ingest) -> None:
    result = ingest("read", "-", *AS_PAGE, stdin=PAGE)

    assert "# Baking I" in result.stdout
    assert "1 records, 0 problems" in result.stdout


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "empty_body"), (b" \n\0", "empty_body"), (b"%PDF-1.7", "not_html"), (b"<div>" * 5_000, "too_deep")],
)
def test_a_body_that_is_no_page_is_a_problem_and_fails(ingest: Ingest, body: bytes, code: str) -> None:
    result = ingest("read", "-", *AS_PAGE, "--json", stdin=body)

    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert answer["records"] == []
    assert [problem["code"] for problem in answer["problems"]] == [code]


def test_a_doubt_about_a_page_is_shown_beside_it(ingest: Ingest) -> None:
    shell = b"<title>Acme</title><div id=root></div><script src=/a.js></script>"

    result = ingest("read", "-", *AS_PAGE, "--json", stdin=shell)

    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["records"][0]["title"] == "Acme"
    assert [problem["code"] for problem in answer["problems"]] == ["empty_shell"]


def test_bad_input_is_refused_with_the_cure(ingest: Ingest) -> None:
    assert "no config" in ingest.refused("read", "-", *AS_PAGE, "--config", '{"a": 1}')
    assert "http://" in ingest.refused("read", "-", *AS_PAGE, "--url", "ftp://a.test")
    assert "catalog" in ingest.refused("read", "-", *AS_PAGE, "--kind", "series")


def test_a_page_belongs_to_a_website_unless_the_kind_is_catalog() -> None:
    assert kind_for("page", None) is Kind.WEBSITE
    assert kind_for("page", Kind.CATALOG) is Kind.CATALOG


@pytest.mark.slow
def test_every_tricky_file_and_every_feed_gives_json(ingest: Ingest) -> None:
    folders = (sample("html_tricky"), sample("feeds"))
    files = sorted(file for folder in folders for file in folder.rglob("*") if file.is_file())

    for file in files:
        result = ingest("read", str(file), *AS_PAGE, "--url", "https://a.test/x", "--json")
        answer = json.loads(result.stdout)
        assert answer["records"] or answer["problems"], file.name
        assert result.exit_code == (0 if answer["records"] else 1), file.name
        table = ingest("read", str(file), *AS_PAGE)  # as text: a page may fill no column at all
        assert table.exit_code == result.exit_code, (file.name, table.output[-500:])


def shuffled(bodies: list[bytes], random: Random) -> bytes:
    """Random bytes after a telling beginning, or a piece of a real page with a byte spoilt."""
    noise = random.randbytes(random.randrange(400))
    if not bodies or random.random() < 0.8:
        return random.choice(HEADS) + noise
    body = random.choice(bodies)
    start = random.randrange(len(body))
    piece = bytearray(body[start : start + random.randrange(1, 4_000)])
    piece[random.randrange(len(piece))] = random.randrange(256)
    return bytes(piece)


def a_saved_body(body: bytes) -> SavedBody:
    fetched_at = datetime(2026, 3, 1, tzinfo=UTC)
    return SavedBody(body=body, url="https://a.test/x", fetched_at=fetched_at)


def read_many(count: int, seed: int) -> float:
    """The CPU seconds of the slowest of `count` bodies; each gives a record or a problem."""
    random, slowest = Random(seed), 0.0
    pages = [path.read_bytes() for path in sorted(sample("html_tricky").glob("*.html"))]
    for number in range(count):
        body = shuffled(pages, random)
        started = time.thread_time()
        parsed = read_saved("page", Kind.WEBSITE, a_saved_body(body), {})
        slowest = max(slowest, time.thread_time() - started)
        assert parsed.records or parsed.problems, (seed, number, body)
        json.dumps([parsed.records, parsed.problems], ensure_ascii=False).encode()
    return slowest


@pytest.mark.slow
def test_10000_random_bodies_crash_nothing() -> None:
    assert read_many(10_000, seed=11) < 1


def test_a_missing_file_is_refused_by_name(ingest: Ingest, tmp_path: Path) -> None:
    assert "gone.html" in ingest.refused("read", str(tmp_path / "gone.html"), *AS_PAGE)
