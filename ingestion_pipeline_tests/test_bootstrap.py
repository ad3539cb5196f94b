import json
import shutil
from pathlib import Path

import pytest

from ingestion_pipeline.bootstrap import open_run_context
from ingestion_pipeline.demo.site import DemoSite

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
