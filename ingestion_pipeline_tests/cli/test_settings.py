from typing import Any

from sqlalchemy import insert, select

from ingestion_pipeline.cli.settings import setting_rows
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import audit_log, settings
from ingestion_pipeline_tests.cli.conftest import Ingest


def listed_setting(ingest: Ingest, key: str) -> dict[str, Any]:
    return next(setting for setting in ingest.json("settings", "list") if setting["key"] == key)


def test_a_setting_says_where_its_value_comes_from() -> None:
    environment = {"INGESTION_HOSTS__DELAY_SECONDS": "7"}
    table = {"hosts.delay_seconds": "5", "polling.shards": "3"}

    rows = {setting["key"]: (setting["value"], setting["from"]) for setting in setting_rows(environment, table)}

    assert rows["hosts.delay_seconds"] == ("7", "environment")
    assert rows["polling.shards"] == ("3", "table")
    assert rows["work.max_attempts"] == ("3", "default")


def test_the_list_never_shows_a_password() -> None:
    environment = {"INGESTION_DATABASE_URL": "postgresql://me:hush@db/x?password=hush2", "OPENAI_API_KEY": "hush3"}

    rows = {setting["key"]: setting["value"] for setting in setting_rows(environment, {})}

    assert rows["database_url"] == "postgresql://me:***@db/x"
    assert "hush" not in "".join(rows.values())


def test_a_value_is_set_audited_and_unset(ingest: Ingest, home_store: Store) -> None:
    ingest.output("settings", "set", "polling.shards", "3")
    assert listed_setting(ingest, "polling.shards")["value"] == "3"

    ingest.output("settings", "unset", "polling.shards")

    assert listed_setting(ingest, "polling.shards")["from"] == "default"
    with home_store.read() as connection:
        actions = connection.execute(select(audit_log.c.action, audit_log.c.actor)).all()
    assert [action for action, _ in actions] == ["settings.set", "settings.unset"]
    assert all(actor.startswith("cli:") for _, actor in actions)


def test_a_bad_value_or_key_is_refused(ingest: Ingest) -> None:
    assert "polling.shards='many'" in ingest.refused("settings", "set", "polling.shards", "many")
    assert "'-1'" in ingest.refused("settings", "set", "hosts.delay_seconds", "-1")
    assert "'polling.nope'" in ingest.refused("settings", "set", "polling.nope", "1")
    assert "INGESTION_HOME" in ingest.refused("settings", "set", "home", "/elsewhere")
    assert "'polling.nope'" in ingest.refused("settings", "unset", "polling.nope")


def test_a_value_that_the_environment_overrides_is_set_with_a_warning(ingest: Ingest) -> None:
    result = ingest("settings", "set", "polling.shards", "3", INGESTION_POLLING__SHARDS="4")

    assert result.exit_code == 0
    assert "INGESTION_POLLING__SHARDS" in result.stderr


def test_a_bad_settings_table_can_be_shown_and_corrected(ingest: Ingest, home_store: Store) -> None:
    with home_store.begin() as connection:
        now = home_store.clock.now(connection)
        extra = {"value_type": "int", "description": "", "updated_at": now}
        connection.execute(insert(settings).values(key="polling.shards", value="many", **extra))
        connection.execute(insert(settings).values(key="old.name", value="1", **extra))

    assert "`ingest settings unset KEY`" in ingest.refused("status")
    assert listed_setting(ingest, "polling.shards")["value"] == "many"
    assert "no such setting" in listed_setting(ingest, "old.name")["meaning"]
    ingest.output("settings", "unset", "polling.shards")
    ingest.output("settings", "unset", "old.name")
    ingest.output("status")


def test_the_table_of_settings_fits_the_page(ingest: Ingest) -> None:
    output = ingest.output("settings", "list")

    assert "interval.series_hot" in output
    assert max(map(len, output.splitlines())) <= 100
