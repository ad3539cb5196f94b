from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from sqlalchemy import select

import ingestion_pipeline
from ingestion_pipeline.settings import (
    BadSetting,
    Price,
    check_override,
    load_settings,
    price_table,
    setting_fields,
    unknown_variables,
    value_type,
    variables,
)
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.stored_settings import overrides, set_override, unset_override
from ingestion_pipeline.store.tables import audit_log
from ingestion_pipeline.store.tables import settings as settings_table
from ingestion_pipeline_tests.reading.tables import table

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize(
    ("environment", "table", "shards"),
    [
        pytest.param({}, {}, 2, id="default"),
        pytest.param({}, {"polling.shards": "3"}, 3, id="table"),
        pytest.param({"INGESTION_POLLING__SHARDS": "4"}, {}, 4, id="environment"),
        pytest.param({"INGESTION_POLLING__SHARDS": "4"}, {"polling.shards": "3"}, 4, id="environment first"),
        pytest.param({"INGESTION_POLLING__SHARDS": ""}, {"polling.shards": "3"}, 3, id="empty"),
    ],
)
def test_the_environment_wins_over_the_table_and_the_table_over_the_default(
    environment: dict[str, str], table: dict[str, str], shards: int
) -> None:
    assert load_settings(environment, table).polling.shards == shards


def test_one_setting_of_a_group_leaves_the_others_alone() -> None:
    settings = load_settings({"INGESTION_WORK__MAX_ATTEMPTS": "7"}, {"work.lease_seconds": "9"})

    assert (settings.work.max_attempts, settings.work.lease_seconds) == (7, 9)
    assert settings.work.spawn_depth == 10


@pytest.mark.parametrize(
    ("variable", "value", "accepted"),
    table(__file__, "test_a_bad_value_is_named_with_its_variable_and_what_is_accepted"),
)
def test_a_bad_value_is_named_with_its_variable_and_what_is_accepted(variable: str, value: str, accepted: str) -> None:
    with pytest.raises(BadSetting) as caught:
        load_settings({variable: value})

    message = str(caught.value)
    assert message.startswith(f"{variable}={value!r}: ")
    assert accepted in message
    assert setting_fields()[variables()[variable]][1] in message


def test_every_bad_value_is_in_one_message() -> None:
    environment = {"INGESTION_POLLING__SHARDS": "x", "INGESTION_FETCH__MAX_BYTES": "-1"}

    with pytest.raises(BadSetting) as caught:
        load_settings(environment, {"work.max_attempts": "none"})

    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert {line.split("=")[0] for line in lines} == {*environment, "setting work.max_attempts"}


def test_a_bad_value_of_the_table_is_not_blamed_on_the_environment() -> None:
    with pytest.raises(BadSetting, match=r"^setting polling\.shards='0': "):
        load_settings({}, {"polling.shards": "0"})


@pytest.mark.parametrize("key", sorted(setting_fields()))
def test_every_setting_says_what_it_means(key: str) -> None:
    default, description = setting_fields()[key]

    assert description
    assert default is not None


@pytest.mark.parametrize("wrong", ["hunter2", "TOKEN@https://a.test", "TOKEN=hunter2@a.test"])
def test_a_wrong_list_of_secrets_is_refused_without_being_repeated(wrong: str) -> None:
    with pytest.raises(BadSetting, match="entry 2 is not VARIABLE@host") as caught:
        load_settings({"INGESTION_SECRETS": f"ACME_TOKEN@a.test, {wrong}"})

    assert wrong not in str(caught.value)


def test_every_setting_is_read_by_something() -> None:
    package = Path(ingestion_pipeline.__file__).parent
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.parent != package / "settings")
    computed = {
        "database_url",
        "shadow_database_url",
        "allow_hosts",
        "secrets",
        "ui_hosts",
        "notify_urls",
        "model_budget_usd",
        "model_budget_month_usd",
        "rendering.blocked_resources",
        "fetch.blocked_wait_seconds",
    }  # read through a property of the settings

    by_kind = "interval."  # read by a method, by the name of a kind
    names = {key for key in setting_fields() if not key.startswith(by_kind)} - computed
    assert {key for key in names if f".{key.split('.')[-1]}" not in code} == set()


def test_a_groups_variable_has_two_underscores() -> None:
    assert variables()["INGESTION_HOSTS__DELAY_SECONDS"] == "hosts.delay_seconds"
    assert variables()["INGESTION_DATABASE_URL"] == "database_url"
    openai_variables = {"OPENAI_API_KEY", "OPENAI_BASE_URL"}
    assert all(name.startswith("INGESTION_") for name in variables().keys() - openai_variables)
    assert openai_variables <= variables().keys()


def test_an_unknown_variable_is_detected() -> None:
    environment = {"INGESTION_POLLING__SHARD": "1", "INGESTION_HOME": "x", "INGESTION_SAMPLES": "x", "PATH": "x"}

    assert unknown_variables(environment) == ["INGESTION_POLLING__SHARD"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("postgresql://u:p@h:5432/d?sslmode=on", "postgresql+psycopg2://u:p@h:5432/d?sslmode=on"),
        ("postgres://u@h/d", "postgresql+psycopg2://u@h/d"),
        ("postgresql+psycopg2://u@h/d", "postgresql+psycopg2://u@h/d"),
        ("sqlite:////tmp/x.db", "sqlite:////tmp/x.db"),
    ],
)
def test_a_postgresql_url_gets_the_installed_driver(value: str, expected: str) -> None:
    assert load_settings({"INGESTION_DATABASE_URL": value}).store_url == expected


