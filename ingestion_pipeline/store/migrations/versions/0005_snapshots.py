"""Snapshots of pages: one row per address and content, with an object for each form of it."""

from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from alembic import op

from ingestion_pipeline.store.types import Json, UtcDateTime

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for column in (
        sa.Column(
            "url_key", sa.String(64), comment="sha256 of url: an index takes no text of any length"
        ),
        sa.Column("final_url", sa.Text()),
        sa.Column(
            "canonical_url",
            sa.Text(),
            comment="what the page calls its own address, on its own site",
        ),
        sa.Column("served_hash", sa.String(64), comment="of the bytes that plain HTTP gave last"),
        sa.Column("links_hash", sa.String(64), comment="of the set of addresses it leads to"),
        sa.Column(
            "rendered_at", UtcDateTime(), comment="when a browser last showed it; null: none did"
        ),
        sa.Column(
            "rendering_hash", sa.String(64), comment="of how the browser was told to show it"
        ),
        sa.Column("discovered", Json, comment="addresses that only clicks in the browser found"),
        sa.Column(
            "body_hash", sa.String(64), comment="object: what was served, or the rendered DOM"
        ),
        sa.Column("text_hash", sa.String(64), comment="object: the cleaned text; null: a listing"),
        sa.Column("markdown_hash", sa.String(64), comment="object"),
        sa.Column("markdown_version", sa.Text()),
        sa.Column("screenshot_hash", sa.String(64), comment="object"),
        sa.Column("failure", sa.String(40), comment="why it could not be read; null: it is good"),
    ):
        op.add_column("snapshots", column)
    _fill(op.get_bind())
    op.create_index(
        "uq_snapshots_url_key_content_hash", "snapshots", ["url_key", "content_hash"], unique=True
    )


def _fill(connection: sa.Connection) -> None:
    """What older rows say of themselves; of those that now are one, the newest stays."""
    table = sa.table(
        "snapshots", *map(sa.column, ("id", "url", "url_key", "content_hash", "body_hash"))
    )
    newer = table.alias("newer")
    connection.execute(
        sa.delete(table).where(
            sa.exists().where(
                newer.c.url == table.c.url,
                newer.c.content_hash == table.c.content_hash,
                newer.c.id > table.c.id,
            )
        )
    )
    connection.execute(sa.update(table).values(body_hash=table.c.content_hash))
    connection.execute(sa.update(table).values(url_key=_sha256_of(connection, table.c.url)))


def _sha256_of(connection: sa.Connection, text: sa.ColumnClause[str]) -> sa.ColumnElement[str]:
    """Reckoned where the rows are: no statement for each of them, and no index is needed."""
    if connection.dialect.name == "postgresql":
        return sa.func.encode(sa.func.sha256(sa.func.convert_to(text, "UTF8")), "hex")
    sqlite: Any = connection.connection.driver_connection
    sqlite.create_function("sha256_of", 1, _sha256)
    return sa.func.sha256_of(text)


def _sha256(text: str) -> str:
    return sha256(text.encode()).hexdigest()
