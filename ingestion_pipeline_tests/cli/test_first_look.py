"""`ingest try` and `ingest run` on the demo's site, and how a kind is recognised."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from ingestion_pipeline.cli.first_look import recognised_by_body, recognised_by_url
from ingestion_pipeline.cli.output import CommandRefused
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages.politeness.hosts import lease_hosts
from ingestion_pipeline.reading.llm import Usage
from ingestion_pipeline.reading.llm.ledger import Billing, Ledger, NewCall, Reserved, book_calls
from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources import Kind
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.store import Store, open_store
from ingestion_pipeline.store.tables import hosts, model_calls, model_spending
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import rows

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
def test_a_url_is_tried_with_the_text_that_proves_each_value(ingest: Ingest, site: DemoSite, home: Path) -> None:
    shown = ingest.json("try", "http://catalog.demo.test/courses")

    definition, problems = definition_of(shown["source"], check=definition_check(home / "sources"))
    assert (definition is not None, problems) == (True, [])
    assert shown["source"]["kind"] == "catalog"
    assert len(shown["rows"]) == 5
    for row in shown["rows"]:
        assert row["evidence"]["course_name"]["quote"] == row["course_name"]
    assert ingest.json("sources", "list") == []


@pytest.mark.slow
def test_a_tried_source_shows_its_next_poll_and_that_rules_cost_nothing(ingest: Ingest, site: DemoSite) -> None:
    shown = ingest.json("try", "http://feeds.demo.test/lighthouse.xml")

    assert shown["schedule"]["tier"] in {"hot", "warm", "cold"}
    assert shown["schedule"]["interval_seconds"] > 0
    assert shown["schedule"]["why"]
    assert (shown["cost"]["calls"], shown["cost"]["month_usd"]) == (0, "0.00")


BOARD = ("https://boards.greenhouse.io/driftwood", "--config", '{"api_base": "http://boards.demo.test"}')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "field", "proof"),
    [
        (BOARD, "title", "quote"),
        (("http://driftwood.demo.test/", "--kind", "company"), "about", "quote"),
        (("http://saltmarsh.demo.test/",), "name", "page"),
    ],
    ids=["board", "company", "website"],
)
def test_a_row_of_each_kind_has_its_proof(
    ingest: Ingest, site: DemoSite, arguments: tuple[str, ...], field: str, proof: str
) -> None:
    shown = ingest.json("try", *arguments)

    row = shown["rows"][0]
    assert row[field]
    assert row["evidence"][field][proof]


@pytest.mark.slow
def test_a_url_that_robots_txt_answers_with_a_failure_is_not_fetched(ingest: Ingest, web: FakeWeb) -> None:
    web.routes |= {"/robots.txt": 503, "/": "<p>Welcome</p>"}

    result = ingest("try", web.url(), INGESTION_ALLOW_HOSTS=web.host_port)

    assert (result.exit_code, "error: robots_unavailable: " in result.stderr) == (1, True)
    assert (len(web.robots_requests), web.paths) == (1, [])


def test_a_host_that_a_run_holds_is_not_tried(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        lease_hosts(connection, ["college.example"], owner="a run", now=now, lease=timedelta(minutes=1))

    result = ingest("try", "https://college.example/courses")

    assert (result.exit_code, result.stderr.startswith("error: host_busy: college.example ")) == (1, True)


def test_the_host_is_free_after_a_trial_that_failed(ingest: Ingest, home_store: Store) -> None:
    ingest("try", "https://name.invalid/courses")

    [row] = rows(home_store, hosts)
    assert (row.host, row.lease_owner) == ("name.invalid", None)


def test_model_calls_of_a_trial_count_in_the_ledger_and_the_budgets(tmp_path: Path, home_store: Store) -> None:
    with closing(open_store(f"sqlite:///{tmp_path / 'trial.db'}")) as trial_store:
        settings = load_settings({"INGESTION_MODEL_BUDGET_MONTH_USD": "50"})
        call = NewCall(
            billing=Billing(call_site="course", source_id="catalog:x", extraction_id=7),
            provider="http://models.test",
            model="gpt-5",
            format="json_schema",
            cache_key="k",
            prompt_version="1",
            estimate=Usage(input_tokens=1_000, output_tokens=100),
        )
        for store in (home_store, trial_store):
            ledger = Ledger(store, settings)
            reserved = ledger.reserve(call)
            assert isinstance(reserved, Reserved)
            ledger.settle(reserved, Usage(input_tokens=1_000_000), "answered", latency_ms=1)  # 1.25 dollars

        with trial_store.read() as source, home_store.begin() as target:
            book_calls(source, target, before={})

    with home_store.read() as connection:
        calls = connection.execute(model_calls.select()).all()
        held = {row.scope.partition(":")[0]: row.held_usd for row in connection.execute(model_spending.select())}
    assert [(row.extraction_id, row.cost_usd) for row in calls] == [(7, Decimal("1.25")), (None, Decimal("1.25"))]
    assert held == {"extraction": Decimal("1.25"), "day": Decimal("2.5"), "month": Decimal("2.5")}


@pytest.mark.slow
def test_a_tried_feed_is_added_on_request_and_read_to_the_end(ingest: Ingest, site: DemoSite) -> None:
    text = ingest.output("try", "http://feeds.demo.test/lighthouse.xml", "--add")
    assert "--add" not in text
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
def test_a_catalogue_whose_dataset_is_quarantined_exits_with_one(ingest: Ingest, web: FakeWeb, folder: Path) -> None:
    web.routes["/"] = "".join(f"<li><a href=/course/{number}>Course {number}</a></li>" for number in range(12))
    web.routes |= {f"/course/{number}": "<p>Nothing is offered.</p>" for number in range(12)}
    recipe = {"page_type": "DETAIL_LINKS", "link_pattern": "/course/", "links": {"page_type": "DETAIL"}}
    declared = {"id": "catalog:empty", "kind": "catalog", "url": web.url(), "config": {"recipe": recipe}}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"sources": [declared]}))

    allowed = {"INGESTION_ALLOW_HOSTS": web.host_port, "INGESTION_CRAWL__DELAY_SECONDS": "0"}
    result = ingest.with_variables(allowed, "run", "catalog:empty", "--json")

    [shown] = json.loads(result.stdout)
    assert (result.exit_code, shown["published"], shown["records"]) == (1, False, 0)
    assert shown["result"].endswith("version 1 is quarantined")


@pytest.mark.slow
def test_a_source_without_rows_exits_with_one_and_an_unknown_one_with_two(ingest: Ingest, site: DemoSite) -> None:
    ingest.output("sources", "add", "http://feeds.demo.test/none.xml", "--id", "series:none", "--kind", "series")

    failed = ingest("run", "series:none")
    unknown = ingest("run", "series:unknown")
    tried = ingest("try", "http://feeds.demo.test/none.xml")

    assert (failed.exit_code, unknown.exit_code, tried.exit_code) == (1, 2, 1)
    assert "series:unknown" in unknown.output
