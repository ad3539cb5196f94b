from __future__ import annotations

from pathlib import Path

from sqlalchemy import inspect

from ingestion_pipeline.store import open_store
from ingestion_pipeline_tests.cli.conftest import Ingest


def test_an_empty_home_gets_a_database_and_the_next_steps(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    ingest = Ingest({"INGESTION_HOME": str(home), "INGESTION_SOURCES": str(tmp_path / "none")})

    said = ingest.done("init")

    assert f"{home}/ingestion.db" in said
    assert "(not there yet)" in " ".join(said.split())  # a long path wraps
    assert "`ingest demo run`" in said
    store = open_store(f"sqlite:///{home / 'ingestion.db'}")
    assert inspect(store.engine).has_table("sources")
    store.close()


def test_a_second_init_keeps_everything(ingest: Ingest) -> None:
    ingest.done("sources", "add", "https://a.test/feed", "--id", "series:solo", "--kind", "series")

    said = ingest.done("init")

    assert "`ingest status`" in said
    assert len(ingest.json("sources", "list")) == 1
