"""Optional parts of the installation: what is missing is named with the command that installs it."""

import tomllib
from pathlib import Path

import pytest

from ingestion_pipeline.cli.main import explain
from ingestion_pipeline.extras import EXTRAS, how_to_install, is_installed, missing_extra

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
