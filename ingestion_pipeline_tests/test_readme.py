"""The documentation is correct: every command works, and every name exists."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from ingestion_pipeline.registry import definition_check
from ingestion_pipeline.settings import setting_fields, variables
from ingestion_pipeline.sources.files import read_file
from ingestion_pipeline_tests.processes import Child, run_command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
TUTORIAL = DOCS / "getting-started.md"
PATIENCE_SECONDS = 600  # for one command
FORKED = {".venv/bin/ingest", ".venv/bin/dagster"}
LANGUAGES = {"sh", "sql", "python", "yaml", "json", "toml", "diff", "mermaid", "nginx", "text", "crontab"}

# Commands of the pages that this module does not run, each with the reason. That make targets exist is checked.
ROOT_NEEDED = "needs root and systemd; the units are checked by deployment/test_files.py and started by `make soak`"
NO_ENGINE = "needs a container engine; deployment/test_files.py validates the files"
NO_CLUSTER = "needs a Kubernetes cluster; deployment/test_files.py validates the files"
HELM = "helm upgrade --install ingestion dagster/dagster --version 1.13.27 -f deploy/helm/values.yaml"
IN_STACK = "needs the PostgreSQL of the production stack; run by deployment/stack.py in `make soak`"
IN_BACKUP = "needs the PostgreSQL of the production stack; run by deployment/test_backup.py in `make soak`"
DUMP = "docker compose -f deploy/compose.yaml exec -T db pg_dump -U ingestion --format=custom"
NOT_RUN = {
    "make install": "takes minutes; CI runs it first",
    "make test-fast": "runs this module",
    "make check": "runs this module",
    "make dev": "a server that does not end; started by orchestration/test_ui.py",
    "useradd --system --create-home --home-dir /var/lib/ingestion ingestion": ROOT_NEEDED,
    "ln -sfn /opt/ingestion_pipeline-RELEASE /opt/ingestion_pipeline && cd /opt/ingestion_pipeline": ROOT_NEEDED,
    "python3.11 -m venv .venv && .venv/bin/pip install -c constraints.txt -e '.[all,celery]'": ROOT_NEEDED,
    "install -D -m 0600 -o ingestion deploy/environment.example /etc/ingestion/environment": ROOT_NEEDED,
    "install -d /etc/ingestion/sources": ROOT_NEEDED,
    "install -d -m 0700 -o ingestion /var/lib/ingestion/dagster": ROOT_NEEDED,
    "ln -s /opt/ingestion_pipeline/deploy/dagster.yaml /var/lib/ingestion/dagster/dagster.yaml": ROOT_NEEDED,
    "cp deploy/systemd/* /etc/systemd/system/ && systemctl daemon-reload": ROOT_NEEDED,
    "systemctl enable ingestion.target ingestion-code ingestion-daemon ingestion-webserver": ROOT_NEEDED,
    "systemctl enable ingestion-worker@1 ingestion-worker@2 ingestion-worker@3 ingestion-worker@4": ROOT_NEEDED,
    "systemctl start ingestion.target": ROOT_NEEDED,
    "systemctl stop ingestion.target": ROOT_NEEDED,
    "systemctl enable --now ingestion-worker@5": ROOT_NEEDED,
    "systemctl disable --now ingestion-worker@5": ROOT_NEEDED,
    "systemctl restart ingestion-daemon": ROOT_NEEDED,
    "systemctl stop 'ingestion-worker@*'": ROOT_NEEDED,
    "systemctl stop ingestion-daemon ingestion-code ingestion-webserver": ROOT_NEEDED,
    "/opt/ingestion_pipeline-NEXT/.venv/bin/ingest init": IN_STACK,
    "/opt/ingestion_pipeline-NEXT/.venv/bin/dagster instance migrate": IN_STACK,
    "ln -sfn /opt/ingestion_pipeline-NEXT /opt/ingestion_pipeline": ROOT_NEEDED,
    "systemctl restart ingestion-code ingestion-daemon ingestion-webserver": ROOT_NEEDED,
    "systemctl restart ingestion-worker@1": ROOT_NEEDED,
    "createuser --pwprompt ingestion && createdb --owner=ingestion ingestion": IN_STACK,
    "createuser --pwprompt dagster && createdb --owner=dagster dagster": IN_STACK,
    "ingest init": IN_STACK,
    "dagster instance migrate": IN_STACK,
    "ingest doctor": IN_STACK,
    "ingest status": IN_STACK,
    "POSTGRES_PASSWORD=... REDIS_PASSWORD=... docker compose -f deploy/compose.yaml up --build --detach"
    " --scale worker=4": NO_ENGINE,
    "docker compose -f deploy/compose.yaml stop worker daemon code webserver": NO_ENGINE,
    f"{DUMP} ingestion > ingestion.dump": NO_ENGINE,
    f"{DUMP} dagster > dagster.dump": NO_ENGINE,
    "docker build -f deploy/Containerfile -t ingestion_pipeline:0.1.0 .": NO_ENGINE,
    "kubectl create secret generic ingestion --from-env-file=environment": NO_CLUSTER,
    "kubectl create configmap ingestion --from-file=sources/": NO_CLUSTER,
    "kubectl apply -f deploy/kubernetes.yaml": NO_CLUSTER,
    "kubectl port-forward service/ingestion-webserver 3000": NO_CLUSTER,
    "kubectl scale deployment ingestion-worker --replicas=5": NO_CLUSTER,
    "kubectl rollout restart deployment ingestion-daemon": NO_CLUSTER,
    "kubectl scale deployment ingestion-worker ingestion-daemon ingestion-code ingestion-webserver --replicas=0": (
        NO_CLUSTER
    ),
    "kubectl delete job ingestion-init": NO_CLUSTER,
    "kubectl create secret generic dagster-postgresql --from-literal=postgresql-password=...": NO_CLUSTER,
    "helm repo add dagster https://dagster-io.github.io/helm": NO_CLUSTER,
    HELM: NO_CLUSTER,
    f"{HELM} -f deploy/helm/celery.yaml": NO_CLUSTER,
    'pg_dump --format=custom --file=ingestion.dump "postgresql:${INGESTION_DATABASE_URL#*:}"': IN_BACKUP,
    'pg_dump --format=custom --file=dagster.dump "postgresql:${DAGSTER_DATABASE_URL#*:}"': IN_BACKUP,
    'cp -a "$INGESTION_HOME" home.copy': IN_BACKUP,
    "createdb --owner=ingestion ingestion": IN_BACKUP,
    "pg_restore --no-owner --role=ingestion --exit-on-error --dbname=ingestion ingestion.dump": IN_BACKUP,
    "createdb --owner=dagster dagster": IN_BACKUP,
    "pg_restore --no-owner --role=dagster --exit-on-error --dbname=dagster dagster.dump": IN_BACKUP,
    'cp -a home.copy "$INGESTION_HOME"': IN_BACKUP,
}

FEED = """<?xml version="1.0"?><rss version="2.0"><channel><title>Mine</title>
<item><title>My series Chapter 7</title><link>https://example.com/7</link><guid>7</guid></item>
</channel></rss>"""
FILE = re.compile(r"# (sources/\S+\.yaml)\n")  # the first line of a block that is a file of the reader's project


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def fences(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block of code."""
    return re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", page.read_text(), re.S | re.M)


