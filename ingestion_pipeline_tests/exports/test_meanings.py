"""Every published column says what it is, in which unit, and when it is null."""

from __future__ import annotations

import re

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_types
from ingestion_pipeline.exports.columns import ColumnType
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.items import item_columns
from ingestion_pipeline.exports.meanings import OWN, meaning
from ingestion_pipeline.exports.meanings.shared import SHARED
from ingestion_pipeline.exports.request import ITEMS, ExportRequest
from ingestion_pipeline.exports.tables import PUBLISHED, table_columns

PLAIN = {"the", "a", "an", "of", "its", "it", "is", "in", "at", "row", "null", "utc", "which"}
HEALTH = CONTRACTS["source_health"]
COLUMNS = {
    **{name: table_columns(name) for name in PUBLISHED},
    HEALTH.export: HEALTH.columns(),
    ITEMS: item_columns(ExportRequest(name="competency", with_flagged=True), []),
}


def words(text: str) -> set[str]:
    """The words that say something, in one number."""
    found = re.findall("[a-z]+", text.lower().replace("_", " "))
    return {word.removesuffix("s") for word in found if word not in PLAIN}


def own_fields() -> set[str]:
    """What a schema file tells of, and not this."""
    return {field.name for kind in entity_types().values() for field in kind.fields}


def told(export: str) -> list[str]:
    skipped = own_fields() if export == ITEMS else set[str]()
    return [one.name for one in COLUMNS[export] if one.name not in skipped]


@pytest.mark.parametrize("export", COLUMNS)
def test_a_column_says_more_than_its_name(export: str) -> None:
    for name in told(export):
        said = meaning(export, name)
        assert len(said.split()) >= 3, name
        assert len(words(said) - words(name)) >= 2, f"{name}: {said}"


@pytest.mark.parametrize("export", PUBLISHED)
def test_a_column_that_may_be_null_says_when(export: str) -> None:
    table = PUBLISHED[export].table
    for name in told(export):
        own = table.columns.get(name)
        may_be_null = own is None or (own.nullable and not own.primary_key)
        assert ("null" in meaning(export, name)) is may_be_null, name


@pytest.mark.parametrize("export", COLUMNS)
def test_times_money_and_shares_have_their_unit(export: str) -> None:
    for column in COLUMNS[export]:
        if column.name not in told(export):
            continue
        said = meaning(export, column.name)
        assert (column.holds is not ColumnType.TIME) or "UTC" in said, column.name
        assert (column.holds is not ColumnType.JSON) or "JSON" in said, column.name
        assert "usd" not in column.name or "US dollars" in said, column.name
        assert not column.name.endswith("_ms") or "milliseconds" in said, column.name
        assert not column.name.endswith("_bytes") or "bytes" in said, column.name


def test_no_meaning_is_of_a_column_that_is_not_there() -> None:
    there = {name: {one.name for one in columns} for name, columns in COLUMNS.items()}

    assert [(one, name) for one in OWN for name in OWN[one] if name not in there[one]] == []
    assert set(SHARED) <= {name for names in there.values() for name in names}


def test_a_column_that_nobody_tells_of_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"chapters\.colour"):
        meaning("chapters", "colour")
