"""The UI as its user sees it: a real Dagster, a real browser, the demo site, and nothing else.

The servers are shared; SCREENSHOTS=folder keeps the pictures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.pages.browser import NoBrowser, find_browser
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.orchestration.dev import (
    Dev,
    make_dagster_home,
    make_desk,
    variables,
    within,
)
from ingestion_pipeline_tests.orchestration.house import BROKEN, FLAKY, LIGHTHOUSE, SALT, House

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.slow

# No name but our own address leads anywhere. (Routing in the browser would do it too, and switch
# its cache off: each page of Dagster's is megabytes of script.)
QUIET_BROWSER = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
PATIENCE_SECONDS = 60
# Dagster looks for backfills every 30 seconds.
BACKFILL_SECONDS = 120
MANGADEX, SALT_FEED = "series:lighthouse-mangadex", "series:salt-feed"
SOURCES = [BROKEN, LIGHTHOUSE, MANGADEX, FLAKY, SALT_FEED, SALT]
HARBOUR = "catalog:harbour"
BACKFILLED = {FLAKY, SALT_FEED, SALT}
LAUNCHPAD = "/locations/ingestion_pipeline/jobs/add_source/playground"
ASSET = """{ assetNodeOrError(assetKey: {path: ["%s"]}) { ... on AssetNode {
  partitionKeysByDimension { partitionKeys }
  assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions } }
} } }"""


@dataclass(frozen=True)
class Ui:
    """The one page of the browser, and what stands behind it."""

    page: Page
    dev: Dev
    house: House
    pictures: Path

    def open(self, path: str) -> None:
        self.page.goto(self.dev.url + path)

    def sees(self, *texts: str | re.Pattern[str]) -> None:
        """Each of the texts is on the page, or comes to be."""
        from playwright.sync_api import expect

        for text in texts:
            found = self.page.get_by_text(text).filter(visible=True).first
            expect(found).to_be_visible(timeout=PATIENCE_SECONDS * 1_000)

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def button(self, name: str | re.Pattern[str]) -> Locator:
        return self.page.get_by_role("button", name=name).filter(visible=True)

    def materialize(self, *keys: str, asset: str = "chapters") -> None:
        """The dialog of the asset's page, filled in and sent."""
        self.open(f"/assets/{asset}")
        self.button("Materialize").first.click()
        dialog = self.page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
        dialog.get_by_text("Select a partition or create one").click()
        listed = self.page.locator("[data-radix-popper-content-wrapper]")
        for key in keys:
            listed.get_by_text(key, exact=True).first.click()
        self.page.keyboard.press("Escape")
        self.sees(f"{len(keys)} partition")
        self.button(re.compile("^Launch")).last.click()
        dialog.wait_for(state="hidden")

    def launch(self, **config: str) -> None:
        """What the Launchpad holds is replaced by this."""
        lines = [
            "ops:",
            "  register:",
            "    config:",
            *(f"      {k}: {v}" for k, v in config.items()),
        ]
        if not self.page.url.endswith(LAUNCHPAD):
            self.open(LAUNCHPAD)
        self.sees("Launch Run")
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.insert_text("\n".join(lines) + "\n")

    def asset(self, name: str) -> dict[str, Any]:
        return self.dev.ask(ASSET % name)["assetNodeOrError"]

    def knows(self, *keys: str, asset: str = "chapters") -> bool:
        """Whether the asset has a partition of each key."""
        dimensions = self.asset(asset).get("partitionKeysByDimension")
        [dimension] = dimensions or [{"partitionKeys": []}]
        return set(keys) <= set(dimension["partitionKeys"])

    def has(self, *keys: str, asset: str = "chapters") -> bool:
        """Whether each of the partitions is materialized."""
        statuses = self.asset(asset)["assetPartitionStatuses"]
        return set(keys) <= set(statuses["materializedPartitions"])


@pytest.fixture(scope="module")
def browser() -> Path:
    try:
        return find_browser(load_settings(os.environ))
    except NoBrowser as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(browser: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ui")


@pytest.fixture(scope="module")
def house(folder: Path, sqlite_template: Path) -> House:
    """The demo's sources, none of them due: what happens, somebody clicked."""
    made = House.build(folder, sqlite_template)
    made.add_demo(*SOURCES, HARBOUR)
    with made.open() as shop:
        tomorrow = shop.store.now() + timedelta(days=1)
    for key in (*SOURCES, HARBOUR):
        made.set_poll_task(key, not_before=tomorrow)
    return made


@pytest.fixture(scope="module")
def dev(folder: Path, house: House) -> Iterator[Dev]:
    more = {"INGESTION_CRAWL__DELAY_SECONDS": "0"}
    environment = variables(house, DAGSTER_HOME=str(make_dagster_home(folder)), **more)
    with DemoSite(house.home):
        running = Dev(make_desk(folder), environment)
        try:
            assert within(PATIENCE_SECONDS, running.answers), (folder / "desk/dev.log").read_text()
            yield running
        finally:
            running.end()


@pytest.fixture(scope="module")
def ui(browser: Path, folder: Path, house: House, dev: Dev) -> Iterator[Ui]:
    from playwright.sync_api import sync_playwright

    pictures = Path(os.environ.get("SCREENSHOTS") or folder / "pictures")
    pictures.mkdir(parents=True, exist_ok=True)

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=QUIET_BROWSER)
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_SECONDS * 1_000)
        made = Ui(page, dev, house, pictures)
        assert within(PATIENCE_SECONDS, lambda: made.knows(*SOURCES))
        yield made
        made.picture("at_the_end")
        chromium.close()


