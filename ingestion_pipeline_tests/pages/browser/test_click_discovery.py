"""Click discovery on pages whose links are not `<a href>` elements."""

from collections.abc import Iterator

import pytest

from ingestion_pipeline.pages.visits.page import Click, ClickDiscovery, RenderingOptions
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, BrowserSession, a_page, browser_session

pytestmark = pytest.mark.browser

BACK = "window.onpopstate = home;"


@pytest.fixture(scope="module")
def session() -> Iterator[BrowserSession]:
    routed = a_page("routed")
    routes = {"/list": a_page("list"), "/where": "/answered", "/routed": routed.replace("HISTORY", BACK)}
    with FakeWeb(routes | {"/stuck": routed.replace("HISTORY", "")}) as web, browser_session(web) as session:
        yield session


def discovery_options(selector: str, limit: int = 20) -> RenderingOptions:
    return PLAIN.model_copy(update={"discovery": ClickDiscovery(selector=selector, limit=limit, wait_seconds=3)})


def test_every_click_is_tried_and_no_document_is_opened_for_it(session: BrowserSession) -> None:
    rendered = session.render("/list", discovery_options("#list"))

    paths = ("/plain", "/assigned?id=2", "/window", "/late", "/answered")
    assert rendered.discovered == tuple(session.web.url(path) for path in paths)
    assert session.web.paths == ["/list", "/where"]
    assert b"nowhere!" not in rendered.page.body, "the page was read before it was clicked"


@pytest.mark.parametrize(("path", "loads"), [("/routed", 1), ("/stuck", 3)])
def test_a_page_that_changes_its_own_url_is_restored_after_each_click(
    session: BrowserSession, path: str, loads: int
) -> None:
    session.web.requests.clear()
    rendering = discovery_options("main").model_copy(update={"setup": (Click(selector="#more"),)})

    rendered = session.render(path, rendering)

    names = ("algebra", "botany", "chemistry")
    assert rendered.discovered == tuple(session.web.url(f"/routed/{name}") for name in names)
    assert session.web.paths == [path] * loads, "opened again only where going back is not enough"


@pytest.mark.parametrize(
    ("selector", "limit", "message"),
    [
        ("#list", 7, "holds 8 clickable elements, more than 7; narrow click_discovery.selector"),
        ("#none", 7, "nothing matches '#none'; correct click_discovery.selector"),
        ("title", 7, "nothing inside 'title' can be clicked"),
    ],
    ids=["too many", "no container", "nothing"],
)
def test_an_incomplete_list_is_an_error(session: BrowserSession, selector: str, limit: int, message: str) -> None:
    with pytest.raises(Permanent) as caught:
        session.render("/list", discovery_options(selector, limit), patience_seconds=0.5)

    assert message in str(caught.value)
