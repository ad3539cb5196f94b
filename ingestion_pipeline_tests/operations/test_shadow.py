"""A shadow reads another installation's snapshots, sends nothing, and shows what would differ."""

import asyncio
import base64
import json
import os
import shutil
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import DBAPIError

from ingestion_pipeline.bootstrap import open_channels, open_fetcher, open_run_context
from ingestion_pipeline.cli import main
from ingestion_pipeline.definitions import build_definitions
from ingestion_pipeline.notices.message import Message
from ingestion_pipeline.notices.queries import Addressee
from ingestion_pipeline.operations.shadow import ShadowReport, difference, shadowing
from ingestion_pipeline.orchestration.runs import QUIET
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.reading.llm.client import ModelClient
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.settings.loading import BadSetting
from ingestion_pipeline.sources import Definition, Kind, Tier
from ingestion_pipeline.sources.registry import register
from ingestion_pipeline.store.database import open_read_only
from ingestion_pipeline.store.tables import chapter_sources, chapters, job_listings, outbox, recipients, sources
from ingestion_pipeline.tasks.errors import Permanent, Resource
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.fakes import FakeWeb, Reply
from ingestion_pipeline_tests.reading.llm.model_questions import a_question

JOBS = {"jobs": [{"id": n, "title": f"Engineer {n}", "url": f"https://a.test/{n}"} for n in ("1", "2")]}
FEED = """<rss version="2.0"><channel><title>Solo</title>
<item><title>Chapter 1</title><link>https://a.test/c1</link></item>
<item><title>Chapter 2</title><link>https://a.test/c2</link></item></channel></rss>"""
SECRET = "whsec_" + base64.b64encode(bytes(24)).decode()
BOARD, SOLO = "job_board:acme", "series:solo"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    routes = {
        "/jobs": Reply(json.dumps(JOBS).encode()),
        "/old.xml": Reply(status=301, headers={"Location": "/feed.xml"}),
        "/feed.xml": Reply(FEED.encode()),
        "/robots.txt": 404,
    }
    with FakeWeb(routes) as running:
        monkeypatch.setenv("INGESTION_ALLOW_HOSTS", running.host_port)
        monkeypatch.setenv("INGESTION_HOSTS__DELAY_SECONDS", "0")
        yield running


WEBHOOK = Addressee(id="ann", address="https://hooks.example.com/x", secret=SECRET, failures=0)


def a_feed(web: FakeWeb, *, url: str) -> Definition:
    return Definition(id=SOLO, kind=Kind.SERIES, url=url, platform="rss", series="solo", tier=Tier.HOT)