def test_without_a_database_the_home_has_one() -> None:
    settings = load_settings({"INGESTION_HOME": "/srv/some where"})

    assert settings.store_url == "sqlite:////srv/some where/ingestion.db"


def test_allowed_hosts_are_a_comma_list() -> None:
    settings = load_settings({"INGESTION_ALLOW_HOSTS": " Demo.test:80, ,127.0.0.1:9,[::1]:65535,"})

    assert settings.allowed_hosts == {"demo.test:80", "127.0.0.1:9", "[::1]:65535"}


def test_services_are_separated_by_comma_or_space_and_never_shown() -> None:
    text = "mailto://u:geheim@host?to=a@b.org,c@d.org, json://127.0.0.1:9/x\n tgram://geheim/1,"
    settings = load_settings({"INGESTION_NOTIFY_URLS": text})

    assert settings.notify_services == (
        "mailto://u:geheim@host?to=a@b.org,c@d.org",
        "json://127.0.0.1:9/x",
        "tgram://geheim/1",
    )
    assert load_settings({}).notify_services == ()
    assert "geheim" not in repr(settings)


def test_limits_are_dollars_or_none_and_prices_a_table() -> None:
    settings = load_settings({"INGESTION_MODEL_BUDGET_MONTH_USD": "0.5", "INGESTION_MODEL_BUDGET_USD": "none"})

    assert (settings.month_budget, settings.extraction_budget) == (Decimal("0.5"), None)
    assert load_settings({}).extraction_budget == 50
    assert load_settings({}).month_budget is None
    table = price_table(" a/b:c = 1.5 / 0 /2 ,, d=1/2/3,")
    assert list(table) == ["a/b:c", "d"]
    assert table["a/b:c"] == Price(input_usd=Decimal("1.5"), cached_input_usd=Decimal(0), output_usd=Decimal(2))


def test_a_key_is_never_shown_nor_a_password_in_a_bad_address() -> None:
    assert "geheim" not in repr(load_settings({"OPENAI_API_KEY": "geheim"}))
    with pytest.raises(BadSetting) as caught:
        load_settings({"OPENAI_BASE_URL": "http://me:geheim@a.test/v1"})

    assert "geheim" not in str(caught.value)


def test_settings_cannot_be_changed_afterwards() -> None:
    settings = load_settings({})

    with pytest.raises(ValueError, match="frozen"):
        settings.work.max_attempts = 9  # type: ignore[misc]


@pytest.mark.parametrize("key", ["work.nothing", "nothing.at_all", "database_url", "work", ""])
def test_the_table_holds_only_settings_of_a_group(key: str) -> None:
    with pytest.raises(BadSetting, match="is not a setting of the table"):
        check_override(key, "1")


@pytest.mark.parametrize(("key", "name"), [("work.max_attempts", "int"), ("polling.jitter_share", "float")])
def test_a_setting_knows_its_type(key: str, name: str) -> None:
    assert value_type(key) == name


def audit_rows(store: Store) -> list[tuple[str, str, str, object]]:
    with store.read() as connection:
        rows = connection.execute(select(audit_log).order_by(audit_log.c.id))
        return [(row.actor, row.action, row.subject, row.detail) for row in rows]


def test_an_override_is_stored_and_audited(store: Store, now: datetime) -> None:
    for text in ("5", "6"):
        with store.begin() as connection:
            set_override(connection, "work.max_attempts", text, actor="me", now=now)

    with store.read() as connection:
        settings = overrides(connection)
        row = connection.execute(select(settings_table)).one()
    assert settings == {"work.max_attempts": "6"}
    assert load_settings({}, settings).work.max_attempts == 6
    assert (row.value_type, row.updated_at) == ("int", now)
    assert row.description == "attempts of a task, the first included"
    assert audit_rows(store) == [
        ("me", "settings.set", "work.max_attempts", {"from": None, "to": "5"}),
        ("me", "settings.set", "work.max_attempts", {"from": "5", "to": "6"}),
    ]


def test_an_unset_override_is_gone_and_audited_once(store: Store, now: datetime) -> None:
    with store.begin() as connection:
        set_override(connection, "work.max_attempts", "5", actor="me", now=now)
        first = unset_override(connection, "work.max_attempts", actor="you", now=now)
        second = unset_override(connection, "work.max_attempts", actor="you", now=now)

        assert (first, second) == (True, False)
        assert overrides(connection) == {}
    assert [line[:2] for line in audit_rows(store)] == [("me", "settings.set"), ("you", "settings.unset")]


def test_a_bad_override_leaves_no_trace(store: Store, now: datetime) -> None:
    with pytest.raises(BadSetting), store.begin() as connection:
        set_override(connection, "work.max_attempts", "0", actor="me", now=now)

    with store.read() as connection:
        assert overrides(connection) == {}
    assert audit_rows(store) == []
