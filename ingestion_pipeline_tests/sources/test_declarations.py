"""From a mapping to a definition: what is accepted, filled in and refused; platforms recognised by the URL alone."""

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.series.platforms import PLATFORMS
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.sources.platforms import READERS, Platform, platforms, recognize_platform
from ingestion_pipeline.sources.source import Definition, Kind, Tier, shard_of
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.samples import sample

EXPECTED = yaml.safe_load((Path(__file__).parent / "expected" / "declarations.yaml").read_text())


def declaration(**changes: Any) -> dict[str, Any]:
    return {"id": "series:solo", "kind": "series", "url": "https://a.test/feed"} | changes


def accepted(**changes: Any) -> Definition:
    definition, problems = definition_of(declaration(**changes))
    assert problems == []
    assert definition is not None
    return definition


def test_missing_fields_are_filled_in() -> None:
    assert accepted() == a_definition(origin="row", config={}, enabled=True)


@pytest.mark.parametrize(
    ("value", "tier"), [("hot", Tier.HOT), ("warm", Tier.WARM), ("cold", Tier.COLD), ("auto", None), (None, None)]
)
def test_a_tier_is_pinned_unless_it_is_auto(value: str | None, tier: Tier | None) -> None:
    assert accepted(tier=value).tier is tier


def test_a_series_id_defaults_to_the_name_of_its_source() -> None:
    assert accepted(id="series:solo:en").series == "solo:en"
    assert accepted(series="solo-leveling").series == "solo-leveling"


def test_a_catalogue_needs_no_platform() -> None:
    assert accepted(id="catalog:mine", kind="catalog").platform == "catalog"


def test_a_declared_platform_overrides_the_url() -> None:
    definition = accepted(url="https://mirror.test/feed", platform="mangadex", config={"manga_id": "x"})

    assert definition.platform == "mangadex"


@pytest.mark.parametrize(
    ("changes", "field", "message"), [pytest.param(*values, id=name) for name, *values in EXPECTED["refused_fields"]]
)
def test_a_refused_field_says_what_is_accepted(changes: dict[str, Any], field: str, message: str) -> None:
    definition, problems = definition_of(declaration(**changes))

    assert definition is None
    assert [problem.field for problem in problems] == [field]
    assert message in problems[0].message


@pytest.mark.parametrize(
    "name", ["api_key", "apikey", "access_token", "client_secret", "Password", "token", "sig", "private_token"]
)
def test_a_secret_in_the_url_is_refused_and_not_repeated(name: str) -> None:
    _, problems = definition_of(declaration(url=f"https://a.test/feed.xml?page=1&{name}=s3cret"))

    assert [problem.field for problem in problems] == ["url"]
    assert f"name: {name}, env: VARIABLE" in problems[0].message
    assert "s3cret" not in problems[0].message


def test_a_secret_in_the_fragment_of_the_url_is_refused_and_not_repeated() -> None:
    _, problems = definition_of(declaration(url="https://a.test/feed.xml#access_token=s3cret"))

    assert [problem.field for problem in problems] == ["url"]
    assert "has a secret, access_token" in problems[0].message
    assert "s3cret" not in problems[0].message


@pytest.mark.parametrize("query", ["key=courses", "token=123", "passwordless=1", "q=api_key"])
def test_a_parameter_that_selects_a_page_is_accepted(query: str) -> None:
    url = f"https://a.test/feed.xml?{query}"

    assert accepted(url=url).url == url


def test_an_id_of_120_characters_is_accepted() -> None:
    longest = "series:" + "a" * 113

    assert accepted(id=longest).id == longest


def test_a_config_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}

    _, problems = definition_of(declaration(config=deep))

    assert [problem.field for problem in problems] == ["config"]


def test_every_wrong_field_is_reported_at_once() -> None:
    _, problems = definition_of({"id": "x", "kind": "series", "url": "x", "tier": 1, "colour": 1})

    assert {problem.field for problem in problems} == {"id", "url", "tier", "colour"}


def test_a_wrong_kind_or_url_is_not_also_reported_as_a_missing_platform() -> None:
    for mistake in ({"kind": "comic"}, {"url": "nowhere"}):
        _, problems = definition_of(declaration(**mistake))
        assert [problem.field for problem in problems] == list(mistake)


def test_the_shard_of_a_host_is_the_same_in_every_process() -> None:
    assert [shard_of(host) for host in ("a.test", "b.test")] == [19753, 16263]


MANGA = "a1c7c817-4e59-43b7-9365-09675a149a6f"


def test_a_series_may_be_declared_with_every_platform_that_has_an_adapter() -> None:
    assert set(READERS[Kind.SERIES]) == set(PLATFORMS)


@pytest.mark.parametrize(("url", "name", "token"), EXPECTED["platform_urls"])
def test_a_platform_is_recognised_by_its_url(url: str, name: str | None, token: str | None) -> None:
    assert recognize_platform(url) == (Platform(name, token) if name else None)


@given(url=st.text() | st.text().map("https://".__add__))
def test_any_text_is_parsed_without_an_error(url: str) -> None:
    recognized = recognize_platform(url)

    assert recognized is None or recognized.name in {"mangadex", "rss", *platforms()}


JOB_BOARD_URLS = yaml.safe_load((Path(__file__).parent / "expected" / "job_board_urls.yaml").read_text())
BOARDS: dict[str, list[dict[str, Any]]] = JOB_BOARD_URLS["boards"]
NOT_BOARDS: list[str] = [
    *JOB_BOARD_URLS["not_boards"],
    "https://xn--\udc80.lever.co/a",
]  # a lone surrogate, which no file can hold


@pytest.mark.parametrize(
    ("url", "platform"),
    [
        (url, Platform(name, group["token"]))
        for name, groups in BOARDS.items()
        for group in groups
        for url in group["urls"]
    ],
)
def test_a_board_is_recognised_with_its_token(url: str, platform: Platform) -> None:
    assert recognize_platform(url) == platform


@pytest.mark.parametrize("url", NOT_BOARDS)
def test_a_vendors_own_page_or_a_look_alike_is_not_a_board(url: str) -> None:
    assert recognize_platform(url) is None


def test_every_board_platform_has_expected_urls() -> None:
    assert set(BOARDS) == set(platforms())


@given(
    host=st.sampled_from(["jobs.lever.co", "boards.greenhouse.io", "a.wd1.myworkdayjobs.com", "ats.rippling.com"]),
    rest=st.text(max_size=60),
)
def test_any_path_on_a_boards_host_is_parsed_without_an_error(host: str, rest: str) -> None:
    recognized = recognize_platform(f"https://{host}/{rest}")

    assert recognized is None or recognized.token is None or "/" not in recognized.token


def test_every_board_of_the_sample_is_recognised_with_a_token() -> None:
    with sample("jobs/board_urls/ats_urls.csv").open() as file:
        rows = list(csv.DictReader(file))

    recognized = [(row, recognize_platform(row["url"])) for row in rows]

    missed = [row["url"] for row, platform in recognized if platform is None or platform.name != row["platform"]]
    assert (len(rows), missed) == (480, [])
    assert all(platform is not None and platform.token for _, platform in recognized)
    assert all(platform is not None and platform.name in READERS[Kind.JOB_BOARD] for _, platform in recognized)
