"""Followers, chapters that appear, and deliverers that tell of them, against a web on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

from sqlalchemy import insert, select

from ingestion_pipeline.notices import registry
from ingestion_pipeline.notices.channels import AppriseChannel, Channels, WebhookChannel, WebhookLimits
from ingestion_pipeline.notices.delivery import Delivered, Deliverer
from ingestion_pipeline.notices.expansion import Expanded, expand
from ingestion_pipeline.pages.http.guard import Guard, Resolver
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.recipients import Follow, Mode, Recipient
from ingestion_pipeline.store import FixedClock, Store
from ingestion_pipeline.store.tables import chapter_sources, chapters, notices, outbox, series, sources, tasks
from ingestion_pipeline.tasks.worker import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import Asked, FakeResolver, FakeWeb
from ingestion_pipeline_tests.pollers import given_sources

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
HOOK = "http://hooks.test/{}"


def limits(settings: Settings, **changes: float) -> Settings:
    """The same settings with other `notices`."""
    changed = settings.notices.model_copy(update=changes)
    return settings.model_copy(update={"notices": changed})


@contextmanager
def channels(web: FakeWeb, *, resolve: Resolver | None = None, urls: Sequence[str] = ()) -> Iterator[Any]:
    """A factory of channels: hooks.test is the web, the guard is the real one."""
    names = resolve or FakeResolver({"hooks.test": [[web.endpoint]]})

    def build() -> Channels:
        return Channels(
            WebhookChannel("tests", WebhookLimits(deadline_seconds=5), Guard(resolve=names)), AppriseChannel(urls)
        )

    yield build


@dataclass(slots=True)
class Telling:
    """The store as sources and followers fill it; time stands where `clock` stands."""

    store: Store
    clock: FixedClock
    settings: Settings
    web: FakeWeb
    urls: Sequence[str] = ()
    resolve: Resolver | None = None

    def given_follower(
        self,
        name: str = "ann",
        *series_ids: str,
        address: str | None = None,
        mode: Mode | None = None,
        language: str | None = None,
    ) -> None:
        """A follower of the series `solo`, or of these, with a webhook of their own."""
        self.web.routes.setdefault(f"/{name}", 200)
        recipient = Recipient(
            id=name, address=address or HOOK.format(name), mode=mode or Mode.IMMEDIATE, language=language
        )
        with self.store.begin() as connection:
            now = self.clock.at
            registry.add(connection, recipient, actor="test", now=now, secret=SECRET)
            for one in series_ids or ("solo",):
                self._ensure_series(connection, one)
                registry.follow(connection, name, Follow(series=one), actor="test", now=now)

    def _ensure_series(self, connection: Any, series_id: str) -> None:
        query = select(series.c.id).where(series.c.id == series_id)
        if connection.execute(query).first() is None:
            values = {"id": series_id, "title": series_id.title(), "created_at": self.clock.at}
            connection.execute(insert(series).values(values))

    def publish(
        self, *numbers: int, series_id: str = "solo", languages: Sequence[str | None] = ("en",), kind: str = "chapter"
    ) -> None:
        """These chapters are new, as an ingestion leaves them: rows and outbox together."""
        source_id = f"series:{series_id}"
        with self.store.read() as connection:
            known = set(connection.execute(select(sources.c.id)).scalars())
        if source_id not in known:
            given_sources(self.store, a_definition(id=source_id, series=series_id))
        with self.store.begin() as connection:
            self._ensure_series(connection, series_id)
            for number in numbers:
                self._publish(connection, number, series_id, source_id, languages, kind)

    def _publish(
        self, connection: Any, number: int, series_id: str, source_id: str, languages: Sequence[str | None], kind: str
    ) -> None:
        now = self.clock.at
        row = {
            "series_id": series_id,
            "key": str(number),
            "number": number,
            "title": f"Part {number}",
            "first_detected_at": now,
        }
        made = connection.execute(insert(chapters).values(row).returning(chapters.c.id))
        chapter_id = made.scalar_one()
        link = {
            "chapter_id": chapter_id,
            "source_id": source_id,
            "releases": [
                {"language": language, "url": f"https://a.test/{number}/{language}", "published_at": None}
                for language in languages
            ],
            "fingerprint": "f",
            "detected_at": now,
        }
        connection.execute(insert(chapter_sources).values(link))
        self.announce(connection, chapter_id, series_id, kind=kind, suffix="")

    def announce(self, connection: Any, chapter_id: int, series_id: str, *, kind: str, suffix: str) -> None:
        payload = {"series_id": series_id, "chapter_id": chapter_id}
        values = {
            "subject_kind": kind,
            "subject_id": f"{chapter_id}{suffix}",
            "payload": payload,
            "created_at": self.clock.at,
        }
        connection.execute(insert(outbox).values(values))

    def expand(self) -> Expanded:
        with self.store.begin() as connection:
            return expand(connection, now=self.clock.at, grouping=timedelta(seconds=15))

    def deliver(self, **changes: float) -> Delivered:
        """One deliverer, which waits for nothing."""
        return asyncio.run(self._deliver(limits(self.settings, **changes)))

    async def _deliver(self, settings: Settings) -> Delivered:
        with channels(self.web, resolve=self.resolve, urls=self.urls) as build:
            async with build() as channel:
                return await Deliverer(
                    self.store,
                    settings,
                    Worker(self.store, lease_seconds=120),
                    channel,
                    random=Random(7),
                    patience=timedelta(0),
                ).run()

    def notices(self, **only: Any) -> list[Any]:
        with self.store.read() as connection:
            query = select(notices).order_by(notices.c.id)
            for name, value in only.items():
                query = query.where(notices.c[name] == value)
            return list(connection.execute(query))

    def states(self, recipient: str = "ann") -> list[str]:
        return [row.status for row in self.notices(recipient=recipient)]

    def task(self, recipient: str = "ann") -> Any:
        """The recipient's newest task."""
        with self.store.read() as connection:
            query = select(tasks).where(tasks.c.kind == "deliver", tasks.c.dedupe_key == recipient)
            return connection.execute(query.order_by(tasks.c.id.desc()).limit(1)).one_or_none()

    def asked(self, recipient: str = "ann") -> list[Asked]:
        """The messages that the recipient's endpoint saw."""
        return [one for one in self.web.requests if one.path == f"/{recipient}"]

    def told(self, recipient: str = "ann") -> list[list[str]]:
        """The numbers that each of the recipient's messages names."""
        return [numbers(one) for one in self.asked(recipient)]

    def under(self, **changes: float) -> Telling:
        return replace(self, settings=limits(self.settings, **changes))


def numbers(one: Asked) -> list[str]:
    """The chapters a message names, as `series/number` when it names several series."""
    content: Mapping[str, Any] = json.loads(one.body)
    several = len(content["series"]) > 1
    return [
        f"{each['id']}/{chapter['number']}" if several else chapter["number"]
        for each in content["series"]
        for chapter in each["chapters"]
    ]
