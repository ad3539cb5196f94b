"""A browser that crashes or hangs is replaced, and none outlives its run."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import chromium, renderer
from ingestion_pipeline.pages.browser.chromium import has_sandbox
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.fakes import FakeWeb, RawAnswer
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, BrowserSession, a_renderer, browser_session
from ingestion_pipeline_tests.pages.page_fetches import failing

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def session() -> Iterator[BrowserSession]:
    with FakeWeb() as web, browser_session(web) as session:
        yield session


def running_processes(group: int) -> list[int]:
    """Return the processes of a process group except zombies."""
    process_ids: list[int] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state not in "ZX":
            process_ids.append(int(file.parent.name))
    return process_ids


def driver_processes() -> list[int]:
    """Return the drivers started by this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = {int(process_id): Path(f"/proc/{process_id}/cmdline").read_bytes() for process_id in children}
    return [process_id for process_id, line in lines.items() if b"playwright" in line]


def browser_process_id(session: BrowserSession) -> int:
    process_id = session.chromium.process_id
    assert process_id is not None
    return process_id


def signalling_page(session: BrowserSession, number: signal.Signals) -> RawAnswer:
    """Return a page that sends the browser a signal before it disconnects."""

    async def send(_: asyncio.StreamWriter) -> None:
        os.killpg(browser_process_id(session), number)

    return send


def victims(session: BrowserSession, victim: str) -> list[int]:
    """Return the process ids of the whole browser or of its driver."""
    if victim == "browser":
        return running_processes(browser_process_id(session))
    assert session.chromium.driver_id is not None
    return [session.chromium.driver_id]


def killing_page(session: BrowserSession, victim: str) -> RawAnswer:
    """Return a page that kills the browser or its driver."""

    async def kill(_: asyncio.StreamWriter) -> None:
        for process_id in victims(session, victim):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    return kill


@pytest.mark.parametrize("victim", ["browser", "driver"])
def test_a_browser_that_is_killed_is_replaced_and_its_page_retried(session: BrowserSession, victim: str) -> None:
    session.web.routes[f"/{victim}"] = [killing_page(session, victim), "<p>survived</p>"]

    assert "survived" in session.html(f"/{victim}")
    assert session.web.paths.count(f"/{victim}") == 2
    assert running_processes(browser_process_id(session)), "the new one"


def test_a_browser_that_hangs_is_replaced_and_its_page_retried(
    session: BrowserSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((chromium, "ANSWER"), (chromium, "CLOSE"), (renderer, "CLOSE")):
        monkeypatch.setattr(module, f"{name}_SECONDS", 1.0)
    session.web.routes["/first"] = "<p>first</p>"
    session.html("/first")
    old, started = browser_process_id(session), session.renderer.browsers_started
    session.web.routes["/stopper"] = [signalling_page(session, signal.SIGSTOP), "<p>survived</p>"]

    assert "survived" in session.html("/stopper", deadline_seconds=9)
    assert session.renderer.browsers_started == started + 1
    assert running_processes(old) == []


def test_a_page_that_kills_every_browser_fails_after_two_attempts(
    session: BrowserSession, caplog: pytest.LogCaptureFixture
) -> None:
    session.web.routes["/deadly"] = signalling_page(session, signal.SIGKILL)

    with failing(Transient, "browser_crashed", match="2 times"):
        session.render("/deadly")

    assert "sandbox" not in caplog.text, "it was said when the first browser started"
    assert session.web.paths.count("/deadly") == 2


def test_a_run_that_is_cancelled_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    async def cancelled(web: FakeWeb) -> int:
        requested = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def hold(_: asyncio.StreamWriter) -> None:
            loop.call_soon_threadsafe(requested.set)
            await asyncio.sleep(60)

        web.routes["/"] = hold
        async with a_renderer(Guard(frozenset({web.host_port}))) as renderer:
            rendering = asyncio.ensure_future(renderer.render(web.url(), PLAIN))
            await requested.wait()
            assert renderer._starting is not None
            process_id = renderer._starting.result().process_id
            assert process_id is not None
            assert running_processes(process_id)
            rendering.cancel()
            await asyncio.wait({rendering})
        return process_id

    before = driver_processes()
    with FakeWeb() as web:
        process_id = asyncio.run(cancelled(web))

    assert running_processes(process_id) == []
    assert driver_processes() == before
    warnings = caplog.text.count("without Chromium's sandbox")
    assert warnings == (0 if has_sandbox("auto") else 1)


@pytest.mark.parametrize(
    ("sandbox", "user", "expected"), [("auto", 1000, True), ("auto", 0, False), ("off", 1000, False)]
)
def test_the_sandbox_is_off_only_for_root_or_by_setting(
    sandbox: str, user: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)

    assert has_sandbox(sandbox) is expected
