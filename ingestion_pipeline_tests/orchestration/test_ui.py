"""The UI as its user sees it: a real Dagster, a real browser, the demo site, and nothing else.

The servers are shared; SCREENSHOTS=folder keeps the pictures.
"""

import json
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from ingestion_pipeline.demo.content import break_site, read_state, repair, write_state
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages.browser import NoBrowser, find_browser
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.orchestration.dagster_dev import (
    PATIENCE_SECONDS,
    QUIET_BROWSER,
    Dev,
    Ui,
    becomes_true,
    make_dagster_home,
    make_working_directory,
    process_environment,
)
from ingestion_pipeline_tests.orchestration.installation import (
    BROKEN,
    FLAKY,
    LIGHTHOUSE,
    SALT,
    Installation,
    an_entry,
    source_file,
)

pytestmark = pytest.mark.slow

SALT_FEED, CLOCKMAKER, LATE = "series:salt-feed", "series:clockmaker-list", "series:late"
SOURCES = [BROKEN, LIGHTHOUSE, FLAKY, SALT_FEED, SALT, CLOCKMAKER]
HARBOUR = "catalog:harbour"
BACKFILLED = {SALT_FEED, SALT}
# Dagster looks for backfills every 30 seconds.
BACKFILL_SECONDS = 240
EVERYTHING = """{
  assetNodes { assetKey { path } }
  repositoriesOrError { ... on RepositoryConnection { nodes {
    schedules { name scheduleState { status } }
    sensors { name sensorState { status } }
  } } }
}"""


@pytest.fixture(scope="module")
def browser() -> Path:
    try:
        return find_browser(load_settings(os.environ))
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ui")


@pytest.fixture(scope="module")
def installation(folder: Path, sqlite_template: Path) -> Installation:
    """The demo's sources, none of them due: everything that happens was clicked."""
    installation = Installation.build(folder, sqlite_template)
    installation.add_demo(*SOURCES, HARBOUR)
    with installation.open() as ctx:
        tomorrow = ctx.store.now() + timedelta(days=1)
    for key in (*SOURCES, HARBOUR):
        installation.set_poll_task(key, not_before=tomorrow)
    return installation


@pytest.fixture(scope="module")
def dev(folder: Path, installation: Installation) -> Iterator[Dev]:
    more = {"INGESTION_CRAWL__DELAY_SECONDS": "0"}
    environment = process_environment(installation, DAGSTER_HOME=str(make_dagster_home(folder)), **more)
    with DemoSite(installation.home):
        running = Dev(make_working_directory(folder), environment)
        try:
            assert becomes_true(PATIENCE_SECONDS, running.is_up), (folder / "workdir/dev.log").read_text()
            yield running
        finally:
            running.kill()


@pytest.fixture(scope="module")
def ui(browser: Path, folder: Path, installation: Installation, dev: Dev) -> Iterator[Ui]:
    from playwright.sync_api import sync_playwright

    pictures = Path(os.environ.get("SCREENSHOTS") or folder / "pictures")
    pictures.mkdir(parents=True, exist_ok=True)

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=QUIET_BROWSER)
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_SECONDS * 1_000)
        ui = Ui(page, dev, installation, pictures)
        ui.listen()
        assert becomes_true(PATIENCE_SECONDS, lambda: ui.has_partitions(*SOURCES))
        yield ui
        ui.picture("at_the_end")
        chromium.close()


def test_a_running_dagster_refuses_requests_of_another_site(dev: Dev) -> None:
    mutation = "mutation { reloadWorkspace { __typename } }"
    by_get = Request(f"{dev.url}/graphql?{urlencode({'query': mutation})}")
    body = json.dumps({"query": mutation}).encode()
    kind = {"Content-Type": "application/json"}
    from_afar = Request(f"{dev.url}/graphql", body, kind | {"Origin": "https://evil.test"})
    rebound = Request(f"{dev.url}/graphql", body, kind | {"Host": f"evil.test:{dev.port}"})
    for request in (by_get, from_afar, rebound):
        with pytest.raises(HTTPError) as caught:
            urlopen(request, timeout=60)
        with caught.value as answer:
            assert answer.code == 403

    assert dev.graphql(mutation)["reloadWorkspace"]["__typename"] == "Workspace"


