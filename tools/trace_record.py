"""Print the files and functions that one record crosses, in order, for each kind of source.

Runs the bundled demo site, registers one source of the kind, and executes the jobs that take its
record from the first poll to its row, in this process, with a profile hook. The demo's own files, which
play the web, are left out.

    .venv/bin/python tools/trace_record.py [series|catalog|company|listing|website ...] [--functions]
"""

import argparse
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import ingestion_pipeline
from ingestion_pipeline import defs
from ingestion_pipeline.cli.session import opened
from ingestion_pipeline.demo.commands import demo_file, demo_settings
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.orchestration.runs import run_job
from ingestion_pipeline.registry import declared
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.sources.poll_tasks import make_due
from ingestion_pipeline.sources.registry import register

PACKAGE = str(Path(ingestion_pipeline.__file__).parent) + os.sep
DEMO = PACKAGE + "demo"
BOARD = {
    "id": "job_board:kestrel",
    "kind": "job_board",
    "url": "http://kestrel.demo.test/careers",
    "platform": "jsonld",
}
BOARD["tier"] = "hot"
POLLS = ("poll_hot", "poll_warm", "poll_cold")
PATHS = {
    "series": ("series:lighthouse-feed", POLLS),
    "catalog": ("catalog:harbour", (*POLLS, "crawl_catalogs", "complete_extractions")),
    "company": ("company:driftwood", ("poll_hot", "process_companies", "poll_warm", "process_listings")),
    "listing": (BOARD["id"], ("poll_hot", "process_listings")),
    "website": ("website:saltmarsh", (*POLLS, "analyze_websites")),
}


class Trace:
    """The functions of the package that were called, in the order of their first call."""

    def __init__(self) -> None:
        self.calls: dict[tuple[str, str], int] = {}

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.calls))

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_filename.startswith(DEMO):
            if code.co_name == "<module>":
                return
            key = code.co_filename.removeprefix(PACKAGE), code.co_qualname
            self.calls[key] = self.calls.get(key, 0) + 1

    @contextmanager
    def recording(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def trace(kind: str, home: Path) -> Trace:
    """Run the jobs of one source of this kind in an empty home."""
    source_id, jobs = PATHS[kind]
    os.environ["INGESTION_HOME"] = str(home)
    found = Trace()
    with demo_settings({}), opened() as (_, store):
        board, _ = definition_of(BOARD)
        shown = [*demo_file().definitions, *([board] if board else [])]
        definitions = [definition for definition in shown if definition.id == source_id]
        with store.begin() as connection:
            now = store.clock.now(connection)
            register(connection, definitions, now=now)
            declared(connection, [source_id], now=now)
            make_due(connection, [source_id], now=now)
        with DemoSite(load_settings(dict(os.environ)).home):
            for name in jobs:
                with found.recording():
                    succeeded, errors = run_job(defs, name)
                if not succeeded:
                    raise SystemExit(f"{name} failed: {errors}")
    return found


def main() -> None:
    """Trace the requested kinds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*PATHS, []], default=[])
    parser.add_argument("--functions", action="store_true", help="list functions, too")
    given = parser.parse_args()
    for kind in given.kinds or PATHS:
        with tempfile.TemporaryDirectory() as home:
            result = trace(kind, Path(home))
        print(f"{kind}: {len(result.files)} files, {len(result.calls)} functions")
        for file in result.files:
            print(f"  {file}")
            if given.functions:
                for where, function in result.calls:
                    if where == file:
                        print(f"    {function}")


if __name__ == "__main__":
    main()
