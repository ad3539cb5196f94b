"""Fetches from a server on loopback that drops, drips, redirects and sends invalid answers; every hop is guarded."""

import asyncio
import gc
import gzip
import shutil
import ssl
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest

from ingestion_pipeline.pages import Answer, Endpoint, Fetched, FetchLimits, Guard, HttpFetcher, Request, Unchanged
from ingestion_pipeline.pages.http.transport import MAX_HOSTS, Connections
from ingestion_pipeline.tasks.errors import Permanent, Resource, Transient, WorkError
from ingestion_pipeline_tests.fakes import (
    LOOPBACK,
    FakeResolver,
    FakeWeb,
    RawAnswer,
    Reply,
    WebAnswer,
    a_certificate,
    closed_port,
    dripping_answer,
    drop,
    endless,
    garbage,
    many_headers,
    raw_answer,
    redirect,
    reset,
)
from ingestion_pipeline_tests.pages.page_fetches import AGENT, NOW, failing, fetch, fetch_page, run_with_fetcher
from ingestion_pipeline_tests.polling_runs import slow_answer


def fetch_error(answer: WebAnswer, limits: FetchLimits | None = None) -> WorkError:
    """Return the error of fetching a page with this answer; its message must name the page."""
    with FakeWeb({"/": answer}) as web:
        with pytest.raises(WorkError) as caught:
            fetch(web, limits=limits)
        assert web.url() in str(caught.value)
        return caught.value


def test_a_page_is_fetched_with_its_validators() -> None:
    headers = {"Content-Type": "text/html", "ETag": '"v1"', "Last-Modified": "yesterday"}
    with FakeWeb({"/jobs?b=2&a=1": Reply(b"<p>", headers=headers)}) as web:
        answer = fetch_page(web, "/jobs?b=2&a=1#part")

        assert answer == Fetched(
            url=web.url("/jobs?b=2&a=1#part"),
            final_url=web.url("/jobs?b=2&a=1"),
            status_code=200,
            body=b"<p>",
            content_type="text/html",
            etag='"v1"',
            last_modified="yesterday",
        )


def test_a_request_sends_its_user_agent_and_accept_headers() -> None:
    with FakeWeb({"/": b""}) as web:
        fetch(web, Request(url=web.url(), accept="application/json"))

        sent = web.requests[0].headers
        assert sent["user-agent"] == AGENT
        assert sent["accept"] == "application/json"
        assert sent["accept-encoding"] == "gzip, deflate, br, zstd"
        assert "if-none-match" not in sent


def test_an_empty_body_is_a_page() -> None:
    with FakeWeb({"/": b"", "/zip": Reply(headers={"Content-Encoding": "gzip"})}) as web:
        assert fetch_page(web).body == b""
        assert fetch_page(web, "/zip").body == b""


def test_an_unchanged_page_is_unchanged() -> None:
    with FakeWeb({"/": Reply(b"x", headers={"ETag": '"v1"'})}) as web:
        request = Request(url=web.url(), etag='"v1"', last_modified="then")

        answer = fetch(web, request)

        assert answer == Unchanged(url=request.url, etag='"v1"', last_modified="then")
        assert web.requests[0].headers["if-modified-since"] == "then"


def test_a_304_without_an_etag_keeps_the_previous_one() -> None:
    with FakeWeb({"/": 304}) as web:
        answer = fetch(web, Request(url=web.url(), etag='"v1"'))

        assert answer == Unchanged(url=web.url(), etag='"v1"', last_modified=None)


def test_a_304_for_an_unconditional_request_is_an_error() -> None:
    error = fetch_error(304)

    assert isinstance(error, Transient)
    assert error.code == "bad_304"


def test_an_etag_that_is_not_ascii_is_ignored() -> None:
    with FakeWeb({"/": Reply(b"x", headers={"ETag": '"\xe9"'})}) as web:
        assert fetch_page(web).etag is None
        fetch(web, Request(url=web.url(), etag='"é"'))

    assert all("if-none-match" not in request.headers for request in web.requests)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, Permanent, "http_404"),
        (403, Transient, "http_403"),
        (500, Transient, "http_500"),
        (429, Resource, "rate_limited"),
        (302, Permanent, "http_302"),
    ],
)
def test_each_status_has_its_error_class(status: int, kind: type[WorkError], code: str) -> None:
    error = fetch_error(status)

    assert isinstance(error, kind)
    assert error.code == code


