"""By which settings a demo run works, where nobody has set others."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ingestion_pipeline.cli.opening import environment

# The demo is quick because its host is ours: no delay between requests, short retries. Its polls
# are over before anybody is told, so nothing is left to group; every run may name a series again.
DEMO_SETTINGS = {
    "INGESTION_HOSTS__DELAY_SECONDS": "0",
    "INGESTION_CRAWL__DELAY_SECONDS": "0",
    "INGESTION_WORK__BACKOFF_BASE_SECONDS": "0.2",
    "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.1",  # a provider of its own often fails
    "INGESTION_EXTRACTION__QUIET_SECONDS": "0",  # nothing pending is enough: nobody else crawls
    "INGESTION_NOTICES__GROUPING_SECONDS": "0",
    "INGESTION_NOTICES__SERIES_SECONDS": "0",
    "INGESTION_HEALTH__DEGRADED_FAILURES": "1",  # a bad day is told by its first run, all at once
    "INGESTION_MATCH__COMPANY_WAIT_SECONDS": "0",  # its companies are analysed before its jobs
}
PROFILE = "INGESTION_MATCH__PROFILE"


@contextmanager
def demo_settings(model: Mapping[str, str]) -> Generator[None]:
    """The models' settings hold in this process, the demo's where the environment has no others."""
    before = environment()
    ours = DEMO_SETTINGS | ({} if has_profile() else {PROFILE: str(demo_profile())})
    missing = {key: text for key, text in ours.items() if not before.get(key)}
    held = {key: before.get(key) for key in (*missing, *model)}
    os.environ.update({**missing, **model})  # noqa: TID251 - Dagster's run reads the environment
    try:
        yield
    finally:
        for key, text in held.items():
            os.environ.pop(key, None)  # noqa: TID251 - as above
            if text is not None:
                os.environ[key] = text  # noqa: TID251 - as above


def demo_profile() -> Path:
    """Who looks for work in the demo."""
    from importlib.resources import files

    return Path(str(files("ingestion_pipeline.demo") / "profile.yaml"))


def has_profile() -> bool:
    """Whether somebody has a profile of his own: his listings are not judged by the demo's."""
    from ingestion_pipeline.companies.matching.slices import profile_path
    from ingestion_pipeline.settings import load_settings

    return profile_path(load_settings(environment())).exists()
