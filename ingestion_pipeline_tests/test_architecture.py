"""The shape of the code base: import direction, Dagster's place, one meaning per name, plain words."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from ingestion_pipeline.registry import systems

PACKAGE = Path(__file__).parent.parent / "ingestion_pipeline"
TESTS = Path(__file__).parent
SYSTEMS = ("series", "catalogs", "companies", "websites")
# A package imports only from packages before it; the four systems do not import each other.
LAYERS = (
    "extras",
    "gc_thresholds",
    "terminal",
    "settings",
    "urls",
    "store",
    "tasks",
    "sources",
    "reading",
    "pages",
    "engine",
    "notices",
    *SYSTEMS,
    "registry",
    "exports",
    "operations",
    "bootstrap",
    "orchestration",
    "definitions",
    "cli",
    "demo",
    "__main__",
)
MAY_IMPORT_DAGSTER = {"orchestration", "definitions"}
VAGUE_MODULE_NAMES = {"utils", "common", "helpers", "constants", "base", "misc"}
SMALL = 80  # lines of a module that should not stand alone for a single importer
MODULES = sorted(PACKAGE.rglob("*.py"))


def words_of_text(text: str) -> set[str]:
    return set(text.split())


# Words that a new engineer would have to learn first, as parts of names in the product. Each has a plain word in use;
# the numbers only fall: lower them when a use goes.
PRIVATE_WORDS = words_of_text(
    "afresh anew begun believed belonging burial burials buried bury census crew desk detective durably elsewhere"
    " ending endings garbage going hear hears homes hopeless house housekeeping ladder lesson lessons letter"
    " letters letting looked loud manners market needless piece pieces pulse pulses revival revivals revive"
    " revived rhythm rung rungs settled shop silence silent speak spoken standing starters stranger strangers"
    " student taught telling told unsettled untold unwanted unwatched wall walls wishes workpiece workshop worth"
)
PLACEHOLDERS = words_of_text("asked begun found given got kept known meant one ones said shown some told wanted")
PRIVATE_WORDS_LEFT = 20
PLACEHOLDERS_LEFT = 6


def offenders(what: Callable[[Path], object]) -> dict[str, object]:
    """Return what is wrong with each module, by its path; modules without a finding are left out."""
    return {str(module.relative_to(PACKAGE)): result for module in MODULES if (result := what(module))}


@cache
def tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


def layer_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(module: Path) -> frozenset[str]:
    return frozenset(_imports(module))


def _imports(module: Path) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_layers(module: Path) -> set[str]:
    parts = [name.split(".") for name in imports(module)]
    return {name[1] for name in parts if name[0] == "ingestion_pipeline" and len(name) > 1}


def dotted_name(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def bound_names(module: Path) -> Iterator[str]:
    """Yield every name that the module binds: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree(module)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                pass


def words(name: str) -> set[str]:
    name = name.lower() if name.isupper() else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return set(re.sub(r"dead_letters?", "", name).split("_"))


def test_every_package_has_its_place_in_the_layers() -> None:
    assert {layer_of(module) for module in MODULES} - {"__init__"} == set(LAYERS)


@pytest.mark.slow
def test_a_package_imports_only_from_packages_before_it() -> None:
    def later(module: Path) -> set[str]:
        before = LAYERS[: LAYERS.index(layer_of(module)) + 1]
        return (imported_layers(module) & set(LAYERS)) - set(before)

    assert offenders(lambda module: layer_of(module) != "__init__" and later(module)) == {}


@pytest.mark.slow
def test_the_systems_do_not_import_each_other() -> None:
    def others(module: Path) -> set[str]:
        return (imported_layers(module) & set(SYSTEMS)) - {layer_of(module)}

    assert offenders(lambda module: layer_of(module) in SYSTEMS and others(module)) == {}


