"""`ingest try` and `ingest run` on the demo's site, and how a kind is recognised."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ingestion_pipeline.cli.first_look import recognised_by_body, recognised_by_url
from ingestion_pipeline.cli.output import CommandRefused
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline_tests.cli.conftest import Ingest

JOB = '<script type="application/ld+json">{"@type": "JobPosting", "title": "Baker"}</script>'
COURSES = "".join(
    f"<article><h3>CHM 10{n} Chemistry {n} (3 credits)</h3><p>Reactions, bonds and the lab work for them.</p></article>"
    for n in range(4)
)


@pytest.fixture
def site(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DemoSite]:
    monkeypatch.setenv("INGESTION_CRAWL__DELAY_SECONDS", "0")
    monkeypatch.setenv("INGESTION_HOSTS__DELAY_SECONDS", "0")
    with DemoSite(home) as site:
        yield site


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://boards.greenhouse.io/acme", (Kind.JOB_BOARD, "greenhouse")),
        ("https://jobs.lever.co/acme", (Kind.JOB_BOARD, "lever")),
        ("https://mangadex.org/title/5b0f6c1e-6d0e-4a53-9c5e-1f7a2d9c4e10", (Kind.SERIES, "mangadex")),
        ("https://college.example/courses", None),
    ],
)
def test_a_platform_is_recognised_by_its_url(url: str, expected: tuple[Kind, str] | None) -> None:
    assert recognised_by_url(url) == expected


@pytest.mark.parametrize(
    ("body", "url", "kind", "platform"),
    [
        ("<?xml version='1.0'?><rss><channel/></rss>", "https://a.example/feed", Kind.SERIES, "rss"),
        ("<feed xmlns='http://www.w3.org/2005/Atom'/>", "https://a.example/atom", Kind.SERIES, "rss"),
        (f"<html><body>{JOB}</body></html>", "https://a.example/jobs", Kind.JOB_BOARD, "jsonld"),
        (f"<html><body>{COURSES}</body></html>", "https://a.example/", Kind.CATALOG, None),
        ("<html><body><p>Programmes</p></body></html>", "https://a.example/study", Kind.CATALOG, None),
        ("<html><body><p>Welcome</p></body></html>", "https://a.example/", Kind.WEBSITE, None),
    ],
)
def test_a_kind_is_recognised_by_the_page(body: str, url: str, kind: Kind, platform: str | None) -> None:
    assert recognised_by_body(body.encode(), "", url)[:2] == (kind, platform)


def test_json_of_unknown_meaning_is_refused_with_the_options_to_add() -> None:
    with pytest.raises(CommandRefused, match="add --kind, --platform json and --config"):
        recognised_by_body(b'{"items": []}', "application/json", "https://a.example/api")


@pytest.mark.slow
def test_a_url_is_tried_with_rows_and_evidence_and_its_declaration_is_valid(
    ingest: Ingest, site: DemoSite, home: Path
) -> None:
    shown = ingest.json("try", "http://catalog.demo.test/courses")

    definition, problems = definition_of(shown["source"], check=definition_check(home / "sources"))
    assert (definition is not None, problems) == (True, [])
    assert shown["source"]["kind"] == "catalog"
    assert len(shown["rows"]) == 5
    for row in shown["rows"]:
        assert row["evidence"]["course_name"] in {"exact", "source"}
    assert set(shown["schedule"]) == {"hot", "warm", "cold"}
    assert ingest.json("sources", "list") == []


@pytest.mark.slow
def test_a_tried_feed_is_added_on_request_and_read_to_the_end(ingest: Ingest, site: DemoSite) -> None:
    text = ingest.output("try", "http://feeds.demo.test/lighthouse.xml", "--add")
    [result] = ingest.json("run", "series:feeds.demo.test-lighthouse.xml")

    start = text.index("sources:\n")
    declared = yaml.safe_load(text[start : text.index("\n\n", start)])
    assert declared["sources"][0]["platform"] == "rss"
    assert "number: " in text
    assert (result["published"], result["waiting"]) == (True, 0)
    assert result["records"] >= 10


@pytest.mark.slow
def test_a_catalogue_of_a_source_file_is_published_in_one_command(ingest: Ingest, site: DemoSite, folder: Path) -> None:
    declared = {"id": "catalog:harbour", "kind": "catalog", "url": "http://catalog.demo.test/courses"}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"sources": [declared]}))

    [result] = ingest.json("run", "catalog:harbour")

    assert result["published"] is True
    assert result["records"] >= 12


@pytest.mark.slow
def test_a_source_without_rows_exits_with_one_and_an_unknown_one_with_two(ingest: Ingest, site: DemoSite) -> None:
    ingest.output("sources", "add", "http://feeds.demo.test/none.xml", "--id", "series:none", "--kind", "series")

    failed = ingest("run", "series:none")
    unknown = ingest("run", "series:unknown")
    tried = ingest("try", "http://feeds.demo.test/none.xml")

    assert (failed.exit_code, unknown.exit_code, tried.exit_code) == (1, 2, 1)
    assert "series:unknown" in unknown.output
