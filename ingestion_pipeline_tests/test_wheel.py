"""The wheel is the whole product: installed alone, elsewhere, it runs the demo to its end."""

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from ingestion_pipeline_tests.fakes import closed_port
from ingestion_pipeline_tests.polling_runs import wait_until

ROOT = Path(__file__).parent.parent
PACKAGE = "ingestion_pipeline"
BIN = Path(sys.executable).parent
PATIENCE_SECONDS = 600


def run_command(line: Sequence[str | Path], **where: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(line, check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS, **where)


def succeed_with_one_of(*lines: Sequence[str | Path]) -> None:
    """Run the first of the package clients that succeeds; uv may lack the index configured for pip."""
    errors: list[str] = []
    for line in lines:
        if Path(line[0]).exists():
            process = run_command(line)
            if process.returncode == 0:
                return
            errors.append(process.stderr)
    raise AssertionError("\n".join(errors))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what a build reads, links as links: setuptools leaves a `build` folder, and ships its contents."""
    copy = tmp_path_factory.mktemp("source")
    for name in (PACKAGE, "sources"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Return a function that builds the source distribution or the wheel of a folder."""
    backend = tmp_path_factory.mktemp("backend")
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    options = ["install", "-q", "--target", backend, *required]
    succeed_with_one_of([BIN / "uv", "pip", *options, "--python", sys.executable], [BIN / "pip", *options, "--upgrade"])

    def run(form: str, folder: Path) -> Path:
        code = f"from setuptools import build_meta; build_meta.build_{form}('dist')"
        process = run_command([sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(backend)})
        assert process.returncode == 0, process.stderr
        return next(path for path in (folder / "dist").iterdir() if path.suffix in {".gz", ".whl"})

    return run


@pytest.fixture(scope="module")
def source_distribution(build: Callable[[str, Path], Path], checkout: Path) -> Path:
    return build("sdist", checkout)


@pytest.fixture(scope="module")
def wheel(
    build: Callable[[str, Path], Path], source_distribution: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Build from the unpacked source distribution alone."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(source_distribution) as archive:
        archive.extractall(folder, filter="data")
    return build("wheel", next(folder.iterdir()))


def install(package: str, environment: Path) -> None:
    python, options = environment / "bin/python", ["install", "-q", "-c", ROOT / "constraints.txt"]
    succeed_with_one_of(
        [BIN / "uv", "pip", *options, "--python", python, package], [BIN / "pip", "--python", python, *options, package]
    )


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with only the wheel and its declared dependencies, without any extra."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install(str(wheel), folder)
    return folder


def package_files() -> set[str]:
    files = {path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*") if path.is_file()}
    return {str(path) for path in files if "__pycache__" not in path.parts}


@pytest.mark.slow
def test_the_source_distribution_ships_every_file_of_the_package_and_no_link(source_distribution: Path) -> None:
    with tarfile.open(source_distribution) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    shipped = {member.name.partition("/")[2] for member in members}

    assert [member.name for member in members if not member.isreg()] == []
    assert {name for name in shipped if name.startswith(f"{PACKAGE}/")} == package_files()
    assert {"pyproject.toml", "README.md", "LICENSE"} <= shipped


@pytest.mark.slow
def test_the_wheel_ships_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name: archive.read(name) for name in archive.namelist() if name.startswith(f"{PACKAGE}/")}

    assert shipped.keys() == package_files()
    assert [name for name, body in shipped.items() if body != (ROOT / name).read_bytes()] == []


@pytest.mark.slow
def test_the_package_runs_as_a_module(environment: Path, tmp_path: Path) -> None:
    process = run_command([environment / "bin/python", "-m", PACKAGE, "--version"], cwd=tmp_path, env={})

    assert process.stdout == f"ingest, version {version(PACKAGE)}\n"


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_alone(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / f"a home with spaces {'x' * 120}"
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "INGESTION_HOME": str(home)}
    variables |= {"INGESTION_BROWSER": "none"}

    def run(*line: str) -> str:
        program = [environment / "bin" / line[0], *line[1:]]
        process = run_command(program, cwd=tmp_path, env=variables)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def refused(*line: str) -> str:
        process = run_command([environment / "bin/ingest", *line], cwd=tmp_path, env=variables)
        assert process.returncode == 2, process.stdout + process.stderr
        return process.stderr

    where = run("python", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)")
    report, second_report, checks = run("ingest", "demo", "run"), run("ingest", "demo", "run"), run("ingest", "doctor")

    assert Path(where).is_relative_to(environment)
    assert "pip install 'ingestion_pipeline[ui]'" in refused("dev")
    assert "pip install 'ingestion_pipeline[frames]'" in refused("export", "chapters", "--to", "parquet")
    assert "7 feeds: 6 changed, 1 failed; 80 new releases" in report
    assert "nothing changed: 7 feeds, 7 catalogues, 2 job boards, 2 websites" in second_report
    assert " 0 failed" in checks
    assert processes_with(str(home)) == []
    meadow = "SELECT page_count, status FROM extractions WHERE source_id = 'catalog:meadow'"
    with closing(sqlite3.connect(home / "ingestion.db")) as database:
        assert database.execute(meadow).fetchall() == [(18, "COMPLETE")] * 2
        codes = database.execute("SELECT error_code FROM dead_letters").fetchall()
    # what the demo's site breaks on purpose; nothing of ours
    broken = {"decompression_bomb", "login_wall", "needs_browser", "not_a_feed"}
    assert {code for (code,) in codes} == broken


def processes_with(text: str) -> list[str]:
    """Return the processes that have the text in their environment."""
    process_ids: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if text.encode() in (folder / "environ").read_bytes():
                process_ids.append(folder.name)
    return process_ids


# Last: it adds to the environment what the demo has to do without; another one would be compiled for ten seconds.
@pytest.mark.slow
def test_ingest_dev_answers_from_the_wheel_with_the_ui(wheel: Path, environment: Path, tmp_path: Path) -> None:
    install(f"{wheel}[ui]", environment)
    port = closed_port()
    variables = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "INGESTION_HOME": str(tmp_path / "home")}
    log = (tmp_path / "log").open("w+")

    def answers() -> bool:
        assert dev.poll() is None, (tmp_path / "log").read_text()
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/server_info") as answer:
            return "dagster_version" in json.load(answer)
        return False

    line = [environment / "bin/ingest", "dev", "--port", str(port)]
    with log, subprocess.Popen(line, cwd=tmp_path, env=variables, stdout=log, stderr=log) as dev:
        try:
            wait_until(answers, seconds=PATIENCE_SECONDS)
        finally:
            dev.send_signal(signal.SIGTERM)
            dev.wait(60)
