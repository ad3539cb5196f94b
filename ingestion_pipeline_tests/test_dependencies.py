"""What the code imports is declared in pyproject.toml; private modules that it uses are listed with their release."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ingestion_pipeline.settings import setting_fields

ROOT = Path(__file__).parent.parent
PRODUCT = "ingestion_pipeline"
STANDARD = {*sys.stdlib_module_names, "compression"}  # the last one from Python 3.14 on
OURS = {PRODUCT, "ingestion_pipeline_tests", "benchmarks", "tools"}
installed_packages = cache(packages_distributions)  # a second each time
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME_EXTRAS = ("browser", "dlt", "frames", "identity", "lake", "mcp", "notify", "plots", "ui")
GUARDED = {"orchestration/ui.py": {"starlette"}}  # a program of its own, which `ingest dev` starts if `ui` is installed
OTHERS_ENVIRONMENT = {"crawl4ai"}  # a peer that benchmarks/crawl.py installs apart

# Modules of the inside of other packages, with the release for which they were read. Another
# release may move them: look at each use, then write the new number.
PRIVATE_MODULES: Mapping[str, str] = {"dagster": "1.13.27", "html-to-markdown": "3.19.0", "aiohttp": "3.14"}


class Import(NamedTuple):
    """A module that a file imports; `is_lazy` if only a function does."""

    file: str
    module: str
    is_lazy: bool

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


@cache
def imports_of(folder: str) -> Sequence[Import]:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files, folder
    return [
        Import(file.relative_to(ROOT / folder).as_posix(), module, is_lazy)
        for file in files
        for module, is_lazy in modules_in(ast.parse(file.read_text()))
    ]


def modules_in(node: ast.AST, *, is_lazy: bool = False) -> Iterator[tuple[str, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, is_lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None and child.level == 0:
            yield child.module, is_lazy
        is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from modules_in(child, is_lazy=is_lazy or is_function or is_typing)


def declared(*extras: str) -> set[str]:
    """Return the normalized names that the base and these extras require."""
    lines = [*PROJECT["dependencies"]]
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(line).name) for line in lines}


def undeclared(found: Sequence[Import], *extras: str) -> set[str]:
    providers, names = installed_packages(), declared(*extras)
    packages = {each.package for each in found} - STANDARD - OURS - OTHERS_ENVIRONMENT
    return {
        package
        for package in packages
        if not names & {canonicalize_name(name) for name in (*providers.get(package, ()), package)}
    }


def test_the_base_install_provides_what_the_product_imports_at_once() -> None:
    found = [each for each in imports_of(PRODUCT) if not each.is_lazy]
    found = [each for each in found if each.package not in GUARDED.get(each.file, ())]

    assert undeclared(found) == set()


def test_the_extras_provide_what_functions_of_the_product_import() -> None:
    assert undeclared(imports_of(PRODUCT), *RUNTIME_EXTRAS) == set()


@pytest.mark.parametrize(
    ("folder", "extras"),
    [("ingestion_pipeline_tests", ("dev", "celery")), ("tools", ("dev",)), ("benchmarks", ("dev", "bench"))],
)
def test_the_development_extras_provide_what_tests_and_benchmarks_import(folder: str, extras: tuple[str, ...]) -> None:
    assert undeclared(imports_of(folder), *RUNTIME_EXTRAS, *extras) == set()


def test_an_import_that_nothing_declares_is_found() -> None:
    assert undeclared([Import("x.py", "trafilatura.core", is_lazy=True)], *RUNTIME_EXTRAS) == {"trafilatura"}


def test_private_modules_of_other_packages_are_listed_with_the_release_that_has_them() -> None:
    found = [each for folder in sorted(OURS) for each in imports_of(folder)]
    private = [each for each in found if each.package not in OURS | STANDARD]
    packages = {each.package for each in private if "._" in each.module}

    assert {name.replace("_", "-") for name in packages} <= PRIVATE_MODULES.keys()
    assert [name for name, release in PRIVATE_MODULES.items() if not version(name).startswith(release)] == []


def test_no_message_of_the_product_names_a_file_of_a_checkout() -> None:
    names = ("`make ", ".venv", "constraints.txt", "pip install -e")
    texts = [
        (file.name, node.value)
        for file in sorted((ROOT / PRODUCT).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert [entry for entry in texts if any(name in entry[1] for name in names)] == []


def test_the_default_user_agent_is_our_name_and_release_and_nobody_elses_site() -> None:
    name, _, release = str(setting_fields()["user_agent"][0]).partition("/")

    assert (name, PROJECT["version"].startswith(f"{release}.")) == (PRODUCT, True)
