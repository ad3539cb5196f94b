import subprocess
import sys

import pytest

from ingestion_pipeline.series.platforms import PLATFORMS, UnknownPlatform, platform


def test_every_platform_is_found_by_its_name() -> None:
    assert set(PLATFORMS) == {"html", "json", "mangadex", "rss"}
    assert all(platform(name).name == name for name in PLATFORMS)


@pytest.mark.slow
def test_an_unknown_platform_error_lists_the_platforms() -> None:
    with pytest.raises(UnknownPlatform, match=r"'mangadx'; there are: html, json, mangadex, rss"):
        platform("mangadx")


@pytest.mark.slow
def test_the_platform_adapters_are_light_to_import() -> None:
    heavy = {"dateparser", "feedparser", "parsel", "httpx", "dagster", "pandas", "pydantic"}
    code = f"import sys, ingestion_pipeline.series; print({heavy!r} & set(sys.modules))"

    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "set()"
