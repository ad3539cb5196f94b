"""`python -m benchmarks.site HOME`: many chapter sites in a process of its own, 50 ms away.

Every name under `demo.test` leads here once the port is in HOME's address book. `/source/N` is a
listing with an ETag; after `/version/1` every fiftieth source lists one chapter more. `/hang/N` is never answered,
`/error/N` with 500.
"""

import asyncio
import json
import sys
from functools import cache
from pathlib import Path

from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.pages.http.guard import LOOPBACK, publish

LATENCY_SECONDS = 0.05
CHAPTERS = 20
CHANGED_EVERY = 50


@cache
def _listing(source: int, chapters: int) -> bytes:
    listed = [
        {"number": str(n), "title": f"Chapter {n}", "url": f"/source/{source}/{n}", "id": f"{source}-{n}"}
        for n in range(chapters, 0, -1)
    ]
    return json.dumps({"chapters": listed}).encode()


class Site(asyncio.Protocol):
    """One connection, kept alive; requests are answered in their order."""

    version = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
            answer = self._answer(head)
            if answer is None:
                return
            asyncio.get_running_loop().call_later(LATENCY_SECONDS, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _answer(self, head: bytes) -> bytes | None:
        what, _, number = head.split(b" ", 2)[1].strip(b"/").partition(b"/")
        if what == b"version":
            Site.version = int(number)
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if what == b"robots.txt":
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
        if what == b"hang":
            return None
        if what == b"error":
            return b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
        source = int(number)
        chapters = CHAPTERS + (Site.version if source % CHANGED_EVERY == 0 else 0)
        etag = b'"%d-%d"' % (source, chapters)
        if etag in head:  # nothing but If-None-Match repeats it
            return b"HTTP/1.1 304 Not Modified\r\netag: " + etag + b"\r\n\r\n"
        body = _listing(source, chapters)
        said = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: %b\r\ncontent-length: %d"
        return said % (etag, len(body)) + b"\r\n\r\n" + body


async def _serve(home: Path) -> None:
    server = await asyncio.get_running_loop().create_server(Site, LOOPBACK, 0, backlog=1_000)
    publish(home, server.sockets[0].getsockname()[1], suffix=DEMO_SUFFIX)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
