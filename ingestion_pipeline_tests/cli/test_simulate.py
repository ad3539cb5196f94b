"""`ingest simulate polling`."""

from datetime import timedelta

from ingestion_pipeline.store import Store
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.cli.conftest import Ingest
from ingestion_pipeline_tests.operations.test_polling_simulation import add_weekly_series


def test_without_changes_the_command_suggests_more_days(ingest: Ingest) -> None:
    assert "try more --days" in ingest.output("simulate", "polling")
    assert ingest.json("simulate", "polling") == {"days": 30.0, "kinds": []}


def test_a_simulation_shows_requests_delays_and_costs(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        add_weekly_series(connection, "weekly")
        now = home_store.clock.now(connection)
    days = str((now - NOON + timedelta(days=40)) / timedelta(days=1))

    [kind] = ingest.json("simulate", "polling", "--days", days, "--budget", "10")["kinds"]

    names = ["tiers", "change model", "one request more a source and day", "the given budget"]
    assert [policy["policy"] for policy in kind["policies"]] == names
    assert kind["policies"][0]["request_cost_seconds"] is None
    assert "minutes earlier on average" in ingest.output("simulate", "polling", "--days", days)
