"""The commands of docs/operating/backup.md, run as documented."""

import re
import subprocess
from pathlib import Path

import pytest
from sqlalchemy import text, update

from ingestion_pipeline.store.tables import chapters, metadata, tasks
from ingestion_pipeline_tests.deployment.deploy_files import ROOT
from ingestion_pipeline_tests.deployment.stack import LONG_AGO, Stack, add_polled_sources, polled_count, running_stack
from ingestion_pipeline_tests.polling_runs import rows
from ingestion_pipeline_tests.postgres import SUPERUSER, find_binaries

pytestmark = [pytest.mark.soak, pytest.mark.postgres]


def command_blocks() -> list[str]:
    """Return the command blocks of the page: back-up and restore."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "operating" / "backup.md").read_text(), re.S)
    return [block for block in blocks if "pg_" in block]  # the others stop and start the units


def run_block(stack: Stack, block: str) -> str:
    """Run the block in a shell that stops at the first failure; return its stdout."""
    binaries = find_binaries()
    surroundings = stack.variables | {
        "PATH": f"{binaries}:{stack.variables['PATH']}",
        "PGHOST": str(stack.postgres.folder),
        "PGUSER": SUPERUSER,
    }
    process = subprocess.run(
        ["sh", "-ec", block], cwd=stack.folder, env=surroundings, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def content_files(home: Path) -> tuple[int, int]:
    """Return the number of names and of distinct files in the content store."""
    inodes = [path.stat().st_ino for path in (home / "content").rglob("*") if path.is_file()]
    return len(inodes), len(set(inodes))


def poll(stack: Stack) -> None:
    stack.run_program("dagster", "job", "execute", "-m", "ingestion_pipeline", "-j", "poll_hot")


def make_due(stack: Stack) -> None:
    with stack.store() as store, store.begin() as connection:
        connection.execute(update(tasks).values(not_before=LONG_AGO))


def test_a_backup_is_restored_and_polling_resumes(tmp_path: Path) -> None:
    back_up, restore = command_blocks()
    with running_stack(tmp_path) as stack:
        stack.start_site(seconds=0)
        with stack.store() as store:
            add_polled_sources(store, 6, hosts=3)
            poll(stack)
            assert polled_count(store) == 6
            before = {table.name: rows(store, table) for table in metadata.sorted_tables}
        stored = content_files(stack.home)
        run_block(stack, back_up)

        stack.kill("site")  # its address is in the folder
        stack.home.rename(tmp_path / "lost")
        stack.store_url = stack.postgres.url("ingestion")
        stack.variables |= {
            "INGESTION_DATABASE_URL": stack.store_url,
            "DAGSTER_DATABASE_URL": stack.postgres.url("dagster"),
        }
        run_block(stack, "createuser ingestion && createuser dagster")
        run_block(stack, restore.replace("ingest doctor", "ingest doctor --offline || true"))

        assert content_files(stack.home) == stored
        with stack.store() as store:
            after = {table.name: rows(store, table) for table in metadata.sorted_tables}
            assert after == before
            with store.read() as connection:
                owners = text("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
                assert connection.execute(owners).scalars().all() == ["ingestion"]
            (stack.home / "demo" / "site.json").unlink()
            stack.start_site(seconds=0)
            make_due(stack)
            poll(stack)
            assert len(rows(store, chapters)) == 6
        assert stack.run_program("dagster", "run", "list").count("poll_hot") == 2
