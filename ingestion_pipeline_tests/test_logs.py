"""The log as JSON lines: run, source and tracking id, and no text of pages."""

import json
import logging
from collections.abc import Iterator

import pytest

from ingestion_pipeline.settings.logs import OURS, about, configure, logging_for
from ingestion_pipeline.sources.poll_results import log_poll
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.builders import a_task


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    yield
    configure("INFO", "text")


def lines(captured: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in captured.readouterr().err.splitlines()]


def test_a_line_has_its_run_source_and_tracking_id(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", "json")
    configure("INFO", "json")  # a second store of the same process adds no second line
    with logging_for(run="r-1", job="poll_hot"):
        log_poll(a_task(), logging.INFO, "succeeded", None)
        log_poll(a_task(), logging.DEBUG, "succeeded", None)  # unchanged
        error = Transient("a.test said <b>secret</b>", code="http_503")
        log_poll(a_task(attempts=2), logging.INFO, "failed", error)

    good, bad = lines(capsys)

    ids = {"run": "r-1", "job": "poll_hot", "source": "series:solo"}
    ids["tracking_id"] = a_task().tracking_id
    assert ids.items() <= good.items()
    assert (good["level"], good["message"]) == ("INFO", "poll succeeded source=series:solo")
    assert ids.items() <= bad.items()
    assert (bad["error_class"], bad["error_code"], bad["attempt"]) == ("transient", "http_503", 2)
    assert "secret" not in json.dumps(bad)


def test_an_error_is_logged_with_class_and_frames_and_without_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    configure("INFO", "json")
    try:
        int("Authorization: canary")
    except ValueError:
        logging.getLogger(f"{OURS}.pages").warning("no\nluck", exc_info=True, extra=about(source="s", nothing=None))

    [line] = lines(capsys)

    assert (line["error"], line["message"], line["source"]) == ("ValueError", "no\nluck", "s")
    assert "test_an_error_is_logged" in str(line["stack"])
    assert "canary" not in json.dumps(line)
    assert "nothing" not in line


def test_text_logging_is_left_to_the_collector(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    configure("INFO", "json")
    configure("INFO", "text")
    log_poll(a_task(), logging.DEBUG, "succeeded", None)
    log_poll(a_task(), logging.INFO, "failed", Transient("no", code="timeout"))

    assert caplog.messages == ["poll failed source=series:solo code=timeout"]
    assert capsys.readouterr().err == ""
