"""What every process starts with: fetcher, extras, garbage collection, logging."""

import gc
import json
import logging
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.cli.main import explain
from ingestion_pipeline.demo.site import DemoSite
from ingestion_pipeline.extras import EXTRAS, how_to_install, is_installed, missing_extra
from ingestion_pipeline.gc_thresholds import THRESHOLDS, fewer_collections
from ingestion_pipeline.settings.logs import OURS, about, configure, logging_for
from ingestion_pipeline.sources.poll_results import log_poll
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.builders import a_task

OWN = '[{"name": "own", "base_url": "http://own.test/v1", "model": "m"}]'


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        pytest.param({}, ["almanac"], id="nobody configured any"),
        pytest.param({"INGESTION_WEBSITE__PROVIDERS": OWN}, ["own"], id="a list of one's own"),
        pytest.param({"OPENAI_API_KEY": "sk-1"}, [], id="a key: the default provider"),
        pytest.param({"OPENAI_BASE_URL": "http://m.test/v1"}, [], id="a server of one's own"),
    ],
)
def test_the_providers_of_a_running_demo_are_used_where_none_are_configured(
    tmp_path: Path, sqlite_template: Path, variables: dict[str, str], expected: list[str]
) -> None:
    shutil.copy(sqlite_template, tmp_path / "ingestion.db")
    environment = {"INGESTION_HOME": str(tmp_path), **variables}

    with DemoSite(tmp_path, providers={"almanac": "http://127.0.0.1:1/v1"}), open_run_context(environment) as ctx:
        providers = json.loads(ctx.settings.website.providers or "[]")

    assert [provider["name"] for provider in providers] == expected
    assert ("demo-almanac=" in ctx.settings.models.prices) == (expected == ["almanac"])
    assert {provider["host"] for provider in providers if provider["name"] == "almanac"} <= {"demo.test"}
    with open_run_context(environment) as after:
        assert "almanac" not in after.settings.website.providers


ROOT = Path(__file__).parent.parent


def test_every_extra_that_is_named_exists() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    assert set(EXTRAS.values()) <= declared.keys()
    [everything] = declared["all"]
    assert set(EXTRAS.values()) == set(everything.partition("[")[2].rstrip("]").split(","))


def test_a_missing_library_is_named_with_its_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        raise ModuleNotFoundError("No module named 'pandas.core'", name="pandas.core")

    assert missing_extra(caught.value) == "pandas is not installed: pip install 'ingestion_pipeline[frames]'"
    explained = explain(caught.value)
    assert explained is not None
    assert "ingestion_pipeline[frames]" in explained.format_message()


def test_other_errors_are_not_taken_for_a_missing_extra() -> None:
    assert missing_extra(ModuleNotFoundError("no", name="ingestion_pipeline.gone")) is None
    assert missing_extra(ValueError("no")) is None


def test_what_is_installed_is_found_without_an_import() -> None:
    assert is_installed("json")
    assert not is_installed("no_such_library")
    assert "[ui]" in how_to_install("dagster_webserver")


def test_the_thresholds_are_restored_after_an_error() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    with suppress(ValueError), fewer_collections():
        assert gc.get_threshold() == THRESHOLDS
        raise ValueError("a page")

    assert (gc.get_threshold(), gc.isenabled()) == (before, True)
    assert gc.get_freeze_count() <= frozen


def test_a_disabled_collector_stays_disabled() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)

    try:
        with fewer_collections():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_a_run_collects_less_often_and_freezes_nothing(tmp_path: Path) -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()

    with open_run_context({"INGESTION_HOME": str(tmp_path)}):
        assert gc.get_threshold() == THRESHOLDS

    assert gc.get_threshold() == before
    assert gc.get_freeze_count() <= frozen  # frozen objects that nobody refers to go as others do


@pytest.mark.slow
def test_the_definitions_are_frozen_once_they_are_imported() -> None:
    code = """
import gc
before = gc.get_threshold()
from ingestion_pipeline import defs
print(gc.get_freeze_count() > 100_000, gc.get_threshold() == before)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "True"]


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
