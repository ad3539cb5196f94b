from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ingestion_pipeline.store import open_store
from ingestion_pipeline.store.configuration import open_from_environment
from ingestion_pipeline.store.engine import TruncatedDatabase


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_our_loggers_speak_from_the_level_that_is_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    caplog.set_level("WARNING", logger="ingestion_pipeline")  # put back at the end of the test
    log = logging.getLogger("ingestion_pipeline.tasks.queue")

    _, store = open_from_environment({"INGESTION_HOME": str(tmp_path), "INGESTION_LOG_LEVEL": level})

    store.close()
    assert logging.getLevelName(log.getEffectiveLevel()) == level


def test_an_emptied_database_file_is_refused_and_not_taken_for_a_fresh_start(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ingestion.db'}"
    open_store(url).close()
    (tmp_path / "ingestion.db").write_bytes(b"")

    with pytest.raises(TruncatedDatabase, match=r"0 bytes.*backup"):
        open_store(url)

    assert (tmp_path / "ingestion.db").read_bytes() == b""


def test_a_new_database_is_for_its_owner_alone_and_leaves_no_other_file(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path / 'home' / 'ingestion.db'}").close()

    assert [path.name for path in (tmp_path / "home").iterdir()] == ["ingestion.db"]
    assert (tmp_path / "home" / "ingestion.db").stat().st_mode & 0o777 == 0o600
