"""The worked examples of docs/extending.md, built from its very text and run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ingestion_pipeline
from ingestion_pipeline.store.database import HEAD
from ingestion_pipeline_tests.cli.conftest import Ingest

ROOT = Path(__file__).parents[1]
DOCS = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```(python|yaml|diff)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(form: str) -> list[tuple[str, str]]:
    """The path and the text of each block of that form, with the numbers of the revisions."""
    numbered = DOCS.replace("CURRENT", HEAD).replace("NEXT", f"{int(HEAD) + 1:04}")
    return [(path, text) for kind, path, text in BLOCK.findall(numbered) if kind == form]


def apply_diff(text: str, diff: str) -> str:
    """Return the text with the diff applied; each hunk must match exactly one place."""
    for part in diff.split("...\n"):
        lines = part.splitlines()
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"{before!r} does not stand once in the file"
        text = text.replace(before, after)
    return text


def build_project(folder: Path) -> Path:
    """The package with all that the examples add to it."""
    package = Path(ingestion_pipeline.__file__).parent
    shutil.copytree(package, folder / package.name)  # with what is compiled, whose times stay
    for path, text in blocks("python"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for path, diff in blocks("diff"):
        (folder / path).write_text(apply_diff((folder / path).read_text(), diff))
    return folder


POLLED = """
import json, sys
from pathlib import Path
from sqlalchemy import select
from ingestion_pipeline.sources.declarations import definition_of
from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.tables import chapter_sources, chapters, job_listings
from ingestion_pipeline.rates.tables import rates
from ingestion_pipeline.registry import create_tables
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.polling_runs import a_run_context, add_sources, poll, fast_settings
from ingestion_pipeline.sources.poll_tasks import make_due

LISTED = [job_listings.c[name] for name in ("title", "location", "requisition")]
home = Path(sys.argv[1])
url = f"sqlite:///{home / 'ingestion.db'}"
store = open_store(url)
create_tables(store)
ctx = a_run_context(store, fast_settings(home, url))
declared = [
    {"id": "series:solo", "kind": "series", "url": "http://a.test/solo", "platform": "lines"},
    {"id": "rates:bank", "kind": "rates", "url": "http://b.test/today", "platform": "rates"},
    {"id": "job_board:acme", "kind": "job_board", "url": "http://c.test/acme", "platform": "greenhouse"},
    {"id": "job_board:shop", "kind": "job_board", "url": "https://jobs.openings.test/shop"},
]
declared[3]["config"] = {"api_base": "http://d.test"}
declared[2]["config"] = {"api_base": "http://c.test", "board_token": "acme"}
add_sources(store, *(definition_of(entry)[0] for entry in declared))
pages = {"/solo": b"12.5|The end|/read/12-5\\n12|Before|/read/12\\n"}
job = {"id": 7, "title": "Engineer", "absolute_url": "http://c.test/7", "requisition_id": "R-7"}
board = {"jobs": [job], "meta": {"total": 1}}
pages["/v1/boards/acme/jobs?content=true&pay_transparency=true"] = json.dumps(board).encode()
pages["/boards/shop"] = json.dumps({"jobs": [{"id": 1, "name": "Baker", "link": "http://d.test/1", "city": "Ghent"}]})
outcomes = []
with FakeWeb(pages) as web:
    for body in (b"EUR 1.08\\nGBP 1.25\\n", b"EUR 1.09\\nGBP 1.25\\n", b"closed today"):
        web.routes["/today"] = body
        with store.begin() as connection:
            make_due(connection, ["rates:bank"], now=store.clock.now(connection))
        result = poll(ctx, web)
        outcomes += [row.outcome for row in result.ingested if row.source_id == "rates:bank"]

