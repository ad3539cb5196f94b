"""Where clicks lead, on pages whose links are no links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from ingestion_pipeline.pages.visits.rendering import Click, ClickDiscovery, RenderingOptions
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, Desk, a_desk

pytestmark = pytest.mark.browser

LIST = """<title>List</title><a href=/outside>outside</a><div id=list>
<a href=/plain><b>plain</b></a>
<button onclick="location.href = '/assigned?id=2'">assigned</button>
<button onclick="window.open('/window')">window</button>
<div style="cursor: pointer" onclick="setTimeout(() => location.assign('/late'), 300)">late</div>
<span role=link onclick="fetch('/where').then(r => r.text()).then(t => location = t)">asked</span>
<button onclick="location.href = '/assigned?id=2'">again</button>
<a href="mailto:a@b.test">mail</a><button onclick="this.textContent += '!'">nowhere</button>
<button disabled onclick="location = '/disabled'">disabled</button>
<a href=/hidden style="display: none">hidden</a></div>"""
ROUTED = """<title>Routed</title><button id=more>show</button><main></main><script>
const names = ["algebra", "botany", "chemistry"];
function home() {
    document.querySelector("main").innerHTML = "<ul>" + names.map(n =>
        `<li onclick="go('${n}')" style="cursor: pointer">${n}</li>`).join("") + "</ul>";
}
function go(name) {
    history.pushState({}, "", "/routed/" + name);
    document.querySelector("main").innerHTML = "<h1>" + name + "</h1>";
}
HISTORY
more.onclick = home;
</script>"""
BACK = "window.onpopstate = home;"


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    routes = {"/list": LIST, "/where": "/answered", "/routed": ROUTED.replace("HISTORY", BACK)}
    with FakeWeb(routes | {"/stuck": ROUTED.replace("HISTORY", "")}) as web, a_desk(web) as desk:
        yield desk


def clicking(selector: str, limit: int = 20) -> RenderingOptions:
    return replace(PLAIN, discovery=ClickDiscovery(selector=selector, limit=limit, wait_seconds=3))


def test_every_click_is_tried_and_no_document_is_opened_for_it(desk: Desk) -> None:
    rendered = desk.render("/list", clicking("#list"))

    paths = ("/plain", "/assigned?id=2", "/window", "/late", "/answered")
    assert rendered.discovered == tuple(desk.web.url(path) for path in paths)
    assert desk.web.paths == ["/list", "/where"]
    assert b"nowhere!" not in rendered.page.body, "the page was read before it was clicked"


@pytest.mark.parametrize(("path", "loads"), [("/routed", 1), ("/stuck", 3)])
def test_a_page_that_changes_its_own_address_is_put_back(desk: Desk, path: str, loads: int) -> None:
    desk.web.requests.clear()
    rendering = replace(clicking("main"), setup=(Click(selector="#more"),))

    rendered = desk.render(path, rendering)

    names = ("algebra", "botany", "chemistry")
    assert rendered.discovered == tuple(desk.web.url(f"/routed/{name}") for name in names)
    assert desk.web.paths == [path] * loads, "opened again only where going back is not enough"


@pytest.mark.parametrize(
    ("selector", "limit", "said"),
    [
        ("#list", 7, "holds 8 clickable elements, more than 7; narrow click_discovery.selector"),
        ("#none", 7, "nothing matches '#none'; correct click_discovery.selector"),
        ("title", 7, "nothing inside 'title' can be clicked"),
    ],
    ids=["too many", "no container", "nothing"],
)
def test_a_list_that_cannot_be_whole_is_an_error(desk: Desk, selector: str, limit: int, said: str) -> None:
    with pytest.raises(Permanent) as caught:
        desk.render("/list", clicking(selector, limit), patience_seconds=0.5)

    assert said in str(caught.value)
