from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ingestion_pipeline.store.opening import open_from_environment


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_our_loggers_speak_from_the_level_that_is_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    caplog.set_level("WARNING", logger="ingestion_pipeline")  # put back at the end of the test
    log = logging.getLogger("ingestion_pipeline.work.queue")

    _, store = open_from_environment(
        {"INGESTION_HOME": str(tmp_path), "INGESTION_LOG_LEVEL": level}
    )

    store.close()
    assert logging.getLevelName(log.getEffectiveLevel()) == level