# Where a system is named beside its own folder, `registry.py`, the tables and the demo, and why.
NAMED_SYSTEMS = {
    "bootstrap.py": "the profile of a local server",
    "cli/companies.py": "commands of one system",
    "cli/doctor.py": "profile, boards and pages that need a browser: checked before any run",
    "cli/evaluation.py": "golden sets are rows of catalogues; models read their pages",
    "cli/extractions.py": "commands of one system",
    "cli/first_look.py": "a first look at an address, by every kind there is",
    "cli/listings.py": "commands of one system",
    "cli/read.py": "readers of saved pages, with the columns of each kind",
    "cli/rows.py": "datasets are exported by entity type",
    "cli/run.py": "a first run goes through the steps of each kind",
    "cli/series.py": "commands of one system",
    "cli/sources.py": "the id of a website is made from its address; removing a board closes its listings",
    "cli/status.py": "the phases of analyses",
    "cli/websites.py": "commands of one system",
    "cli/mcp.py": "items of the user's own types are rows, too",
    "exports/change_history.py": "changes of items are recorded by entity type",
    "exports/contracts.py": "items of datasets are checked by their entity type",
    "exports/dlt.py": "datasets are exported by entity type",
    "exports/export_request.py": "datasets are exported by entity type",
    "exports/exported_items.py": "datasets are exported by entity type",
    "exports/exporting.py": "datasets are exported by entity type",
    "exports/formats.py": "datasets are exported by entity type",
    "exports/release_feeds.py": "chapters are releases",
    "notices/expansion.py": "chapters are announced to the followers of a series",
    "notices/subscriptions.py": "a series is followed",
    "operations/metrics.py": "what models cost by the pages of extractions",
    "orchestration/checks.py": "the contract of datasets covers their items",
    "orchestration/jobs.py": "operators start and stop extractions; a sensor finishes them",
    "sources/declarations.py": "what a source file may state of each kind",
    "sources/lookup.py": "sources of one series",
    "sources/platforms.py": "platforms are recognised by their URL, without a system",
    "sources/registry.py": "chapters and listings of a removed source",
    "sources/scheduling/tiers.py": "the intervals of each kind",
    "sources/source.py": "the kinds themselves",
}


def named_systems(module: Path) -> set[str]:
    """Return what the module names of systems: their kinds and tables, and what it imports of their packages."""
    tables = {table.name for system in systems() for table in system.tables}
    kinds = {kind.name.upper() for system in systems() for kind in system.kinds}
    named = imported_layers(module) & set(SYSTEMS)
    for node in ast.walk(tree(module)):
        match node:
            case ast.ImportFrom(module=str(origin), names=names) if origin.startswith(
                "ingestion_pipeline.store.tables"
            ):
                named |= tables & {alias.name for alias in names}
            case ast.Attribute(value=ast.Name(id="tables"), attr=name):
                named |= tables & {name}
            case ast.Attribute(value=ast.Name(id="Kind"), attr=name):
                named |= kinds & {name}
            case _:
                pass
    return named


@pytest.mark.slow
def test_a_system_is_named_in_its_own_folder_and_in_a_short_list_of_other_places() -> None:
    outside = [module for module in MODULES if layer_of(module) not in {*SYSTEMS, "registry", "store", "demo"}]
    naming = {str(module.relative_to(PACKAGE)) for module in outside if named_systems(module)}

    assert naming - NAMED_SYSTEMS.keys() == set()  # put it into the system's `SystemSpec`
    assert NAMED_SYSTEMS.keys() - naming == set()  # no longer needed


@pytest.mark.slow
def test_nothing_imports_the_demo() -> None:
    assert offenders(lambda module: layer_of(module) != "demo" and "demo" in imported_layers(module)) == {}


def test_only_orchestration_and_definitions_import_dagster() -> None:
    def imports_dagster(module: Path) -> bool:
        return any(name.split(".")[0].startswith("dagster") for name in imports(module))

    importing = offenders(imports_dagster)

    assert {Path(name).parts[0].removesuffix(".py") for name in importing} == MAY_IMPORT_DAGSTER