def test_connections_are_reused_after_errors_and_cookies_are_not_sent() -> None:
    cookie = Reply(b"x", headers={"Set-Cookie": "id=1", "ETag": '"v1"'})

    async def thrice(fetcher: HttpFetcher) -> None:
        await fetcher.fetch(Request(url=web.url()), now=NOW)
        await fetcher.fetch(Request(url=web.url(), etag='"v1"'), now=NOW)
        with pytest.raises(Permanent):
            await fetcher.fetch(Request(url=web.url("/gone")), now=NOW)
        await fetcher.fetch(Request(url=web.url()), now=NOW)

    with FakeWeb({"/": cookie}) as web:
        run_with_fetcher(thrice, Guard(frozenset({web.host_port})))

        assert (len(web.requests), web.connections) == (4, 1)
        assert all("cookie" not in request.headers for request in web.requests)


def test_a_kept_connection_that_drops_after_the_request_leads_to_one_request() -> None:
    async def fetch_both(fetcher: HttpFetcher) -> None:
        await fetcher.fetch(Request(url=web.url("/kept")), now=NOW)
        with pytest.raises(Transient):
            await fetcher.fetch(Request(url=web.url("/dropped")), now=NOW)

    with FakeWeb({"/kept": "open", "/dropped": drop}) as web:
        run_with_fetcher(fetch_both, Guard(frozenset({web.host_port})))

        assert (web.paths, web.connections) == (["/kept", "/dropped"], 1)


def test_proxy_variables_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://{LOOPBACK}:{closed_port()}")
    with FakeWeb({"/": b"direct"}) as web:
        assert fetch_page(web).body == b"direct"


@pytest.mark.slow
def test_connections_of_old_hosts_are_closed_and_busy_ones_are_not() -> None:
    arrived, go = threading.Event(), threading.Event()

    async def wait_to_answer(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await asyncio.to_thread(go.wait)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def many(fetcher: HttpFetcher) -> int:
        slow = asyncio.create_task(fetcher.fetch(Request(url="http://slow.test/slow"), now=NOW))
        await asyncio.to_thread(arrived.wait)
        for number in range(MAX_HOSTS + 5):
            await fetcher.fetch(Request(url=f"http://host{number}.test/"), now=NOW)
        go.set()
        assert isinstance(await slow, Fetched)
        assert isinstance(fetcher._connections, Connections)
        return len(fetcher._connections._transport.sessions)

    with FakeWeb({"/": b"", "/slow": wait_to_answer}) as web:
        names = {f"host{n}.test": [[web.endpoint]] for n in range(MAX_HOSTS + 5)}
        resolver = FakeResolver({**names, "slow.test": [[web.endpoint]]})

        assert run_with_fetcher(many, Guard(resolve=resolver)) == MAX_HOSTS


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (drop, Transient, "connection"),
        (reset, Transient, "connection"),
        (garbage, Transient, "protocol"),
        (many_headers, Transient, "protocol"),
        (endless, Permanent, "too_large"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort"), Transient, "truncated"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), Transient, "protocol"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\nx"), Permanent, "too_large"),
        (raw_answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"), Transient, "protocol"),
        (
            raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Encoding: gzip\r\n\r\nno gzip!!"),
            Transient,
            "corrupt_body",
        ),
        (Reply(b"x", headers={"Content-Encoding": "lz4"}), Permanent, "content_encoding"),
        (Reply(gzip.compress(b"x" * 999)[:-9], headers={"Content-Encoding": "gzip"}), Transient, "truncated"),
    ],
)
def test_a_lying_server_is_a_classified_failure(answer: WebAnswer, kind: type[WorkError], code: str) -> None:
    error = fetch_error(answer, FetchLimits(max_bytes=1_000_000))

    assert isinstance(error, kind)
    assert error.code == code


def test_a_closed_port_is_a_connection_failure() -> None:
    port = closed_port()
    request = Request(url=f"http://{LOOPBACK}:{port}/")

    with failing(Transient, "connection"):
        run_with_fetcher(lambda f: f.fetch(request, now=NOW), Guard(frozenset({f"{LOOPBACK}:{port}"})))