def asset_events(web):
    import os
    import dagster as dg
    from ingestion_pipeline.definitions import defs
    entry = {"id": "rates:town", "kind": "rates", "url": web.url("/today"), "platform": "rates"}
    add_sources(store, definition_of(entry)[0])
    web.routes["/today"] = b"CHF 1.1\\n"
    os.environ |= {"INGESTION_HOME": str(home), "INGESTION_ALLOW_HOSTS": web.host_port}
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def("ingest_rates")
        tags = {"dagster/partition": "rates:town"}
        run = job.execute_in_process(instance=instance, tags=tags)
        [event] = run.asset_materializations_for_node("rates.report")
        checks = {check.check_name: check.passed for check in run.get_asset_check_evaluations()}
        partitions = instance.get_dynamic_partitions("rates_sources")
    node = defs.resolve_asset_graph().get(dg.AssetKey("rates"))
    return {
        "total": event.metadata["total"].value,
        "outcome": event.metadata["outcome"].value,
        "partition": event.partition,
        "checks": checks,
        "partitions": partitions,
        "parents": [key.to_user_string() for key in node.parent_keys],
        "columns": [column.name for column in node.metadata["dagster/column_schema"].columns],
    }

with FakeWeb({}) as web:
    asset = asset_events(web)
with store.read() as connection:
    summary = {
        "asset": asset,
        "chapters": [str(number) for number in connection.execute(select(chapters.c.number)).scalars()],
        "urls": sorted(connection.execute(select(chapter_sources.c.url)).scalars()),
        "rates": {row.currency: str(row.rate) for row in connection.execute(select(rates))},
        "listings": [list(row) for row in connection.execute(select(*LISTED).order_by(job_listings.c.title))],
        "failed": result.counts.failed,
        "outcomes": outcomes,
    }
print(json.dumps(summary))
"""


@pytest.mark.slow
def test_the_platforms_the_system_and_the_column_of_the_docs_are_polled_and_the_asset_is_materialized(
    tmp_path: Path, sqlite_template: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shutil.copy(sqlite_template, home / "ingestion.db")  # one revision behind
    path = f"{build_project(tmp_path / 'built')}{os.pathsep}{ROOT}"

    process = subprocess.run(
        [sys.executable, "-c", POLLED, str(home)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert sorted(result["chapters"]) == ["12", "12.5"]
    assert result["urls"] == ["http://a.test/read/12", "http://a.test/read/12-5"]
    assert result["outcomes"] == ["2 of 2 rates changed", "1 of 2 rates changed"]
    assert result["rates"] == {"CHF": "1.1", "EUR": "1.09", "GBP": "1.25"}  # without the unreadable body
    assert result["listings"] == [["Baker", "Ghent", None], ["Engineer", None, "R-7"]]
    assert result["failed"] == 1
    assert result["asset"] == {
        "total": 1,
        "outcome": "1 of 1 rates changed",
        "partition": "rates:town",
        "checks": {"contract": True},
        "partitions": ["rates:town"],
        "parents": ["sources"],
        "columns": ["source_id", "currency", "rate", "changed_at", "ingestion_id"],
    }


def test_the_system_of_the_docs_changes_one_existing_file() -> None:
    section = DOCS[DOCS.index("## Systems\n") : DOCS.index("## Task kinds\n")]
    changed = {path for form, path, _ in BLOCK.findall(section) if form == "diff" or (ROOT / path).exists()}

    assert changed == {"ingestion_pipeline/registry.py"}


PAGE = """<html><head><title>Grants</title><script type="application/ld+json">
{"@context": "https://schema.org", "@type": "MonetaryGrant", "name": "Harbour Grant", "amount": 500}
</script></head><body><h1>Harbour Grant</h1><p>It gives 500 a year.</p></body></html>"""


def test_the_entity_of_the_docs_is_extracted_from_a_saved_page(tmp_path: Path) -> None:
    [(path, text)] = [(path, text) for path, text in blocks("yaml") if "scholarship" in path]
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    ingest = Ingest({"INGESTION_HOME": str(tmp_path), "INGESTION_SOURCES": str(file.parents[1])})
    (tmp_path / "page.html").write_text(PAGE)

    read = ("read", str(tmp_path / "page.html"), "--platform", "catalog", "--kind", "catalog")
    result = ingest.json(*read, "--entity", "scholarship")

    [record] = result["records"]
    assert record["title"] == "Harbour Grant"
    assert float(record["amount"]) == 500


def test_a_change_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(AssertionError, match="does not stand once"):
        apply_diff("a\nb\n", " c\n+d\n")
