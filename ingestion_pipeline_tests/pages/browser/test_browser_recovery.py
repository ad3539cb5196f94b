"""A browser may end at any time: it is replaced, and none outlives its run."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import chromium, visit
from ingestion_pipeline.pages.browser.chromium import has_sandbox
from ingestion_pipeline.tasks.errors import Transient
from ingestion_pipeline_tests.fakes import FakeWeb, RawAnswer
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, Desk, a_desk, a_renderer

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with FakeWeb() as web, a_desk(web) as desk:
        yield desk


def running(group: int) -> list[int]:
    """The processes of a process group, but for those that only wait to be reaped."""
    process_ids: list[int] = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = file.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state not in "ZX":
            process_ids.append(int(file.parent.name))
    return process_ids


def drivers() -> list[int]:
    """The drivers that this process has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = {int(process_id): Path(f"/proc/{process_id}/cmdline").read_bytes() for process_id in children}
    return [process_id for process_id, line in lines.items() if b"playwright" in line]


def browsers_process(desk: Desk) -> int:
    process_id = desk.chromium.process_id
    assert process_id is not None
    return process_id


def signals(desk: Desk, number: signal.Signals) -> RawAnswer:
    """A page that sends the browser a signal before it hangs up."""

    async def send(_: asyncio.StreamWriter) -> None:
        os.killpg(browsers_process(desk), number)

    return send


def victims(desk: Desk, what: str) -> list[int]:
    """The whole browser, or who steers it."""
    if what == "browser":
        return running(browsers_process(desk))
    assert desk.chromium.driver_id is not None
    return [desk.chromium.driver_id]


def kills(desk: Desk, what: str) -> RawAnswer:
    """A page that takes something down with it."""

    async def kill(_: asyncio.StreamWriter) -> None:
        for process_id in victims(desk, what):
            with suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)

    return kill


@pytest.mark.parametrize("what", ["browser", "driver"])
def test_a_browser_that_is_killed_is_replaced_and_its_page_retried(desk: Desk, what: str) -> None:
    desk.web.routes[f"/{what}"] = [kills(desk, what), "<p>survived</p>"]

    assert "survived" in desk.html(f"/{what}")
    assert desk.web.paths.count(f"/{what}") == 2
    assert running(browsers_process(desk)), "the new one"


def test_a_browser_that_hangs_is_replaced_and_its_page_retried(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((chromium, "ANSWER"), (chromium, "CLOSE"), (visit, "CLOSE")):
        monkeypatch.setattr(module, f"{name}_SECONDS", 1.0)
    desk.web.routes["/first"] = "<p>first</p>"
    desk.html("/first")
    old, started = browsers_process(desk), desk.renderer.browsers_started
    desk.web.routes["/stopper"] = [signals(desk, signal.SIGSTOP), "<p>survived</p>"]

    assert "survived" in desk.html("/stopper", deadline_seconds=9)
    assert desk.renderer.browsers_started == started + 1
    assert running(old) == []


def test_a_page_that_kills_every_browser_is_given_up(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    desk.web.routes["/deadly"] = signals(desk, signal.SIGKILL)

    with pytest.raises(Transient, match="2 times") as caught:
        desk.render("/deadly")

    assert "sandbox" not in caplog.text, "it was said when the first browser started"
    assert caught.value.code == "browser_crashed"
    assert desk.web.paths.count("/deadly") == 2


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
            assert running(process_id)
            rendering.cancel()
            await asyncio.wait({rendering})
        return process_id

    before = drivers()
    with FakeWeb() as web:
        process_id = asyncio.run(cancelled(web))

    assert running(process_id) == []
    assert drivers() == before
    warnings = caplog.text.count("without Chromium's sandbox")
    assert warnings == (0 if has_sandbox("auto") else 1)


@pytest.mark.parametrize(
    ("sandbox", "user", "expected"), [("auto", 1000, True), ("auto", 0, False), ("off", 1000, False)]
)
def test_only_root_and_who_says_so_has_no_sandbox(
    sandbox: str, user: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)

    assert has_sandbox(sandbox) is expected
