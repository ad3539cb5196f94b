"""`docs/reference/` is what `tools/reference.py` writes from the code."""

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
NAMES = ["cli.md", "settings.md", "errors.md", "tables.md", "jobs.md"]


@cache
def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    return load_generator().pages()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_is_current(name: str, generated: dict[str, str]) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == generated[name], "run `make reference`"


@pytest.mark.slow
def test_every_generated_page_is_compared(generated: dict[str, str]) -> None:
    assert sorted(generated) == sorted(NAMES)


def test_every_table_has_its_purpose() -> None:
    from ingestion_pipeline.store.tables import metadata

    assert load_generator().TABLES.keys() == metadata.tables.keys()


def test_every_table_is_on_the_map() -> None:
    from ingestion_pipeline.store.tables import metadata

    groups = (ROOT / "docs" / "architecture.md").read_text().partition("## Table map")[2].partition("## Systems")[0]

    assert [name for name in metadata.tables if f"`{name}`" not in groups] == []


def test_every_arrow_of_the_map_is_a_foreign_key() -> None:
    from ingestion_pipeline.store.tables import metadata

    text = (ROOT / "docs" / "architecture.md").read_text()
    arrows = set(re.findall(r"^  (\w+) \|\|--o[{|] (\w+) :", text, re.M))
    keys = {
        (key.column.table.name, table.name)
        for table in metadata.tables.values()
        for key in table.foreign_keys
        if key.column.table is not table
    }

    assert arrows <= keys
    assert len(arrows) > len(keys) / 2


@pytest.mark.slow
def test_every_code_in_troubleshooting_exists() -> None:
    codes = load_generator().error_codes()
    text = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## By error code")[2].partition("\n## ")[0]
    named = {code for row in re.findall(r"^\| (`[^|]+) \|", text, re.M) for code in re.findall(r"`(\w+)`", row)}

    assert len(named) > 30
    assert {re.sub(r"^http_\d+$", "http_…", code) for code in named} <= codes.keys()
