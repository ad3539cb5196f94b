"""`ingest read` on every sample gives the expected values, or a problem."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

Records = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ExpectedMangaSample:
    """Expected values of a file; without records, the expected problem."""

    options: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    count: int = 0
    holds: Callable[[Records], bool] = lambda _: True
    note: str = ""
    code: str | None = None
    messages: tuple[str, ...] = ()


MANGADEX = ("--platform", "mangadex")
HTML = ("--platform", "html", "--kind", "series", "--url", "https://www.mangareader.net/fuuka")
JSON = ("--platform", "json", "--kind", "series")


def refused(*messages: str, options: tuple[str, ...] = MANGADEX, code: str = "unexpected_body") -> ExpectedMangaSample:
    return ExpectedMangaSample(options=options, code=code, messages=messages)


def big_regression(records: Records) -> bool:
    releases = {(record["number"], record["language"], record["scanlation_group"]) for record in records}
    return (
        len({record["number"] for record in records}) == 23
        and len(releases) == 42
        and {record["language"] for record in records} == {"en"}
        and (records[0]["number"], records[0]["title"]) == ("1", None)
    )


def mob_psycho(records: Records) -> bool:
    languages = {"ru": 36, "pt-br": 29, "en": 28, "pl": 3, "hu": 2, "id": 1}
    by_language = Counter(record["language"] for record in records)
    releases = {(record["number"], record["language"], record["scanlation_group"]) for record in records}
    return (
        all(by_language[language] == count for language, count in languages.items())
        and sum("." in record["number"] for record in records) == 25
        and len({record["number"] for record in records}) == 82
        and len(releases) == 100
        and (records[0]["number"], records[0]["title"]) == ("60.5", None)
    )


def fuuka(records: Records) -> bool:
    return [(record["number"], record["url"], record["published_at"]) for record in records] == [
        ("152", "https://www.mangareader.net/fuuka/152", None),
        ("1", "https://www.mangareader.net/fuuka/1", "2014-02-10T00:00:00+00:00"),
        ("2", "https://www.mangareader.net/fuuka/2", "2014-02-15T00:00:00+00:00"),
    ]


FEED_HINT = "/manga/<id>/feed"
EXPECTED_MANGA = {
    "mangadex/feed_big_regression_42.json": ExpectedMangaSample(options=MANGADEX, count=42, holds=big_regression),
    "mangadex/feed_mob_psycho_100.json": ExpectedMangaSample(
        options=MANGADEX, count=100, holds=mob_psycho, note="100 of 401 chapters: a part of the feed"
    ),
    "mangadex/search_one_punch_man.json": refused("a list of 8 of type 'manga'", FEED_HINT),
    "mangadex/author.json": refused("one entity of type 'author'", FEED_HINT),
    "mangadex/group.json": refused("one entity of type 'scanlation_group'", FEED_HINT),
    "mangadex/at_home_server.json": refused("one chapter's images", FEED_HINT),
    "html/mangareader_overview.html": ExpectedMangaSample(
        options=HTML, config={"series_title": "Fuuka"}, count=3, holds=fuuka, note="read as theme mangareader"
    ),
    "html/mangareader_list.html": refused("links: 8", "say where the chapters are", options=HTML, code="no_theme"),
    **{
        f"html/mangareader_{name}.html": refused(
            "the page of one chapter", "'Fuuka 2'", "give the address of the series", options=HTML, code="no_theme"
        )
        for name in ("first_page", "nth_page")
    },
    # Tables of test vectors, parsed as lists of labels.
    "chapter_numbers/mihon_chapter_recognition.json": ExpectedMangaSample(
        options=JSON,
        config={"fields": {"label": "chapter_name"}},
        count=57,
        holds=lambda records: sum(record["number"] is None for record in records) == 1,
    ),
    "chapter_numbers/comictagger_filenames.json": ExpectedMangaSample(
        options=JSON, config={"fields": {"label": "filename"}}, count=65
    ),
    "chapter_numbers/mihon_missing_chapters.json": ExpectedMangaSample(
        options=JSON,
        config={"fields": {"number": "expected_missing"}},
        code="no_items",
        messages=("the empty items path leads to the keys ['missing_count', 'gap']",),
    ),
    "sites/haruneko_series_and_chapters.json": ExpectedMangaSample(
        options=JSON,
        config={"fields": {"label": "chapter_title", "title": "site"}},
        count=623,
        holds=lambda records: len({record["title"] for record in records}) == 623,
    ),
}


def files() -> list[str]:
    root = sample("manga")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_every_manga_sample_has_expected_values_and_the_reverse() -> None:
    assert files() == sorted(EXPECTED_MANGA)


@pytest.mark.parametrize("name", EXPECTED_MANGA)
def test_a_manga_sample_is_parsed_to_its_expected_values(name: str) -> None:
    expected = EXPECTED_MANGA[name]
    path: Path = sample(f"manga/{name}")
    ingest = Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})

    result = ingest("read", str(path), *expected.options, "--config", json.dumps(expected.config), "--json")

    answer = json.loads(result.stdout)
    assert result.exit_code == (1 if expected.code else 0)
    assert len(answer["records"]) == expected.count
    assert expected.holds(answer["records"])
    assert expected.note in result.stderr
    assert [problem["code"] for problem in answer["problems"]] == ([expected.code] if expected.code else [])
    for message in expected.messages:
        assert message in answer["problems"][0]["message"]


FETCHED = ("--fetched-at", "2026-11-16T12:00:00Z")


@dataclass(frozen=True, kw_only=True)
class ExpectedJobSample:
    """Expected values of a file; without records, the expected problem."""

    count: int = 0
    title: str | None = None
    id: str | None = None
    url: str | None = None
    platform: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    board_url: str = "https://example.com/board"
    posted_on: str | None = None
    codes: tuple[str | None, ...] = ()


def load_job() -> dict[str, ExpectedJobSample]:
    document = yaml.safe_load((Path(__file__).parent / "expected" / "job_samples.yaml").read_text())
    return {
        name: ExpectedJobSample(**values | {"codes": tuple(values.get("codes", ()))})
        for name, values in document.items()
    }


EXPECTED_JOB = load_job()


def test_every_job_sample_has_expected_values_and_the_reverse() -> None:
    root = sample("jobs")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    assert files - {"board_urls/ats_urls.csv"} == set(EXPECTED_JOB)


@pytest.mark.parametrize("name", EXPECTED_JOB)
def test_a_job_sample_is_parsed_to_its_expected_values(name: str) -> None:
    expected = EXPECTED_JOB[name]
    platform = expected.platform or name.partition("/")[0]
    options = ("--platform", platform, "--kind", "job_board", "--url", expected.board_url, *FETCHED)
    ingest = Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})

    path = str(sample(f"jobs/{name}"))
    result = ingest("read", path, *options, "--config", json.dumps(expected.config), "--json")

    answer = json.loads(result.stdout)
    assert result.exit_code == (0 if expected.count else 1)
    assert tuple(problem["code"] for problem in answer["problems"]) == expected.codes
    assert len(answer["records"]) == expected.count
    for record in answer["records"]:
        assert record["title"]
        assert record["url"] or platform in {"json", "html"}
        assert "unknown" not in {str(value).lower() for value in record.values()}
    if expected.count:
        first = answer["records"][0]
        assert expected.title in {None, first["title"]}
        assert expected.id in {None, first["external_id"]}
        assert expected.url in {None, first["url"]}
        assert (first["posted_at"] or "").startswith(expected.posted_on or "")


def test_descriptions_of_the_samples_are_text_and_not_markup() -> None:
    ingest = Ingest({"INGESTION_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"})
    for name in ("greenhouse/anthropic_4.json", "lever/spotify_4.json", "ashby/ramp_4.json"):
        options = ("--platform", name.partition("/")[0], "--json")
        records = json.loads(ingest("read", str(sample(f"jobs/{name}")), *options).stdout)["records"]
        for record in records:
            assert len(record["description"]) > 500
            assert not any(sign in record["description"] for sign in ("&lt;", "&amp;", "<p", "<div"))
