"""README and docs are correct: every name exists and every command works."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingestion_pipeline.settings import variables
from ingestion_pipeline_tests.processes import Child, run_command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PATIENCE_SECONDS = 600  # for one command
# Long or endless ones; that their targets exist is checked.
NOT_RUN = {"make install", "make test", "make test-fast", "make check", "make bench", "make soak", "make dev"}
FORKED = {".venv/bin/ingest", ".venv/bin/dagster"}

FEED = """<?xml version="1.0"?><rss version="2.0"><channel><title>Mine</title>
<item><title>My series Chapter 7</title><link>https://example.com/7</link><guid>7</guid></item>
</channel></rss>"""


def commands(page: Path) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)
    return [line for block in blocks for line in block.splitlines() if line.strip()]


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, but where everything written is the test's own."""
    for entry in ROOT.iterdir():
        if entry.name not in {".git", ".ingestion", "sources"}:
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "example.yaml").write_bytes((ROOT / "sources" / "example.yaml").read_bytes())
    (tmp_path / "feed.xml").write_text(FEED)
    (tmp_path / "jobs.json").write_text('{"jobs": []}')
    (tmp_path / "page.html").write_text("<title>Mine</title><p>My <a href=/x>page</a>")
    return tmp_path


@pytest.fixture
def demo_site(clone: Path) -> Iterator[None]:
    """The README says in prose to run it in another terminal."""
    site = subprocess.Popen([clone / ".venv/bin/ingest", "demo", "serve"], cwd=clone)
    yield
    site.terminate()
    site.wait(20)


@pytest.mark.slow
@pytest.mark.usefixtures("demo_site")
@pytest.mark.parametrize("page", [*filter(commands, PAGES)], ids=lambda page: page.name)
def test_every_command_of_the_page_succeeds(page: Path, clone: Path) -> None:
    for command in commands(page):
        if command not in NOT_RUN:
            code, message = run_line(command, clone)
            assert code == 0, f"{command}\n{message}"


def run_line(command: str, clone: Path) -> tuple[int, str]:
    """What the line ends with and says; one that needs no shell is a fork (`make demo` and the
    site beside it are the script itself).
    """
    words = shlex.split(command)
    if words[0] in FORKED and not set(command) & set("|<>;&$*~`"):
        process = Child(run_command, str(clone), words).result(within_seconds=PATIENCE_SECONDS)
        return process.code, process.out + process.errors
    process = subprocess.run(
        ["sh", "-c", command],
        cwd=clone,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return process.returncode, process.stdout


def test_the_readme_contains_commands() -> None:
    assert "make demo" in commands(ROOT / "README.md")
    assert len(commands(ROOT / "README.md")) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.M))

    assert named <= make_targets()


def test_every_make_target_of_the_contract_exists() -> None:
    contract = {"demo", "test", "soak", "install", "dev", "check", "bench", "system"}

    assert contract <= make_targets()


def test_checking_writes_no_file_and_formatting_does() -> None:
    def recipe(*targets: str) -> str:
        line = ["make", "--dry-run", "--no-print-directory", *targets]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "ruff format ." in recipe("format")
    assert "ruff format --check ." in recipe("check")
    assert "ruff format ." not in recipe("check")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_variable_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"INGESTION_[A-Z_]+[A-Z]", page.read_text())) - {"INGESTION_GROUP__NAME"}

    assert named <= variables().keys()


def test_every_variable_without_a_group_is_in_the_readme() -> None:
    plain = {name for name, key in variables().items() if "." not in key}

    assert {name for name in plain if f"`{name}`" not in (ROOT / "README.md").read_text()} == set()


def test_every_job_is_in_the_readme_and_the_other_way_round() -> None:
    from ingestion_pipeline.definitions import defs

    jobs = {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", (ROOT / "README.md").read_text(), re.M))

    assert rows == jobs


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []
