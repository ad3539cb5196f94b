"""No page can make the browser connect to a private address (T23)."""

import socket
from collections.abc import Callable, Iterator

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.tasks.errors import Permanent, Transient
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeResolver, FakeWeb, WebAnswer, redirect
from ingestion_pipeline_tests.pages.browser_sessions import PLAIN, BrowserSession, a_page, browser_session
from ingestion_pipeline_tests.pages.page_fetches import failing

pytestmark = pytest.mark.browser

WORKER = "fetch('http://WHERE/worker', {mode: 'no-cors'}).catch(() => {});"
TRIED = "fetch post led beacon socket events form ping popup worker service transport rtc"


@pytest.fixture(scope="module")
def private() -> Iterator[FakeWeb]:
    """Serve a site that no page may reach and count its connections."""
    with FakeWeb() as private:
        yield private


@pytest.fixture(scope="module")
def datagrams() -> Iterator[socket.socket]:
    """Count UDP datagrams, which WebRTC and QUIC would send."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as counter:
        counter.bind((LOOPBACK, 0))
        counter.setblocking(False)
        yield counter


@pytest.fixture(scope="module")
def session(private: FakeWeb) -> Iterator[BrowserSession]:
    names = {name: [[LOOPBACK]] for name in (LOOPBACK, "localhost", "inside.test", "others.test")}
    names["[::1]"] = names["::1"] = [["::1"]]
    with FakeWeb() as web:
        # others.test is exempt for a source of its own, control.test as if it were public
        allowed = frozenset({web.host_port, f"others.test:{private.port}"})
        resolve = FakeResolver({**names, "control.test": [[private.endpoint]]})
        with browser_session(web, Guard(allowed, resolve)) as session:
            yield session


def serve_attacks(web: FakeWeb, target: str, datagrams: socket.socket) -> None:
    udp = f"{LOOPBACK}:{datagrams.getsockname()[1]}"
    # Every known way for a page to send a request; WHERE is a host and port that it must not reach.
    web.routes["/"] = a_page("attacks").replace("LOOPBACK_UDP", udp).replace("WHERE", target)
    web.routes["/worker.js"] = WORKER.replace("WHERE", target)
    web.routes["/led"] = redirect(f"http://{target}/led")


def received_bytes(datagrams: socket.socket) -> int:
    try:
        return len(datagrams.recv(2_000))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("name", [LOOPBACK, "inside.test", "others.test"])
def test_nothing_inside_a_page_reaches_a_private_address(
    session: BrowserSession, private: FakeWeb, datagrams: socket.socket, name: str
) -> None:
    before = private.connections
    serve_attacks(session.web, f"{name}:{private.port}", datagrams)

    html = session.html("/", PLAIN.model_copy(update={"load_wait_seconds": 0.7}))

    assert f'data-tried="{TRIED}"' in html, "every attack was at least begun"
    assert "<title>harmless</title>" in html
    assert private.connections == before
    assert received_bytes(datagrams) == 0


def test_the_same_attacks_reach_an_address_that_is_allowed(
    session: BrowserSession, private: FakeWeb, datagrams: socket.socket
) -> None:
    """The control: without it, a page that does nothing would pass the test above."""
    private.requests.clear()
    serve_attacks(session.web, f"control.test:{private.port}", datagrams)

    session.html("/", PLAIN.model_copy(update={"load_wait_seconds": 0.7}))

    reached = set(private.paths)
    assert {"/iframe", "/inner", "/script", "/style", "/fetch", "/post", "/led"} <= reached
    assert {"/socket", "/events", "/worker", "/beacon", "/form"} <= reached
    assert "/image" not in reached
    assert "/popup" not in reached


@pytest.mark.parametrize(
    "lead_to",
    [redirect, "<meta http-equiv=refresh content='0; url={}'>".format, "<script>location = '{}'</script>".format],
    ids=["redirect", "refresh", "script"],
)
def test_a_page_that_leads_to_a_private_address_is_a_blocked_address(
    session: BrowserSession, private: FakeWeb, lead_to: Callable[[str], WebAnswer]
) -> None:
    before = private.connections
    session.web.routes["/away"] = lead_to(f"http://inside.test:{private.port}/")

    with failing(Permanent, "blocked_address", match=r"inside\.test has the address"):
        session.render("/away")

    assert private.connections == before


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_private_page_is_never_opened(session: BrowserSession, private: FakeWeb, scheme: str) -> None:
    before = private.connections

    with failing(Permanent, "blocked_address"):
        session.render(f"{scheme}://inside.test:{private.port}/")

    assert private.connections == before


def test_an_unresolvable_name_is_a_transient_failure(session: BrowserSession) -> None:
    with failing(Transient, "dns"):
        session.render("http://nowhere.test/")
