"""What a browser makes of a site that needs one, misbehaves, or takes the browser down with it."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import BrowserRenderer
from ingestion_pipeline.pages.visits.rendering import Click, RenderingOptions, RenderWait
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient
from ingestion_pipeline_tests.fakes import FakeWeb, Reply, WebAnswer, a_certificate, endless, redirect
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, QUICK, Desk, a_desk, a_renderer
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW

pytestmark = pytest.mark.browser

HTML = {"Content-Type": "text/html; charset=utf-8"}
SHELL = """<!doctype html><title>Courses</title><img src=/picture.png><div id=root></div><script>
fetch("/api", {method: "POST", body: "all"}).then(r => r.json()).then(names => {
    root.innerHTML = names.map(name => "<p>" + name + "</p>").join("");
});</script>"""
VISITOR = """<p id=seen></p><script>
seen.textContent = "cookie=" + document.cookie + " stored=" + (localStorage.last ?? "none");
document.cookie = "visitor=7"; localStorage.last = "today";</script>"""
STEPS = """<button id=one onclick="log.innerHTML += '<i>one</i>'">1</button>
<button id=two onclick="setTimeout(() => log.innerHTML += '<i>two</i>', 100)">2</button>
<main id=log></main><aside id=empty><b> </b></aside><p>besides</p>"""
RUDE = """<p id=said>before</p><script>
alert("hello"); confirm("sure?"); prompt("name?"); print();
window.onbeforeunload = () => "stay!"; window.open("/popup"); navigator.geolocation
    .getCurrentPosition(() => {}, () => said.dataset.place = "denied");
