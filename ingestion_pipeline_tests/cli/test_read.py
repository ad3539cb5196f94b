"""`ingest read`: saved feeds, boards, catalogues and pages parsed without network or database."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from ingestion_pipeline.cli.read import kind_for
from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.pages.visits.polite_visits import read_saved
from ingestion_pipeline.reading.structured.items import SavedBody
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.platforms import READERS
from ingestion_pipeline_tests.catalogs.course_pages import SAVED_PAGES
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.companies.platform_fixtures import FIXTURES
from ingestion_pipeline_tests.samples import sample

FEED = b"""<rss version="2.0"><channel><title>Solo</title>
<item><title>Chapter 1.50</title><link>/c/1</link><guid>g1</guid>
<pubDate>Sun, 01 Mar 2026 13:00:00 +0100</pubDate></item></channel></rss>"""
EMPTY = b'<rss version="2.0"><channel><title>Solo</title></channel></rss>'
SERIES = ("--platform", "rss", "--kind", "series")
GREENHOUSE = (str(FIXTURES / "greenhouse.json"), "--platform", "greenhouse")
AS_CATALOG = ("--platform", "catalog")
AS_PAGE = ("--platform", "page")
PAGE = (
    b"<html lang=en><title>Baking I</title><link rel=canonical href=/baking>"
    b"<h1>Baking I</h1><p>12 seats, <a href='/apply?utm_source=x'>apply</a>"
)


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    """`ingest read` must work where no database can be."""
    return Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})


def test_a_saved_feed_is_read_into_releases_of_exactly_these_fields(ingest: Ingest) -> None:
    result = ingest("read", "-", *SERIES, "--url", "https://a.test/feed", "--json", stdin=FEED)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "records": [
            {
                "number": "1.5",
                "title": "Chapter 1.50",
                "url": "https://a.test/c/1",
                "language": None,
                "scanlation_group": None,
                "source_chapter_id": "g1",
                "volume": None,
                "published_at": "2026-03-01T12:00:00+00:00",
            }
        ],
        "problems": [],
    }


def test_the_config_reaches_the_parser(ingest: Ingest) -> None:
    config = ("--config", '{"language": "en"}')

    result = ingest("read", "-", *SERIES, *config, "--json", stdin=FEED)

    assert json.loads(result.stdout)["records"][0]["language"] == "en"


@pytest.mark.parametrize(
    ("arguments", "body", "texts"),
    [
        pytest.param(("-", *SERIES), FEED, ["Chapter 1.50", "1 records, 0 problems"], id="feed"),
        pytest.param(GREENHOUSE, b"", ["Harbour Pilot", "2 records, 1 problems"], id="board"),
        pytest.param(
            (str(SAVED_PAGES / "courseleaf_titles.html"), *AS_CATALOG),
            b"",
            ["Plants & People", "4 records, 0 problems", "read by courseleaf"],
            id="catalogue with its extraction method",
        ),
        pytest.param(("-", *AS_PAGE), PAGE, ["# Baking I", "1 records, 0 problems"], id="page with its markdown"),
    ],
)
def test_the_text_output_is_a_table(ingest: Ingest, arguments: tuple[str, ...], body: bytes, texts: list[str]) -> None:
    result = ingest("read", *arguments, stdin=body)

    assert result.exit_code == 0
    assert [text for text in texts if text not in result.output] == []


@pytest.mark.parametrize(
    ("options", "body", "code", "message"),
    [
        (SERIES, b"<html><title>Oops</title></html>", "not_a_feed", "Oops"),
        (("--platform", "greenhouse"), b'{"status": 404, "error": "Board not found"}', "api_error", "Board not found"),
        (AS_CATALOG, b"", "empty_body", ""),
        (AS_CATALOG, b'{"data": [', "not_json", ""),
        (AS_CATALOG, b"<div>" * 5_000, "too_deep", ""),
        (AS_PAGE, b"", "empty_body", ""),
        (AS_PAGE, b" \n\0", "empty_body", ""),
        (AS_PAGE, b"%PDF-1.7", "not_html", ""),
        (AS_PAGE, b"<div>" * 5_000, "too_deep", ""),
    ],
)
def test_an_unreadable_body_is_a_problem_and_fails(
    ingest: Ingest, options: tuple[str, ...], body: bytes, code: str, message: str
) -> None:
    result = ingest("read", "-", *options, "--json", stdin=body)

    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["records"]) == (1, [])
    assert [problem["code"] for problem in answer["problems"]] == [code]
    assert message in answer["problems"][0]["message"]


@pytest.mark.parametrize(
    ("arguments", "body"),
    [
        pytest.param(("-", *SERIES), EMPTY, id="feed"),
        pytest.param(("-", "--platform", "greenhouse"), b'{"jobs": []}', id="board"),
        pytest.param((str(SAVED_PAGES / "none_empty_results.html"), *AS_CATALOG), b"", id="result page"),
        pytest.param((str(SAVED_PAGES / "plain_table.html"), "--platform", "jsonld"), b"", id="no JSON-LD"),
    ],
)
def test_a_legitimately_empty_body_is_no_failure(ingest: Ingest, arguments: tuple[str, ...], body: bytes) -> None:
    result = ingest("read", *arguments, "--json", stdin=body)

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"records": [], "problems": []}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--platform", "rss"), "--kind series"),
        (("--platform", "nope"), "mangadex, oracle_hcm, page, personio"),
        (("--platform", "mangadex", "--kind", "catalog"), "it is read as: series"),
        ((*SERIES, "--config", '{"nope": 1}'), "nope is no key"),
        ((*SERIES, "--config", "{"), "not JSON"),
        ((*SERIES, "--entity", "course"), "--entity"),
        ((*SERIES, "--url", "ftp://a.test"), "url"),
        ((*SERIES, "--fetched-at", "soon"), "2026-03-01T12:00:00Z"),
        (("--platform", "html", "--kind", "series", "--config", '{"items": "li["}'), "'li['"),
        (("--platform", "html"), "job_board"),
        (("--platform", "lever", "--kind", "series"), "job_board"),
        ((*AS_CATALOG, "--entity", "banana"), "course"),
        ((*AS_CATALOG, "--config", '{"selectors": {"course_id": "b["}}'), "is no CSS selector"),
        ((*AS_CATALOG, "--config", '{"a": 1}'), "no config"),
        ((*AS_CATALOG, "--url", "ftp://a.test"), "http://"),
        ((*AS_CATALOG, "--kind", "series"), "catalog"),
        ((*AS_PAGE, "--config", '{"a": 1}'), "no config"),
        ((*AS_PAGE, "--url", "ftp://a.test"), "http://"),
        ((*AS_PAGE, "--kind", "series"), "catalog"),
    ],
)
def test_bad_input_is_refused_with_the_cure(ingest: Ingest, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in ingest.refused("read", "-", *arguments)


def test_a_missing_file_is_refused_by_name(ingest: Ingest, tmp_path: Path) -> None:
    assert "gone.xml" in ingest.refused("read", str(tmp_path / "gone.xml"), *SERIES)
    assert "gone.html" in ingest.refused("read", str(tmp_path / "gone.html"), *AS_PAGE)
    assert "directory" in ingest.refused("read", str(tmp_path), *SERIES)


@pytest.mark.parametrize(
    ("platform", "stated", "kind"),
    [
        ("mangadex", None, Kind.SERIES),
        ("rss", Kind.SERIES, Kind.SERIES),
        ("lever", None, Kind.JOB_BOARD),
        ("rss", Kind.JOB_BOARD, Kind.JOB_BOARD),
        ("catalog", None, Kind.CATALOG),
        ("jsonld", None, Kind.CATALOG),
        ("page", None, Kind.WEBSITE),
        ("page", Kind.CATALOG, Kind.CATALOG),
    ],
)
def test_the_kind_follows_from_a_platform_that_has_one(platform: str, stated: Kind | None, kind: Kind) -> None:
    assert kind_for(platform, stated) is kind


def test_every_sample_feed_gives_json(ingest: Ingest) -> None:
    for path in sorted(sample("feeds").iterdir()):
        result = ingest("read", str(path), *SERIES, "--url", "https://a.test/x", "--json")
        reading = json.loads(result.stdout)
        assert reading["records"] or reading["problems"], path.name
        assert result.exit_code == (0 if reading["records"] else 1), path.name


@pytest.mark.parametrize(
    ("platform", "body", "config"),
    [
        ("json", b'{"list": [{"n": "1.50", "u": "/c/1"}]}', {"items": "list", "fields": {"number": "n", "url": "u"}}),
        (
            "html",
            b"<li><a href='/c/1'>Chapter 1.50</a></li>",
            {"items": "li", "fields": {"label": "a", "url": "a@href"}},
        ),
    ],
    ids=["json", "html"],
)
def test_a_list_is_parsed_by_the_config(ingest: Ingest, platform: str, body: bytes, config: object) -> None:
    options = ("--platform", platform, "--kind", "series", "--config", json.dumps(config))

    result = ingest("read", "-", *options, "--url", "https://a.test/x", "--json", stdin=body)

    (record,) = json.loads(result.stdout)["records"]
    assert (record["number"], record["url"]) == ("1.5", "https://a.test/c/1")


LIST = "<li><a>Chapter 2</a><i>hace 2 días</i></li><li><a>Chapter 1</a><i>?</i></li>".encode()
DATED = '{"items": "li", "fields": {"label": "a", "published_at": "i"}}'
LISTED = ("--platform", "html", "--kind", "series", "--config", DATED, "--json")


@pytest.mark.parametrize("fetched_at", ["2026-03-10T01:00:00+02:00", "2026-03-09T23:00:00"])
def test_a_relative_date_counts_from_when_the_body_was_fetched(ingest: Ingest, fetched_at: str) -> None:
    result = ingest("read", "-", *LISTED, "--fetched-at", fetched_at, stdin=LIST)

    reading = json.loads(result.stdout)
    assert [record["published_at"] for record in reading["records"]] == ["2026-03-07T00:00:00+00:00", None]
    assert ["1 of 2 dates" in problem["message"] for problem in reading["problems"]] == [True]


def test_a_file_counts_as_fetched_when_it_was_written(ingest: Ingest, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(LIST)
    os.utime(page, (0, datetime(2020, 5, 3, 12, tzinfo=UTC).timestamp()))

    result = ingest("read", str(page), *LISTED)

    assert json.loads(result.stdout)["records"][0]["published_at"] == "2020-05-01T00:00:00+00:00"


def test_a_detected_layout_is_noted_in_the_output(ingest: Ingest) -> None:
    page = b"<ul><li class='wp-manga-chapter'><a href='/c/1'>Chapter 1</a></li></ul>"
    options = ("--platform", "html", "--kind", "series", "--url", "https://a.test/x")

    result = ingest("read", "-", *options, "--json", stdin=page)

    assert json.loads(result.stdout)["records"][0]["url"] == "https://a.test/c/1"
    assert result.stderr == "note: read as theme madara\n"


def test_a_board_can_be_parsed_by_every_platform_with_an_adapter() -> None:
    assert set(READERS[Kind.JOB_BOARD]) == set(PLATFORMS)


def test_a_listing_has_exactly_these_fields(ingest: Ingest) -> None:
    answer = json.loads(ingest("read", *GREENHOUSE, "--json").stdout)

    assert answer["records"][0] == {
        "external_id": "4012345007",
        "title": "Harbour Pilot",
        "url": "https://job-boards.greenhouse.io/northwind/jobs/4012345007",
        "location": "Lisbon (Hybrid)",
        "posted_at": "2026-03-02T03:30:00+00:00",
        "description": "## The R&D fleet\n\nSteer **ships**.",
        "company": "Northwind",
        "department": "Fleet",
        "employment_type": "Full time",
        "remote": "hybrid",
        "salary": {"minimum": "50000", "maximum": "62500.5", "currency": "EUR", "period": "year"},
        "other_locations": [],
        "valid_until": "2027-01-31T00:00:00+00:00",
        "company_website": None,
    }
    assert [problem["where"] for problem in answer["problems"]] == ["item 1"]


@pytest.mark.parametrize(
    ("page", "field", "values"),
    [
        pytest.param(FIXTURES / "jsonld.html", "title", ["Test Subject"], id="jobs"),
        pytest.param(SAVED_PAGES / "json_ld.html", "course_id", ["LAW 501", "LAW 640"], id="courses"),
    ],
)
def test_json_ld_is_parsed_as_the_type_it_states(ingest: Ingest, page: Path, field: str, values: list[str]) -> None:
    records = json.loads(ingest("read", str(page), "--platform", "jsonld", "--json").stdout)["records"]

    assert [record[field] for record in records] == values


FIELDS = [
    *("course_id", "course_name", "course_description", "course_prerequisites"),
    *("course_non_credit", "course_credits_min", "course_credits_max", "course_credits_type"),
    "course_ceu_credits",
]


def test_a_course_has_the_fields_of_its_type_and_its_evidence(ingest: Ingest) -> None:
    page = str(SAVED_PAGES / "plain_table.html")

    result = ingest("read", page, *AS_CATALOG, "--kind", "catalog", "--entity", "course", "--json")

    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["problems"] == []
    first = answer["records"][0]
    assert list(first) == [*FIELDS, "evidence", "extraction_method", "confidence"]
    assert [first[name] for name in FIELDS] == [
        *("HIS 101", "World to 1500"),
        "Empires, faiths and trade from the first cities to the ocean voyages.",
        *(None, None, None, 3, None, None),
    ]
    assert first["evidence"]["course_id"]["status"] == "exact"
    assert first["extraction_method"] == "layout"


def test_selectors_read_a_saved_page(ingest: Ingest) -> None:
    names = {"course_id": "b", "course_name": "i", "course_description": "p"}
    config = json.dumps({"selectors": names | {"record": "section"}})
    page = b"<section><b>X 1</b> <i>Logic</i> <p>What follows from what.</p></section>"

    result = ingest("read", "-", *AS_CATALOG, "--config", config, "--json", stdin=page)

    assert [record["course_name"] for record in json.loads(result.stdout)["records"]] == ["Logic"]


@pytest.mark.slow
def test_every_course_sample_gives_json(ingest: Ingest) -> None:
    for page in sorted(sample("courses").rglob("*.html")):
        result = ingest("read", str(page), *AS_CATALOG, "--json")
        assert result.exit_code == 0, page.name
        assert isinstance(json.loads(result.stdout)["records"], list)


BIRD = """
name: bird
about: a bird
key: [ring]
fields: [{name: ring, kind: text, required: true}]
embedded: {types: [Bird], fields: {ring: [identifier]}}
"""


def test_a_custom_type_is_extracted_from_a_saved_page(tmp_path: Path) -> None:
    (tmp_path / "entities").mkdir()
    (tmp_path / "entities" / "bird.yaml").write_text(BIRD)
    json_ld = json.dumps({"@type": "Bird", "identifier": "R-1"})
    page = tmp_path / "page.html"
    page.write_text(f"<h1>R-1</h1><script type='application/ld+json'>{json_ld}</script>")
    ingest = Ingest({"INGESTION_SOURCES": str(tmp_path)})

    output = ingest.output("read", str(page), *AS_CATALOG, "--entity", "bird")

    assert "R-1" in output
    assert "1 records, 0 problems" in output


# Prefixes that random bytes seldom have and that lead deeper into the parsers.
HEADS = (b"", b"<html>", b"<meta charset=", b"<a href=", b"<p style=", b"\xff\xfe", b"<style>", b"<!--")


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


def test_a_doubt_about_a_page_is_shown_beside_it(ingest: Ingest) -> None:
    shell = b"<title>Acme</title><div id=root></div><script src=/a.js></script>"

    result = ingest("read", "-", *AS_PAGE, "--json", stdin=shell)

    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["records"][0]["title"] == "Acme"
    assert [problem["code"] for problem in answer["problems"]] == ["empty_shell"]


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


def read_many(count: int, seed: int) -> float:
    """The CPU seconds of the slowest of `count` bodies; each gives a record or a problem."""
    random, slowest = Random(seed), 0.0
    pages = [path.read_bytes() for path in sorted(sample("html_tricky").glob("*.html"))]
    for number in range(count):
        body = shuffled(pages, random)
        started = time.thread_time()
        saved = SavedBody(body=body, url="https://a.test/x", fetched_at=datetime(2026, 3, 1, tzinfo=UTC))
        parsed = read_saved("page", Kind.WEBSITE, saved, {})
        slowest = max(slowest, time.thread_time() - started)
        assert parsed.records or parsed.problems, (seed, number, body)
        json.dumps([parsed.records, parsed.problems], ensure_ascii=False).encode()
    return slowest


@pytest.mark.slow
def test_10000_random_bodies_crash_nothing() -> None:
    assert read_many(10_000, seed=11) < 1
