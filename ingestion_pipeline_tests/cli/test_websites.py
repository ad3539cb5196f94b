"""Websites as sources, and their phases and workers in `ingest status`."""

from datetime import timedelta

import pytest

from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.lookup import sources_by_id
from ingestion_pipeline.store import Store
from ingestion_pipeline.tasks.claims import ClaimFilter, Worker, begin_run
from ingestion_pipeline.websites.analysis_rows import start_analyses
from ingestion_pipeline_tests.cli.conftest import Ingest


@pytest.mark.parametrize(
    ("address", "source_id", "url"),
    [
        ("https://acme.test/", "website:acme.test", "https://acme.test/"),
        ("acme.test", "website:acme.test", "https://acme.test"),
        ("WWW.Acme.test/shop/?a=1", "website:acme.test-shop-a-1", None),
        ("http://acme.test:8080", "website:acme.test-8080", "http://acme.test:8080"),
    ],
)
def test_a_website_needs_neither_a_scheme_nor_an_id(
    ingest: Ingest, address: str, source_id: str, url: str | None
) -> None:
    output = ingest.output("sources", "add", address, "--kind", "website")

    assert f"added {source_id} (page, auto); it is due now" in output
    [source] = ingest.json("sources", "list")
    assert source["id"] == source_id
    assert url is None or source["url"] == url


def test_a_bad_website_config_is_named(ingest: Ingest) -> None:
    config = '{"business": {"nam": "Acme"}, "prompts": "one", "promts": [], "ignore_robots": 1}'
    message = ingest.refused("sources", "add", "acme.test", "--kind", "website", "--config", config)

    assert "config.business.nam: unknown key" in message
    assert "config.prompts: must be a list" in message
    assert "config.promts: unknown key; there are: business, prompts" in message
    assert "config.ignore_robots: must be true or false" in message


@pytest.fixture
def started_analysis(ingest: Ingest, home_store: Store) -> None:
    ingest.output("sources", "add", "acme.test", "--kind", "website")
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        sources = sources_by_id(connection, ["website:acme.test"])
        start_analyses(connection, list(sources.values()), now=now, settings=load_settings({}))


@pytest.mark.usefixtures("started_analysis")
def test_the_phases_are_shown_once_there_is_an_analysis(ingest: Ingest) -> None:
    first, *others = ingest.json("status")["website_phases"]

    assert (first["queue"], first["waiting"], first["running"]) == ("website-analysis", 1, 0)
    assert [phase["waiting"] for phase in others] == [0, 0]
    assert "website-analysis" in ingest.output("status")


def test_the_phases_are_not_shown_without_an_analysis(ingest: Ingest) -> None:
    assert "website-analysis" not in ingest.output("status")


@pytest.mark.usefixtures("started_analysis")
def test_workers_are_shown_as_idle_busy_or_lost(ingest: Ingest, home_store: Store) -> None:
    assert "no workers" in ingest.output("status", "--workers")
    busy = Worker(home_store, lease_seconds=60)
    assert busy.claim(ClaimFilter(kind="website_info"), limit=1)
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        for run_id, ago in (("idle", 0), ("lost", 90)):
            begin_run(
                connection,
                run_id=run_id,
                owner=f"owner of {run_id}",
                job="poll_hot",
                now=now - timedelta(seconds=ago),
                lease=timedelta(seconds=60),
            )

    workers = ingest.json("status", "--workers")["workers"]
    assert [(worker["state"], worker["claims"], worker["job"]) for worker in workers] == [
        ("lost", 0, "poll_hot"),
        ("busy", 1, None),
        ("idle", 0, "poll_hot"),
    ]
    assert workers[1]["kinds"] == ["website_info"]
    assert busy.owner in ingest.output("status", "--workers")


def test_no_website_is_no_error_and_an_unknown_one_is_named(ingest: Ingest) -> None:
    assert "`ingest sources add URL --kind website`" in ingest.output("websites", "list")
    assert "there is no website 'website:no'" in ingest.refused("websites", "show", "website:no")


@pytest.mark.usefixtures("started_analysis")
def test_a_waiting_analysis_names_what_it_waits_for(ingest: Ingest, home_store: Store) -> None:
    ingest.output("sources", "add", "new.test", "--kind", "website")

    acme, new = ingest.json("websites", "list")

    assert (acme["id"], acme["status"], acme["progress_percent"]) == ("website:acme.test", "not-started", 0)
    assert acme["why"].startswith("not-started: claimable since ")
    assert (new["status"], new["analysis"], new["visibility"]) == ("never-analysed", None, None)
    assert ingest.json("websites", "list", "--status", "never-analysed") == [new]
    worker = Worker(home_store, lease_seconds=60)
    assert worker.claim(ClaimFilter(kind="website_info"), limit=1)
    assert "running since" in ingest.output("websites", "show", "website:acme.test")