Notification.requestPermission().then(answer => said.dataset.notes = answer);
said.textContent = "after";</script>"""
ROUTES: dict[str, WebAnswer | list[WebAnswer]] = {
    "/shell": SHELL,
    "/api": Reply('["Zoölogy", "日本語"]'.encode()),
    "/visitor": VISITOR,
    "/steps": STEPS,
    "/rude": RUDE,
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
def desk() -> Iterator[Desk]:
    with FakeWeb(ROUTES) as web, a_desk(web) as desk:
        yield desk


@pytest.fixture(autouse=True)
def forget(desk: Desk) -> None:
    desk.web.requests.clear()


def test_a_page_that_only_javascript_fills_is_there(desk: Desk) -> None:
    rendered = desk.render("/shell")

    page = rendered.page
    assert "<p>Zoölogy</p><p>日本語</p>" in page.body.decode()
    assert page.body.startswith(b"<!DOCTYPE html><html>")
    assert (page.status_code, page.content_type) == (200, "text/html; charset=utf-8")
    assert (page.url, page.final_url) == (desk.web.url("/shell"), desk.web.url("/shell"))
    assert (rendered.screenshot, rendered.discovered) == (None, ())
    assert desk.web.paths == ["/shell", "/api"], "no picture, no icon"
    for asked in desk.web.requests:
        assert asked.headers["user-agent"] == AGENT
        assert not any(name.startswith(("proxy-", "sec-ch-")) for name in asked.headers)


def test_a_site_whose_certificate_does_not_hold_is_not_rendered(tmp_path: Path) -> None:
    _, tls = a_certificate(tmp_path, "a.test")
    with FakeWeb({"/": "<p>unsafe</p>"}, tls=tls) as web, a_desk(web) as desk:
        with pytest.raises((Permanent, Transient), match="CERT"):
            desk.render(f"https://{web.host_port}/")

        assert web.requests == []


def test_pages_share_a_browser_and_nothing_else(desk: Desk) -> None:
    before = desk.renderer.pages_rendered

    seen = [desk.html("/visitor") for _ in range(2)]

    assert all('<p id="seen">cookie= stored=none</p>' in one for one in seen)
    assert desk.renderer.browsers_started == 1
    assert desk.renderer.pages_rendered == before + 2


def test_the_setup_is_done_in_order_and_only_the_content_is_kept(desk: Desk) -> None:
    setup = (Click(selector="#two"), RenderWait(seconds=0.4), Click(selector="#one"))
    rendering = replace(PLAIN, setup=setup, content_selector="#log")

    assert desk.html("/steps", rendering) == '<main id="log"><i>two</i><i>one</i></main>'


@pytest.mark.parametrize(
    ("rendering", "said"),
    [
        (replace(PLAIN, setup=(Click(selector="#none"),)), "'#none'; correct setup[0].click"),
        (replace(PLAIN, content_selector="#none"), "'#none'; correct content_selector"),
        (replace(PLAIN, content_selector="#empty"), "is empty; correct content_selector"),
        (replace(PLAIN, content_selector="p["), "'p[' is no CSS selector"),
    ],
    ids=["click", "no content", "empty content", "no selector"],
)
def test_a_selector_that_does_not_fit_is_an_error_that_names_it(
    desk: Desk, rendering: RenderingOptions, said: str
) -> None:
    with pytest.raises(Permanent) as caught:
        desk.render("/steps", rendering, patience_seconds=0.5)

    assert said in str(caught.value)
    assert caught.value.code == "selector"


def test_dialogs_popups_prints_and_prompts_stop_nothing(desk: Desk) -> None:
    html = desk.html("/rude")

    assert '<p id="said" data-place="denied" data-notes="denied">after</p>' in html
    assert desk.web.paths == ["/rude"]


def test_a_picture_is_cut_at_its_height(desk: Desk) -> None:
    picture = desk.render("/tall", RenderingOptions(), screenshot_height=900).screenshot

    assert picture is not None
    assert picture.startswith(b"\xff\xd8\xff")
    frame = picture.index(b"\xff\xc0")  # the header of a baseline frame holds height and width
    assert struct.unpack(">HH", picture[frame + 5 : frame + 9]) == (900, 1280)


def test_a_document_that_robots_forbid_is_not_asked_for(desk: Desk) -> None:
    def refuse(url: str) -> None:
        raise Permanent(f"robots.txt forbids {url}", code="robots")

    with pytest.raises(Permanent) as caught:
        desk.render("/moved", check_url=refuse)

    assert str(caught.value) == f"robots.txt forbids {desk.web.url('/forbidden')}"
    assert desk.web.paths == ["/moved"]


def test_a_refresh_is_followed_and_an_endless_one_is_not(desk: Desk) -> None:
    refreshed = desk.render("/refresh").page
    with pytest.raises(Permanent) as caught:
        desk.render("/restless")

    assert refreshed.final_url == desk.web.url("/refreshed")
    assert b"<p>refreshed</p>" in refreshed.body
    assert caught.value.code == "redirects"
    assert len(desk.web.paths) == 2 + 6


def test_a_download_and_a_rate_limit_are_what_they_are_by_http(desk: Desk) -> None:
    with pytest.raises(Permanent, match="is a download") as download:
        desk.render("/file")
    with pytest.raises(Resource) as limited:
        desk.render("/limited")

    assert download.value.code == "wrong_type"
    assert (limited.value.until - NOW).total_seconds() == 90


def test_a_page_that_hangs_ends_at_the_deadline(desk: Desk) -> None:
    with pytest.raises(Transient) as caught:
        desk.render("/hang", deadline_seconds=3)

    assert caught.value.code == "timeout"
    assert desk.renderer.browsers_started == 1, "the page hung, not the browser"


@pytest.mark.parametrize("path", ["/endless", "/bomb"])
def test_a_page_without_end_is_cut_off(desk: Desk, path: str) -> None:
    with pytest.raises(Permanent, match=r"more than 2000000 bytes.*rendering.max_bytes") as caught:
        desk.render(path)

    assert caught.value.code == "too_large"


def test_no_more_pages_are_open_at_once_than_allowed(desk: Desk) -> None:
    most = 0

    async def count(writer: asyncio.StreamWriter) -> None:
        nonlocal most
        most = max(most, desk.open_pages)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>counted</p>")
        await writer.drain()

    async def render_three() -> None:
        url = desk.web.url("/count")
        await asyncio.gather(*(desk.renderer.render(url, PLAIN) for _ in range(3)))

    desk.web.routes["/count"] = count
    desk.run(render_three())

    assert QUICK.pages == 1
    assert most == 1


def test_a_renderer_that_is_not_used_starts_nothing() -> None:
    renderer = a_renderer(Guard())

    asyncio.run(renderer.aclose())

    assert (renderer.browsers_started, renderer.pages_rendered) == (0, 0)


def test_without_a_browser_the_page_waits_and_the_cure_is_named(tmp_path: Path) -> None:
    settings = load_settings({"INGESTION_BROWSER": str(tmp_path / "none")})
    renderer = BrowserRenderer(settings, QUICK, Guard(), clock=lambda: NOW)

    with pytest.raises(Resource, match="INGESTION_BROWSER") as caught:
        asyncio.run(renderer.render("http://a.test/", PLAIN))

    assert caught.value.code == "no_browser"
    assert caught.value.until > NOW
