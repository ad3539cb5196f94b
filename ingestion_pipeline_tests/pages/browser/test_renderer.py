"""Rendering of sites that need a browser, misbehave, or crash it."""

import asyncio
import gzip
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import BrowserRenderer
from ingestion_pipeline.pages.visits.page import Click, RenderingOptions, RenderWait
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, WebAnswer, a_certificate, endless, redirect
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, BrowserSession, a_page, a_renderer, browser_session
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW, failing

pytestmark = pytest.mark.browser

HTML = {"Content-Type": "text/html; charset=utf-8"}
ROUTES: dict[str, WebAnswer | list[WebAnswer]] = {
    **{f"/{name}": a_page(name) for name in ("shell", "visitor", "steps", "rude")},
    "/api": Reply('["Zoölogy", "日本語"]'.encode()),
    "/tall": "<body style='margin:0'><div style='height:90000px;background:teal'>tall</div>",
    "/moved": redirect("/forbidden"),
    "/forbidden": "<p>should never be asked for</p>",
    "/restless": "<script>location.replace('/restless2')</script>",
    "/restless2": "<script>location.replace('/restless')</script>",
    "/refresh": "<meta http-equiv=refresh content='0; url=/refreshed'>",
    "/refreshed": "<p>refreshed</p>",
    "/file": Reply(b"a;b", headers=HTML | {"Content-Disposition": "attachment"}),
    "/limited": Reply(b"slow down", 429, HTML | {"Retry-After": "90"}),
    "/hang": "<p>x</p><script>while (true) {}</script>",
    "/endless": endless,
    "/bomb": Reply(gzip.compress(bytes(20_000_000)), headers=HTML | {"Content-Encoding": "gzip"}),
}


@pytest.fixture(scope="module")
def session() -> Iterator[BrowserSession]:
    with FakeWeb(ROUTES) as web, browser_session(web) as session:
        yield session


@pytest.fixture(autouse=True)
def clear_requests(session: BrowserSession) -> None:
    session.web.requests.clear()


def test_a_page_filled_by_javascript_is_rendered(session: BrowserSession) -> None:
    rendered = session.render("/shell")

    page = rendered.page
    assert "<p>Zoölogy</p><p>日本語</p>" in page.body.decode()
    assert page.body.startswith(b"<!DOCTYPE html><html>")
    assert (page.status_code, page.content_type) == (200, "text/html; charset=utf-8")
    assert (page.url, page.final_url) == (session.web.url("/shell"), session.web.url("/shell"))
    assert (rendered.screenshot, rendered.discovered) == (None, ())
    assert session.web.paths == ["/shell", "/api"], "no picture, no icon"
    for request in session.web.requests:
        assert request.headers["user-agent"] == AGENT
        assert not any(name.startswith(("proxy-", "sec-ch-")) for name in request.headers)


def test_a_site_with_an_invalid_certificate_is_not_rendered(tmp_path: Path) -> None:
    _, tls = a_certificate(tmp_path, "a.test")
    with FakeWeb({"/": "<p>unsafe</p>"}, tls=tls) as web, browser_session(web) as session:
        with pytest.raises((Permanent, Transient), match="CERT"):
            session.render(f"https://{web.host_port}/")

        assert web.requests == []


def test_pages_share_a_browser_and_nothing_else(session: BrowserSession) -> None:
    before = session.renderer.pages_rendered

    bodies = [session.html("/visitor") for _ in range(2)]

    assert all('<p id="seen">cookie= stored=none</p>' in body for body in bodies)
    assert session.renderer.browsers_started == 1
    assert session.renderer.pages_rendered == before + 2


def test_the_setup_runs_in_order_and_only_the_content_is_returned(session: BrowserSession) -> None:
    setup = (Click(selector="#two"), RenderWait(seconds=0.4), Click(selector="#one"))
    rendering = PLAIN.model_copy(update={"setup": setup, "content_selector": "#log"})

    assert session.html("/steps", rendering) == '<main id="log"><i>two</i><i>one</i></main>'


