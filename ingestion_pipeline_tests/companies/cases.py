"""Cases of parametrized tests, from the tables in fixtures/companies."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

FOLDER = Path(__file__).parent.parent / "fixtures" / "companies"
Test = TypeVar("Test", bound=Callable[..., None])


@cache
def tables(file: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"{file}.yaml").read_text())


def with_cases(*names: str, ids: Sequence[str] | None = None) -> Callable[[Test], Test]:
    """Run a test of `test_FILE.py` for each row that FILE.yaml has under the test's name."""

    def decorate(test: Test) -> Test:
        file = test.__module__.rpartition(".")[2].removeprefix("test_")
        return pytest.mark.parametrize(",".join(names), tables(file)[test.__name__], ids=ids)(test)

    return decorate
