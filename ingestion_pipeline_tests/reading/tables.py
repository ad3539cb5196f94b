"""Tables of test cases that are kept in YAML files, in the folder `cases` beside the tests."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml


def table(file: str, name: str) -> list[Any]:
    """Return the rows of a test's table; a mapping gives each row its id."""
    rows = _tables(Path(file))[name]
    if isinstance(rows, list):
        return rows
    return [pytest.param(*values, id=id_) for id_, values in rows.items()]


@cache
def _tables(file: Path) -> dict[str, Any]:
    path = file.parent / "cases" / f"{file.stem.removeprefix('test_')}.yaml"
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
