"""Every published column says what it is, in which unit, and when it is null."""

import re

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_types
from ingestion_pipeline.engine.system_spec import ColumnType
from ingestion_pipeline.exports.contracts import CONTRACTS
from ingestion_pipeline.exports.export_request import ITEMS, PUBLISHED, ExportRequest
from ingestion_pipeline.exports.exported_items import ITEM_ROWS, item_columns
from ingestion_pipeline.store.tables.metadata import SHARED_COMMENTS

PLAIN = {"the", "a", "an", "of", "its", "it", "is", "in", "at", "row", "null", "utc", "which"}
HEALTH = CONTRACTS["source_health"]
ROWS = {**PUBLISHED, HEALTH.export: HEALTH.table, ITEMS: ITEM_ROWS}
COLUMNS = {
    **{name: rows.export_columns() for name, rows in ROWS.items()},
    ITEMS: item_columns(ExportRequest(name="competency", with_flagged=True), []),
}


def significant_words(text: str) -> set[str]:
    """Return the significant words of a text, in the singular."""
    all_words = re.findall("[a-z]+", text.lower().replace("_", " "))
    return {word.removesuffix("s") for word in all_words if word not in PLAIN}


def own_fields() -> set[str]:
    """Return the fields that a schema file describes."""
    return {field.name for kind in entity_types().values() for field in kind.fields}


def described_columns(export: str) -> list[str]:
    skipped = own_fields() if export == ITEMS else set[str]()
    return [column.name for column in COLUMNS[export] if column.name not in skipped]


@pytest.mark.parametrize("export", COLUMNS)
def test_a_column_meaning_adds_to_its_name(export: str) -> None:
    for name in described_columns(export):
        text = ROWS[export].meaning(name)
        assert len(text.split()) >= 3, name
        assert len(significant_words(text) - significant_words(name)) >= 2, f"{name}: {text}"


@pytest.mark.parametrize("export", PUBLISHED)
def test_a_nullable_column_says_when_it_is_null(export: str) -> None:
    table = PUBLISHED[export].table
    for name in described_columns(export):
        own = table.columns.get(name)
        may_be_null = own is None or (own.nullable and not own.primary_key)
        assert ("null" in ROWS[export].meaning(name)) is may_be_null, name


@pytest.mark.parametrize("export", COLUMNS)
def test_times_money_and_shares_have_their_unit(export: str) -> None:
    for column in COLUMNS[export]:
        if column.name not in described_columns(export):
            continue
        text = ROWS[export].meaning(column.name)
        assert (column.holds is not ColumnType.TIME) or "UTC" in text, column.name
        assert (column.holds is not ColumnType.JSON) or "JSON" in text, column.name
        assert "usd" not in column.name or "US dollars" in text, column.name
        assert not column.name.endswith("_ms") or "milliseconds" in text, column.name
        assert not column.name.endswith("_bytes") or "bytes" in text, column.name


def test_every_described_column_is_computed_by_its_export() -> None:
    columns = {name: {column.name for column in exported} for name, exported in COLUMNS.items()}

    assert [(export, name) for export in ROWS for name in ROWS[export].meanings if name not in columns[export]] == []
    assert set(SHARED_COMMENTS) <= {name for names in columns.values() for name in names}


def test_a_column_without_a_meaning_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"chapters\.colour"):
        PUBLISHED["chapters"].meaning("colour")
