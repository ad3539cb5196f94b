"""The word of every source, kept for SQL: one rule says it, and whoever looks writes it down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from sqlalchemy import Connection, String, select, true

from ingestion_pipeline.store.insert import insert_into
from ingestion_pipeline.store.rows import row_source
from ingestion_pipeline.store.tables import source_words
from ingestion_pipeline.store.types import UtcDateTime
from ingestion_pipeline.upkeep.standing import SourceFacts

AT_ONCE = 5_000  # a statement of SQLite takes 32,766 parameters
_GIVEN = {"source_id": String(120), "word": String(12), "since": UtcDateTime()}


Word = tuple[str, str, datetime]  # source, word, since


def new_words(connection: Connection, found: Iterable[SourceFacts], *, now: datetime) -> list[Word]:
    """The words that are others than those that are kept."""
    query = select(source_words.c.source_id, source_words.c.word)
    known: dict[str, str] = {id_: word for id_, word in connection.execute(query)}  # noqa: C416
    return sorted(
        (one.facts.id, one.health.value, now)
        for one in found
        if known.get(one.facts.id) != one.health.value
    )


def keep_words(connection: Connection, words: Sequence[Word]) -> None:
    """`v_source_health` says these of their sources; the last who looked is right."""
    for start in range(0, len(words), AT_ONCE):
        _write(connection, words[start : start + AT_ONCE])


def _write(connection: Connection, rows: Sequence[Word]) -> None:
    given = row_source(connection, _GIVEN, rows, "given")
    # SQLite takes an ON of the conflict for one of a join, unless a condition stands before it.
    insert = insert_into(connection, source_words).from_select(
        list(_GIVEN), select(*given.c).where(true()).order_by(given.c.source_id)
    )
    new = insert.excluded
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=["source_id"], set_={"word": new.word, "since": new.since}
        )
    )
