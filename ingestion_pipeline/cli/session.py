"""What every command begins with: its environment, the open store, and who is asking."""

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
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.store import Store


# Names that libpq takes in a URL's query and that must not be shown.
_SECRET_PARAMETERS = ("password", "sslpassword")


def environment() -> Mapping[str, str]:
    """The variables this command was started with."""
    return dict(os.environ)  # noqa: TID251 - read once here, and handed over


def actor() -> str:
    """Who acts, for the audit log: `cli:` and the login name."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user without a name
        return f"cli:uid-{os.getuid()}"


@contextmanager
def opened(*, migrate: bool = False) -> Generator[tuple[Settings, Store]]:
    """The settings and the store of this environment; a store that cannot be opened is refused."""
    from ingestion_pipeline.settings import BadSetting, load_settings
    from ingestion_pipeline.store.configuration import open_from_environment

    url = load_settings(environment()).store_url
    try:
        with _explaining(url):
            settings, store = open_from_environment(environment(), migrate=migrate)
    except BadSetting as error:  # the environment alone was good, so it is the table
        said = "the settings table holds a bad value; `ingest settings unset KEY` takes it out"
        raise CommandRefused(f"{said}\n{error}") from error
    try:
        yield settings, store
    finally:
        store.close()


@contextmanager
def opened_store() -> Generator[Store]:
    """The store alone: works even if the settings table holds a value that cannot be used."""
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
    """A database that cannot be opened is refused by name, without its password."""
    from sqlalchemy.exc import SQLAlchemyError

    from ingestion_pipeline.settings import BadSetting

    try:
        yield
    except BadSetting:
        raise
    except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
        raise CommandRefused(cannot_open(url, error)) from error


def cannot_open(url: str, error: Exception) -> str:
    """Which database cannot be opened, why, and the cure."""
    why = without_password(url, str(getattr(error, "orig", None) or error).strip())
    return f"the database {shown_database(url)} cannot be opened: {why}\n{_cure(url)}"


def _cure(url: str) -> str:
    if url.startswith("sqlite"):
        return "check the file and its folder, or set INGESTION_HOME or INGESTION_DATABASE_URL"
    if url.startswith("postgresql"):
        return "is the server running, and is INGESTION_DATABASE_URL right?"
    return "INGESTION_DATABASE_URL takes sqlite:///FILE and postgresql://USER@HOST/DATABASE"


def shown_database(url: str) -> str:
    """The URL as it may be printed; one that cannot be parsed is not printed at all."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return "that INGESTION_DATABASE_URL names"
    return parsed.difference_update_query(_SECRET_PARAMETERS).render_as_string(hide_password=True)


def without_password(url: str, text: str) -> str:
    """The text, with the URL's passwords struck out of it."""
    for secret in _passwords(url):
        text = text.replace(secret, "***")
    return text


def _passwords(url: str) -> list[str]:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        return [url]
    given = [parsed.password, *(parsed.query.get(name) for name in _SECRET_PARAMETERS)]
    return [str(one) for one in given if one]


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: stable keys, UTC times, decimals as text."
)


class JsonObject(click.ParamType[dict[str, Any]]):
    """An option whose value is a JSON object."""

    name = "JSON"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, Any]:
        """The object; anything else is refused with where it stops being one."""
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
        try:
            found: object = json.loads(str(value))
        except (ValueError, RecursionError) as error:
            self.fail(f"not JSON ({error}); quote it for the shell: '{{\"key\": 1}}'", param, ctx)
        if not isinstance(found, dict):
            self.fail(f"must be a JSON object, not {type(found).__name__}", param, ctx)
        return cast("dict[str, Any]", found)


class MomentType(click.ParamType[datetime]):
    """An option whose value is a moment; without a zone it is UTC."""

    name = "ISO"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """The moment in UTC; anything else is refused."""
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(str(value))
            return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no moment such as 2026-03-01T12:00:00Z", param, ctx)


config_option = click.option(
    "--config", type=JsonObject(), help="What the platform's reader is told, as a JSON object."
)