def test_a_running_dagster_has_every_asset_and_everything_running(dev: Dev) -> None:
    answer = dev.graphql(EVERYTHING)
    [code] = answer["repositoriesOrError"]["nodes"]
    assert {node["assetKey"]["path"][0] for node in answer["assetNodes"]} == {
        *("sources", "pages", "datasets", "companies", "job_listings", "job_matches"),
        *("website_info", "website_prompts", "website_analysis", "chapters", "notices"),
        "source_health",
    }
    assert {(schedule["name"], schedule["scheduleState"]["status"]) for schedule in code["schedules"]} == {
        (name, "RUNNING") for name in ("hot_polling", "warm_polling", "cold_polling", "maintenance")
    }
    sensors = ("new_sources", "pending_work", "extraction_completion", "stale_runs", "run_failures")
    assert {(sensor["name"], sensor["sensorState"]["status"]) for sensor in code["sensors"]} == {
        (name, "RUNNING") for name in sensors
    }


def test_the_graph_shows_the_groups_and_their_assets(ui: Ui) -> None:
    ui.open("/asset-groups")
    ui.expect_text("Global asset lineage", "sources", "series", "notices")
    ui.expect_text("catalogs", "companies", "websites")
    ui.page.get_by_text("series", exact=True).filter(visible=True).last.click()

    ui.expect_text("Asset checks", "6 partitions", "chapters")
    ui.picture("graph")


def test_a_partition_is_materialized_manually_and_shows_numbers_and_chapters(ui: Ui) -> None:
    ui.materialize(LIGHTHOUSE)
    assert becomes_true(PATIENCE_SECONDS, lambda: ui.has_materialized(LIGHTHOUSE))

    assert ui.installation.chapters_of(LIGHTHOUSE) == 10
    ui.open(f"/assets/chapters?view=partitions&partition={LIGHTHOUSE}")
    ui.expect_text("first sync: 10 new", "http://feeds.demo.test/lighthouse.xml", "withdrawn")
    ui.picture("partition")
    ui.page.get_by_text("Show Markdown").click()
    ui.expect_text("published (UTC)", "Chapter 17: Bread & Brine")
    ui.picture("newest_chapters")

    ui.button("Close").click()
    ui.page.get_by_role("tab", name="Overview").click()
    ui.expect_text("ingest_series", "ingestion", "the bodies that it was read from")
    ui.button("Plots").click()
    ui.expect_text("polled", "changed", "new", "latest_chapter")
    ui.picture("plots")


def test_a_catalogue_is_crawled_manually_and_shows_numbers_and_a_screenshot(ui: Ui) -> None:
    ui.open("/asset-groups")
    ui.expect_text("Global asset lineage", "catalogs")
    ui.page.get_by_text("catalogs", exact=True).filter(visible=True).last.click()
    ui.expect_text("pages", "1 partition")
    ui.picture("graph_with_pages")

    ui.materialize(HARBOUR, asset="pages")
    assert becomes_true(PATIENCE_SECONDS, lambda: ui.has_materialized(HARBOUR, asset="pages"))

    ui.open(f"/assets/pages?view=partitions&partition={HARBOUR}")
    ui.expect_text("unchanged", "failed: resource", "p95_ms", "http://catalog.demo.test/courses/art-204")
    ui.picture("catalogue")
    ui.page.get_by_text("Show Markdown").click()
    image = ui.page.get_by_role("dialog").get_by_role("img", name="screenshot")
    image.wait_for()
    assert image.evaluate("image => image.complete && image.naturalWidth") > 0
    ui.picture("catalogue_screenshot")
    ui.button("Close").click()


@pytest.fixture(scope="module")
def backfill(ui: Ui) -> None:
    """Request a backfill before the daemon's next tick; a source is mistyped meanwhile."""
    ui.materialize(*sorted(BACKFILLED))


@pytest.mark.usefixtures("backfill")
def test_a_mistake_in_the_launchpad_is_named_with_its_cure(ui: Ui) -> None:
    ui.launch("add_source", "register", id="series:tides", knd="series", url="ftp://feeds.demo.test")
    ui.expect_text('unexpected config entry "knd"', 'Missing required config entry "kind"')
    assert ui.button("Launch Run").is_disabled()
    ui.picture("launchpad_refuses")

    ui.launch("add_source", "register", id="series:tides", kind="serial", url="ftp://feeds.demo.test")
    ui.expect_text("No errors")
    ui.button("Launch Run").click()

    ui.expect_text(re.compile("'serial' is no kind; there are: .*series"), "it must begin with http://")
    ui.expect_text("Failure")
    ui.picture("launchpad_mistake")
    assert not ui.has_partitions("series:tides")
    assert {row["id"] for row in ui.installation.rows("sources")} == {*SOURCES, HARBOUR}


@pytest.mark.usefixtures("backfill")
def test_a_backfill_fills_the_requested_partitions(ui: Ui) -> None:
    assert becomes_true(BACKFILL_SECONDS, lambda: ui.has_materialized(*BACKFILLED))

    assert {ui.installation.chapters_of(key) > 0 for key in BACKFILLED} == {True}
    assert ui.installation.chapters_of(FLAKY) == 0
    ui.open("/assets/chapters?view=partitions")
    ui.expect_text("Materialized (3)", "Missing (3)")
    ui.picture("backfilled")


