"""A changed profile rescores companies without fetching a page."""

from pathlib import Path

import pytest
from sqlalchemy import insert

from ingestion_pipeline.companies.company_runs import is_scoring_due, rescore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.polling_runs import rows

pytestmark = pytest.mark.both_databases

STACK = {"languages": ["python", "go"], "infrastructure": ["kubernetes"]}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return tmp_path / "profile.yaml"


@pytest.fixture
def profile_settings(settings: Settings, profile: Path) -> Settings:
    match = settings.match.model_copy(update={"profile": str(profile)})
    return settings.model_copy(update={"match": match})


def add_companies(store: Store) -> None:
    common = {
        "status": "active",
        "quality": {},
        "discovered_by": "operator",
        "tracking_id": "t",
        "created_at": NOON,
        "updated_at": NOON,
    }
    with store.begin() as connection:
        connection.execute(
            insert(companies).values(
                id="acme",
                tech_stack=STACK,
                is_remote_first=True,
                score=65,
                tier="C",
                score_parts={"city": 50, "tech": 0, "remote": 15, "machine_learning": 0},
                **common,
            )
        )
        connection.execute(insert(companies).values(id="new", **common))  # not analysed yet


def rescore_once(store: Store, settings: Settings) -> tuple[bool, int]:
    with store.begin() as connection:
        return is_scoring_due(connection, settings), rescore(connection, settings, now=NOON)


def test_a_changed_profile_changes_scores_and_tiers_once(
    store: Store, profile_settings: Settings, profile: Path
) -> None:
    add_companies(store)
    profile.write_text("skills: {Python: 10, K8s: 9}\n")

    assert rescore_once(store, profile_settings) == (True, 1)
    assert rescore_once(store, profile_settings) == (False, 0)
    first = next(row for row in rows(store, companies) if row.id == "acme")
    profile.write_text("skills: {Painting: 10}\n")
    assert rescore_once(store, profile_settings) == (True, 1)

    second = next(row for row in rows(store, companies) if row.id == "acme")
    assert (first.score, first.tier) == (160, "S")  # 50 city, 95 skills, 15 remote
    assert (second.score, second.tier) == (65, "C")
    assert next(row for row in rows(store, companies) if row.id == "new").score is None
