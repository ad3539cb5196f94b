"""The scripts behind the Makefile, in a folder of the test's own whose name holds a space."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parent.parent / ".ci"

# Does to signals what `dagster dev` does, and has a run that outlives it.
DAGSTER = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
run = subprocess.Popen(["sleep", "600"])
print(run.pid, flush=True)
signal.pause()
"""
SITE = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a check out"
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (folder / ".ci").symlink_to(CI)
    (folder / "dagster.yaml").touch()
    (programs / "python").symlink_to(sys.executable)
    (programs / "ingest").write_text(SITE)
    (programs / "ingest").chmod(0o700)
    package = folder / "ingestion_pipeline" / "orchestration"
    package.mkdir(parents=True)
    (package / "ui.py").write_text(DAGSTER)
    return folder


def dagster_homes(checkout: Path, **variables: str) -> list[str]:
    line = ["sh", ".ci/with-dagster-home", "sh", "-c", 'echo "$INGESTION_HOME\n$DAGSTER_HOME"']
    environment = os.environ | variables
    process = subprocess.run(line, cwd=checkout, env=environment, capture_output=True, check=True)
    return process.stdout.decode().splitlines()


def is_alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_our_own_dagster_home_gets_our_limits(checkout: Path) -> None:
    result = dagster_homes(checkout, INGESTION_HOME="my home")

    home = checkout / "my home"
    assert result == [str(home), str(home / "dagster")]
    assert (home / "dagster" / "dagster.yaml").resolve() == checkout / "dagster.yaml"
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_configured_dagster_home_is_created_and_otherwise_unchanged(checkout: Path) -> None:
    result = dagster_homes(checkout, DAGSTER_HOME="their home/dagster")

    dagster_home = checkout / "their home" / "dagster"
    assert result == [str(checkout / ".ingestion"), str(dagster_home)]
    assert list(dagster_home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])  # HUP: its terminal was closed
def test_dev_leaves_no_process_behind_when_it_is_stopped(checkout: Path, how: signal.Signals) -> None:
    # By env: a shell cannot trap what it was started to ignore, as `nohup make test` has it.
    line = ["env", "--default-signal", "sh", ".ci/with-dagster-home", "sh", ".ci/dev"]
    with subprocess.Popen(line, cwd=checkout, stdout=subprocess.PIPE, text=True) as dev:
        assert dev.stdout is not None
        run = int(dev.stdout.readline())
        children = Path(f"/proc/{dev.pid}/task/{dev.pid}/children").read_text().split()

        dev.send_signal(how)
        try:
            dev.wait(15)
        finally:
            dev.kill()

    assert len(children) == 2
    assert [pid for pid in (run, *map(int, children)) if is_alive(pid)] == []
    assert dev.returncode == 130


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
