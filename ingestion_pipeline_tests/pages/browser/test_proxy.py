"""The browser's way out: for who has a pass, to checked addresses, one exchange at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from ingestion_pipeline.pages import Guard
from ingestion_pipeline.pages.browser.proxy import BadHead, GuardedProxy, Head, Pass
from ingestion_pipeline_tests.fakes import LOOPBACK, FakeWeb, Reply, closed_port, endless, garbage, raw_answer

T = TypeVar("T")


class Way:
    """A proxy with one pass, and how a client talks to it."""

    def __init__(self, proxy: GuardedProxy, entry: Pass, web: FakeWeb) -> None:
        self.proxy, self.entry, self.web = proxy, entry, web

    async def say(self, *lines: str, body: bytes = b"", authorization: str | None = None) -> bytes:
        """All that the proxy answers to these lines, until it hangs up."""
        credentials = self.entry.authorization if authorization is None else authorization
        reader, writer = await asyncio.open_connection(LOOPBACK, self.proxy.port)
        head = [*lines, *([f"Proxy-Authorization: {credentials}"] if credentials else []), "", ""]
        writer.write("\r\n".join(head).encode() + body)
        try:
            async with asyncio.timeout(10):
                return await reader.read()
        finally:
            writer.close()


def on_the_way(web: FakeWeb, work: Callable[[Way], Awaitable[T]], *, max_bytes: int = 10**6) -> T:
    async def run() -> T:
        proxy = GuardedProxy(Guard(frozenset({web.host_port})), connect_seconds=2)
        await proxy.start()
        entry = Pass(max_bytes=max_bytes, on_too_much=lambda: None)
        try:
            with proxy.admitting(entry):
                return await work(Way(proxy, entry, web))
        finally:
            await proxy.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize("authorization", ["", "Basic Zm9vOmJhcg==", "Bearer x"])
def test_without_a_pass_nothing_is_forwarded(web: FakeWeb, authorization: str) -> None:
    async def ask(way: Way) -> list[bytes]:
        lines = (f"GET {web.url()} HTTP/1.1", f"CONNECT {web.host_port} HTTP/1.1")
        return [await way.say(line, authorization=authorization) for line in lines]

    answers = on_the_way(web, ask)

    assert all(answer.startswith(b"HTTP/1.1 407 ") for answer in answers)
    assert web.connections == 0


def test_a_pass_is_good_for_its_page_alone(web: FakeWeb) -> None:
    async def ask_afterwards(way: Way) -> bytes:
        other = Pass(max_bytes=1, on_too_much=lambda: None)
        with way.proxy.admitting(other):
            pass
        return await way.say(f"GET {web.url()} HTTP/1.1", authorization=other.authorization)

    assert on_the_way(web, ask_afterwards).startswith(b"HTTP/1.1 407 ")


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

    answer = on_the_way(web, lambda way: way.say(*lines, body=b"term" + next_request))

    [asked] = web.requests
    assert (asked.method, asked.path, asked.host, asked.body) == (*("POST", "/search?q=1", web.host_port), b"term")
    assert asked.headers.keys() == {"host", "content-length", "connection"}
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"Connection: close\r\n" in answer
    assert b"keep-alive" not in answer


def test_a_tunnel_carries_bytes_both_ways(web: FakeWeb) -> None:
    web.routes["/inside"] = raw_answer(b"HTTP/1.1 200 OK\r\n\r\ninside")

    async def tunnel(way: Way) -> bytes:
        inner = b"GET /inside HTTP/1.1\r\nHost: x\r\n\r\n"
        return await way.say(f"CONNECT {web.host_port} HTTP/1.1", body=inner)

    assert on_the_way(web, tunnel).endswith(b"established\r\n\r\nHTTP/1.1 200 OK\r\n\r\ninside")


@pytest.mark.parametrize("line", ["GET http://{}/ HTTP/1.1", "CONNECT {} HTTP/1.1"])
def test_a_refused_address_is_never_connected_to(web: FakeWeb, line: str) -> None:
    with FakeWeb() as private:

        async def ask(way: Way) -> tuple[bytes, str]:
            answer = await way.say(line.format(private.host_port))
            failure = way.entry.failure(LOOPBACK, private.port)
            assert failure is not None
            return answer, failure.code

        answer, code = on_the_way(web, ask)

        assert private.connections == 0
        assert code == "blocked_address"
        assert answer.startswith(b"HTTP/1.1 502 " if line.startswith("CONNECT") else b"")
        assert bool(answer) is line.startswith("CONNECT"), "no answer that could be the site's"


def test_a_port_where_nobody_listens_is_noted(web: FakeWeb) -> None:
    port = closed_port()

    async def ask() -> str:
        proxy = GuardedProxy(Guard(frozenset({f"{LOOPBACK}:{port}"})), connect_seconds=2)
        await proxy.start()
        entry = Pass(max_bytes=1_000, on_too_much=lambda: None)
        with proxy.admitting(entry):
            await Way(proxy, entry, web).say(f"GET http://{LOOPBACK}:{port}/ HTTP/1.1")
        await proxy.aclose()
        failure = entry.failure(LOOPBACK, port)
        return failure.code if failure else ""

    assert asyncio.run(ask()) == "connection"


def test_a_page_that_uses_up_its_bytes_is_cut_off(web: FakeWeb) -> None:
    web.routes["/"] = endless

    async def ask(way: Way) -> tuple[int, int, bool]:
        answer = await way.say(f"GET {web.url()} HTTP/1.1")
        return len(answer), way.entry.bytes, way.entry.is_open

    size, counted, is_open = on_the_way(web, ask, max_bytes=300_000)

    assert size <= 300_000
    assert 300_000 < counted <= 300_000 + 70_000
    assert not is_open


@pytest.mark.parametrize(
    "answer",
    [garbage, raw_answer(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 9), raw_answer(b"HTTP/1.1 200 OK\r\n: x\r\n\r\n")],
    ids=["no head", "hints for ever", "a header without a name"],
)
def test_what_is_no_answer_is_not_passed_on(web: FakeWeb, answer: object) -> None:
    web.routes["/"] = answer  # pyright: ignore[reportArgumentType]

    assert on_the_way(web, lambda way: way.say(f"GET {web.url()} HTTP/1.1")) == b""


def test_hints_before_the_answer_are_dropped(web: FakeWeb) -> None:
    web.routes["/"] = raw_answer(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\nbody")

    answer = on_the_way(web, lambda way: way.say(f"GET {web.url()} HTTP/1.1"))

    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nbody"


@pytest.mark.parametrize(
    "line",
    [
        "GET / HTTP/1.1",
        "GET https://a.test/ HTTP/1.1",
        "GET http://me:secret@a.test/ HTTP/1.1",
        "GET file:///etc/passwd HTTP/1.1",
        "GET http://[::1/ HTTP/1.1",
        "CONNECT a.test HTTP/1.1",
        "CONNECT a.test:0 HTTP/1.1",
        "CONNECT a.test:65536 HTTP/1.1",
        "GET http://a.test/",
        "",
    ],
)
def test_a_request_for_no_host_is_refused(line: str) -> None:
    with pytest.raises(BadHead):
        Head(line=line, headers=()).target()
