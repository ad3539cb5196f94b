"""The `settings` table: values that an operator has changed from the defaults."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, delete, select

from ingestion_pipeline.settings import Settings, check_override, load_settings, setting_fields, value_type
from ingestion_pipeline.settings.logs import configure
from ingestion_pipeline.store.database import Store, open_store
from ingestion_pipeline.store.statements import audit, insert_into
from ingestion_pipeline.store.tables import settings


def overrides(connection: Connection) -> dict[str, str]:
    """Return every setting in the table, as text."""
    rows = connection.execute(select(settings.c.key, settings.c.value))
    return {key: value for key, value in rows}  # noqa: C416 - a row is no pair to the type checker


def set_override(connection: Connection, key: str, text: str, *, actor: str, now: datetime) -> None:
    """Store `text` for `key`; a bad key or value raises `BadSetting`."""
    check_override(key, text)
    row = {"value": text, "value_type": value_type(key), "description": setting_fields()[key][1], "updated_at": now}
    before = overrides(connection).get(key)
    statement = insert_into(connection, settings).values(key=key, **row)
    connection.execute(statement.on_conflict_do_update(index_elements=["key"], set_=row))
    detail = {"from": before, "to": text}
    audit(connection, actor=actor, action="settings.set", subject=key, now=now, detail=detail)


def unset_override(connection: Connection, key: str, *, actor: str, now: datetime) -> bool:
    """Remove the override of `key`; return False if there was none."""
    gone = connection.execute(delete(settings).where(settings.c.key == key)).rowcount
    if gone:
        audit(connection, actor=actor, action="settings.unset", subject=key, now=now)
    return bool(gone)


def open_from_environment(
    environment: Mapping[str, str] | None = None, *, migrate: bool = False
) -> tuple[Settings, Store]:
    """Open the store the environment names; return it with its settings; configure logging."""
    settings = load_settings(environment)
    configure(settings.log_level, settings.log_format)
    store = open_store(settings.store_url, migrate=migrate)
    try:
        with store.read() as connection:
            changed = overrides(connection)
        return load_settings(environment, changed), store
    except BaseException:
        store.close()
        raise
