"""Which source stands for a board already, by platform and token, never by likeness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from ingestion_pipeline.sources.platforms import recognize_platform
from ingestion_pipeline.sources.source import Kind
from ingestion_pipeline.store.tables import sources
from ingestion_pipeline.urls import BadUrl, canonical_url


def standing_source(
    connection: Connection, *, platform: str, url: str, token: str | None
) -> str | None:
    """The id of the source of this board or of this very address; None if there is none.

    The origin looked for a token inside addresses, and took strangers' boards for its own.
    """
    query = select(sources.c.id, sources.c.url, sources.c.platform, sources.c.config).where(
        sources.c.kind == Kind.JOB_BOARD.value
    )
    wanted = _canonical(url)
    for row in connection.execute(query.order_by(sources.c.created_at, sources.c.id)):
        if _canonical(row.url) == wanted:
            return row.id
        if token and row.platform == platform and _token(row.url, platform, row.config) == token:
            return row.id
    return None


def _token(url: str, platform: str, config: Mapping[str, Any]) -> str | None:
    if isinstance(named := config.get("board_token"), str):
        return named
    found = recognize_platform(url)
    return found.token if found is not None and found.name == platform else None


def _canonical(url: str) -> str:
    try:
        return canonical_url(url).rstrip("/")
    except BadUrl:
        return url
