"""The shape of the house: who imports whom, who may know Dagster, how large things get."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "ingestion_pipeline"
TESTS = Path(__file__).parent

# The data's way: a room imports only from rooms before it.
ROOMS = (
    "terminal",
    "settings",
    "urls",
    "store",
    "tasks",
    "sources",
    "reading",
    "pages",
    "engine",
    "series",
    "notices",
    "catalogs",
    "companies",
    "websites",
    "exports",
    "registry",
    "demo",
    "bootstrap",
    "operations",
    "orchestration",
    "definitions",
    "cli",
)
MAY_KNOW_DAGSTER = {"orchestration", "definitions"}
DRAWERS = {"utils", "common", "helpers", "constants", "base", "misc"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def offenders(what: Callable[[Path], object]) -> dict[str, object]:
    """What is wrong with each module, by its path; nothing is wrong where it says nothing."""
    return {str(module.relative_to(PACKAGE)): result for module in MODULES if (result := what(module))}


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def room_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imported(module: Path) -> frozenset[str]:
    return frozenset(_imported(module))


def _imported(module: Path) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(module: Path) -> set[str]:
    parts = [name.split(".") for name in imported(module)]
    return {name[1] for name in parts if name[0] == "ingestion_pipeline" and len(name) > 1}


def test_every_room_stands_on_the_way() -> None:
    result = {room_of(module) for module in MODULES} - {"__init__"}

    assert result == set(ROOMS)


def test_a_room_imports_only_from_rooms_before_it() -> None:
    def later(module: Path) -> set[str]:
        before = ROOMS[: ROOMS.index(room_of(module)) + 1]
        return (rooms_imported(module) & set(ROOMS)) - set(before)

    assert offenders(lambda module: room_of(module) != "__init__" and later(module)) == {}


def test_the_systems_do_not_import_each_other() -> None:
    systems = {"series", "catalogs", "companies", "websites"}

    def others(module: Path) -> set[str]:
        return (rooms_imported(module) & systems) - {room_of(module)}

    assert offenders(lambda module: room_of(module) in systems and others(module)) == {}


def test_only_orchestration_and_definitions_know_dagster() -> None:
    def knows(module: Path) -> bool:
        return any(name.split(".")[0].startswith("dagster") for name in imported(module))

    knowing = offenders(knows)

    assert {Path(name).parts[0].removesuffix(".py") for name in knowing} == MAY_KNOW_DAGSTER


def test_no_function_is_longer_than_sixty_lines() -> None:
    def long(module: Path) -> list[str]:
        functions = [
            node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return [function.name for function in functions if (function.end_lineno or 0) - function.lineno + 1 > 60]

    assert offenders(lambda module: "migrations" not in module.parts and long(module)) == {}


def test_no_module_is_a_drawer() -> None:
    assert [module for module in MODULES if module.stem in DRAWERS] == []


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()], ids=lambda room: room)
def test_the_docstring_of_each_package_says_what_belongs_in_it(room: str) -> None:
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text())) or ""
    sentences = [part for part in docstring.replace("\n", " ").split(". ") if part.strip()]

    assert len(sentences) >= 2, docstring
    assert "belong" in docstring or "decides nothing" in docstring or "is not" in docstring


def test_a_test_file_stays_readable() -> None:
    files = sorted(TESTS.rglob("*.py"))

    assert files
    assert [file for file in files if file.read_text().count("\n") > 700] == []


def test_importing_a_room_loads_no_dagster() -> None:
    rooms = ", ".join(f"ingestion_pipeline.{room}" for room in ROOMS if room not in MAY_KNOW_DAGSTER)
    code = f"import sys, {rooms}; sys.exit('dagster' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)

    assert done.returncode == 0


def test_importing_the_definitions_loads_nothing_heavy() -> None:
    heavy = {"pandas", "pyarrow", "openai", "playwright", "httpx", "feedparser", "alembic", "parsel"}
    heavy |= {"apprise", "selectolax", "html_to_markdown", "re2"}
    code = f"import sys, ingestion_pipeline.definitions; print(*({heavy!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)

    assert done.stdout.split() == []
