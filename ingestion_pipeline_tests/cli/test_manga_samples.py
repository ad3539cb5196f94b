"""`ingest read` on every file of samples/manga gives the values of the manifest, or a problem."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

Records = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ExpectedSample:
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


def refused(*messages: str, options: tuple[str, ...] = MANGADEX, code: str = "unexpected_body") -> ExpectedSample:
    return ExpectedSample(options=options, code=code, messages=messages)


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
EXPECTED = {
    "mangadex/feed_big_regression_42.json": ExpectedSample(options=MANGADEX, count=42, holds=big_regression),
    "mangadex/feed_mob_psycho_100.json": ExpectedSample(
        options=MANGADEX, count=100, holds=mob_psycho, note="100 of 401 chapters: a part of the feed"
    ),
    "mangadex/search_one_punch_man.json": refused("a list of 8 of type 'manga'", FEED_HINT),
    "mangadex/author.json": refused("one entity of type 'author'", FEED_HINT),
    "mangadex/group.json": refused("one entity of type 'scanlation_group'", FEED_HINT),
    "mangadex/at_home_server.json": refused("one chapter's images", FEED_HINT),
    "html/mangareader_overview.html": ExpectedSample(
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
    "chapter_numbers/mihon_chapter_recognition.json": ExpectedSample(
        options=JSON,
        config={"fields": {"label": "chapter_name"}},
        count=57,
        holds=lambda records: sum(record["number"] is None for record in records) == 1,
    ),
    "chapter_numbers/comictagger_filenames.json": ExpectedSample(
        options=JSON, config={"fields": {"label": "filename"}}, count=65
    ),
    "chapter_numbers/mihon_missing_chapters.json": ExpectedSample(
        options=JSON,
        config={"fields": {"number": "expected_missing"}},
        code="no_items",
        messages=("the empty items path leads to the keys ['missing_count', 'gap']",),
    ),
    "sites/haruneko_series_and_chapters.json": ExpectedSample(
        options=JSON,
        config={"fields": {"label": "chapter_title", "title": "site"}},
        count=623,
        holds=lambda records: len({record["title"] for record in records}) == 623,
    ),
}


def files() -> list[str]:
    root = sample("manga")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_every_sample_has_expected_values_and_the_reverse() -> None:
    assert files() == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_parsed_to_its_expected_values(name: str) -> None:
    expected = EXPECTED[name]
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
