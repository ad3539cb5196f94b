"""`ingest companies`, and companies as sources."""

import json

import pytest

from ingestion_pipeline.companies.records import analysis_task, ensure_company
from ingestion_pipeline.settings import Work
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import companies
from ingestion_pipeline.tasks.claims import tasks_by_id
from ingestion_pipeline.tasks.queue import insert_tasks, spawn
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest

WEBSITE = "https://acme.test/"


@pytest.fixture
def acme(home_store: Store) -> None:
    """A company with name and website, analysed, with one refusal because of a loop."""
    with home_store.begin() as connection:
        task = analysis_task("acme", WEBSITE, now=NOON)
        [task_id] = insert_tasks(connection, [task], now=NOON)
        parent = tasks_by_id(connection, [task_id])[task_id]
        ensure_company(
            connection,
            company_id="acme",
            name="Acme",
            website=WEBSITE,
            discovered_by="operator",
            tracking_id=parent.tracking_id,
            now=NOON,
        )
        spawn(connection, parent, task, now=NOON, policy=Work())
        board = {
            "platform": "greenhouse",
            "url": "https://boards.greenhouse.io/acme",
            "confidence": "medium",
            "source_id": "job_board:greenhouse-acme",
        }
        connection.execute(
            companies.update().values(
                score=75,
                score_parts={"city": 50, "tech": 25},
                tier="B",
                status="active",
                tech_stack={"languages": ["go"]},
                boards=[board],
                quality={"level": "minimal", "missing": ["industry"]},
                analyzed_at=NOON,
            )
        )


@pytest.mark.usefixtures("acme")
def test_companies_are_listed_with_tier_and_score(ingest: Ingest) -> None:
    result = ingest("companies", "list")

    assert result.exit_code == 0
    assert all(text in result.output for text in ("acme", "Acme", "active", "minimal", "B", "75"))
    assert json.loads(ingest("companies", "list", "--json").output)[0]["score"] == 75
    assert "no companies" in ingest("companies", "list", "--tier", "S").output


@pytest.mark.usefixtures("acme")
def test_a_company_is_shown_with_its_boards_and_refusals(ingest: Ingest) -> None:
    sources = " ".join(ingest("companies", "show", "acme").output.split())

    assert "75 (city 50, tech 25)" in sources
    assert "greenhouse https://boards.greenhouse.io/acme (medium)" in sources
    assert "refused: company https://acme.test/" in sources
    assert "in_ancestry" in sources
    company = json.loads(ingest("companies", "show", "acme", "--json").output)
    assert [refusal["reason"] for refusal in company["refusals"]] == ["in_ancestry"]


def test_an_unknown_company_is_bad_input(ingest: Ingest) -> None:
    result = ingest("companies", "show", "nobody")

    assert result.exit_code == 2
    assert "ingest companies list" in result.output


def test_a_company_is_added_by_its_website_alone(ingest: Ingest) -> None:
    result = ingest("sources", "add", WEBSITE, "--id", "company:acme", "--kind", "company")

    assert result.exit_code == 0, result.output
    sources = json.loads(ingest("sources", "list", "--json").output)
    assert [(source["id"], source["platform"]) for source in sources] == [("company:acme", "page")]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"board": {}}', "'board' means nothing here"),
        ('{"boards": {"monster": {}}}', "'monster' is no platform"),
        ('{"boards": {"lever": 1}}', "boards.lever must be a mapping"),
        ('{"boards": []}', "boards must be a mapping"),
    ],
)
def test_an_unknown_company_config_is_refused(ingest: Ingest, config: str, message: str) -> None:
    result = ingest(*("sources", "add", WEBSITE, "--id", "company:acme", "--kind", "company"), *("--config", config))

    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
