"""The files of `deploy/` agree with each other, with the top-level limits, and with the guide."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.settings import load_settings, variables
from ingestion_pipeline_tests.deployment.deploy_files import (
    DEPLOY,
    PROGRAMS,
    ROLES,
    ROOT,
    UNITS,
    example_environment,
    read_unit,
    unit_command,
)

LOCAL = yaml.safe_load((ROOT / "dagster.yaml").read_text())
PRODUCTION = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
KUBERNETES = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["items"]
GUIDE = (ROOT / "docs" / "operating" / "deployment.md").read_text()


def env_references(document: Any) -> set[str]:
    """Return every `env: NAME` of a document."""
    if isinstance(document, dict):
        if set(document) == {"env"}:
            return {document["env"]}
        return {name for value in document.values() for name in env_references(value)}
    if isinstance(document, list):
        return {name for value in document for name in env_references(value)}
    return set()


def test_production_keeps_every_limit_of_the_top_level_file() -> None:
    queue = PRODUCTION["run_coordinator"]["config"]
    runs = LOCAL["concurrency"]["runs"]

    assert queue["tag_concurrency_limits"] == runs["tag_concurrency_limits"]
    assert LOCAL["run_queue"].items() <= queue.items()
    own = LOCAL["run_monitoring"] | {"poll_interval_seconds": PRODUCTION["run_monitoring"]["poll_interval_seconds"]}
    assert own.items() <= PRODUCTION["run_monitoring"].items()
    assert LOCAL["python_logs"] == PRODUCTION["python_logs"]
    assert PRODUCTION["telemetry"] == PRODUCTION["nux"] == {"enabled": False}


@pytest.mark.slow
def test_dagster_accepts_the_file_and_launches_runs_by_celery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dagster._core.instance.config import dagster_instance_config
    from dagster._core.instance.ref import InstanceRef

    for name, value in example_environment().items():
        monkeypatch.setenv(name, value)
    (tmp_path / "dagster.yaml").symlink_to(DEPLOY / "dagster.yaml")
    dagster_instance_config(str(tmp_path))  # raises on an invalid file
    ref = InstanceRef.from_dir(str(tmp_path))

    assert type(ref.run_launcher).__name__ == "CeleryRunLauncher"
    coordinator: Any = ref.run_coordinator
    queue = coordinator.get_run_queue_config()
    assert queue.max_concurrent_runs == 4
    assert len(queue.tag_concurrency_limits) == 2


def test_the_workers_take_one_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in example_environment().items():
        monkeypatch.setenv(name, value)
    celery = runpy.run_path(str(DEPLOY / "dagster_celery_config.py"))

    assert celery["broker_url"] == example_environment()["CELERY_BROKER_URL"]
    assert (celery["worker_prefetch_multiplier"], celery["worker_disable_prefetch"]) == (1, True)
    assert celery["task_acks_late"] is False


def test_the_example_has_every_variable_that_a_file_requires() -> None:
    workspace = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())
    required = env_references(PRODUCTION) | env_references(workspace)
    for unit in ROLES.values():
        required |= set(re.findall(r"\$\{(\w+)\}", read_unit(unit)["ExecStart"]))

    assert required <= example_environment().keys()
    assert required - {"DAGSTER_WEBSERVER_HOST", "DAGSTER_WEBSERVER_PORT"} <= set(COMPOSE["x-ours"]["environment"])


def test_the_example_names_only_existing_settings_with_valid_values() -> None:
    settings = {name: value for name, value in example_environment().items() if name.startswith("INGESTION_")}

    assert settings.keys() <= variables().keys()
    assert load_settings(settings).polling.shards == 2 * int(example_environment()["DAGSTER_MAX_CONCURRENT_RUNS"])


@pytest.mark.parametrize("role", ROLES)
def test_the_containers_run_the_commands_of_the_units(role: str) -> None:
    anywhere = {"DAGSTER_CODE_HOST": "0.0.0.0", "DAGSTER_WEBSERVER_HOST": "0.0.0.0"}
    program, *arguments = unit_command(role, example_environment() | anywhere, instance="compose")

    assert COMPOSE["services"][role]["command"] == [program.removeprefix(PROGRAMS), *arguments]


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_restarts_and_does_not_run_as_root(unit: str) -> None:
    unit_settings = read_unit(unit)

    assert unit in ROLES.values()
    assert (unit_settings["Restart"], unit_settings["User"]) == ("always", "ingestion")
    assert unit_settings["EnvironmentFile"] == "/etc/ingestion/environment"
    assert unit_settings["ExecStart"].startswith(PROGRAMS)
    assert unit_settings["WantedBy"] == unit_settings["PartOf"] == "ingestion.target"


def test_a_stopped_worker_has_time_to_finish_its_run() -> None:
    worker = read_unit(ROLES["worker"])

    assert worker["KillMode"] == "mixed"
    assert int(worker["TimeoutStopSec"]) > load_settings({}).polling.slice_seconds


def instructions() -> list[tuple[str, str]]:
    joined = CONTAINERFILE.replace("\\\n", " ")
    lines = [line for line in joined.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_the_containerfile_follows_the_rules_of_hadolint() -> None:
    """The rules of hadolint that apply: pinned images, small layers, no root, commands as lists."""
    by_word = dict(instructions())
    runs = " ".join(rest for word, rest in instructions() if word == "RUN")

    assert re.search(r":[\w.-]*\d[\w.-]*$", by_word["FROM"])  # DL3006, DL3007
    assert "--no-install-recommends" in runs  # DL3015
    assert "rm -rf /var/lib/apt/lists/*" in runs  # DL3009
    assert "--no-cache-dir" in runs  # DL3042
    assert "sudo" not in runs  # DL3004
    assert by_word["WORKDIR"].startswith("/")  # DL3000
    assert by_word["USER"] not in {"root", "0"}  # DL3002
    assert by_word["CMD"].startswith("[")  # DL3025
    assert by_word["ENTRYPOINT"].startswith("[")
    assert "ADD" not in by_word  # DL3020
    words = {word for word, _ in instructions()}
    assert words <= {*("FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "ENTRYPOINT", "CMD")}


def test_the_compose_file_pins_every_image_and_contains_no_password() -> None:
    images = {service["image"] for service in COMPOSE["services"].values()} - {"ingestion_pipeline"}

    assert all(re.search(r":\d", image) for image in images), images
    text = (DEPLOY / "compose.yaml").read_text()
    assert not re.search(r"PASSWORD: (?!\$\{)", text)
    assert all("${POSTGRES_PASSWORD" in url for url in re.findall(r"postgresql\S*://\S+", text))


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod of each role, with its number of replicas."""
    deployments = [manifest for manifest in KUBERNETES if manifest["kind"] == "Deployment"]
    return {
        deployment["metadata"]["name"].removeprefix("ingestion-"): deployment["spec"]["template"]["spec"]
        | {"replicas": deployment["spec"]["replicas"]}
        for deployment in deployments
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_pods_run_the_commands_of_the_units(role: str) -> None:
    anywhere = {"DAGSTER_CODE_HOST": "0.0.0.0", "DAGSTER_WEBSERVER_HOST": "0.0.0.0"}
    program, *arguments = unit_command(role, example_environment() | anywhere, instance="pod")
    [container] = pods()[role]["containers"]

    assert container["args"] == [program.removeprefix(PROGRAMS), *arguments]
    assert container["envFrom"] == [{"secretRef": {"name": "ingestion"}}]
    assert pods()[role]["securityContext"]["runAsNonRoot"]
    assert pods()[role]["enableServiceLinks"] is False  # INGESTION_CODE_PORT is no setting
    own = re.search(r"--uid (\d+)", CONTAINERFILE)
    assert own is not None
    assert str(pods()[role]["securityContext"]["runAsUser"]) == own[1]


def test_there_is_a_worker_pod_per_run_and_each_has_time_to_finish() -> None:
    worker = pods()["worker"]

    assert str(worker["replicas"]) == example_environment()["DAGSTER_MAX_CONCURRENT_RUNS"]
    assert worker["terminationGracePeriodSeconds"] > load_settings({}).polling.slice_seconds
    assert all(pods()[role]["replicas"] == 1 for role in ROLES if role != "worker")


def test_the_services_point_to_existing_ports_and_pods() -> None:
    services = {
        manifest["metadata"]["name"]: manifest["spec"] for manifest in KUBERNETES if manifest["kind"] == "Service"
    }

    assert services.keys() == {"ingestion-code", "ingestion-webserver"}
    for name, spec in services.items():
        role = name.removeprefix("ingestion-")
        assert spec["selector"] == {"app": name}
        assert str(spec["ports"][0]["port"]) in pods()[role]["containers"][0]["args"]
    [container] = pods()["daemon"]["containers"]
    assert {"name": "DAGSTER_CODE_HOST", "value": "ingestion-code"} in container["env"]


def test_pod_images_are_pinned_to_this_release_and_no_mount_hides_their_files() -> None:
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    for pod in pods().values():
        [container] = pod["containers"]
        assert container["image"] == f"ingestion_pipeline:{version}"
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        home = example_environment()["DAGSTER_HOME"]
        assert not any(home == path or home.startswith(f"{path}/") for path in mounted)


def test_the_guide_names_only_existing_files_units_and_programs() -> None:
    text = GUIDE
    files = set(re.findall(r"\bdeploy/([\w./@-]+\w)", text))
    table = re.findall(r"^\| (`[^|]+`) \|", text.partition("## Set up")[0], re.M)
    files |= {name for cell in table for name in re.findall(r"`([\w./]+)`", cell)}
    units = set(re.findall(r"\b(ingestion-(?:code|daemon|webserver|worker@))", text))

    assert {"dagster.yaml", "kubernetes.yaml", "compose.yaml"} <= files
    assert [name for name in files if not (DEPLOY / name).exists()] == []
    assert units == {unit.removesuffix(".service") for unit in ROLES.values()}
    assert "enable ingestion.target" in text  # else nothing comes back after a boot


@pytest.mark.parametrize("name", ["Containerfile", "compose.yaml", "kubernetes.yaml"])
def test_files_that_were_never_started_are_marked_untested(name: str) -> None:
    [line] = [line for line in GUIDE.splitlines() if line.startswith("| `") and name in line]

    assert "**untested**" in line
