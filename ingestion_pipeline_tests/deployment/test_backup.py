"""The commands of docs/operating.md for back-up and restore, typed as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import text, update

from ingestion_pipeline.store.tables import chapters, metadata, tasks
from ingestion_pipeline_tests.deployment.history import LONG_AGO, given_polls, polled
from ingestion_pipeline_tests.deployment.stack import Stack, a_stack
from ingestion_pipeline_tests.deployment.units import ROOT
from ingestion_pipeline_tests.pollers import rows
from ingestion_pipeline_tests.postgres import SUPERUSER, find_binaries

pytestmark = [pytest.mark.soak, pytest.mark.postgres]


def blocks() -> list[str]:
    """The commands of the section: one block that backs up, one that restores."""
    text = (ROOT / "docs" / "operating.md").read_text()
    section = re.search(r"### Back-up and restore\n(.*?)\n### ", text, re.S)
    assert section is not None
    return re.findall(r"```text\n(.*?)```", section[1], re.S)


def type_all(stack: Stack, block: str) -> str:
    """The block in a shell that stops at the first failure."""
    binaries = find_binaries()
    surroundings = stack.variables | {
        "PATH": f"{binaries}:{stack.variables['PATH']}",
        "PGHOST": str(stack.postgres.folder),
        "PGUSER": SUPERUSER,
        "OUR_DATABASE": stack.store_url.replace("+psycopg2", ""),
        "DAGSTER_DATABASE": stack.variables["DAGSTER_DATABASE_URL"].replace("+psycopg2", ""),
    }
    done = subprocess.run(
        ["sh", "-ec", block], cwd=stack.folder, env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(home: Path) -> tuple[int, int]:
    """How many names the content store has, and how many files under them."""
    found = [path.stat().st_ino for path in (home / "content").rglob("*") if path.is_file()]
    return len(found), len(set(found))


def poll(stack: Stack) -> None:
    stack.type("dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", "poll_hot")


def make_due(stack: Stack) -> None:
    with stack.store() as store, store.begin() as connection:
        connection.execute(update(tasks).values(not_before=LONG_AGO))


def test_what_was_backed_up_is_restored_and_goes_on(tmp_path: Path) -> None:
    back_up, restore = blocks()
    with a_stack(tmp_path) as stack:
        stack.start_site(seconds=0)
        with stack.store() as store:
            given_polls(store, 6, hosts=3)
            poll(stack)
            assert polled(store) == 6
            before = {one.name: rows(store, one) for one in metadata.sorted_tables}
        stored = files(stack.home)
        type_all(stack, back_up)

        stack.kill("site")  # its address is in the folder
        stack.home.rename(tmp_path / "lost")
        stack.store_url = stack.postgres.url("ingestion")
        stack.variables |= {
            "INGESTION_DATABASE_URL": stack.store_url,
            "DAGSTER_DATABASE_URL": stack.postgres.url("dagster"),
        }
        type_all(stack, "createuser ingestion && createuser dagster")
        type_all(stack, restore.replace("ingest doctor", "ingest doctor --offline || true"))

        assert files(stack.home) == stored
        with stack.store() as store:
            after = {one.name: rows(store, one) for one in metadata.sorted_tables}
            assert after == before
            with store.read() as connection:
                owners = text("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
                assert connection.execute(owners).scalars().all() == ["ingestion"]
            (stack.home / "demo" / "site.json").unlink()
            stack.start_site(seconds=0)
            make_due(stack)
            poll(stack)
            assert len(rows(store, chapters)) == 6
        assert stack.type("dagster", "run", "list").count("poll_hot") == 2
