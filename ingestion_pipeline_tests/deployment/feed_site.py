"""`python -m ...deployment.feed_site HOME LOG SECONDS`: feeds that take their time.

Every name under `demo.test` leads here. `/feed/N` is a feed of one chapter, answered after SECONDS;
a POST is a delivered message. LOG has a line for each request with its time of arrival.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import IO

from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.pages.http.guard import LOOPBACK, publish

FEED = (
    '<rss version="2.0"><channel><title>S</title><item><title>Chapter 1</title>'
    "<guid>c1</guid><link>http://{host}/c/1</link></item></channel></rss>"
)


class Site:
    """Answer requests and log each one: host, path, and the id of a message."""

    def __init__(self, log: IO[str], seconds: float) -> None:
        self._log, self._seconds = log, seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._answer_one(reader, writer):
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):  # the client was killed
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        method, path, _ = first.split(" ")
        if length := int(headers.get("content-length", "0")):
            await reader.readexactly(length)
        host = headers.get("host", "")
        self._write_down(host, path, headers.get("webhook-id"))
        if method == "POST":
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        elif not path.startswith("/feed/"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        else:
            await asyncio.sleep(self._seconds)
            body = FEED.format(host=host).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/rss+xml\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return True

    def _write_down(self, host: str, path: str, message_id: str | None) -> None:
        # monotonic: the same clock in every process of the machine
        entry = {"at": time.monotonic(), "host": host, "path": path, "message": message_id}
        self._log.write(json.dumps(entry) + "\n")
        self._log.flush()


async def main(home: Path, log: Path, seconds: float) -> None:
    with log.open("a") as log_file:
        server = await asyncio.start_server(Site(log_file, seconds).serve, LOOPBACK, 0, backlog=1000)
        publish(home, server.sockets[0].getsockname()[1], suffix=DEMO_SUFFIX)
        print("ready", flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])))