def test_the_corrected_source_has_its_row_and_its_partition(ui: Ui) -> None:
    about = {"id": "series:tides", "kind": "series", "platform": "rss"}
    ui.launch("add_source", "register", **about, url="http://feeds.demo.test/salt.atom")
    ui.expect_text("No errors")
    ui.button("Launch Run").click()

    ui.expect_text("Success", "source added source=series:tides")
    ui.picture("launchpad_corrected")
    assert ui.installation.source("series:tides").platform == "rss"
    assert ui.has_partitions("series:tides")


def dead_letter_rows(ui: Ui) -> list[dict[str, Any]]:
    return [row for row in ui.installation.rows("dead_letters") if row["source_id"] == CLOCKMAKER]


def has_failed_check(ui: Ui) -> bool:
    return ui.checks("chapters").get("not_empty_after_full") == "FAILED"


@pytest.fixture(scope="module")
def outage(ui: Ui, backfill: None) -> None:
    """Empty a feed and overload a list, poll both, then repair the site."""
    assert becomes_true(BACKFILL_SECONDS, lambda: ui.has_materialized(*BACKFILLED))
    home = ui.installation.home
    write_state(home, break_site(read_state(home)))
    ui.installation.make_due(SALT, CLOCKMAKER)
    ui.run("poll_warm")
    assert becomes_true(PATIENCE_SECONDS, lambda: dead_letter_rows(ui) != [] and has_failed_check(ui))
    write_state(home, repair(read_state(home)))


@pytest.mark.usefixtures("outage")
def test_a_failed_check_shows_its_findings(ui: Ui) -> None:
    assert ui.installation.chapters_of(SALT) == 12  # the last good rows stay

    ui.open("/assets/chapters?view=checks&checkDetail=not_empty_after_full")
    ui.expect_text("not_empty_after_full", "Failed", f"{SALT}: ", "findings")
    ui.picture("red_check")


@pytest.mark.usefixtures("outage")
def test_the_health_of_sources_shows_its_picture_and_the_worst_first(ui: Ui) -> None:
    before = ui.last_run_of("source_health")  # `maintain` materializes it, too
    ui.materialize(asset="source_health")
    assert becomes_true(PATIENCE_SECONDS, lambda: ui.last_run_of("source_health") != before)

    ui.open("/assets/source_health?view=events")
    ui.expect_text("freshness", "worst", "dead_letters_open", "oldest_due_seconds")
    ui.picture("source_health")
    worst, freshness = (ui.page.get_by_text("Show Markdown").nth(place) for place in (0, 1))
    worst.click()
    ui.expect_text("waiting until", "unsteady")
    ui.picture("source_health_worst")
    ui.button("Close").click()
    freshness.click()
    image = ui.page.get_by_role("dialog").get_by_role("img", name="freshness")
    image.wait_for()
    assert image.evaluate("image => image.complete && image.naturalWidth") > 400
    ui.picture("source_health_freshness")
    ui.button("Close").click()


@pytest.mark.usefixtures("outage")
def test_dead_letters_are_replayed_from_the_launchpad(ui: Ui) -> None:
    [dead_letter] = dead_letter_rows(ui)
    assert dead_letter["error_class"] == "transient"
    ui.launchpad("replay_dead_letters")
    ui.expect_text("dry_run: true")  # the default config is a dry run
    ui.picture("launchpad_replay")

    ui.launch("replay_dead_letters", "replay", error_class="transient", actor="ann")
    ui.expect_text("No errors")
    ui.button("Launch Run").click()
    ui.expect_text("Success", f"dead letter {dead_letter['id']}: ")
    ui.picture("replayed")
    [dead_letter] = dead_letter_rows(ui)
    assert dead_letter["replayed_at"] is not None
    assert ("ann", "dead_letter.replay") in {(row["actor"], row["action"]) for row in ui.installation.rows("audit_log")}


def test_no_page_showed_an_error(ui: Ui) -> None:
    assert ui.toasts, "Dagster tells of a run that it has launched"
    assert ui.alarms() == []


def test_a_running_dagster_adds_a_new_source_without_a_restart_and_stops_completely(
    dev: Dev, installation: Installation, folder: Path
) -> None:
    (installation.sources / "mine.yaml").write_text(source_file([an_entry(LATE)]))

    is_polled = becomes_true(BACKFILL_SECONDS, lambda: installation.chapters_of(LATE) == 10)
    assert is_polled, (folder / "workdir/dev.log").read_text()
    dev.stop()
    assert becomes_true(30, lambda: dev.session_processes() == {}), dev.session_processes()
