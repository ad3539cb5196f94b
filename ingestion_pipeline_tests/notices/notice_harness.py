"""Followers, new chapters and deliveries against a web on loopback; deliverers as processes that can be killed."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import insert, select

from ingestion_pipeline.notices import subscriptions
from ingestion_pipeline.notices.channels import AppriseChannel, Channels, WebhookChannel, WebhookLimits
from ingestion_pipeline.notices.delivery import Delivered, run_deliveries
from ingestion_pipeline.notices.expansion import Expanded, expand
from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.queries import Addressee
from ingestion_pipeline.pages.http.guard import Guard, Resolver
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.sources.source import Follow, Mode, Recipient
from ingestion_pipeline.store import FixedClock, Store, open_store
from ingestion_pipeline.store.tables import chapter_sources, chapters, notices, outbox, series, sources, tasks
from ingestion_pipeline.tasks.claims import Worker
from ingestion_pipeline_tests.builders import a_definition
from ingestion_pipeline_tests.fakes import FakeResolver, FakeWeb, RecordedRequest
from ingestion_pipeline_tests.polling_runs import a_run_context, add_sources, loopback_resolver, rows
from ingestion_pipeline_tests.processes import stop_here

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
HOOK = "http://hooks.test/{}"


def change_limits(settings: Settings, **changes: float) -> Settings:
    """Return the settings with changes of `notices`."""
    changed = settings.notices.model_copy(update=changes)
    return settings.model_copy(update={"notices": changed})


@contextmanager
def channel_factory(web: FakeWeb, *, resolve: Resolver | None = None, urls: Sequence[str] = ()) -> Iterator[Any]:
    """Yield a factory of channels: hooks.test is the fake web, the guard is the real one."""
    names = resolve or FakeResolver({"hooks.test": [[web.endpoint]]})

    def build() -> Channels:
        return Channels(
            WebhookChannel("tests", WebhookLimits(deadline_seconds=5), Guard(resolve=names)), AppriseChannel(urls)
        )

    yield build


@dataclass(slots=True)
class NoticeHarness:
    """A store with sources, followers and deliveries, and a fixed clock."""

    store: Store
    clock: FixedClock
    settings: Settings
    web: FakeWeb
    urls: Sequence[str] = ()
    resolve: Resolver | None = None

    def add_follower(
        self,
        name: str = "ann",
        *series_ids: str,
        address: str | None = None,
        mode: Mode | None = None,
        language: str | None = None,
    ) -> None:
        """Add a follower of the series `solo`, or of these, with a webhook of their own."""
        self.web.routes.setdefault(f"/{name}", 200)
        recipient = Recipient(
            id=name, address=address or HOOK.format(name), mode=mode or Mode.IMMEDIATE, language=language
        )
        with self.store.begin() as connection:
            now = self.clock.at
            subscriptions.add(connection, recipient, actor="test", now=now, secret=SECRET)
            for series_id in series_ids or ("solo",):
                self._ensure_series(connection, series_id)
                subscriptions.follow(connection, name, Follow(series=series_id), actor="test", now=now)

    def _ensure_series(self, connection: Any, series_id: str) -> None:
        query = select(series.c.id).where(series.c.id == series_id)
        if connection.execute(query).first() is None:
            values = {"id": series_id, "title": series_id.title(), "created_at": self.clock.at}
            connection.execute(insert(series).values(values))

    def publish(
        self, *numbers: int, series_id: str = "solo", languages: Sequence[str | None] = ("en",), kind: str = "chapter"
    ) -> None:
        """Write new chapters as an ingestion does: rows and outbox together."""
        source_id = f"series:{series_id}"
        existing = {row.id for row in rows(self.store, sources)}
        if source_id not in existing:
            add_sources(self.store, a_definition(id=source_id, series=series_id))
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
        inserted = connection.execute(insert(chapters).values(row).returning(chapters.c.id))
        chapter_id = inserted.scalar_one()
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

    def apply(self, change: Callable[..., Any], *arguments: Any) -> Any:
        """Make an operator's change in a transaction of its own."""
        with self.store.begin() as connection:
            return change(connection, *arguments, actor="test", now=self.clock.at)

    def expand(self) -> Expanded:
        with self.store.begin() as connection:
            return expand(connection, now=self.clock.at, grouping=timedelta(seconds=15))

    def deliver(self, **changes: float) -> Delivered:
        """Run one deliverer that does not wait for later messages."""
        return asyncio.run(self._deliver(change_limits(self.settings, **changes)))

    def deliver_after(self, **time: float) -> Delivered:
        """Advance the clock, and run one deliverer."""
        self.clock.advance(**time)
        return self.deliver()

    async def _deliver(self, settings: Settings) -> Delivered:
        with channel_factory(self.web, resolve=self.resolve, urls=self.urls) as build:
            async with build() as channel:
                ctx = a_run_context(self.store, settings)
                worker = Worker(self.store, lease_seconds=120)
                return await run_deliveries(ctx, worker, channel, longest_wait=timedelta(0))

    def notices(self, **only: Any) -> list[Any]:
        with self.store.read() as connection:
            query = select(notices).order_by(notices.c.id)
            for name, value in only.items():
                query = query.where(notices.c[name] == value)
            return list(connection.execute(query))

    def states(self, recipient: str = "ann") -> list[str]:
        return [row.status for row in self.notices(recipient=recipient)]

    def task(self, recipient: str = "ann") -> Any:
        """Return the recipient's newest task."""
        with self.store.read() as connection:
            query = select(tasks).where(tasks.c.kind == "deliver", tasks.c.dedupe_key == recipient)
            return connection.execute(query.order_by(tasks.c.id.desc()).limit(1)).one_or_none()

    def requests_to(self, recipient: str = "ann") -> list[RecordedRequest]:
        """Return the requests that the recipient's endpoint received."""
        return [request for request in self.web.requests if request.path == f"/{recipient}"]

    def delivered_chapters(self, recipient: str = "ann") -> list[list[str]]:
        """Return the chapter numbers of each of the recipient's messages."""
        return [chapters_in_message(request) for request in self.requests_to(recipient)]

    def with_limits(self, **changes: float) -> "NoticeHarness":
        return replace(self, settings=change_limits(self.settings, **changes))