def test_the_graph_shows_the_groups_and_their_assets(ui: Ui) -> None:
    ui.open("/asset-groups")
    ui.sees("Global asset lineage", "sources", "series", "notices")
    ui.sees("catalogs", "companies", "websites")
    ui.page.get_by_text("series", exact=True).filter(visible=True).last.click()

    ui.sees("Asset checks", "6 partitions", "chapters")
    ui.picture("graph")


def test_one_partition_is_materialized_by_hand_and_shows_numbers_and_chapters(ui: Ui) -> None:
    ui.materialize(LIGHTHOUSE)
    assert within(PATIENCE_SECONDS, lambda: ui.has(LIGHTHOUSE))

    assert ui.house.chapters_of(LIGHTHOUSE) == 10
    ui.open(f"/assets/chapters?view=partitions&partition={LIGHTHOUSE}")
    ui.sees("first sync: 10 new", "http://feeds.demo.test/lighthouse.xml", "withdrawn")
    ui.picture("partition")
    ui.page.get_by_text("Show Markdown").click()
    ui.sees("published (UTC)", "Chapter 17: Bread & Brine")
    ui.picture("newest_chapters")

    ui.button("Close").click()
    ui.page.get_by_role("tab", name="Overview").click()
    ui.sees("ingest_series", "ingestion", "the bodies that it was read from")
    ui.button("Plots").click()
    ui.sees("polled", "changed", "new", "latest_chapter")
    ui.picture("plots")


def test_a_catalogue_is_crawled_by_hand_and_shows_numbers_and_a_picture(ui: Ui) -> None:
    ui.open("/asset-groups")
    ui.sees("Global asset lineage", "catalogs")
    ui.page.get_by_text("catalogs", exact=True).filter(visible=True).last.click()
    ui.sees("pages", "1 partition")
    ui.picture("graph_with_pages")

    ui.materialize(HARBOUR, asset="pages")
    assert within(PATIENCE_SECONDS, lambda: ui.has(HARBOUR, asset="pages"))

    ui.open(f"/assets/pages?view=partitions&partition={HARBOUR}")
    ui.sees("unchanged", "failed_resource", "p95_ms", "http://catalog.demo.test/courses/art-204")
    ui.picture("catalogue")
    ui.page.get_by_text("Show Markdown").click()
    shown = ui.page.get_by_role("dialog").get_by_role("img", name="screenshot")
    shown.wait_for()
    assert shown.evaluate("image => image.complete && image.naturalWidth") > 0
    ui.picture("catalogue_screenshot")
    ui.button("Close").click()


@pytest.fixture(scope="module")
def backfill(ui: Ui) -> None:
    """Asked for before the daemon's next look; meanwhile somebody mistypes a source."""
    ui.materialize(*sorted(BACKFILLED))


@pytest.mark.usefixtures("backfill")
def test_a_mistake_in_the_launchpad_is_named_with_its_cure(ui: Ui) -> None:
    ui.launch(id="series:tides", knd="series", url="ftp://feeds.demo.test")
    ui.sees('unexpected config entry "knd"', 'Missing required config entry "kind"')
    assert ui.button("Launch Run").is_disabled()
    ui.picture("launchpad_refuses")

    ui.launch(id="series:tides", kind="serial", url="ftp://feeds.demo.test")
    ui.sees("No errors")
    ui.button("Launch Run").click()

    ui.sees(re.compile("'serial' is no kind; there are: .*series"), "it must begin with http://")
    ui.sees("Failure")
    ui.picture("launchpad_mistake")
    assert not ui.knows("series:tides")
    assert {row["id"] for row in ui.house.rows("sources")} == {*SOURCES, HARBOUR}


@pytest.mark.usefixtures("backfill")
def test_a_backfill_fills_the_partitions_it_was_asked_for(ui: Ui) -> None:
    assert within(BACKFILL_SECONDS, lambda: ui.has(*BACKFILLED))

    assert {ui.house.chapters_of(key) > 0 for key in BACKFILLED} == {True}
    assert ui.house.chapters_of(MANGADEX) == 0
    ui.open("/assets/chapters?view=partitions")
    ui.sees("Materialized (4)", "Missing (2)")
    ui.picture("backfilled")


def test_the_corrected_source_has_its_row_and_its_partition(ui: Ui) -> None:
    ui.launch(
        id="series:tides", kind="series", url="http://feeds.demo.test/salt.atom", platform="rss"
    )
    ui.sees("No errors")
    ui.button("Launch Run").click()

    ui.sees("Success", "added series:tides")
    ui.picture("launchpad_corrected")
    assert ui.house.source("series:tides").platform == "rss"
    assert ui.knows("series:tides")