@pytest.mark.parametrize(
    ("rendering", "message"),
    [
        (PLAIN.model_copy(update={"setup": (Click(selector="#none"),)}), "'#none'; correct setup[0].click"),
        (PLAIN.model_copy(update={"content_selector": "#none"}), "'#none'; correct content_selector"),
        (PLAIN.model_copy(update={"content_selector": "#empty"}), "is empty; correct content_selector"),
        (PLAIN.model_copy(update={"content_selector": "p["}), "'p[' is no CSS selector"),
    ],
    ids=["click", "no content", "empty content", "no selector"],
)
def test_a_selector_that_does_not_match_is_an_error_that_names_it(
    session: BrowserSession, rendering: RenderingOptions, message: str
) -> None:
    with failing(Permanent, "selector") as caught:
        session.render("/steps", rendering, patience_seconds=0.5)

    assert message in str(caught.value)


def test_dialogs_popups_prints_and_prompts_stop_nothing(session: BrowserSession) -> None:
    html = session.html("/rude")

    assert '<p id="said" data-place="denied" data-notes="denied">after</p>' in html
    assert session.web.paths == ["/rude"]


def test_a_screenshot_is_cropped_at_the_maximum_height(session: BrowserSession) -> None:
    picture = session.render("/tall", RenderingOptions(), screenshot_height=900).screenshot

    assert picture is not None
    assert picture.startswith(b"\xff\xd8\xff")
    frame = picture.index(b"\xff\xc0")  # the header of a baseline frame holds height and width
    assert struct.unpack(">HH", picture[frame + 5 : frame + 9]) == (900, 1280)


def test_a_document_that_robots_txt_disallows_is_not_fetched(session: BrowserSession) -> None:
    def refuse(url: str) -> None:
        raise Permanent(f"robots.txt forbids {url}", code="robots")

    with pytest.raises(Permanent) as caught:
        session.render("/moved", check_url=refuse)

    assert str(caught.value) == f"robots.txt forbids {session.web.url('/forbidden')}"
    assert session.web.paths == ["/moved"]


def test_a_refresh_is_followed_and_an_endless_one_is_not(session: BrowserSession) -> None:
    refreshed = session.render("/refresh").page
    with failing(Permanent, "redirects"):
        session.render("/restless")

    assert refreshed.final_url == session.web.url("/refreshed")
    assert b"<p>refreshed</p>" in refreshed.body
    assert len(session.web.paths) == 2 + 6


def test_a_page_that_hangs_ends_at_the_deadline(session: BrowserSession) -> None:
    with failing(Transient, "timeout"):
        session.render("/hang", deadline_seconds=3)

    assert session.renderer.browsers_started == 1, "the page hung, not the browser"


@pytest.mark.parametrize("path", ["/endless", "/bomb"])
def test_an_endless_page_is_cut_off(session: BrowserSession, path: str) -> None:
    with failing(Permanent, "too_large", match=r"more than 2000000 bytes.*rendering.max_bytes"):
        session.render(path)


def test_no_more_pages_are_open_at_once_than_allowed(session: BrowserSession) -> None:
    most = 0

    async def count(writer: asyncio.StreamWriter) -> None:
        nonlocal most
        most = max(most, session.open_pages)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>counted</p>")
        await writer.drain()

    async def render_three() -> None:
        url = session.web.url("/count")
        await asyncio.gather(*(session.renderer.render(url, PLAIN) for _ in range(3)))

    session.web.routes["/count"] = count
    session.run(render_three())

    assert session.renderer._settings.rendering.pages == 1
    assert most == 1


def test_a_renderer_that_is_not_used_starts_nothing() -> None:
    renderer = a_renderer(Guard())

    asyncio.run(renderer.aclose())

    assert (renderer.browsers_started, renderer.pages_rendered) == (0, 0)


def test_without_a_browser_the_page_waits_and_the_cure_is_named(tmp_path: Path) -> None:
    settings = load_settings({"INGESTION_BROWSER": str(tmp_path / "none")})
    renderer = BrowserRenderer(settings, Guard(), clock=lambda: NOW)

    with failing(Resource, "no_browser", match="INGESTION_BROWSER") as caught:
        asyncio.run(renderer.render("http://a.test/", PLAIN))

    assert caught.value.until > NOW
