"""`python -m benchmarks.crawlers.site PAGES HOSTS SMALL`: the site, in a process of its own.

All pages are made before the port is printed; to serve one is a look into a table. `/served` on any
host tells what was served since the last time it was asked.
"""

import asyncio
import json
import sys
from collections import Counter

from benchmarks.crawlers.job import LOOPBACK, host_name
from benchmarks.crawlers.pages import Site, path_of

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: %d\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

Key = tuple[bytes, bytes]


class Tally:
    """What was asked for, and by how many connections of a host at a time at the most."""

    def __init__(self) -> None:
        self.requests: Counter[Key] = Counter()
        self.missing: Counter[str] = Counter()
        self.open: Counter[bytes] = Counter()
        self.connections = 0
        self.most = 0

    def as_json(self) -> bytes:
        told = {
            "requests": self.requests.total(),
            "pages": len(self.requests),
            "missing": dict(self.missing.most_common(5)),
            "most_of_one_missing": max(self.missing.values(), default=0),
            "connections": self.connections,
            "most_connections_of_a_host": self.most,
        }
        return json.dumps(told).encode()


class Answering(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self, answers: dict[Key, bytes], tally: Tally) -> None:
        self._answers, self._tally = answers, tally
        self._host: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._host is not None:
            self._tally.open[self._host] -= 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            self._transport.write(self._answer(head))

    def _answer(self, head: bytes) -> bytes:
        path = head.split(b" ", 2)[1]
        if path == b"/served":
            told = self._tally.as_json()
            self._tally.__init__()
            return HEAD % len(told) + told
        key = (_host(head), path)
        answer = self._answers.get(key)
        if answer is None:
            self._tally.missing[b"".join(key).decode("latin-1")] += 1
            return NOT_FOUND
        self._tally.requests[key] += 1
        self._count(key[0])
        return answer

    def _count(self, host: bytes) -> None:
        if self._host is None:
            self._host = host
            self._tally.open[host] += 1
            self._tally.connections += 1
        self._tally.most = max(self._tally.most, self._tally.open[host])


def _host(head: bytes) -> bytes:
    start = head.lower().index(b"\r\nhost:") + len(b"\r\nhost:")
    return head[start:].partition(b"\r\n")[0].strip()


def _answers(site: Site) -> dict[Key, bytes]:
    answers: dict[Key, bytes] = {}
    for host in range(site.hosts):
        for number in range(site.pages_of(host)):
            body = site.page(host, number)
            answers[host_name(host).encode(), path_of(number).encode()] = HEAD % len(body) + body
    return answers


async def _serve(site: Site) -> None:
    answers, tally = _answers(site), Tally()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Answering(answers, tally), LOOPBACK, 0, backlog=1_000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    pages, hosts, is_small = map(int, sys.argv[1:])
    asyncio.run(_serve(Site(pages=pages, hosts=hosts, is_small=bool(is_small))))
