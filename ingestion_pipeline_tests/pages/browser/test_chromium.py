"""What a browser page needs, without a browser: the program, the rules of its document, and the proxy."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser import NoBrowser, browser_version, find_browser
from ingestion_pipeline.pages.browser.chromium import BadHead, GuardedProxy, Head, Pass
from ingestion_pipeline.pages.browser.document import BrowserDocument
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeWeb, Reply, closed_port, endless, garbage, raw_answer
from ingestion_pipeline_tests.pages.page_fetches import NOW, failing

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "chromium.yaml").read_text(encoding="utf-8"))


def a_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o700)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the search path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    return folder


def test_a_configured_browser_wins_over_the_search_path(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    configured = a_program(tmp_path / "mine" / "chrome")

    assert find_browser(load_settings({"INGESTION_BROWSER": str(configured)})) == configured


@pytest.mark.parametrize("name", ["chromium", "google-chrome"])
def test_a_browser_is_found_on_the_search_path(path: Path, name: str) -> None:
    program = a_program(path / name)

    assert find_browser(load_settings({})) == program


def test_playwrights_newest_browser_wins_over_the_search_path(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    for revision in ("999", "1200"):
        newest = a_program(tmp_path / "playwright" / f"chromium-{revision}" / "chrome-linux64" / "chrome")

    assert find_browser(load_settings({})) == newest


def test_a_program_that_prints_no_version_is_not_a_browser(tmp_path: Path) -> None:
    program = a_program(tmp_path / "chrome")
    for text in ("", "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho hello\n"):
        program.write_text(text)
        with pytest.raises(NoBrowser, match="INGESTION_BROWSER"):
            browser_version(program)

    program.write_text("#!/bin/sh\necho warning >&2; echo 'Google Chrome 156.0.8078.79 beta'\n")
    assert browser_version(program) == "Google Chrome 156.0.8078.79"


def test_a_configured_browser_that_is_not_a_program_is_refused(tmp_path: Path, path: Path) -> None:
    a_program(path / "chromium")
    (tmp_path / "notes.txt").touch(mode=0o600)

    for wrong in ("notes.txt", "nothing", "bin"):
        with pytest.raises(NoBrowser, match=f"INGESTION_BROWSER=.*{wrong}.* is not a program"):
            find_browser(load_settings({"INGESTION_BROWSER": str(tmp_path / wrong)}))


@pytest.mark.usefixtures("path")
def test_without_a_browser_the_cure_is_named() -> None:
    with pytest.raises(NoBrowser, match="-m playwright install chromium"):
        find_browser(load_settings({}))


HTML = {"content-type": "text/html; charset=utf-8"}


def a_document(url: str = "https://a.test/") -> BrowserDocument:
    document = BrowserDocument(url, load_settings({}), check_url=None, clock=lambda: NOW)
    document.begin()
    document.may_request(url)
    return document


@pytest.mark.parametrize(
    ("status", "headers", "kind", "code"),
    [
        (404, HTML, Permanent, "http_404"),
        (403, HTML, Transient, "http_403"),
        (503, HTML | {"retry-after": "7"}, Transient, "http_503"),
        (429, HTML, Resource, "rate_limited"),
        (304, {}, Permanent, "http_304"),
        (204, {}, Permanent, "no_page"),
        (200, {"content-type": "application/pdf"}, Permanent, "wrong_type"),
        (200, {"content-type": "application/json; charset=utf-8"}, Permanent, "wrong_type"),
        (200, HTML | {"content-disposition": "attachment; filename=x"}, Permanent, "wrong_type"),
    ],
)
def test_a_response_that_is_not_a_page_has_the_same_error_as_by_http(
    status: int, headers: dict[str, str], kind: type[WorkError], code: str
) -> None:
    with pytest.raises(kind) as caught:
        a_document().may_show(status, headers)

    assert caught.value.code == code


@pytest.mark.parametrize("headers", [HTML, {}, {"content-type": "application/xhtml+xml"}])
def test_html_of_any_media_type_is_accepted(headers: dict[str, str]) -> None:
    document = a_document()

    document.may_show(203, headers)

    assert document.status_code == 203


def test_a_document_leads_on_five_times_and_no_more() -> None:
    document = a_document()
    for number in range(5):
        document.may_request(f"https://a.test/{number}")

    with failing(Permanent, "redirects", match="more than 5 times"):
        document.may_request("https://a.test/6")


def test_opening_the_page_again_resets_the_redirect_count() -> None:
    document = a_document()
    for _ in range(10):
        document.begin()
        document.may_request("https://a.test/")
        document.may_request("https://a.test/next")

    assert document.url == "https://a.test/next"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://a.test/", "redirects"),
        ("https://me:secret@b.test/", "bad_url"),
        ("ftp://a.test/", "bad_url"),
        ("about:blank", "bad_url"),
    ],
)
def test_no_document_leads_where_a_redirect_may_not(url: str, code: str) -> None:
    with failing(Permanent, code) as caught:
        a_document().may_request(url)

    assert "secret" not in str(caught.value)


T = TypeVar("T")


class ProxyClient:
    """A client of a proxy with one pass."""

    def __init__(self, proxy: GuardedProxy, entry: Pass, web: FakeWeb) -> None:
        self.proxy, self.entry, self.web = proxy, entry, web

    async def send(self, *lines: str, body: bytes = b"", authorization: str | None = None) -> bytes:
        """Send these lines and return everything the proxy answers."""
        credentials = self.entry.authorization if authorization is None else authorization
        reader, writer = await asyncio.open_connection(LOOPBACK, self.proxy.port)
        head = [*lines, *([f"Proxy-Authorization: {credentials}"] if credentials else []), "", ""]
        writer.write("\r\n".join(head).encode() + body)
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


def with_proxy(web: FakeWeb, work: Callable[[ProxyClient], Awaitable[T]], *, max_bytes: int = 10**6) -> T:
    async def run() -> T:
        proxy = GuardedProxy(Guard(frozenset({web.host_port})), connect_seconds=2)
        await proxy.start()
        entry = Pass(max_bytes=max_bytes, on_too_much=lambda: None)
        try:
            with proxy.admitting(entry):
                return await work(ProxyClient(proxy, entry, web))
        finally:
            await proxy.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("authorization", ["", "Basic Zm9vOmJhcg==", "Bearer x"])
def test_without_a_pass_nothing_is_forwarded(web: FakeWeb, authorization: str) -> None:
    async def ask(client: ProxyClient) -> list[bytes]:
        lines = (f"GET {web.url()} HTTP/1.1", f"CONNECT {web.host_port} HTTP/1.1")
        return [await client.send(line, authorization=authorization) for line in lines]

    answers = with_proxy(web, ask)

    assert all(answer.startswith(b"HTTP/1.1 407 ") for answer in answers)
    assert web.connections == 0


def test_a_pass_is_valid_for_its_page_alone(web: FakeWeb) -> None:
    async def ask_afterwards(client: ProxyClient) -> bytes:
        expired = Pass(max_bytes=1, on_too_much=lambda: None)
        with client.proxy.admitting(expired):
            pass
        return await client.send(f"GET {web.url()} HTTP/1.1", authorization=expired.authorization)

    assert with_proxy(web, ask_afterwards).startswith(b"HTTP/1.1 407 ")


def test_a_request_arrives_as_from_any_client(web: FakeWeb) -> None:
    web.routes["/search?q=1"] = Reply(b"found", headers={"Connection": "keep-alive", "X-A": "b"})
    lines = (
        f"POST {web.url('/search?q=1')} HTTP/1.1",
        "Host: elsewhere.test",
        "Proxy-Connection: keep-alive",
        "Connection: X-Hop",
        "X-Hop: 1",
        "Upgrade: websocket",
        "Content-Length: 4",
    )
    next_request = f"GET {web.url('/smuggled')} HTTP/1.1\r\n\r\n".encode()

    answer = with_proxy(web, lambda client: client.send(*lines, body=b"term" + next_request))

    [request] = web.requests
    assert (request.method, request.path, request.host, request.body) == (
        *("POST", "/search?q=1", web.host_port),
        b"term",
    )
    assert request.headers.keys() == {"host", "content-length", "connection"}
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in answer
    assert b"keep-alive" not in answer


def test_a_tunnel_carries_bytes_both_ways(web: FakeWeb) -> None:
    web.routes["/inside"] = raw_answer(b"HTTP/1.1 200 OK\r\n\r\ninside")

    async def tunnel(client: ProxyClient) -> bytes:
        inner = b"GET /inside HTTP/1.1\r\nHost: x\r\n\r\n"
        return await client.send(f"CONNECT {web.host_port} HTTP/1.1", body=inner)

    assert with_proxy(web, tunnel).endswith(b"established\r\n\r\nHTTP/1.1 200 OK\r\n\r\ninside")


@pytest.mark.parametrize("line", ["GET http://{}/ HTTP/1.1", "CONNECT {} HTTP/1.1"])
def test_a_refused_address_is_never_connected_to(web: FakeWeb, line: str) -> None:
    with FakeWeb() as private:

        async def ask(client: ProxyClient) -> tuple[bytes, str]:
            answer = await client.send(line.format(private.host_port))
            failure = client.entry.failure(LOOPBACK, private.port)
            assert failure is not None
            return answer, failure.code

        answer, code = with_proxy(web, ask)

        assert private.connections == 0
        assert code == "blocked_address"
        assert answer.startswith(b"HTTP/1.1 502 " if line.startswith("CONNECT") else b"")
        assert bool(answer) is line.startswith("CONNECT"), "no answer that could be the site's"


def test_a_closed_port_is_recorded(web: FakeWeb) -> None:
    port = closed_port()

    async def ask() -> str:
        proxy = GuardedProxy(Guard(frozenset({f"{LOOPBACK}:{port}"})), connect_seconds=2)
        await proxy.start()
        entry = Pass(max_bytes=1_000, on_too_much=lambda: None)
        with proxy.admitting(entry):
            await ProxyClient(proxy, entry, web).send(f"GET http://{LOOPBACK}:{port}/ HTTP/1.1")
        await proxy.aclose()
        failure = entry.failure(LOOPBACK, port)
        return failure.code if failure else ""

    assert asyncio.run(ask()) == "connection"


def test_a_page_that_uses_up_its_bytes_is_cut_off(web: FakeWeb) -> None:
    web.routes["/"] = endless

    async def ask(client: ProxyClient) -> tuple[int, int, bool]:
        answer = await client.send(f"GET {web.url()} HTTP/1.1")
        return len(answer), client.entry.bytes, client.entry.is_open

    size, counted, is_open = with_proxy(web, ask, max_bytes=300_000)

    assert size <= 300_000
    assert 300_000 < counted <= 300_000 + 70_000
    assert not is_open


@pytest.mark.parametrize(
    "answer",
    [garbage, raw_answer(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9), raw_answer(b"HTTP/1.1 200 OK\r\n: x\r\n\r\n")],
    ids=["no head", "hints for ever", "a header without a name"],
)
def test_an_invalid_response_is_not_forwarded(web: FakeWeb, answer: object) -> None:
    web.routes["/"] = answer  # pyright: ignore[reportArgumentType]

    assert with_proxy(web, lambda client: client.send(f"GET {web.url()} HTTP/1.1")) == b""


def test_hints_before_the_answer_are_dropped(web: FakeWeb) -> None:
    web.routes["/"] = raw_answer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody")

    answer = with_proxy(web, lambda client: client.send(f"GET {web.url()} HTTP/1.1"))

    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"


@pytest.mark.parametrize("line", CASES["a_request_without_a_valid_host_is_refused"])
def test_a_request_without_a_valid_host_is_refused(line: str) -> None:
    with pytest.raises(BadHead):
        Head(line=line, headers=()).target()