def test_the_next_address_is_tried_when_the_first_does_not_answer() -> None:
    with FakeWeb({"/": b"second"}) as web:
        dead = Endpoint(LOOPBACK, closed_port(), is_exempt=True)
        guard = Guard(resolve=FakeResolver({"a.test": [[dead, web.endpoint]]}))

        answer = run_with_fetcher(lambda f: f.fetch(Request(url="http://a.test/"), now=NOW), guard)

        assert isinstance(answer, Fetched)
        assert answer.body == b"second"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [dripping_answer(b"HTTP/1.1 200 OK\r\nX-Slow: ", every_seconds=0.02), dripping_answer(HEAD, every_seconds=0.02)],
    ids=["headers", "body"],
)
def test_a_dripping_server_ends_at_the_deadline(answer: RawAnswer) -> None:
    began = time.monotonic()

    error = fetch_error(answer, FetchLimits(deadline_seconds=0.3))

    assert isinstance(error, Transient)
    assert error.code == "timeout"
    assert 0.3 <= time.monotonic() - began < 1.3


@pytest.mark.slow
def test_a_host_whose_last_request_timed_out_must_answer_sooner() -> None:
    limits = FetchLimits(deadline_seconds=0.5, slow_host_seconds=0.1)
    late = slow_answer(b"late", 30)
    errors: list[str] = []

    async def requests(fetcher: HttpFetcher, web: FakeWeb) -> set[str]:
        for _ in range(2):
            with pytest.raises(Transient) as caught:
                await fetcher.fetch(Request(url=f"http://{web.host_port}/late"), now=NOW)
            errors.append(str(caught.value))
        await fetcher.fetch(Request(url=f"http://{web.host_port}/quick"), now=NOW)
        return fetcher.slow_hosts

    with FakeWeb({"/late": late, "/quick": b"quick"}) as web:
        slow_hosts = run_with_fetcher(lambda fetcher: requests(fetcher, web), Guard(frozenset({web.host_port})), limits)

    assert "did not answer within 0.5 seconds" in errors[0]
    assert "timed out before and did not answer within 0.1 seconds" in errors[1]
    assert slow_hosts == set()


@pytest.mark.slow
def test_a_silent_handshake_ends_at_the_deadline() -> None:
    with FakeWeb() as web:
        request = Request(url=f"https://{web.host_port}/")
        with failing(Transient, "timeout") as caught:
            fetch(web, request, FetchLimits(deadline_seconds=0.3))

    del caught  # its traceback holds the stream
    gc.collect()  # an open socket would be a warning now, and so a failure


@pytest.mark.slow
def test_a_dripping_handshake_ends_at_the_deadline_and_is_closed() -> None:
    """Every byte is progress: a timeout per read would wait for 16 kB of them."""
    closed = asyncio.Event()

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x16\x03\x03\x40\x00")  # a record of 16 kB begins
        while not writer.is_closing():
            writer.write(b"\x02")
            await asyncio.sleep(0.02)
        closed.set()

    async def ask() -> tuple[WorkError, float]:
        server = await asyncio.start_server(drip, LOOPBACK, 0)
        host = f"{LOOPBACK}:{server.sockets[0].getsockname()[1]}"
        limits = FetchLimits(deadline_seconds=0.3)
        began = time.monotonic()
        async with server, HttpFetcher(AGENT, limits, Guard(frozenset({host}))) as fetcher:
            with pytest.raises(WorkError) as caught:
                await fetcher.fetch(Request(url=f"https://{host}/"), now=NOW)
            took = time.monotonic() - began
            await asyncio.wait_for(closed.wait(), 5)
        return caught.value, took

    error, took = asyncio.run(ask())

    assert error.code == "timeout"
    assert 0.3 <= took < 1.3


@pytest.mark.slow
def test_a_dripping_error_page_keeps_its_status() -> None:
    answer = dripping_answer(HEAD.replace(b"200 OK", b"404 No"), every_seconds=0.02)

    error = fetch_error(answer, FetchLimits(deadline_seconds=5))

    assert error.code == "http_404"


def test_an_error_in_an_unknown_encoding_keeps_its_status() -> None:
    busy = Reply(b"?", 503, {"Retry-After": "60", "Content-Encoding": "foo"})

    error = fetch_error(busy)

    assert isinstance(error, Transient)
    assert (error.code, error.retry_after) == ("http_503", timedelta(seconds=60))


