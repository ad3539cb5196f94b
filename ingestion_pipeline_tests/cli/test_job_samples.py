"""`ingest read` on every body of samples/jobs gives the values of the manifest, or a problem."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.samples import sample

FETCHED = ("--fetched-at", "2026-11-16T12:00:00Z")


@dataclass(frozen=True, kw_only=True)
class ExpectedSample:
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


def load_expected() -> dict[str, ExpectedSample]:
    document = yaml.safe_load((Path(__file__).parent / "expected" / "job_samples.yaml").read_text())
    return {
        name: ExpectedSample(**values | {"codes": tuple(values.get("codes", ()))}) for name, values in document.items()
    }


EXPECTED = load_expected()


def test_every_sample_has_expected_values_and_the_reverse() -> None:
    root = sample("jobs")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}

    assert files - {"board_urls/ats_urls.csv"} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_parsed_to_its_expected_values(name: str) -> None:
    expected = EXPECTED[name]
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