def commands(page: Path) -> list[str]:
    lines = [line.strip() for language, text in fences(page) if language == "sh" for line in text.splitlines()]
    return [line for line in lines if line]


def executed(page: Path) -> list[str]:
    """Return the commands that the test of this page runs: the tutorial repeats those of the README."""
    elsewhere = set(commands(TUTORIAL)) if page == README else set()
    return [command for command in commands(page) if command not in NOT_RUN and command not in elsewhere]


def written_files(page: Path) -> dict[str, str]:
    blocks = [text for language, text in fences(page) if language == "yaml"]
    return {match[1]: text for text in blocks if (match := FILE.match(text))}


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.S | re.M)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+(?:-[a-z]+)?):", (ROOT / "Makefile").read_text(), re.M))


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
    """The tutorials say in prose to run it in another terminal."""
    with subprocess.Popen([clone / ".venv/bin/ingest", "demo", "serve"], cwd=clone, stdout=subprocess.PIPE) as site:
        assert site.stdout is not None
        assert site.stdout.readline()  # its address: it serves now
        yield
        site.terminate()


@pytest.mark.slow
@pytest.mark.usefixtures("demo_site")
@pytest.mark.parametrize("page", [*filter(executed, PAGES)], ids=name_of)
def test_every_command_of_the_page_succeeds(page: Path, clone: Path) -> None:
    for path, text in written_files(page).items():
        (clone / path).write_text(text)

    for command in executed(page):
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
    assert "make demo" in commands(README)
    assert len(commands(README)) >= 8
    assert len(commands(TUTORIAL)) >= 10


def test_every_command_that_is_not_run_stands_in_a_page() -> None:
    shown = {command for page in PAGES for command in commands(page)}

    assert NOT_RUN.keys() - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_that_is_run_is_one_of_the_project(page: Path) -> None:
    ours = ("make ", ".venv/bin/", "export DAGSTER_HOME=")

    assert [command for command in executed(page) if not command.startswith(ours)] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_that_is_not_run_holds_no_command(page: Path) -> None:
    """`text` is for output and for the generated examples, which the tests of the CLI run."""
    unknown = {language for language, _ in fences(page)} - LANGUAGES
    has_text = any(language == "text" for language, _ in fences(page))

    assert unknown == set()
    assert not has_text or page.name in {"cli.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_source_file_of_the_page_is_valid(page: Path, tmp_path: Path) -> None:
    blocks = [text for language, text in fences(page) if language == "yaml"]
    problems = []
    for number, text in enumerate(blocks):
        if {"sources", "recipients"} & (yaml.safe_load(text) or {}).keys():
            file = tmp_path / f"{number}.yaml"
            file.write_text(text)
            problems += read_file(file, check=definition_check(tmp_path)).problems

    assert problems == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_in_the_prose_exists(page: Path) -> None:
    """`ingest series merge FROM INTO` names a command, and `--dry-run` beside it one of its options."""
    from ingestion_pipeline.cli.main import every_command, main

    every_command()
    text = " ".join(prose(page).replace("\\|", "|").split())
    lines = [
        re.split(r" (?:> |&& |- )", line)[0] for line in re.findall(r"`(?:\.venv/bin/)?ingest ([a-z][^`]*)`", text)
    ]

    assert [line for line in lines if not is_command(main, re.sub(r"'[^']*'|\"[^\"]*\"", "X", line).split())] == []


def is_command(group: click.Command, words: list[str]) -> bool:
    while isinstance(group, click.Group):
        first, *words = words or [""]
        inner = [group.commands.get(name) for name in first.split("|")]
        if not first:
            return True  # the group itself
        if not all(inner):
            return False
        group = inner[0] or group
        if len(inner) > 1:
            return True  # several commands: `list|show`
    options = {name for parameter in group.params for name in (*parameter.opts, *parameter.secondary_opts)}
    named = {name for word in words for name in re.findall(r"(?<![\w-])--[a-z-]+", word)}
    return named <= options | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"(?:`|^)make ([a-z]+(?:-[a-z]+)?)", page.read_text(), re.M))

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
    assert "mkdocs build --strict" in recipe("check")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_variable_that_is_named_exists(page: Path) -> None:
    named = set(re.findall(r"INGESTION_[A-Z_]+[A-Z]", page.read_text())) - {"INGESTION_GROUP__NAME"}

    assert named <= variables().keys()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    groups = {key.partition(".")[0] for key in setting_fields() if "." in key}
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", prose(page))
    settings = {name for name in named if name.partition(".")[0] in groups} - NOT_SETTINGS

    assert settings <= setting_fields().keys()


# columns, keys of a source's config and entries of the audit log that look like settings
NOT_SETTINGS = {"hosts.next_allowed_at"}


def test_every_variable_without_a_group_is_in_the_readme() -> None:
    plain = {name for name, key in variables().items() if "." not in key}

    assert {name for name in plain if f"`{name}`" not in README.read_text()} == set()


def test_every_job_is_in_the_reference_and_the_other_way_round() -> None:
    from ingestion_pipeline.definitions import defs

    jobs = {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")}
    section = (DOCS / "reference" / "jobs.md").read_text().partition("## Jobs")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([a-z_]+)` \|", section, re.M))

    assert rows == jobs


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", prose(page))

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "features.md"], ids=name_of)
def test_every_module_that_is_named_exists(page: Path) -> None:
    """Those of the features are checked by test_features.py."""
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*\.(?:py|yaml|toml))`", prose(page)))
    folders = (ROOT, ROOT / "ingestion_pipeline", ROOT / "ingestion_pipeline_tests")

    missing = [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert sorted(missing) == []