@pytest.mark.parametrize("encoding", ["none", "UTF-8", "identity"])
def test_an_invalid_content_encoding_is_ignored(encoding: str) -> None:
    with FakeWeb({"/": Reply(b"page", headers={"Content-Encoding": encoding})}) as web:
        assert fetch_page(web).body == b"page"


def test_of_two_locations_the_first_is_followed() -> None:
    with FakeWeb({"/a": b"first", "/b": b"second"}) as web:
        web.routes["/"] = raw_answer(b"HTTP/1.1 302 Found\r\nLocation: /a\r\nLocation: /b\r\n\r\n")

        assert fetch_page(web).body == b"first"


def test_a_truncated_start_is_retried() -> None:
    """Rules missing from a truncated robots.txt would count as no rules."""
    cut = gzip.compress(b"User-agent: *\nDisallow: /\n" * 100)[:-20]
    with FakeWeb({"/": Reply(cut, headers={"Content-Encoding": "gzip"})}) as web:
        guard = Guard(frozenset({web.host_port}))
        with pytest.raises(Transient) as caught:
            run_with_fetcher(
                lambda fetcher: fetcher.fetch_start(web.url(), max_bytes=1_000_000, max_redirects=1), guard
            )

    assert caught.value.code == "truncated"


QUESTION = b'{"limit": 20, "offset": 0}'


def test_a_request_with_a_body_is_posted_as_json() -> None:
    with FakeWeb({"/jobs": Reply(b'{"total": 0}')}) as web:
        answer = fetch(web, Request(url=web.url("/jobs"), body=QUESTION))

        assert isinstance(answer, Fetched)
        assert answer.body == b'{"total": 0}'
        (request,) = web.requests
        assert (request.method, request.body) == ("POST", QUESTION)
        assert request.headers["content-type"] == "application/json"


def test_a_redirected_post_is_sent_again_to_its_target() -> None:
    moved = Reply(b"", status=307, headers={"Location": "/new"})
    with FakeWeb({"/old": moved, "/new": Reply(b"[]")}) as web:
        fetch(web, Request(url=web.url("/old"), body=QUESTION))

        assert [(request.method, request.body) for request in web.requests] == [("POST", QUESTION)] * 2


def test_a_request_without_a_body_is_a_get() -> None:
    with FakeWeb({"/jobs": Reply(b"[]")}) as web:
        fetch(web, "/jobs")

        assert [(request.method, request.body) for request in web.requests] == [("GET", b"")]


def test_redirects_are_followed_and_the_final_url_is_returned() -> None:
    routes = {"/a": redirect("b", 301), "/b": redirect("/c?x=1", 308), "/c?x=1": b"here"}
    with FakeWeb(routes) as web:
        answer = fetch_page(web, "/a")

        assert (answer.body, answer.url) == (b"here", web.url("/a"))
        assert answer.final_url == web.url("/c?x=1")


@pytest.mark.parametrize(("hops", "is_followed"), [(5, True), (6, False)])
def test_five_redirects_are_followed_and_no_more(hops: int, is_followed: bool) -> None:
    routes: dict[str, WebAnswer] = {f"/{n}": redirect(f"/{n + 1}") for n in range(hops)}
    with FakeWeb({**routes, f"/{hops}": b"end"}) as web:
        if is_followed:
            assert fetch_page(web, "/0").body == b"end"
        else:
            with failing(Permanent, "redirects"):
                fetch(web, "/0")


def test_a_redirect_loop_is_detected_at_once() -> None:
    with FakeWeb({"/a": redirect("/b"), "/b": redirect("/a#again")}) as web:
        with failing(Permanent, "redirects", match="loop"):
            fetch(web, "/a")

        assert web.paths == ["/a", "/b"]