def test_a_public_class_name_has_one_meaning() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in tree(module).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert {name for name, count in names.items() if count > 1} == set()


def test_a_small_module_has_more_than_one_importer() -> None:
    """A small module whose only importer sits beside it belongs into that importer, unless that is an index.

    `__init__` is the index of a package, `system` that of the parts of a system.
    """
    importers = {dotted_name(module): set[Path]() for module in MODULES}
    for module in MODULES:
        for name in imports(module) & importers.keys():
            importers[name].add(module)

    def is_fragment(module: Path) -> bool:
        users = importers[dotted_name(module)] - {module}
        is_small = module.read_text().count("\n") < SMALL and module.stem != "__init__"
        return is_small and [(user.parent, user.stem not in {"__init__", "system"}) for user in users] == [
            (module.parent, True)
        ]

    assert offenders(is_fragment) == {}


@pytest.mark.slow
def test_no_function_is_longer_than_sixty_lines() -> None:
    def long(module: Path) -> list[str]:
        functions = [
            node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        return [function.name for function in functions if (function.end_lineno or 0) - function.lineno + 1 > 60]

    assert offenders(lambda module: "migrations" not in module.parts and long(module)) == {}


def test_a_page_is_parsed_by_its_document_alone() -> None:
    """Fragments aside: a part of a page is cleaned in `cleaning`, the head of a feed's page is read in `links`."""
    called = [
        str(module.relative_to(PACKAGE))
        for module in MODULES
        if any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "parse_html"
            for node in ast.walk(tree(module))
        )
    ]

    assert called == ["reading/html/cleaning.py", "reading/html/document.py", "reading/html/links.py"]


def test_no_module_has_a_vague_name() -> None:
    assert [module for module in MODULES if module.stem in VAGUE_MODULE_NAMES] == []


@pytest.mark.slow
def test_names_are_made_of_plain_words() -> None:
    names = [(dotted_name(module), name) for module in MODULES for name in bound_names(module)]
    private = [(module, name) for module, name in names if words(name) & PRIVATE_WORDS]
    vague = [(module, name) for module, name in names if name in PLACEHOLDERS]

    assert len(private) <= PRIVATE_WORDS_LEFT, private
    assert len(vague) <= PLACEHOLDERS_LEFT, vague
    assert [module for module in MODULES if words(module.stem) & PRIVATE_WORDS] == []


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if (PACKAGE / layer).is_dir()])
def test_the_docstring_of_each_package_says_what_belongs_in_it(layer: str) -> None:
    docstring = ast.get_docstring(ast.parse((PACKAGE / layer / "__init__.py").read_text())) or ""
    sentences = [part for part in docstring.replace("\n", " ").split(". ") if part.strip()]

    assert len(sentences) >= 2, docstring
    assert "belong" in docstring or "decides nothing" in docstring or "is not" in docstring


def test_a_test_file_stays_readable() -> None:
    files = sorted(TESTS.rglob("*.py"))

    assert files
    assert [file for file in files if file.read_text().count("\n") > 700] == []


@pytest.mark.slow
def test_importing_a_package_loads_no_dagster() -> None:
    packages = ", ".join(f"ingestion_pipeline.{layer}" for layer in LAYERS if layer not in MAY_IMPORT_DAGSTER)
    code = f"import sys, {packages}; sys.exit('dagster' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)

    assert done.returncode == 0


@pytest.mark.slow
def test_importing_the_definitions_loads_nothing_heavy() -> None:
    heavy = {"pandas", "pyarrow", "openai", "playwright", "httpx", "feedparser", "alembic"}
    heavy |= {"apprise", "selectolax", "html_to_markdown", "re2"}
    code = f"import sys, ingestion_pipeline.definitions; print(*({heavy!r} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)

    assert done.stdout.split() == []
