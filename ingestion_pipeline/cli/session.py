"""What every command starts with: the environment, the store, the actor, shared options."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import click

from ingestion_pipeline.cli.output import CommandRefused

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection

    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store


# Names that libpq takes in a URL's query and that must not be shown.
_SECRET_PARAMETERS = ("password", "sslpassword")


def environment() -> Mapping[str, str]:
    """Return the environment variables of this command."""
    return dict(os.environ)  # noqa: TID251 - read once here, and handed over


@contextmanager
def variables_set(values: Mapping[str, str | None]) -> Generator[None]:
    """Set environment variables, which Dagster's runs read, and restore them; None removes one."""
    before = environment()
    try:
        _set(values)
        yield
    finally:
        _set({name: before.get(name) for name in values})


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None)  # noqa: TID251 - Dagster's runs read the environment
        if value is not None:
            os.environ[name] = value  # noqa: TID251 - as above


def actor() -> str:
    """Return the actor for the audit log: `cli:` and the login name."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user without a name
        return f"cli:uid-{os.getuid()}"


CAUSES = (  # a test compares them with store.changes.Cause
    "first_sync",
    "source_changed",
    "reader_changed",
    "model_changed",
    "profile_changed",
    "operator",
    "retention",
)


@contextmanager
def opened(*, migrate: bool = False) -> Generator[tuple[Settings, Store]]:
    """Yield the settings and the store of this environment; refuse a store that cannot be opened."""
    from ingestion_pipeline.settings import BadSetting, load_settings
    from ingestion_pipeline.store.stored_settings import open_from_environment

    url = load_settings(environment()).store_url
    try:
        with _explaining(url):
            settings, store = open_from_environment(environment(), migrate=migrate)
    except BadSetting as error:  # the environment alone is valid, so it is the table
        message = "the settings table holds a bad value; `ingest settings unset KEY` removes it"
        raise CommandRefused(f"{message}\n{error}", code="bad_setting") from error
    try:
        yield settings, store
    finally:
        store.close()


@contextmanager
def reading() -> Generator[tuple[Settings, Connection, datetime]]:
    """Yield the settings, a connection that only reads, and the database's time."""
    with opened() as (settings, store), store.read() as connection:
        yield settings, connection, store.clock.now(connection)


@contextmanager
def changing(*, dry_run: bool = False) -> Generator[tuple[Settings, Connection, datetime]]:
    """Yield the settings, a transaction and its time; a dry run is rolled back at its end."""
    with opened() as (settings, store), store.begin() as connection:
        yield settings, connection, store.clock.now(connection)
        if dry_run:
            connection.rollback()


@contextmanager
def opened_store() -> Generator[Store]:
    """Yield the store alone, even if the settings table holds a value that cannot be used."""
    from ingestion_pipeline.settings import load_settings
    from ingestion_pipeline.store import open_store

    url = load_settings(environment()).store_url
    with _explaining(url):
        store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _explaining(url: str) -> Generator[None]:
    """Refuse a database that cannot be opened by name, without its password."""
    from sqlalchemy.exc import SQLAlchemyError

    from ingestion_pipeline.settings import BadSetting

    try:
        yield
    except BadSetting:
        raise
    except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
        raise CommandRefused(cannot_open(url, error), code="database_unavailable") from error


def cannot_open(url: str, error: Exception) -> str:
    """Return which database cannot be opened, why, and the cure."""
    why = without_password(url, str(getattr(error, "orig", None) or error).strip())
    return f"the database {shown_database(url)} cannot be opened: {why}\n{_cure(url)}"


def _cure(url: str) -> str:
    if url.startswith("sqlite"):
        return "check the file and its folder, or set INGESTION_HOME or INGESTION_DATABASE_URL"
    if url.startswith("postgresql"):
        return "is the server running, and is INGESTION_DATABASE_URL right?"
    return "INGESTION_DATABASE_URL takes sqlite:///FILE and postgresql://USER@HOST/DATABASE"


def shown_database(url: str) -> str:
    """Return the URL as it may be printed; one that cannot be parsed is not printed."""
    parsed = _parsed(url)
    if parsed is None:
        return "that INGESTION_DATABASE_URL names"
    return parsed.difference_update_query(_SECRET_PARAMETERS).render_as_string(hide_password=True)


def _parsed(url: str) -> URL | None:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        return None


def without_password(url: str, text: str) -> str:
    """Return the text with the URL's passwords masked; all of a URL that cannot be parsed."""
    parsed = _parsed(url)
    secrets = [url] if parsed is None else [parsed.password, *map(parsed.query.get, _SECRET_PARAMETERS)]
    for secret in secrets:
        text = text.replace(str(secret), "***") if secret else text
    return text


def known_source(connection: Connection, source_id: str | None) -> str | None:
    """Return the id of the option `--source`; refuse one that no source has."""
    from ingestion_pipeline.sources.lookup import UnknownSource, sources_by_id

    if source_id is not None and not sources_by_id(connection, [source_id]):
        raise UnknownSource(source_id)
    return source_id


verbose_option = click.option("--verbose", is_flag=True, help="Also print the log of the runs.")


class JsonObject(click.ParamType[dict[str, Any]]):
    """An option type for JSON objects."""

    name = "JSON"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Return the parsed object; refuse anything else with its position."""
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        try:
            parsed: object = json.loads(str(value))
        except (ValueError, RecursionError) as error:
            self.fail(f"not JSON ({error}); quote it for the shell: '{{\"key\": 1}}'", param, ctx)
        if not isinstance(parsed, dict):
            self.fail(f"must be a JSON object, not {type(parsed).__name__}", param, ctx)
        return cast("dict[str, Any]", parsed)


class KindType(click.ParamType[str]):
    """An option type for kinds of sources, those of installed packages included."""

    name = "KIND"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the kind; refuse one that no system has."""
        from ingestion_pipeline.registry import kind_specs

        names = [kind.value for kind in kind_specs()]
        if value not in names:
            self.fail(f"{value!r} is not one of {', '.join(map(repr, names))}", param, ctx)
        return str(value)


class MomentType(click.ParamType[datetime]):
    """An option type for moments; without a zone they are UTC."""

    name = "ISO"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return the moment in UTC; refuse anything else."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2026-03-01T12:00:00Z", param, ctx)


config_option = click.option(
    "--config", type=JsonObject(), help="Configuration of the platform's reader, as a JSON object."
)