def chapters_in_message(request: RecordedRequest) -> list[str]:
    """Return the chapters of a message, as `series/number` when it has several series."""
    content: Mapping[str, Any] = json.loads(request.body)
    several = len(content["series"]) > 1
    return [
        f"{series_entry['id']}/{chapter['number']}" if several else chapter["number"]
        for series_entry in content["series"]
        for chapter in series_entry["chapters"]
    ]


@dataclass(frozen=True, kw_only=True)
class DelivererJob:
    """Arguments of a deliverer process: database, port of the web, lease."""

    url: str
    port: int
    lease_seconds: float
    stops_after_the_answer: bool = False


class StoppingChannel:
    """A channel that stops its process after the receiver's answer, before the deliverer records it."""

    def __init__(self, inner: WebhookChannel) -> None:
        self._inner = inner

    async def send(self, to: Addressee, message: Message, **more: Any) -> str:
        receipt = await self._inner.send(to, message, **more)
        stop_here()
        return receipt


def run_deliverer(job: DelivererJob) -> dict[str, Any]:
    """Run one deliverer by the real clock and return its counts."""
    return asyncio.run(_run_deliverer(job))


async def _run_deliverer(job: DelivererJob) -> dict[str, Any]:
    store = open_store(job.url)
    settings = load_settings({"INGESTION_DATABASE_URL": job.url, "INGESTION_NOTICES__GROUPING_SECONDS": "0"})
    hooks = WebhookChannel("tests", WebhookLimits(), Guard(resolve=loopback_resolver(job.port)))
    channel = StoppingChannel(hooks) if job.stops_after_the_answer else hooks
    worker = Worker(store, lease_seconds=job.lease_seconds)
    ctx = a_run_context(store, settings)
    try:
        return asdict(await run_deliveries(ctx, worker, channel, longest_wait=timedelta(seconds=5)))
    finally:
        await hooks.aclose()
        store.close()
