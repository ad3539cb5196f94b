"""Stored responses in place of the web: the newest snapshot of each URL in another installation's store.

A redirect is replayed as one, so that links are resolved as they were. robots.txt is not stored: everything that was
fetched was allowed. What has no snapshot is an error of its own, never a page that is gone.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Row, select

from ingestion_pipeline.pages.content.snapshots import url_key
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.request import Fetched
from ingestion_pipeline.pages.http.transport import RawAnswer
from ingestion_pipeline.pages.visits.page import Rendered, RenderingOptions
from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import snapshots
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline.urls import without_credentials, without_secrets

_SNAPSHOT = tuple(
    snapshots.c[name] for name in ("url", "final_url", "content_type", "body_hash", "rendered_at", "discovered")
)


class StoredResponses:
    """Answers requests as `Connections` does, and renders as a browser does, from snapshots alone."""

    def __init__(self, store: Store, content: ContentStore) -> None:
        self._store = store
        self._content = content
        self._redirected: dict[str, Row[Any]] = {}  # by the address that a redirect leads to

    @asynccontextmanager
    async def exchange(
        self,
        url: str,
        headers: Mapping[str, str],  # noqa: ARG002 - as `Connections` takes it
        body: bytes | None = None,
    ) -> AsyncGenerator[RawAnswer, None]:
        """Yield the stored response to a GET; a POST is not stored by what it asks for."""
        if urlsplit(url).path == "/robots.txt":
            answer: tuple[int, dict[str, str], bytes] = 404, {}, b""
        else:
            answer = await asyncio.to_thread(self._answer, url, is_query=body is not None)
        status, stored_headers, content = answer
        async with aclosing(_once(content)) as chunks:
            yield RawAnswer(status, stored_headers, chunks)

    def _answer(self, url: str, *, is_query: bool) -> tuple[int, dict[str, str], bytes]:
        row = None if is_query else self._newest(url)
        if row is None:
            raise _no_snapshot(url)
        if row.final_url and row.final_url not in {row.url, url}:
            self._redirected[row.final_url] = row
            return 302, {"location": row.final_url}, b""
        return 200, {"content-type": row.content_type} if row.content_type else {}, self._content.get(row.body_hash)

    def _newest(self, url: str) -> Row[Any] | None:
        if (redirected := self._redirected.get(url)) is not None:
            return redirected
        query = (
            select(*_SNAPSHOT)
            .where(snapshots.c.url_key == url_key(without_secrets(url)), snapshots.c.failure.is_(None))
            .where(snapshots.c.body_hash.is_not(None))
            .order_by(snapshots.c.fetched_at.desc(), snapshots.c.id.desc())
        )
        with self._store.read() as connection:
            return connection.execute(query.limit(1)).one_or_none()

    async def render(
        self,
        url: str,
        rendering: RenderingOptions,  # noqa: ARG002 - as a browser takes it
        *,
        check_url: Callable[[str], None] | None = None,
    ) -> Rendered:
        """Return the page as it was stored; without a picture."""
        row = await asyncio.to_thread(self._newest, url)
        if row is None:
            raise _no_snapshot(url)
        final_url = row.final_url or url
        if check_url is not None:
            check_url(final_url)
        page = Fetched(
            url=url,
            final_url=final_url,
            status_code=200,
            body=await asyncio.to_thread(self._content.get, row.body_hash),
            content_type=row.content_type,
            etag=None,
            last_modified=None,
        )
        return Rendered(page=page, discovered=tuple(row.discovered or ()))

    def has_connected(self, host: str) -> bool:  # noqa: ARG002 - as `Connections` does
        """Return True: nothing is ever unreachable."""
        return True

    async def aclose(self) -> None:
        """Close the other installation's store."""
        await asyncio.to_thread(self._store.close)


def _no_snapshot(url: str) -> Permanent:
    return Permanent(f"{without_credentials(url)} has no snapshot that this shadow could read", code="no_snapshot")


async def _once(body: bytes) -> AsyncGenerator[bytes, None]:
    yield body
