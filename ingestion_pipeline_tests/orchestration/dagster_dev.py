"""A real `dagster dev` (webserver, daemon and code server in one session) and its UI in a browser."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.orchestration.installation import Installation

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


ROOT = Path(__file__).parents[2]


def process_environment(installation: Installation, **overrides: str) -> dict[str, str]:
    """Return the environment for a process of this test."""
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return inherited | installation.environment | overrides


def make_working_directory(folder: Path) -> Path:
    """Create a working directory with only the repository's `dagster.yaml` and `workspace.yaml`."""
    workdir = folder / "workdir"
    workdir.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        (workdir / name).symlink_to(ROOT / name)
    return workdir


def make_dagster_home(folder: Path) -> Path:
    """Create a DAGSTER_HOME with the limits of the repository."""
    home = folder / "dagster"
    home.mkdir()
    (home / "dagster.yaml").symlink_to(ROOT / "dagster.yaml")
    return home


# Tests started in the background ignore SIGINT, and Dagster handles SIGTERM as it handles SIGINT.
HEARING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Dev:
    """A running `dagster dev`, queried by GraphQL as its own pages do."""

    def __init__(self, workdir: Path, environment: dict[str, str]) -> None:
        self.port = closed_port()
        dagster = [sys.executable, "-m", "ingestion_pipeline.orchestration.ui", "dev"]
        command = [sys.executable, "-c", HEARING, *dagster, "-h", "127.0.0.1"]
        self._log = (workdir / "dev.log").open("w+")
        self.process = subprocess.Popen(
            [*command, "-p", str(self.port)],
            cwd=workdir,
            env=environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def graphql(self, query: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(self.url, timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False

    def stop(self) -> int:
        """Send SIGTERM, as a service manager does, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(180)

    def session_processes(self) -> dict[int, str]:
        """Return the command line of each live process of the session, by pid."""
        processes: dict[int, str] = {}
        for folder in Path("/proc").iterdir():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                if folder.name.isdigit() and int(stat[3]) == self.process.pid and stat[0] != "Z":
                    command = (folder / "cmdline").read_text().replace("\0", " ")
                    processes[int(folder.name)] = command
            except OSError:
                continue
        return processes

    def kill(self) -> None:
        """Kill every process of the session, however the test ended."""
        for pid in self.session_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        self._log.close()


def becomes_true(seconds: float, condition: Callable[[], bool]) -> bool:
    """Return whether the condition became true in time; a real daemon has its own clock."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.5)
    return True


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
REPORT_TOASTS = """
new MutationObserver(() => document.querySelectorAll("[data-sonner-toast]").forEach(toast => {
  if (toast.innerText && toast.dataset.reported !== toast.innerText) {
    toast.dataset.reported = toast.innerText; window.toasted(toast.innerText);
  }
})).observe(document, {childList: true, subtree: true});
"""
BAD_NEWS = re.compile(r"error|fail|could not|unable|went wrong|no such", re.IGNORECASE)


@dataclass(frozen=True)
class Ui:
    """The browser's single page and the Dagster instance behind it."""

    page: "Page"
    dev: Dev
    installation: Installation
    pictures: Path
    toasts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def listen(self) -> None:
        """Record every toast and every script error from now on."""

        def toasted(text: str) -> None:
            self.toasts.append(text)

        self.page.expose_function("toasted", toasted)
        self.page.add_init_script(REPORT_TOASTS)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def alarms(self) -> list[str]:
        """Return the error toasts and script errors that a user would have seen."""
        return [*(toast for toast in self.toasts if BAD_NEWS.search(toast)), *self.errors]

    def open(self, path: str) -> None:
        self.page.goto(self.dev.url + path)

    def expect_text(self, *texts: str | re.Pattern[str]) -> None:
        """Wait until each of the texts is on the page."""
        from playwright.sync_api import expect

        for text in texts:
            match = self.page.get_by_text(text).filter(visible=True).first
            expect(match).to_be_visible(timeout=PATIENCE_SECONDS * 1_000)

    def picture(self, name: str) -> None:
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def button(self, name: str | re.Pattern[str]) -> "Locator":
        return self.page.get_by_role("button", name=name).filter(visible=True)

    def materialize(self, *keys: str, asset: str = "chapters") -> None:
        """Submit the dialog of the asset's page; an asset without keys has none."""
        self.open(f"/assets/{asset}")
        self.button("Materialize").first.click()
        if keys:
            self._choose(*keys)

    def _choose(self, *keys: str) -> None:
        dialog = self.page.get_by_role("dialog").filter(has_text="Launch runs to materialize")
        dialog.get_by_text("Select a partition or create one").click()
        options = self.page.locator("[data-radix-popper-content-wrapper]")
        for key in keys:
            options.get_by_text(key, exact=True).first.click()
        self.page.keyboard.press("Escape")
        self.expect_text(f"{len(keys)} partition")
        self.button(re.compile("^Launch")).last.click()
        dialog.wait_for(state="hidden")

    def launchpad(self, job: str) -> None:
        """Open the Launchpad of the job."""
        if not self.page.url.endswith(LAUNCHPAD.format(job)):
            self.open(LAUNCHPAD.format(job))
        self.expect_text("Launch Run")

    def launch(self, job: str, op: str, **config: str) -> None:
        """Replace the config in the Launchpad."""
        lines = ["ops:", f"  {op}:", "    config:", *(f"      {k}: {v}" for k, v in config.items())]
        self.launchpad(job)
        self.page.locator(".CodeMirror").first.click()
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.insert_text("\n".join(lines) + "\n")

    def run(self, job: str) -> None:
        """Launch the job by GraphQL, without the UI."""
        started = self.dev.graphql(RUN % job)["launchRun"]
        assert started["__typename"] == "LaunchRunSuccess", started

    def checks(self, asset: str) -> dict[str, str]:
        """Return the status of each check evaluated since the latest materialization."""
        checks = self.dev.graphql(CHECKS % asset)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        executions = {check["name"]: check["executionForLatestMaterialization"] for check in checks}
        return {name: execution["status"] for name, execution in executions.items() if execution}

    def asset(self, name: str) -> dict[str, Any]:
        return self.dev.graphql(ASSET % name)["assetNodeOrError"]

    def last_run_of(self, asset: str) -> str | None:
        """Return the id of the run that materialized the asset last."""
        materializations = self.asset(asset)["assetMaterializations"]
        return materializations[0]["runId"] if materializations else None

    def has_partitions(self, *keys: str, asset: str = "chapters") -> bool:
        """Return whether the asset has a partition of each key."""
        dimensions = self.asset(asset).get("partitionKeysByDimension")
        [dimension] = dimensions or [{"partitionKeys": []}]
        return set(keys) <= set(dimension["partitionKeys"])

    def has_materialized(self, *keys: str, asset: str = "chapters") -> bool:
        """Return whether each of the partitions is materialized."""
        statuses = self.asset(asset)["assetPartitionStatuses"]
        return set(keys) <= set(statuses["materializedPartitions"])