fullwidth, circled = "\uff11\uff12\uff17.0.0.1", "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460"
FORMS = f"""
127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 0177.0.0.1 017700000001 0x7f.0.0.0x1 0 0.0.0.0
localhost 127.0.0.2 127.255.255.254 [::1] [::] [0:0:0:0:0:0:0:1] [::ffff:127.0.0.1] [::127.0.0.1]
[::ffff:7f00:1] [64:ff9b::7f00:1] [2002:7f00:1::] [fe80::1] [fc00::1] [fec0::1] [ff02::1]
{circled} {fullwidth} 127。0。0。1 127%2e0.0.1 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254
100.64.0.1 192.0.0.192 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 0x7F000001 LOCALHOST
[2001:0:7f00:1::] [64:ff9b::a9fe:a9fe] [::ffff:a9fe:a9fe] [64:ff9b:1::7f00:1] [fd00:ec2::254] 0x0
127.0.0.1. metadata.google.internal METADATA.goog. instance-data 100.100.100.200 168.63.129.16
"""


@pytest.mark.parametrize("form", FORMS.split())
def test_no_form_of_a_private_address_is_reached_directly_or_by_redirect(form: str) -> None:
    with FakeWeb({"/": b"secret"}) as private, FakeWeb() as front:
        url = f"http://{form}:{private.port}/"
        front.routes["/"] = Reply(b"", 302, {"Location": url.encode().decode("latin-1")})
        for request in (Request(url=url), Request(url=front.url())):
            with failing(Permanent, "blocked_address"):
                fetch(front, request)

        assert len(front.requests) == 1
        assert private.connections == 0


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "gopher://a.test/", "javascript:0", "http://[", "http://u:hunter2@a.test/"]
)
def test_a_redirect_to_another_scheme_is_refused(location: str) -> None:
    with FakeWeb({"/": redirect(location)}) as web, failing(Permanent, "bad_url") as caught:
        fetch(web)

    assert "hunter2" not in str(caught.value)


def test_a_url_with_a_password_is_not_fetched() -> None:
    with FakeWeb({"/": b""}) as web:
        with failing(Permanent, "bad_url") as caught:
            fetch(web, Request(url=f"http://u:hunter2@{web.host_port}/"))

        assert "hunter2" not in str(caught.value)
        assert web.connections == 0


def test_each_hop_is_resolved_once_and_connects_to_the_checked_address() -> None:
    with FakeWeb({"/": redirect("http://b.test/")}) as first, FakeWeb({"/": b"b"}) as second:
        elsewhere = [Endpoint("10.0.0.1", 1)]
        resolver = FakeResolver({"a.test": [[first.endpoint], elsewhere], "b.test": [[second.endpoint], elsewhere]})

        answer = run_with_fetcher(lambda f: f.fetch(Request(url="http://a.test/"), now=NOW), Guard(resolve=resolver))

        assert isinstance(answer, Fetched)
        assert resolver.lookups == ["a.test", "b.test"]
        assert [request.host for request in first.requests + second.requests] == ["a.test", "b.test"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    return a_certificate(tmp_path_factory.mktemp("tls"), "a.test")


def fetch_https(web: FakeWeb, url: str, ca_file: Path | None) -> Answer:
    guard = Guard(resolve=FakeResolver({"a.test": [[web.endpoint]], "b.test": [[web.endpoint]]}))
    return run_with_fetcher(lambda f: f.fetch(Request(url=url), now=NOW), guard, ca_file=ca_file)


def test_host_header_and_tls_server_name_are_the_hostname(certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with FakeWeb({"/": b"safe"}, tls=context) as web:
        answer = fetch_https(web, "https://a.test/", cert)

        assert isinstance(answer, Fetched)
        assert answer.body == b"safe"
        assert names == ["a.test"]
        assert web.requests[0].host == "a.test"


@pytest.mark.parametrize(("host", "is_trusted"), [("a.test", False), ("b.test", True)])
def test_an_invalid_certificate_is_a_permanent_failure(
    certificate: tuple[Path, ssl.SSLContext], host: str, is_trusted: bool
) -> None:
    cert, context = certificate
    with FakeWeb({"/": b"unsafe"}, tls=context) as web:
        with failing(Permanent, "tls"):
            fetch_https(web, f"https://{host}/", cert if is_trusted else None)

        assert web.requests == []


def test_a_redirect_from_https_to_http_is_refused(certificate: tuple[Path, ssl.SSLContext]) -> None:
    cert, context = certificate
    with FakeWeb({"/": redirect("http://b.test/")}, tls=context) as web:
        with failing(Permanent, "redirects"):
            fetch_https(web, "https://a.test/", cert)

        assert web.connections == 1
