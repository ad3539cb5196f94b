"""`ingest dev`, the Dagster home, and the scripts behind the Makefile, in a folder whose name holds a space."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingestion_pipeline.cli.installation import with_dagster_home

ROOT = Path(__file__).parent.parent
CI = ROOT / ".ci"
BIN = Path(sys.executable).parent

# Does to signals what `dagster dev` does, and has a run that outlives it.
DAGSTER = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
run = subprocess.Popen(["sleep", "600"])
print(run.pid, flush=True)
signal.pause()
"""
SITE = "import time; time.sleep(600)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory whose modules stand for Dagster and the demo's site."""
    folder = tmp_path / "a project"
    package = folder / "ingestion_pipeline" / "orchestration"
    package.mkdir(parents=True)
    for each in (package, package.parent):
        (each / "__init__.py").touch()
    (package / "ui.py").write_text(DAGSTER)
    (package.parent / "__main__.py").write_text(SITE)
    return folder


def is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_our_own_dagster_home_gets_the_limits_of_the_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "dagster.yaml").touch()
    monkeypatch.chdir(folder)

    variables = with_dagster_home({}, Path("my home"))

    home = folder / "my home"
    assert [variables[name] for name in ("INGESTION_HOME", "DAGSTER_HOME")] == [str(home), str(home / "dagster")]
    assert (home / "dagster" / "dagster.yaml").resolve() == folder / "dagster.yaml"
    assert home.stat().st_mode & 0o777 == 0o700


def test_our_own_dagster_home_gets_our_limits_where_the_project_has_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    variables = with_dagster_home({}, folder / "home")

    limits = Path(variables["DAGSTER_HOME"]) / "dagster.yaml"
    assert limits.read_text() == (ROOT / "dagster.yaml").read_text()


def test_a_configured_dagster_home_is_created_and_otherwise_unchanged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "dagster.yaml").touch()
    monkeypatch.chdir(folder)

    variables = with_dagster_home({"DAGSTER_HOME": "their home/dagster"}, Path(".ingestion"))

    dagster_home = folder / "their home" / "dagster"
    assert [variables[name] for name in ("INGESTION_HOME", "DAGSTER_HOME")] == [
        str(folder / ".ingestion"),
        str(dagster_home),
    ]
    assert list(dagster_home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])  # HUP: its terminal was closed
def test_dev_leaves_no_process_behind_when_it_is_stopped(folder: Path, how: signal.Signals) -> None:
    # `sh -c "... &"` has its children ignore INT, as `nohup make test` does.
    line = ["sh", "-c", 'trap "" INT; exec "$0" "$@"', BIN / "ingest", "dev", "--port", "3999"]
    out = subprocess.PIPE
    with subprocess.Popen(line, cwd=folder, stdout=out, stderr=subprocess.STDOUT, text=True) as dev:
        assert dev.stdout is not None
        announced, run = dev.stdout.readline(), int(dev.stdout.readline())
        children = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()

        dev.send_signal(how)
        try:
            dev.wait(15)
        finally:
            dev.kill()

    assert "http://localhost:3999" in announced
    assert len(children) == 2
    assert [pid for pid in (run, *map(int, children)) if is_alive(pid)] == []
    assert dev.returncode == 130


@pytest.mark.parametrize(
    ("packages", "exit_code", "line"),
    [
        ([{"name": "a", "skip_reason": "not on the index"}], 0, "audit skipped: the index here knows no"),
        ([{"name": "a", "version": "1.0", "vulns": []}], 0, "audited 1 of 1 packages: 0 vulnerable"),
        (
            [
                {"name": "a", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1", "2.0"]}]},
                {"name": "b", "skip_reason": "not on the index"},
            ],
            1,
            "a 1.0: PYSEC-1, fixed in 1.1, 2.0\naudited 1 of 2 packages: 1 vulnerable",
        ),
    ],
    ids=["nothing_looked_up", "nothing_found", "a_vulnerable_package"],
)
def test_the_audit_fails_for_a_vulnerable_package_alone(
    tmp_path: Path, packages: list[dict[str, object]], exit_code: int, line: str
) -> None:
    report = tmp_path / "audit.json"
    report.write_text(json.dumps({"dependencies": packages}))

    process = subprocess.run(
        [sys.executable, CI / "audit_report.py", report], capture_output=True, text=True, check=False
    )

    assert (process.returncode, process.stdout.startswith(line)) == (exit_code, True)


def run_system_script(folder: Path, *, uid: int, **variables: str) -> tuple[str, str]:
    """Return the output of `.ci/system` and its apt calls, where only the browser is missing."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("ls", "find", "grep", "cat", "true"):
        real = shutil.which(name)
        assert real is not None
        (programs / name).symlink_to(real)
    apt_calls = folder / "asked"
    fakes = {
        "id": f"echo {uid}",
        "initdb": "",
        "redis-server": "",
        "openssl": "",
        "apt-get": f"echo \"$@\" >> '{apt_calls}'",
    }
    for name, code in fakes.items():
        (programs / name).write_text(f"#!/bin/sh\n{code}\n")
        (programs / name).chmod(0o700)
    font = folder / ".fonts" / "a.ttf"
    font.parent.mkdir()
    font.touch()
    process = subprocess.run(
        ["/bin/sh", CI / "system"],
        env={"PATH": str(programs), "HOME": str(folder), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout + process.stderr, apt_calls.read_text() if apt_calls.exists() else ""


def test_system_installs_the_missing_browser_when_root(tmp_path: Path) -> None:
    output, apt_calls = run_system_script(tmp_path, uid=0)

    assert output == "installing chromium ...\n"
    assert apt_calls == "update -qq\ninstall -y -qq --no-install-recommends chromium\n"


def test_system_only_names_missing_packages_when_not_root(tmp_path: Path) -> None:
    output, apt_calls = run_system_script(tmp_path, uid=1000)

    assert output.startswith("missing: chromium;")
    assert output.endswith("As root: apt-get install chromium\n")
    assert apt_calls == ""


def test_system_accepts_an_installed_browser(tmp_path: Path) -> None:
    assert run_system_script(tmp_path, uid=0, INGESTION_BROWSER="/opt/chrome") == ("", "")
