"""The deferred system of companies: a poll starts the analysis, other runs execute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from sqlalchemy import Connection, select

from ingestion_pipeline.companies.platforms import PLATFORMS
from ingestion_pipeline.companies.records import analysis_task, company_id_of, ensure_company
from ingestion_pipeline.companies.states import COMPANY
from ingestion_pipeline.pages.politeness.hosts import Pace
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.source import IGNORE_ROBOTS, Source
from ingestion_pipeline.store.tables import ACTIVE, companies, tasks
from ingestion_pipeline.tasks.errors import Resource
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import TaskStatus

BOARDS = "boards"  # config key: the config of the company's boards by platform
KEYS = (BOARDS, IGNORE_ROBOTS)


class BadCompanyConfig(ValueError):
    """A company's config that cannot work; the message names the key and the fix."""


class CompanySystem:
    """Companies as the polling engine sees them."""

    def pace(self, source: Source, settings: Settings) -> Pace:  # noqa: ARG002 - the protocol
        """Return the configured minimum delay; robots.txt may require more."""
        return Pace(delay_seconds=settings.hosts.delay_seconds)

    def check(self, source: Source) -> None:
        """Raise `BadCompanyConfig` if the config has an unknown key or a bad value."""
        check_config(source.config)

    def start(
        self,
        connection: Connection,
        sources: Sequence[Source],
        *,
        now: datetime,
        settings: Settings,  # noqa: ARG002 - the protocol
    ) -> Mapping[str, str | Resource]:
        """Ensure a record and an analysis task for each company, unless one is active."""
        return start_analyses(connection, sources, now=now)


def start_analyses(
    connection: Connection, sources: Sequence[Source], *, now: datetime, is_asked: bool = False
) -> dict[str, str]:
    """Enqueue an analysis of each company; return a message for each source.

    An analysis that a person requested runs however well the company is known.
    """
    messages: dict[str, str] = {}
    for source in sorted(sources, key=lambda source: source.id):  # one lock order for all callers
        company_id = ensure_company(
            connection,
            company_id=company_id_of(source),
            name=source.name,
            website=source.url,
            discovered_by=source.id,
            tracking_id=source.tracking_id,
            now=now,
        )
        _own(connection, company_id, source)
        payload = {"is_asked": True} if is_asked else {}
        task = analysis_task(company_id, source.url, now=now, source=source, payload=payload)
        made = insert_tasks(connection, [task], now=now)
        if not made and is_asked:
            _ask(connection, company_id)
        messages[source.id] = (
            f"analysis {made[0]} of {company_id} started" if made else f"an analysis of {company_id} is already active"
        )
    return messages


def _ask(connection: Connection, company_id: str) -> None:
    """Mark the pending analysis as requested by a person, so that it runs in any case."""
    waiting = (ACTIVE, tasks.c.kind == COMPANY, tasks.c.dedupe_key == company_id)
    is_pending = tasks.c.status == TaskStatus.PENDING.value
    query = select(tasks.c.id, tasks.c.payload).where(*waiting, is_pending).with_for_update()
    for id_, payload in connection.execute(query).all():
        updated: dict[str, Any] = {**(payload or {}), "is_asked": True}
        connection.execute(tasks.update().where(tasks.c.id == id_).values(payload=updated))


def _own(connection: Connection, company_id: str, source: Source) -> None:
    """Set the record's source unless it has one."""
    connection.execute(
        companies.update()
        .where(companies.c.id == company_id, companies.c.source_id.is_(None))
        .values(source_id=source.id)
    )


def check_config(config: Mapping[str, Any]) -> None:
    """Raise `BadCompanyConfig` with the first mistake."""
    unknown = next((key for key in config if key not in KEYS), None)
    if unknown is not None:
        raise BadCompanyConfig(f"{unknown!r} means nothing here; there are: {', '.join(KEYS)}")
    boards: object = config.get(BOARDS)
    if boards is None:
        return
    if not isinstance(boards, Mapping):
        raise BadCompanyConfig(f"{BOARDS} must be a mapping of platforms to their config")
    for name, value in cast("Mapping[str, object]", boards).items():
        if name not in PLATFORMS:
            names = ", ".join(sorted(PLATFORMS))
            raise BadCompanyConfig(f"{BOARDS}: {name!r} is no platform; there are: {names}")
        if not isinstance(value, Mapping):
            raise BadCompanyConfig(f"{BOARDS}.{name} must be a mapping, such as api_base: https://")


def board_config(source: Source, platform: str) -> dict[str, Any]:
    """Return the company's config for its boards on the platform."""
    boards: Mapping[str, Mapping[str, Any]] = source.config.get(BOARDS) or {}
    return dict(boards.get(platform) or {})
