from __future__ import annotations

from datetime import datetime

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import series
from ingestion_pipeline.work.errors import classify


def test_a_failed_statement_repeats_none_of_its_values(store: Store, now: datetime) -> None:
    row = {"id": "solo", "title": "canary", "created_at": now}

    with (
        pytest.raises(IntegrityError, match="INSERT INTO series") as caught,
        store.begin() as connection,
    ):
        connection.execute(insert(series), [row, row])

    assert "canary" not in str(caught.value)


def test_what_is_kept_of_a_database_error_quotes_no_row(store: Store, now: datetime) -> None:
    """PostgreSQL ends its message with the row that it refused."""
    row = {"id": "canary", "title": None, "created_at": now}

    with pytest.raises(IntegrityError) as caught, store.begin() as connection:
        connection.execute(insert(series), [row])

    kept = classify(caught.value).text
    assert "title" in kept
    assert "canary" not in kept
