"""Dagster's UI in a real browser, as a user clicks it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestion_pipeline_tests.orchestration.dev import Dev
from ingestion_pipeline_tests.orchestration.house import House

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

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
PATIENCE_SECONDS = 120
ASSET = """{ assetNodeOrError(assetKey: {path: ["%s"]}) { ... on AssetNode {
  partitionKeysByDimension { partitionKeys } assetMaterializations(limit: 1) { runId }
  assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions } }
} } }"""
LAUNCHPAD = "/locations/ingestion_pipeline/jobs/{}/playground"
RUN = """mutation { launchRun(executionParams: {selector: {jobName: "%s",
  repositoryName: "__repository__", repositoryLocationName: "ingestion_pipeline"}})
{ __typename ... on PythonError { message } } }"""
CHECKS = """{ assetNodeOrError(assetKey: {path: ["%s"]}) { ... on AssetNode {
  assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { status }
} } } } } }"""
TELL_OF_TOASTS = """
new MutationObserver(() => document.querySelectorAll("[data-sonner-toast]").forEach(one => {
  if (one.innerText && one.dataset.told !== one.innerText) {
    one.dataset.told = one.innerText; window.toasted(one.innerText);
  }
})).observe(document, {childList: true, subtree: true});
"""
BAD_NEWS = re.compile(r"error|fail|could not|unable|went wrong|no such", re.IGNORECASE)


@dataclass(frozen=True)
class Ui:
    """The one page of the browser, and what stands behind it."""

    page: Page
    dev: Dev
    house: House
    pictures: Path
    toasts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """From now on every toast and every error of a script is written down."""

        def toasted(text: str) -> None:
            self.toasts.append(text)

        self.page.expose_function("toasted", toasted)
        self.page.add_init_script(TELL_OF_TOASTS)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def complaints(self) -> list[str]:
        """What a user was alarmed with."""
        return [*(one for one in self.toasts if BAD_NEWS.search(one)), *self.errors]

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
        """The dialog of the asset's page, filled in and sent; an asset without keys has none."""
        self.open(f"/assets/{asset}")
        self.button("Materialize").first.click()
        if keys:
            self._choose(*keys)

    def _choose(self, *keys: str) -> None:
        dialog = self.page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
        dialog.get_by_text("Select a partition or create one").click()
        listed = self.page.locator("[data-radix-popper-content-wrapper]")
        for key in keys:
            listed.get_by_text(key, exact=True).first.click()
        self.page.keyboard.press("Escape")
        self.sees(f"{len(keys)} partition")
        self.button(re.compile("^Launch")).last.click()
        dialog.wait_for(state="hidden")

    def launchpad(self, job: str) -> None:
        """The Launchpad of the job, as it opens."""
        if not self.page.url.endswith(LAUNCHPAD.format(job)):
            self.open(LAUNCHPAD.format(job))
        self.sees("Launch Run")

    def launch(self, job: str, op: str, **config: str) -> None:
        """What the Launchpad holds is replaced by this."""
        lines = ["ops:", f"  {op}:", "    config:", *(f"      {k}: {v}" for k, v in config.items())]
        self.launchpad(job)
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.insert_text("\n".join(lines) + "\n")

    def run(self, job: str) -> None:
        """The job is started, as by anybody who talks to Dagster without a page."""
        started = self.dev.ask(RUN % job)["launchRun"]
        assert started["__typename"] == "LaunchRunSuccess", started

    def checks(self, asset: str) -> dict[str, str]:
        """How the checks ended that were evaluated since the asset was last told."""
        found = self.dev.ask(CHECKS % asset)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        last = {one["name"]: one["executionForLatestMaterialization"] for one in found}
        return {name: one["status"] for name, one in last.items() if one}

    def asset(self, name: str) -> dict[str, Any]:
        return self.dev.ask(ASSET % name)["assetNodeOrError"]

    def told_in(self, asset: str) -> str | None:
        """The run that told of the asset last."""
        found = self.asset(asset)["assetMaterializations"]
        return found[0]["runId"] if found else None

    def knows(self, *keys: str, asset: str = "chapters") -> bool:
        """Whether the asset has a partition of each key."""
        dimensions = self.asset(asset).get("partitionKeysByDimension")
        [dimension] = dimensions or [{"partitionKeys": []}]
        return set(keys) <= set(dimension["partitionKeys"])

    def has(self, *keys: str, asset: str = "chapters") -> bool:
        """Whether each of the partitions is materialized."""
        statuses = self.asset(asset)["assetPartitionStatuses"]
        return set(keys) <= set(statuses["materializedPartitions"])
