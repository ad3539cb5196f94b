"""Who reads a stored page: what it is given, what it makes of it, and by what a reading is known.

The slice that reads pages knows no rung: whoever is a `Reader` may ask rules or models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Protocol

from ingestion_pipeline.catalogs.entities.entity_type import EntityType, entity_type
from ingestion_pipeline.catalogs.entities.ladder import NoRules, read_records
from ingestion_pipeline.catalogs.entities.record import Record, Rung
from ingestion_pipeline.reading.decode import decode
from ingestion_pipeline.reading.models import Billing, OverBudget
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.work.errors import Resource

# Raised by hand when rules read a page otherwise than before: every page is then read again.
READER_VERSION = "1"
READ_AT_ONCE = 2  # rules are work for the processor: more threads would only take turns


@dataclass(frozen=True, slots=True, kw_only=True)
class PageContent:
    """A page as the content store has it; `url` is where its redirects led."""

    url: str
    body: bytes
    content_type: str | None
    stored_text: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReading:
    """What a page states; `explored` are addresses on it that may state more.

    `rung` is how the records were come by, `model` who read them if a model did, `notes` are for
    people.
    """

    records: Sequence[Record]
    rung: Rung | None = None
    model: str | None = None
    explored: tuple[str, ...] = ()
    notes: Sequence[str] = ()


class Reader(Protocol):
    """Reads one page; whatever goes wrong leaves as a `WorkError`."""

    async def read(
        self, kind: EntityType, page: PageContent, billing: Billing
    ) -> PageReading | OverBudget:
        """Every record of the kind that the page states; none is no error."""
        ...


class RulesReader:
    """The rungs that need no model; what only a model can read waits until there is one."""

    def __init__(self, settings: Settings, now: Callable[[], datetime]) -> None:
        self._settings = settings
        self._now = now
        self._turns = asyncio.Semaphore(READ_AT_ONCE)

    async def read(
        self, kind: EntityType, page: PageContent, billing: Billing
    ) -> PageReading | OverBudget:
        """The records that rules find."""
        del billing  # rules cost nothing
        async with self._turns:
            return await asyncio.to_thread(self._read, kind, page)

    def _read(self, kind: EntityType, page: PageContent) -> PageReading:
        try:
            reading = read_records(kind, decode(page.body, page.content_type))
        except NoRules as error:
            pause = timedelta(seconds=self._settings.models.unconfigured_wait_seconds)
            said = f"no model configured, and {error}; set OPENAI_API_KEY or OPENAI_BASE_URL"
            raise Resource(said, until=self._now() + pause, code="no_model") from error
        rung = reading.records[0].rung if reading.records else None
        return PageReading(records=reading.records, rung=rung, notes=reading.notes)


def kind_of(name: str, settings: Settings) -> EntityType:
    """The entity type that an extraction is for.

    Raises:
        UnknownEntityType: there is none of that name (any more).
    """
    del settings
    return entity_type(name)


def read_as(kind: EntityType, settings: Settings) -> str:
    """By what a reading is known: the schema, the reader, and the models, if any may be asked.

    A page that was read under the same name, and has not changed, need not be read again.
    """
    parts = [kind.model_dump_json(), READER_VERSION]
    if settings.has_model:
        parts += [settings.model_cheap, settings.model_strong]
    return sha256("\0".join(parts).encode()).hexdigest()
