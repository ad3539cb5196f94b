"""A proxy before PostgreSQL that cuts the line at a COMMIT: before it, or before its answer."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Self

SOCKET = ".s.PGSQL.5432"
COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"  # as libpq writes the statement


class CuttingProxy:
    """Passes everything on, but for one COMMIT: the `cut_at`th since the last `arm`.

    With `arrives` the server has done it when the line is cut, and the client does not know.
    """

    def __init__(self, server: Path) -> None:
        self._server = str(server / SOCKET)
        # A unix socket's path has at most 107 bytes, hence not pytest's own folder.
        self.folder = Path(tempfile.mkdtemp(prefix="ipt-cut-", dir="/tmp"))
        self.commits = 0
        self.cuts = 0
        self._cut_at = 0
        self._arrives = True
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def arm(self, cut_at: int, *, arrives: bool) -> None:
        self.commits = self.cuts = 0
        self._cut_at, self._arrives = cut_at, arrives

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        (self.folder / SOCKET).unlink(missing_ok=True)
        self.folder.rmdir()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        path = str(self.folder / SOCKET)
        server = await asyncio.start_unix_server(self._connected, path)
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_unix_connection(self._server)
        answers = asyncio.create_task(self._pass_on(theirs, writer))
        try:
            await self._ask(reader, ours, theirs, answers)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            ours.close()
            writer.close()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        ours: asyncio.StreamWriter,
        theirs: asyncio.StreamReader,
        answers: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(65_536):
            if data == COMMIT and self._is_the_one():
                if self._arrives:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    ours.write(data)
                    await theirs.read(65_536)  # CommandComplete: it is done
                return
            ours.write(data)
            await ours.drain()

    def _is_the_one(self) -> bool:
        self.commits += 1
        is_it = self.commits == self._cut_at
        self.cuts += is_it
        return is_it

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()
