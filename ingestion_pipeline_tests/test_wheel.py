"""The wheel is the whole product: installed alone, elsewhere, it runs the demo to its end."""

import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools leaves a `build` folder, and ships its contents."""
    copy = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    target = copy / "dist"
    succeed_with_one_of(
        [BIN / "uv", "build", "-q", "-o", target, copy],  # the wheel from the source distribution
        [BIN / "pip", "wheel", "-q", "--no-deps", "-w", target, copy],
    )
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with only the wheel and its declared dependencies, without any extra."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python, options = folder / "bin/python", ["install", "-q", "-c", ROOT / "constraints.txt"]
    succeed_with_one_of(
        [BIN / "uv", "pip", *options, "--python", python, wheel], [BIN / "pip", "--python", python, *options, wheel]
    )
    return folder


@pytest.mark.slow
def test_the_wheel_ships_every_file_of_the_package(wheel: Path) -> None:
    files = {path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*") if path.is_file()}
    package_files = {str(path) for path in files if "__pycache__" not in path.parts}

    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith(f"{PACKAGE}/")}

    assert shipped == package_files


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_alone(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
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
    report = run("ingest", "demo", "run")

    assert Path(where).is_relative_to(environment)
    assert "pip install 'ingestion_pipeline[ui]'" in refused("dev")
    assert "pip install 'ingestion_pipeline[frames]'" in refused("export", "chapters", "--to", "parquet")
    assert "7 feeds: 6 changed, 1 failed; 80 new releases" in report
    meadow = "SELECT page_count, status FROM extractions WHERE source_id = 'catalog:meadow'"
    with closing(sqlite3.connect(home / "ingestion.db")) as database:
        assert database.execute(meadow).fetchall() == [(18, "COMPLETE")]
        codes = database.execute("SELECT error_code FROM dead_letters").fetchall()
    # what the demo's site breaks on purpose; nothing of ours
    broken = {"decompression_bomb", "login_wall", "needs_browser", "not_a_feed"}
    assert {code for (code,) in codes} == broken