class Homes:
    """A production that has polled a board and a feed, and a shadow of it with an empty store."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.production, self.shadow = folder / "production", folder / "shadow"
        for home in (self.production, self.shadow):
            home.mkdir(mode=0o700)
            shutil.copy(template, home / "ingestion.db")

    def environment(self, home: Path) -> dict[str, str]:
        own = {"INGESTION_HOME": str(home), "INGESTION_SOURCES": str(home / "sources")}
        of_shadow = {"INGESTION_SHADOW": "1", "INGESTION_SHADOW_HOME": str(self.production)}
        return {**os.environ, **own, **(of_shadow if home == self.shadow else {})}

    def poll(self, home: Path) -> None:
        shadow_of = self.production if home == self.shadow else None
        defs = build_definitions(home=home, sources=home / "sources", shadow_of=shadow_of)
        assert defs.resolve_job_def("poll_hot").execute_in_process(run_config=QUIET).success

    def declare(self, web: FakeWeb) -> None:
        config = {"items": "jobs", "fields": {"external_id": "id", "title": "title", "url": "url"}, "company": "Acme"}
        hot: dict[str, Any] = {"tier": Tier.HOT}
        solo = a_feed(web, url=web.url("/old.xml"))
        board = Definition(id=BOARD, kind=Kind.JOB_BOARD, url=web.url("/jobs"), platform="json", config=config, **hot)
        with open_run_context(self.environment(self.production)) as ctx, ctx.store.begin() as connection:
            register(connection, [board, solo], now=ctx.store.clock.now(connection))

    def report(self) -> ShadowReport:
        with open_run_context(self.environment(self.shadow)) as ctx:
            return difference(ctx.store, ctx.settings)


@pytest.fixture
def homes(tmp_path: Path, sqlite_template: Path, web: FakeWeb) -> Homes:
    homes = Homes(tmp_path, sqlite_template)
    homes.declare(web)
    homes.poll(homes.production)
    return homes


_CONNECTIONS: list[str] = []


def _note_connection(event: str, args: tuple[Any, ...]) -> None:
    if event in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}:
        _CONNECTIONS.append(f"{event} {args[1:] if event == 'socket.connect' else args[:2]}")


@pytest.fixture(scope="module", autouse=True)
def audited() -> None:
    """Have the interpreter itself report each connection and each lookup of a name: whatever library opens it."""
    sys.addaudithook(_note_connection)


@pytest.mark.slow
def test_a_shadow_reads_the_snapshots_and_no_request_leaves_the_process(homes: Homes, web: FakeWeb) -> None:
    before = len(web.requests)
    assert _CONNECTIONS != [], "the installation's own polls are seen"
    _CONNECTIONS.clear()

    homes.poll(homes.shadow)
    report = homes.report()

    assert _CONNECTIONS == []
    assert len(web.requests) == before > 0
    assert report.unread == {}
    assert {name: table.same for name, table in report.tables.items()} == {"chapter_sources": 2, "job_listings": 2}
    assert report.is_equal


@pytest.mark.slow
def test_the_report_shows_what_would_be_added_changed_and_removed(homes: Homes) -> None:
    homes.poll(homes.shadow)
    with open_run_context(homes.environment(homes.production)) as ctx, ctx.store.begin() as connection:
        connection.execute(update(job_listings).where(job_listings.c.title == "Engineer 1").values(title="Engineer I"))
        connection.execute(update(chapters).where(chapters.c.number == 2).values(number=Decimal("2.5")))
        gone = select(chapters.c.id).where(chapters.c.number == 1)
        connection.execute(delete(chapter_sources).where(chapter_sources.c.chapter_id.in_(gone)))

    report = homes.report()

    listings, releases = report.tables["job_listings"], report.tables["chapter_sources"]
    assert (listings.same, listings.added, listings.changed, listings.removed) == (1, 0, 1, 0)
    assert listings.examples[0]["values"] == {"title": ["Engineer I", "Engineer 1"]}
    assert (releases.same, releases.added, releases.changed, releases.removed) == (0, 1, 1, 0)
    [changed] = [example for example in releases.examples if example["change"] == "changed"]
    assert changed["values"] == {"chapters.number": ["2.5", "2"]}
    assert not report.is_equal


@pytest.mark.slow
def test_the_command_prints_the_difference_and_the_cost(homes: Homes, monkeypatch: pytest.MonkeyPatch) -> None:
    homes.poll(homes.shadow)
    for name, value in homes.environment(homes.shadow).items():
        monkeypatch.setenv(name, value)

    printed = CliRunner().invoke(main, ["shadow", "--json"])
    monkeypatch.setenv("INGESTION_SHADOW", "0")
    refused = CliRunner().invoke(main, ["shadow"])

    report = json.loads(printed.stdout)
    assert (printed.exit_code, report["is_equal"], report["model_calls"]) == (0, True, 0)
    assert report["tables"]["job_listings"]["same"] == 2
    assert (refused.exit_code, "no_shadow" in refused.output) == (2, True)


@pytest.mark.slow
def test_what_has_no_snapshot_is_not_read_and_nothing_is_taken_for_gone(homes: Homes, web: FakeWeb) -> None:
    with open_run_context(homes.environment(homes.production)) as ctx, ctx.store.begin() as connection:
        connection.execute(update(sources).where(sources.c.id == BOARD).values(url=web.url("/other")))

    homes.poll(homes.shadow)
    report = homes.report()

    assert list(report.unread) == [BOARD]
    assert "no snapshot" in report.unread[BOARD]
    assert list(report.tables) == ["chapter_sources"]


def test_the_guard_of_a_shadow_refuses_every_address_and_no_service_is_notified(homes: Homes) -> None:
    with open_run_context(homes.environment(homes.shadow)) as ctx:
        settings = ctx.settings.model_copy(update={"allow_hosts": "localhost:80"})

        message = Message(id="m", title="t", text="t", body=b"{}")

        async def request_all() -> None:
            async with open_channels(settings) as channels:
                with pytest.raises(Permanent, match="a shadow"):
                    await channels.send(WEBHOOK, message, now=NOON)
            async with open_fetcher(settings) as fetcher:
                with pytest.raises(Permanent, match="has no snapshot"):
                    await fetcher.fetch(Request(url="https://a.test/never-fetched"), now=NOON)

        asyncio.run(request_all())
        assert settings.notify_services == ()


def test_a_shadow_counts_what_models_would_cost_and_asks_none(homes: Homes) -> None:
    _CONNECTIONS.clear()
    with open_run_context(homes.environment(homes.shadow)) as ctx:

        async def ask_twice() -> None:
            async with ModelClient(ctx.store, ctx.settings) as client:
                for _ in range(2):
                    with pytest.raises(Resource) as postponed:
                        await client.ask(a_question(), Billing(call_site="test"))
                    assert postponed.value.code == "shadow"

        asyncio.run(ask_twice())
        report = difference(ctx.store, ctx.settings)

    assert _CONNECTIONS == []
    assert report.model_calls == 1
    assert report.model_cost_usd > 0


@pytest.mark.slow
def test_a_source_of_the_shadows_own_files_is_kept_and_the_others_are_copied_once(homes: Homes, web: FakeWeb) -> None:
    own = a_feed(web, url=web.url("/feed.xml"))
    before = {**homes.environment(homes.shadow), "INGESTION_SHADOW": "0"}
    with open_run_context(before) as ctx, ctx.store.begin() as connection:
        register(connection, [own], now=ctx.store.clock.now(connection))

    seen: list[dict[str, str]] = []
    for _ in range(2):
        with open_run_context(homes.environment(homes.shadow)) as ctx, ctx.store.begin() as connection:
            seen.append({row.id: row.url for row in connection.execute(select(sources.c.id, sources.c.url))})
            connection.execute(update(sources).where(sources.c.id == BOARD).values(url="https://a.test/"))

    assert seen == [{BOARD: web.url("/jobs"), SOLO: own.url}, {BOARD: "https://a.test/", SOLO: own.url}]


@pytest.mark.slow
def test_recipients_of_the_files_are_not_notified_by_a_shadow(homes: Homes) -> None:
    folder = homes.shadow / "sources"
    folder.mkdir()
    (folder / "recipients.yaml").write_text("recipients: [{id: me, address: 'mailto:me@example.com', follows: [solo]}]")

    homes.poll(homes.shadow)

    with open_run_context(homes.environment(homes.shadow)) as ctx, ctx.store.read() as connection:
        assert connection.execute(select(sources.c.id)).scalars().all() == [BOARD, SOLO]
        assert connection.execute(select(recipients.c.id)).all() == []
        assert connection.execute(select(outbox.c.id).where(outbox.c.handled_at.is_not(None))).all() == []


@pytest.mark.both_databases
def test_the_other_installation_cannot_be_written(store: Any, settings: Any) -> None:
    other = open_read_only(settings.store_url)
    try:
        with pytest.raises(DBAPIError), other.begin() as connection:
            connection.execute(insert(recipients).values(id="x", address_url="notify:", kinds=[], mode="muted"))
    finally:
        other.close()


def test_a_shadow_of_itself_or_of_nothing_is_refused(homes: Homes) -> None:
    alone = {"INGESTION_HOME": str(homes.shadow), "INGESTION_SHADOW": "1"}

    with pytest.raises(BadSetting, match="INGESTION_SHADOW_HOME"):
        shadowing(load_settings(alone))
    with pytest.raises(BadSetting, match="of its own"):
        shadowing(load_settings(alone | {"INGESTION_SHADOW_HOME": str(homes.shadow)}))
